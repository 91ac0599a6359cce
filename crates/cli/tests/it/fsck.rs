//! `fsck.unionfs` as a command: exit statuses, fstab, refusals while mounted, questions.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::unmount_after_questions;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use strata_tests::Sandbox;

const PROGRAM: &str = env!("CARGO_BIN_EXE_strata");
const BRANCHES: &str = "/mnt/rw=rw:/mnt/ro=ro";

/// Branches with a leftover of each kind that their name tells.
struct Stage {
    sandbox: Sandbox,
}

impl Stage {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        let stage = Self { sandbox };
        for dir in ["rw/d", "ro/d", "ro/e", "at", "sbin"] {
            fs::create_dir_all(stage.sandbox.path(dir)).unwrap();
        }
        fs::write(stage.sandbox.path("ro/e/f"), "f").unwrap();
        symlink(PROGRAM, stage.sandbox.path("sbin/fsck.unionfs")).unwrap();
        symlink(PROGRAM, stage.sandbox.path("sbin/mount.unionfs")).unwrap();
        stage
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.sandbox.path(path), text).unwrap();
    }

    fn exists(&self, path: &str) -> bool {
        fs::symlink_metadata(self.sandbox.path(path)).is_ok()
    }

    fn leftover(&self) {
        self.write("rw/d/x", "");
        self.write("rw/d/.wh.x", "");
    }

    fn damage(&self) {
        fs::create_dir(self.sandbox.path("rw/moved")).unwrap();
        self.write("rw/.wh..wh.moved", "");
        self.write("rw/moved/.wh..wh.redirect", "strata-redirect 1\n/nowhere\n");
        let read_only = fs::Permissions::from_mode(0o444);
        fs::set_permissions(self.sandbox.path("rw/moved/.wh..wh.redirect"), read_only).unwrap();
    }
}

/// Runs the command; returns its exit status and output.
fn fsck(args: &[&str]) -> (i32, String, String) {
    answer(args, "")
}

fn answer(args: &[&str], input: &str) -> (i32, String, String) {
    let mut command = Command::new("/mnt/sbin/fsck.unionfs");
    let outcome = testkit::outcome_with_input(command.args(args), input.as_bytes());
    (outcome.code, outcome.out, outcome.err)
}

/// Returns the process that serves a mount.
fn server(at: &str) -> String {
    let info = testkit::outcome(Command::new(PROGRAM).args(["info", "--json", at])).succeeds().out;
    let info: Value = serde_json::from_str(&info).unwrap();
    info["pid"].to_string()
}

fn signal(name: &str, pid: &str) {
    testkit::outcome(Command::new("kill").args([name, pid])).succeeds();
}

/// Another union that hangs does not matter, and is named. One that uses the branch is noticed by
/// its claim, although it can't be asked.
#[test]
fn mounts_that_hang_are_skipped() {
    let stage = Stage::new();
    for dir in ["other", "elsewhere"] {
        fs::create_dir(stage.sandbox.path(dir)).unwrap();
    }
    let mount = |options: &str, at: &str| {
        let words = ["none", at, "-o", options];
        testkit::outcome(Command::new("/mnt/sbin/mount.unionfs").args(words)).succeeds();
    };
    mount("dirs=/mnt/other", "/mnt/elsewhere");
    let pid = server("/mnt/elsewhere");
    signal("-STOP", &pid);
    let (code, out, err) = fsck(&["-n", BRANCHES]);
    signal("-CONT", &pid);
    assert_eq!((code, out), (0, format!("{BRANCHES}: 4 directories, clean\n")), "{err}");
    assert_eq!(err, "fsck.unionfs: /mnt/elsewhere: the mount does not answer; skipped\n");
    mount("dirs=/mnt/rw:/mnt/ro", "/mnt/at");
    let own = server("/mnt/at");
    signal("-STOP", &own);
    let (code, _, err) = fsck(&["-p", BRANCHES]);
    signal("-CONT", &own);
    assert!(code == 8 && err.contains("in use"), "{code} {err}");
    for at in ["/mnt/at", "/mnt/elsewhere"] {
        unmount_after_questions(Path::new(at));
    }
}

