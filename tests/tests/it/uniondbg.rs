//! `uniondbg` on a mounted union: log levels, latency, the state of a path, revalidation.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::Value;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use strata_tests::process::{run, try_run};
use strata_tests::user::{USER, as_user};
use strata_tests::{Fixture, Mounted, Sandbox, Spec, Transport, on_both_transports};

fn fixture(transport: Transport) -> Fixture {
    Fixture::new(transport, |ro| {
        fs::create_dir_all(ro.join("dir/inner")).unwrap();
        fs::write(ro.join("dir/file"), "text").unwrap();
        fs::write(ro.join("gone"), "").unwrap();
    })
}

/// Runs `uniondbg` on the union; returns its exit status and output.
fn uniondbg(fx: &Fixture, words: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(Mounted::program().unwrap());
    let output = try_run(command.arg0("uniondbg").arg(fx.path("")).args(words));
    (output.status.code(), output.text)
}

fn ok(fx: &Fixture, words: &[&str]) -> String {
    let (code, text) = uniondbg(fx, words);
    assert_eq!(code, Some(0), "{words:?}: {text}");
    text
}

fn json(fx: &Fixture, words: &[&str]) -> Value {
    serde_json::from_str(&ok(fx, &[words, &["--json"]].concat())).unwrap()
}

