//! Smoke tests of the benchmark: it measures everything that it lists, and cleans up. The tests do
//! not check times.

// A failed helper fails its test.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata-bench"));
    command.args(["--contenders", "native,overlayfs"]).args(arguments).stdout(Stdio::null());
    command
}

/// The benchmark mounts file systems, so these tests need root.
fn is_root() -> bool {
    let root = rustix::process::getuid().is_root();
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

fn directory_of(child: &Child) -> PathBuf {
    Path::new("/run").join(format!("strata-bench-{}", child.id()))
}

/// Returns the loop devices whose images are below that directory.
fn loop_devices(directory: &Path) -> Vec<PathBuf> {
    let is_below = |device: &PathBuf| {
        let image = std::fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
        Path::new(image.trim()).starts_with(directory)
    };
    std::fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path()).filter(is_below).collect()
}

/// Returns the values of a field in the rows of a report.
fn values<'a>(report: &'a Value, rows: &str, field: &str) -> Vec<&'a Value> {
    report[rows].as_array().unwrap().iter().map(|row| &row[field]).collect()
}

#[test]
fn a_quick_run_has_every_row_and_cleans_up() {
    if !is_root() {
        return;
    }
    let json = std::env::temp_dir().join(format!("strata-bench-smoke-{}.json", std::process::id()));
    let svg = json.with_extension("svg");
    let mut command = bench(&["--quick", "--json", json.to_str().unwrap(), "--svg", svg.to_str().unwrap()]);
    let mut child = command.spawn().unwrap();
    let directory = directory_of(&child);
    assert!(child.wait().unwrap().success());
    assert!(!directory.exists());
    assert_eq!(loop_devices(&directory), Vec::<PathBuf>::new());

    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let drawn = std::fs::read_to_string(&svg).unwrap();
    std::fs::remove_file(&json).unwrap();
    std::fs::remove_file(&svg).unwrap();

    let operations: BTreeSet<_> = values(&report, "rows", "operation").into_iter().map(Value::to_string).collect();
    assert_eq!(operations.len(), 22);
    assert_eq!(values(&report, "rows", "rates").len(), 22 * 2 * 2, "two contenders, one and two workers");
    for row in report["rows"].as_array().unwrap() {
        assert_eq!(row["error"], Value::Null, "{row}");
        assert_eq!(row["rates"].as_array().unwrap().len(), 1, "{row}");
        assert!(row["ratio"]["median"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert!(drawn.contains("overlayfs") && drawn.ends_with("</svg>\n"));
}

#[test]
fn without_a_strata_server_no_reference_is_measured() {
    if !is_root() {
        return;
    }
    let json = std::env::temp_dir().join(format!("strata-bench-references-{}.json", std::process::id()));
    let mut command = bench(&["--quick", "--only", "chmod", "--json", json.to_str().unwrap()]);
    assert!(command.status().unwrap().success());
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    std::fs::remove_file(&json).unwrap();
    assert_eq!(report["references"].as_array().unwrap().len(), 0);
}

#[test]
fn the_floor_is_measured_with_a_server_that_replies_from_memory() {
    if !is_root() {
        return;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_strata-bench")).with_file_name("strata");
    assert!(program.is_file(), "{} is not built: cargo build -p cli", program.display());
    let json = std::env::temp_dir().join(format!("strata-bench-floor-{}.json", std::process::id()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata-bench"));
    command.args(["--quick", "--only", "getattr-forced,chmod", "--threads", "1,2"]);
    command.args(["--contenders", "wrapfs,wrapfs-device", "--wrapfs", program.to_str().unwrap()]);
    command.args(["--json", json.to_str().unwrap()]).stdout(Stdio::null());
    assert!(command.status().unwrap().success());
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    std::fs::remove_file(&json).unwrap();

    let references = report["references"].as_array().unwrap();
    assert_eq!(references.len(), 2 * 2, "two transports, one and two workers");
    for reference in references {
        for time in ["pipe_microseconds", "native_microseconds", "nullping_microseconds"] {
            assert!(reference[time].as_f64().unwrap() > 0.0, "{reference}");
        }
    }
    for row in report["rows"].as_array().unwrap() {
        assert_eq!(row["error"], Value::Null, "{row}");
        if row["contender"] == "native" {
            assert_eq!(row["floor"], Value::Null, "{row}");
            continue;
        }
        // The kernel must send one request in both cases; the server counts it.
        let request = if row["operation"] == "chmod" { "SETATTR" } else { "GETATTR" };
        assert_eq!(row["requests"][request].as_f64(), Some(1.0), "{row}");
        for figure in
            ["round_trip_microseconds", "microseconds", "distance", "pipe_round_trips", "floor_pipe_round_trips"]
        {
            assert!(row["floor"][figure].as_f64().is_some(), "{row}");
        }
    }
}

#[test]
fn only_selected_operations_are_measured() {
    if !is_root() {
        return;
    }
    let json = std::env::temp_dir().join(format!("strata-bench-only-{}.json", std::process::id()));
    let mut command =
        bench(&["--quick", "--only", "create,unlink", "--threads", "1", "--json", json.to_str().unwrap()]);
    assert!(command.status().unwrap().success());
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    std::fs::remove_file(&json).unwrap();
    assert_eq!(values(&report, "rows", "operation"), ["create", "create", "unlink", "unlink"]);
    assert_eq!(values(&report, "rows", "contender"), ["native", "overlayfs", "native", "overlayfs"]);
}

#[test]
fn a_missing_contender_is_reported_and_skipped() {
    if !is_root() {
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata-bench"));
    command.args(["--quick", "--only", "chmod", "--contenders", "unionfs", "--unionfs", "/nonexistent"]);
    let output = command.output().unwrap();
    assert!(output.status.success());
    let output = String::from_utf8(output.stderr).unwrap();
    assert!(output.contains("unionfs: skipped: /nonexistent does not exist"), "{output}");
}

#[test]
fn an_interrupted_run_cleans_up() {
    if !is_root() {
        return;
    }
    // So many repetitions that it still runs when the signal arrives.
    let mut child = bench(&["--reps", "100000", "--files", "40", "--large-mib", "1"]).spawn().unwrap();
    let directory = directory_of(&child);
    // Once its loop device exists, it is measuring.
    while loop_devices(&directory).is_empty() {
        assert_eq!(child.try_wait().unwrap(), None, "it exited early");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!directory.exists());
    // A loop device releases its image shortly after its last user ends.
    while !loop_devices(&directory).is_empty() {
        std::thread::yield_now();
    }
}