#[test]
fn exit_statuses_are_those_of_fsck_8() {
    let stage = Stage::new();
    assert_eq!(fsck(&["-n", BRANCHES]), (0, format!("{BRANCHES}: 4 directories, clean\n"), String::new()));
    stage.leftover();
    let (code, out, _) = fsck(&["-n", BRANCHES]);
    assert_eq!(code, 4, "{out}");
    assert!(out.starts_with("/mnt/rw/d/.wh.x: a whiteout beside the file of its name\n"), "{out}");
    assert!(stage.exists("rw/d/.wh.x"));
    let (code, out, _) = fsck(&["-a", "-C0", BRANCHES]);
    assert_eq!(code, 1, "{out}");
    assert!(!stage.exists("rw/d/.wh.x") && stage.exists("rw/d/x"));
    assert_eq!(fsck(&["-p", BRANCHES]).0, 0);
    stage.damage();
    assert_eq!(fsck(&["-p", BRANCHES]).0, 4);
    stage.leftover();
    assert_eq!(fsck(&["-p", BRANCHES]).0, 5);
    assert!(stage.exists("rw/moved/.wh..wh.redirect"));
    assert_eq!(fsck(&["-y", BRANCHES]).0, 1);
    assert!(stage.exists("rw/moved/.wh..wh..opq") && stage.exists("rw/.wh..wh.aside0/1"));
    let list = fs::read_to_string(stage.sandbox.path("rw/.wh..wh.aside0/LIST")).unwrap();
    let created = "+\tredirect-nowhere\t/moved/.wh..wh..opq\n";
    assert_eq!(list, format!("{created}1\tredirect-nowhere\t/moved/.wh..wh.redirect\n"));
    assert_eq!(fsck(&["-f", "-n", BRANCHES]).0, 0);
    for wrong in [&["-n", "-y", BRANCHES][..], &[], &["-Q", BRANCHES], &["/mnt/rw=wr"]] {
        assert_eq!(fsck(wrong).0, 16, "{wrong:?}");
    }
    let (code, _, err) = fsck(&["-n", "/mnt/rw=rw:/mnt/missing"]);
    assert_eq!(code, 8);
    assert!(err.starts_with("fsck.unionfs: branch /mnt/missing: no such directory"), "{err}");
    assert_eq!(fsck(&["-n", "/mnt/rw=rw:/mnt/rw/d"]).0, 8);
    assert_eq!((fsck(&["-V"]).0, fsck(&["--help"]).0), (0, 0));
}

#[test]
fn repairs_with_a_wrong_list_are_undone() {
    let stage = Stage::new();
    stage.write("ro/gone", "gone");
    stage.write("rw/.wh.gone", "");
    assert_eq!(fsck(&["-n", BRANCHES]).0, 0);
    assert_eq!(fsck(&["-y", "/mnt/rw=rw"]).0, 1);
    assert!(!stage.exists("rw/.wh.gone") && stage.exists("rw/.wh..wh.aside0/1"));
    let (code, out, _) = fsck(&["--undo", "/mnt/rw=rw"]);
    assert_eq!((code, &*out), (1, "/mnt/rw/.wh.gone: whiteout-hides-nothing: undone\n"));
    assert!(stage.exists("rw/.wh.gone") && !stage.exists("rw/.wh..wh.aside0"));
    assert_eq!(fsck(&["--undo", "/mnt/rw=rw"]).0, 0);
    assert_eq!(fsck(&["--undo", "-n", "/mnt/rw=rw"]).0, 16);
    // It replaces nothing.
    assert_eq!(fsck(&["-y", "/mnt/rw=rw"]).0, 1);
    stage.write("rw/.wh.gone", "mine");
    let (code, out, _) = fsck(&["--undo", "--json", "/mnt/rw=rw"]);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["exit"]), (4, &4.into()), "{out}");
    assert_eq!(fs::read_to_string(stage.sandbox.path("rw/.wh.gone")).unwrap(), "mine");
}

#[test]
fn without_a_terminal_nothing_is_changed() {
    let stage = Stage::new();
    stage.leftover();
    let (code, _, err) = answer(&[BRANCHES], "y\n");
    assert_eq!(code, 4);
    assert!(err.contains("nothing is changed, as with -n"), "{err}");
    assert!(stage.exists("rw/d/.wh.x"));
}

#[test]
fn questions_are_asked_on_a_terminal() {
    let stage = Stage::new();
    stage.leftover();
    let ask = |reply: &str| {
        let script = format!("printf '{reply}\\n' | script -qec '/mnt/sbin/fsck.unionfs {BRANCHES}' /dev/null");
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (_, out) = ask("no");
    assert!(out.contains("Repair: remove the whiteout? [yes, no, all, quit]"), "{out}");
    assert!(stage.exists("rw/d/.wh.x"), "{out}");
    let (_, out) = ask("yes");
    assert!(!stage.exists("rw/d/.wh.x"), "{out}");
}

#[test]
fn reports_are_json() {
    let stage = Stage::new();
    stage.leftover();
    stage.write("rw/.wh..wh.future", "");
    let (code, out, _) = fsck(&["-p", "--json", BRANCHES]);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["exit"], &report["repaired"], &report["left"]), (1, &1.into(), &1.into(), &0.into()));
    let mut kinds: Vec<_> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| (f["kind"].as_str().unwrap(), f["result"].as_str().unwrap()))
        .collect();
    kinds.sort_unstable();
    assert_eq!(kinds, [("unknown-name", "left"), ("whiteout-beside-file", "repaired")]);
    assert!(stage.exists("rw/.wh..wh.future"));
}

