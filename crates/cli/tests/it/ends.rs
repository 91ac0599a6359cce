//! The end of a mount, on every path: layers report what is left, and plugins are closed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use strata_tests::Sandbox;
use strata_tests::process::await_end;

const PROGRAM: &str = env!("CARGO_BIN_EXE_strata");
const LOG: &str = "/mnt/log";

fn run(program: &str, words: &[&str]) -> String {
    let outcome = testkit::outcome(Command::new(program).args(words));
    assert_eq!((outcome.code, outcome.err.as_str()), (0, ""), "{program} {words:?}");
    outcome.out
}

/// A sandbox with a file that only root may read, below `/mnt/data`, and a mount point `/mnt/at`.
fn stage() -> Sandbox {
    let sandbox = Sandbox::new();
    let closed = sandbox.dir("data").join("closed");
    fs::write(&closed, "secret").unwrap();
    fs::set_permissions(&closed, PermissionsExt::from_mode(0o600)).unwrap();
    fs::set_permissions("/mnt/data", PermissionsExt::from_mode(0o755)).unwrap();
    fs::create_dir(sandbox.path("at")).unwrap();
    sandbox
}

/// Mounts a stack with snoopfs, and causes five warnings, of which it logs one.
fn mount_and_snoop(stack: &str) -> u64 {
    let _ = fs::remove_file(LOG);
    run(PROGRAM, &["mount", stack, "/mnt/at", "-o", "logfile=/mnt/log"]);
    for _ in 0..5 {
        assert_eq!(testkit::outcome(Command::new("cat").arg("/mnt/at/closed").uid(1002).gid(1002)).code, 1);
    }
    let answer = run(PROGRAM, &["stack", "--json", "/mnt/at"]);
    serde_json::from_str::<serde_json::Value>(&answer).unwrap()["pid"].as_u64().unwrap()
}

fn suppressed() -> bool {
    let log = fs::read_to_string(LOG).unwrap();
    assert_eq!(log.matches("permission denied").count(), 1, "{log}");
    assert!(log.contains("uid=1002: ") && log.contains(" more warnings were not logged"), "{log}");
    true
}

#[test]
fn suppressed_warnings_are_reported_at_every_end() {
    let _sandbox = stage();
    let signal = |pid: u64| run("kill", &["-TERM", &pid.to_string()]);
    type End<'a> = &'a dyn Fn(u64);
    let ends: [(&str, End<'_>); 5] = [
        ("umount", &|_| drop(run("umount", &["/mnt/at"]))),
        ("SIGTERM", &|pid| drop(signal(pid))),
        ("fusermount3", &|_| drop(run("fusermount3", &["-u", "/mnt/at"]))),
        ("umount -l, then the last close", &|_| {
            let file = fs::File::open("/mnt/at/closed").unwrap();
            run("umount", &["-l", "/mnt/at"]);
            drop(file);
        }),
        ("SIGTERM, then the last close", &|pid| {
            let file = fs::File::open("/mnt/at/closed").unwrap();
            signal(pid);
            testkit::until("unmounted", || !Path::new("/mnt/at/closed").exists());
            drop(file);
        }),
    ];
    for (what, end) in ends {
        let pid = mount_and_snoop("snoopfs,rate=1 / /mnt/data");
        end(pid);
        await_end(pid);
        assert!(suppressed(), "{what}");
    }
    // Between other layers.
    let pid = mount_and_snoop("wrapfs / snoopfs,rate=1 / xor / /mnt/data");
    run("umount", &["/mnt/at"]);
    await_end(pid);
    assert!(suppressed());
}

#[test]
fn plugins_are_closed_after_their_objects_were_freed() {
    let sandbox = stage();
    let plugin = sandbox.path("ends.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/ends.c");
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../../include");
    run("cc", &["-shared", "-fPIC", include, "-o", plugin.to_str().unwrap(), source]);
    fs::set_permissions(&plugin, PermissionsExt::from_mode(0o755)).unwrap();
    fs::create_dir_all("/mnt/data/a/b/c").unwrap();
    for stack in [
        "/mnt/ends.so / /mnt/data",
        "xor / /mnt/ends.so / rot13 / /mnt/data",
        "unionfs,dirs=[/mnt/ends.so/[/mnt/data]]=rw",
    ] {
        let _ = fs::remove_file("/mnt/closed");
        run(PROGRAM, &["mount", stack, "/mnt/at"]);
        run("find", &["/mnt/at", "-ls"]);
        let answer = run(PROGRAM, &["stack", "--json", "/mnt/at"]);
        let pid = serde_json::from_str::<serde_json::Value>(&answer).unwrap()["pid"].as_u64().unwrap();
        run("umount", &["/mnt/at"]);
        await_end(pid);
        let closed = fs::read_to_string("/mnt/closed").unwrap_or_else(|_| panic!("{stack}: never closed"));
        let numbers: Vec<u32> = closed.split(' ').filter_map(|word| word.parse().ok()).collect();
        assert!(numbers[0] > 3 && numbers[0] == numbers[1], "{stack}: {closed}");
    }
}
