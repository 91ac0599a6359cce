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
    testkit::need_root("it mounts");
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
    testkit::need_root("it mounts");
    let json = std::env::temp_dir().join(format!("strata-bench-references-{}.json", std::process::id()));
    let mut command = bench(&["--quick", "--only", "chmod", "--json", json.to_str().unwrap()]);
    assert!(command.status().unwrap().success());
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    std::fs::remove_file(&json).unwrap();
    assert_eq!(report["references"].as_array().unwrap().len(), 0);
}

#[test]
fn the_floor_is_measured_with_a_server_that_replies_from_memory() {
    testkit::need_root("it mounts");
    let program = strata();
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

/// Returns the program next to this one, for the tests that need a union.
fn strata() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_strata-bench")).with_file_name("strata");
    assert!(program.is_file(), "{} is not built: cargo build -p cli", program.display());
    program
}

/// A directory for the files of a run, removed when dropped.
struct Output(PathBuf);

impl Output {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("strata-bench-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Runs `--branches --quick` with these arguments, and returns its report.
    fn of(&self, arguments: &[&str]) -> Value {
        let json = self.0.join("report.json");
        let mut command = Command::new(env!("CARGO_BIN_EXE_strata-bench"));
        command.args(["--branches", "--quick", "--contenders", "native,overlayfs,unionfs"]).args(arguments);
        command.arg("--unionfs").arg(strata()).arg("--json").arg(&json).arg("--figures").arg(&self.0);
        assert!(command.stdout(Stdio::null()).status().unwrap().success());
        serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap()
    }

    /// Puts [`STAND_IN`] into this directory, as the cache of the peers.
    fn stand_in_for_postmark(&self) {
        use std::os::unix::fs::PermissionsExt;
        let program = self.0.join("peers/usr/bin/postmark");
        std::fs::create_dir_all(program.parent().unwrap()).unwrap();
        std::fs::write(&program, STAND_IN).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Puts small archives in the place of the releases: a file that changes each time, one that
    /// does not, and one that changes once.
    fn stand_in_for_releases(&self) {
        let (tree, to) = (self.0.join("package"), self.0.join("releases"));
        std::fs::create_dir_all(tree.join("lib")).unwrap();
        std::fs::create_dir(&to).unwrap();
        let list = include_str!("../data/releases.sha256");
        for (n, line) in list.lines().take(12).enumerate() {
            std::fs::write(tree.join("version"), format!("release {n}\n").repeat(1000)).unwrap();
            std::fs::write(tree.join("lib/same"), "the same").unwrap();
            std::fs::write(tree.join("lib/once"), format!("{}", n / 6)).unwrap();
            let archive = to.join(line.split_whitespace().nth(1).unwrap());
            let mut tar = Command::new("tar");
            tar.arg("-czf").arg(archive).arg("-C").arg(&self.0).arg("package");
            assert!(tar.status().unwrap().success());
        }
    }

    /// Fails if a figure is not well-formed XML.
    fn parse(&self, figure: &str) {
        let parse = "import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])";
        let status = Command::new("python3").args(["-c", parse]).arg(self.0.join(figure)).status().unwrap();
        assert!(status.success(), "{figure}");
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn unions_of_several_branches_are_measured_in_every_state() {
    testkit::need_root("it mounts");
    let output = Output::new("micro");
    let report = output.of(&["--experiments", "micro"]);
    let samples = report["microbenchmarks"].as_array().unwrap();
    // STAT and READDIR in three states, UNLINK in two; the two other unions remove only.
    assert_eq!(samples.len(), 2 * (3 * (3 + 3 + 2) + 2 * 2), "two distributions");
    for sample in samples {
        assert_eq!(sample["error"], Value::Null, "{sample}");
        assert!(sample["microseconds"].as_f64().unwrap() > 0.0, "{sample}");
        if sample["entrant"] != "unionfs" {
            continue;
        }
        let sent =
            |opcodes: &[&str]| opcodes.iter().filter_map(|opcode| sample["requests"][opcode].as_u64()).sum::<u64>();
        let (lookups, listings) = (sent(&["LOOKUP"]), sent(&["READDIR", "READDIRPLUS"]));
        match (sample["action"].as_str().unwrap(), sample["state"].as_str().unwrap()) {
            // One for each file of the four directories.
            ("STAT", "cold" | "union") => assert!(lookups >= 4 * 32, "{sample}"),
            ("READDIR", "cold" | "union") => assert!(listings >= 4, "{sample}"),
            // Five passes; the kernel may have dropped its caches once.
            ("STAT", _) => assert!(lookups < 2 * 4 * 33, "{sample}"),
            ("READDIR", _) => assert!(listings < 5 * 4, "{sample}"),
            _ => assert_eq!(sent(&["UNLINK", "RMDIR"]), 2 * 33, "{sample}"),
        }
    }
    for figure in ["many-branches-stat.svg", "many-branches-readdir.svg", "many-branches-unlink.svg"] {
        output.parse(figure);
    }
}

/// Takes Postmark's place: creates and removes files in each location.
const STAND_IN: &str = "#!/bin/sh
for dir in $(sed -n 's/^set location +*//p' \"$1\"); do
	for i in $(seq 50); do echo text >\"$dir/f$i\"; done
	sleep 0.5
	rm \"$dir\"/f*
	rmdir \"$dir\"
done
echo '1 seconds of transactions'
";

#[test]
fn programs_run_over_several_branches_and_while_snapshots_are_taken() {
    testkit::need_root("it mounts");
    let output = Output::new("programs");
    output.stand_in_for_postmark();
    let report = output.of(&["--experiments", "postmark,snapshots", "--cache", output.0.to_str().unwrap()]);
    assert_eq!(values(&report, "programs", "entrant"), ["native", "unionfs", "unionfs-all"]);
    assert_eq!(values(&report, "snapshots", "planned"), [0, 0, 2]);
    for run in ["programs", "snapshots"].iter().flat_map(|rows| report[rows].as_array().unwrap()) {
        assert_eq!(run["error"], Value::Null, "{run}");
        assert!(run["run"]["seconds"].as_f64().unwrap() > 0.0, "{run}");
    }
    let last = &report["snapshots"][2];
    let taken = last["run"]["snapshot_seconds"].as_array().unwrap();
    // On a busy machine, the run that determines the interval may take much longer than this one.
    let is_short = last["run"]["seconds"].as_f64().unwrap() < 2.0 * last["interval_seconds"].as_f64().unwrap();
    assert!(!taken.is_empty() || is_short, "{report}");
    output.parse("many-branches-workloads.svg");
}

#[test]
fn keeping_versions_is_measured_and_missing_policies_are_reported() {
    testkit::need_root("it mounts");
    let output = Output::new("versions");
    output.stand_in_for_postmark();
    output.stand_in_for_releases();
    let (program, json) = (strata(), output.0.join("report.json"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata-bench"));
    command.args(["--versions", "--quick", "--parts", "postmark,copy,recover"]).arg("--cache").arg(&output.0);
    command.arg("--wrapfs").arg(&program).arg("--versionfs").arg(&program);
    command.arg("--json").arg(&json).arg("--figures").arg(&output.0).stdout(Stdio::null());
    assert!(command.status().unwrap().success());
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let names = |rows: &str| values(&report, rows, "name").into_iter().filter_map(Value::as_str).collect::<Vec<_>>();
    let (present, absent) = (names("entrants"), names("absent"));
    assert_eq!(present[..2], ["native", "null layer"]);
    for policy in ["full", "compress", "sparse", "sparse-compress", "delta", "blocks", "text"] {
        assert_ne!(present.contains(&policy), absent.contains(&policy), "{policy}: {report}");
    }
    for rows in ["programs", "recoveries"] {
        for row in report[rows].as_array().unwrap() {
            assert_eq!(row["error"], Value::Null, "{row}");
        }
        // Without the commands, the versions of this build can't be recovered.
        for name in &present {
            assert!(values(&report, rows, "entrant").iter().any(|entrant| entrant == name), "{name}: {report}");
        }
    }
    // Eleven versions of one file and one of another, whatever stores them.
    let recovered = report["recoveries"].as_array().unwrap().iter().filter(|row| row["what"] == "recover");
    assert!(recovered.clone().count() >= 2 && recovered.clone().all(|row| row["operations"] == 12), "{report}");
    for figure in ["versions-postmark.svg", "versions-copy.svg", "versions-recover.svg"] {
        output.parse(figure);
    }
}

#[test]
fn only_selected_operations_are_measured() {
    testkit::need_root("it mounts");
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
    testkit::need_root("it mounts");
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata-bench"));
    command.args(["--quick", "--only", "chmod", "--contenders", "unionfs", "--unionfs", "/nonexistent"]);
    let output = command.output().unwrap();
    assert!(output.status.success());
    let output = String::from_utf8(output.stderr).unwrap();
    assert!(output.contains("unionfs: skipped: /nonexistent does not exist"), "{output}");
}

#[test]
fn an_interrupted_run_cleans_up() {
    testkit::need_root("it mounts");
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

/// Runs `--encryption --quick` with these arguments, and returns its report.
fn encryption(output: &Output, arguments: &[&str]) -> Value {
    let (program, json) = (strata(), output.0.join("report.json"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata-bench"));
    command.args(["--encryption", "--quick"]).args(arguments).arg("--cache").arg(&output.0);
    command.arg("--wrapfs").arg(&program).arg("--cryptfs").arg(&program);
    command.arg("--json").arg(&json).arg("--figures").arg(&output.0).stdout(Stdio::null());
    assert!(command.status().unwrap().success());
    serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap()
}

#[test]
fn encryption_is_measured_with_both_kinds_of_keys() {
    testkit::need_root("it mounts");
    let output = Output::new("encryption");
    output.stand_in_for_releases();
    let report = encryption(&output, &["--encryption-contenders", "null,mount,session"]);
    let entrants = ["native", "null layer", "cryptfs, key=mount", "cryptfs, key=session"];
    assert_eq!(values(&report, "entrants", "name"), entrants, "{report}");
    assert_eq!(report["failures"].as_array().unwrap().len(), 0, "{report}");
    assert_eq!(report["tree"]["files"], 6, "{report}");
    let steps: BTreeSet<_> = values(&report, "samples", "step").into_iter().map(Value::to_string).collect();
    assert_eq!(steps.len(), 15, "all but the build");
    assert_eq!(values(&report, "samples", "entrant").len(), steps.len() * entrants.len(), "{report}");
    for sample in report["samples"].as_array().unwrap() {
        assert!(sample["seconds"].as_f64().unwrap() > 0.0, "{sample}");
    }
    for figure in ["write", "read", "unpack", "walk"] {
        output.parse(&format!("encryption-{figure}.svg"));
    }
}

#[test]
fn a_part_that_fails_is_reported_with_the_steps_before_it() {
    testkit::need_root("it mounts");
    let output = Output::new("encryption-failure");
    // Without the source of OpenSSH.
    let report =
        encryption(&output, &["--encryption-contenders", "native,encfs", "--encryption-parts", "random,build"]);
    let failures = report["failures"].as_array().unwrap();
    assert!(failures.iter().any(|failure| failure["entrant"] == "native" && failure["part"] == "build"), "{report}");
    assert!(failures.iter().all(|failure| failure["part"] == "build"), "{report}");
    let native = report["samples"].as_array().unwrap().iter().filter(|sample| sample["entrant"] == "native");
    assert_eq!(native.map(|sample| &sample["step"]).collect::<Vec<_>>(), ["random-read", "random-write"]);
}