#[test]
fn a_line_of_fstab_names_the_branches() {
    let stage = Stage::new();
    stage.leftover();
    let table = stage.sandbox.path("fstab");
    fs::write(&table, format!("# comment\nwww /mnt/at unionfs dirs={BRANCHES},noauto 0 0\nnone /mnt/x unionfs dirs=/a 0 0\nnone /mnt/y unionfs dirs=/b 0 0\n")).unwrap();
    if !Path::new("/etc/fstab").exists() {
        fs::write("/etc/fstab", "").unwrap();
    }
    rustix::mount::mount_bind(&table, "/etc/fstab").unwrap();
    for device in ["/mnt/at", "www"] {
        assert_eq!(fsck(&["-n", device]).0, 4, "{device}");
    }
    let (code, _, err) = fsck(&["-n", "none"]);
    assert_eq!(code, 16);
    assert!(err.contains("several unionfs lines"), "{err}");
}

#[test]
fn mounted_branches_are_refused() {
    let stage = Stage::new();
    stage.leftover();
    let mounted = Command::new("/mnt/sbin/mount.unionfs")
        .args(["none", "/mnt/at", "-o"])
        .arg(format!("dirs={BRANCHES}"))
        .status();
    assert!(mounted.unwrap().success());
    let (code, _, err) = fsck(&["-y", BRANCHES]);
    assert_eq!(code, 8, "{err}");
    assert!(err.contains("/mnt/rw: in use by the mount at /mnt/at; unmount it first, or use -n"), "{err}");
    for (option, place) in [("-n", "/mnt/at"), ("-p", "/mnt/at/d")] {
        let (code, _, err) = fsck(&[option, place]);
        assert_eq!(code, 16, "{err}");
        assert!(err.contains("lies in the union that is mounted at /mnt/at"), "{err}");
    }
    assert!(stage.exists("rw/d/.wh.x"));
    let (code, _, err) = fsck(&["-n", BRANCHES]);
    assert_eq!(code, 4, "{err}");
    assert!(err.contains("operations in progress look like damage"), "{err}");
    assert!(Command::new("umount").arg("/mnt/at").status().unwrap().success());
    assert_eq!(fsck(&["-y", BRANCHES]).0, 1);
    assert_eq!(fsck(&["-n", BRANCHES]).0, 0);
}

/// A union is also found at the bottom of a stack: by its mount, and in fstab.
#[test]
fn unions_in_stacks_are_recognised() {
    let stage = Stage::new();
    stage.leftover();
    let mounted = Command::new(env!("CARGO_BIN_EXE_strata"))
        .args(["mount", &format!("wrapfs / unionfs,dirs={BRANCHES}"), "/mnt/at"])
        .status();
    assert!(mounted.unwrap().success());
    let (code, _, err) = fsck(&["-y", BRANCHES]);
    assert_eq!(code, 8, "{err}");
    assert!(err.contains("/mnt/rw: in use by the mount at /mnt/at; unmount it first, or use -n"), "{err}");
    for place in ["/mnt/at", "/mnt/at/d"] {
        let (code, _, err) = fsck(&["-n", place]);
        assert_eq!(code, 16, "{err}");
        assert!(err.contains("lies in the union that is mounted at /mnt/at"), "{err}");
    }
    let commit = testkit::outcome(Command::new(env!("CARGO_BIN_EXE_strata")).args([
        "commit",
        "--branches",
        "/mnt/at/d:/mnt/ro",
    ]));
    assert!(commit.code == 1 && commit.err.contains("lies in the union"), "{}", commit.err);
    assert!(Command::new("umount").arg("/mnt/at").status().unwrap().success());
    let table = stage.sandbox.path("fstab");
    let escaped = format!("wrapfs\\040/\\040unionfs,dirs={BRANCHES}");
    fs::write(&table, format!("{escaped} /mnt/at strata noauto 0 0\nwrapfs\\040/\\040/a /mnt/x strata noauto 0 0\n"))
        .unwrap();
    if !Path::new("/etc/fstab").exists() {
        fs::write("/etc/fstab", "").unwrap();
    }
    rustix::mount::mount_bind(&table, "/etc/fstab").unwrap();
    assert_eq!(fsck(&["-n", "/mnt/at"]).0, 4);
    assert_eq!(fsck(&["-y", "/mnt/at"]).0, 1);
}

/// Names with control characters do not reach the terminal.
#[test]
fn names_are_escaped() {
    let stage = Stage::new();
    stage.write("rw/d/.wh..wh.\u{1b}[31m", "");
    let (_, out, _) = fsck(&["-nv", BRANCHES]);
    assert!(out.contains("\\x1b[31m") && !out.contains('\u{1b}'), "{out}");
}