fn levels_are_set_per_component(transport: Transport) {
    let fx = fixture(transport);
    ok(&fx, &["--log", "warn"]);
    assert_eq!(ok(&fx, &[]), "log level: warn\n");
    ok(&fx, &["--log", "fuse=trace", "--log", "copyup=debug"]);
    assert_eq!(ok(&fx, &[]), "log level: warn\n  fuse: trace\n  unionfs::copyup: debug\n");
    fs::read(fx.path("dir/file")).unwrap();
    assert!(fx.union.log_text().contains("LOOKUP node"), "{}", fx.union.log_text());
    ok(&fx, &["--log", "fuse=default", "--log", "unionfs::copyup=default"]);
    assert_eq!(json(&fx, &[]), serde_json::json!({ "level": "warn" }));
    let before = fx.union.log_text().matches("LOOKUP").count();
    let _ = fs::metadata(fx.path("dir/missing"));
    assert_eq!(fx.union.log_text().matches("LOOKUP").count(), before);
    assert_eq!(uniondbg(&fx, &["--log", "nothing=loud"]).0, Some(1));
}
fn latency_is_measured_on_request(transport: Transport) {
    let fx = fixture(transport);
    let (code, text) = uniondbg(&fx, &["--histograms"]);
    assert!(code == Some(1) && text.contains("--start"), "{text}");
    ok(&fx, &["--start"]);
    for n in 0..200 {
        let _ = fs::metadata(fx.path("dir").join(format!("missing-{n}")));
    }
    let report = json(&fx, &["--histograms"]);
    assert_eq!(report["measuring"], true);
    let lookup = &report["operations"]["LOOKUP"];
    let sum: u64 = lookup["buckets"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum();
    assert!(sum >= 200 && lookup["count"] == sum, "{report}");
    assert!(lookup["longest"].as_u64().unwrap() <= lookup["total"].as_u64().unwrap(), "{report}");
    let drawn = ok(&fx, &["--histograms"]);
    assert!(drawn.contains("\nLOOKUP  ") && drawn.contains("#"), "{drawn}");
    ok(&fx, &["--stop"]);
    let stopped = json(&fx, &["--histograms"]);
    let _ = fs::metadata(fx.path("dir/another"));
    assert_eq!(json(&fx, &["--histograms"]), stopped);
    assert_eq!(stopped["measuring"], false);
    ok(&fx, &["--start"]);
    let again = json(&fx, &["--histograms"]);
    assert!(again["operations"]["LOOKUP"]["count"].as_u64().unwrap_or(0) < 200, "{again}");
    assert!(ok(&fx, &["--counters"]).contains("LOOKUP"));
}
fn the_state_of_a_path_names_marks_and_redirects(transport: Transport) {
    let fx = fixture(transport);
    let state = |name: &str| json(&fx, &["--state", fx.path(name).to_str().unwrap()]);
    let file = state("dir/file");
    let ino = fs::metadata(fx.path("dir/file")).unwrap().ino();
    assert_eq!((&file["number"], &file["branches"][1]["object"]["kind"]), (&ino.into(), &"file".into()));
    assert_eq!(file["branches"][0]["object"], Value::Null);
    fs::write(fx.path("dir/file"), "changed").unwrap();
    let file = state("dir/file");
    assert_eq!(file["branches"][0]["object"]["alias"], ino);
    fs::rename(fx.path("dir"), fx.path("moved")).unwrap();
    let moved = state("moved");
    assert_eq!(moved["branches"][0]["object"]["redirect"], "/dir", "{moved}");
    assert_eq!(moved["branches"][0]["object"]["opaque"], false);
    assert_eq!(moved["branches"][1]["at"], "/dir");
    let text = ok(&fx, &["--state", fx.path("moved").to_str().unwrap()]);
    assert!(text.contains("redirect"), "{text}");
    assert_eq!(uniondbg(&fx, &["--state", "/"]).0, Some(1));
}
/// With a long `cache=`, a file that is created on a branch appears late, or after `--revalidate`.
fn revalidation_shows_changes_of_branches(transport: Transport) {
    let sandbox = Sandbox::new();
    let (rw, ro) = (sandbox.ext4("rw", 64).join("branch"), sandbox.ext4("ro", 64).join("branch"));
    fs::create_dir_all(rw.join("dir")).unwrap();
    fs::create_dir_all(ro.join("dir")).unwrap();
    fs::write(ro.join("dir/file"), "text").unwrap();
    let union = Mounted::with_options(Spec::union(&rw, &ro, transport), &sandbox.path("u"), "cache=600,watch=off");
    let mut open = File::open(union.path("dir/file")).unwrap();
    assert!(fs::metadata(union.path("dir/new")).is_err());
    fs::write(rw.join("dir/new"), "out of band").unwrap();
    // Longer than the union and the branch's layer remember anything.
    std::thread::sleep(Duration::from_millis(1500));
    assert!(fs::metadata(union.path("dir/new")).is_err(), "the kernel does not cache missing names");
    let output =
        try_run(Command::new(Mounted::program().unwrap()).arg0("uniondbg").arg(union.dir()).args(["--revalidate"]));
    assert_eq!(output.status.code(), Some(0), "{}", output.text);
    testkit::until_within(Duration::from_secs(10), "the name is revalidated", || {
        testkit::seen(fs::read_to_string(union.path("dir/new")).ok(), |text| text.as_deref() == Some("out of band"))
    });
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "text");
    fs::write(union.path("dir/file"), "still writable").unwrap();
    assert_eq!(fs::read_to_string(rw.join("dir/file")).unwrap(), "still writable");
}
fn only_the_owner_may_debug(transport: Transport) {
    let fx = fixture(transport);
    let program = fx.sandbox.path("strata");
    fs::copy(Mounted::program().unwrap(), &program).unwrap();
    let dir = fx.path("dir");
    for words in
        [&["--log", "trace"][..], &["--start"], &["--stop"], &["--revalidate"], &["--state", dir.to_str().unwrap()]]
    {
        let output = as_user(USER, || try_run(Command::new(&program).arg0("uniondbg").arg(&dir).args(words)));
        assert!(output.status.code() == Some(1) && output.text.contains("only root"), "{words:?}: {}", output.text);
    }
    let output = as_user(USER, || try_run(Command::new(&program).arg0("uniondbg").arg(&dir)));
    assert_eq!(output.status.code(), Some(0), "{}", output.text);
    // From another mount namespace.
    let line = format!("exec -a uniondbg {} {} --log debug", program.display(), dir.display());
    run(Command::new("unshare").args(["-m", "bash", "-c", &line]));
    assert_eq!(ok(&fx, &[]), "log level: debug\n");
    assert_eq!(
        try_run(Command::new(&program).arg0("uniondbg").arg(Path::new("/")).arg("--start")).status.code(),
        Some(32)
    );
}

on_both_transports!(
    levels_are_set_per_component,
    latency_is_measured_on_request,
    the_state_of_a_path_names_marks_and_redirects,
    revalidation_shows_changes_of_branches,
    only_the_owner_may_debug,
);
