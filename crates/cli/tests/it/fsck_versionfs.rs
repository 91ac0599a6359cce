//! `fsck.versionfs` as a command: exit statuses, repairs of a damaged store, refusals while
//! mounted.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use strata_tests::Sandbox;

const PROGRAM: &str = env!("CARGO_BIN_EXE_strata");
const DIR: &str = "/mnt/data";

/// A directory with versions: `f` has the deltas 1 and 2, `g` was removed.
struct Stage {
    sandbox: Sandbox,
}

impl Stage {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        for dir in ["data", "at", "sbin"] {
            let _ = sandbox.dir(dir);
        }
        for name in ["fsck.versionfs", "mount.versionfs"] {
            symlink(PROGRAM, sandbox.path("sbin").join(name)).unwrap();
        }
        let stage = Self { sandbox };
        // Only a write that changes a byte makes a version, so no byte is the one that is written.
        let steps = [
            "LC_ALL=C tr ab cd </dev/urandom | head -c 20000 >f; echo 1 >g",
            "printf a | dd of=f conv=notrunc; echo 2 >g",
            "printf b | dd of=f bs=1 seek=9000 conv=notrunc; rm g",
        ];
        for step in steps {
            // Each descriptor is closed for the server, too: while one may write, whole copies are
            // made.
            stage.mount();
            let output = Command::new("sh").args(["-ec", step]).current_dir("/mnt/at").output().unwrap();
            assert!(output.status.success(), "{output:?}");
            stage.unmount();
        }
        assert_eq!(fsck(&["-n", DIR]), (0, format!("{DIR}: 2 files with 4 versions, clean\n"), String::new()));
        stage
    }

    fn mount(&self) {
        let mut command = Command::new(self.sandbox.path("sbin/mount.versionfs"));
        assert!(command.args([DIR, "/mnt/at", "-o", "storage=sparse"]).status().unwrap().success());
    }

    fn unmount(&self) {
        assert!(Command::new("umount").arg("/mnt/at").status().unwrap().success());
    }

    fn stored(&self, name: &str) -> PathBuf {
        self.sandbox.path("data/.;versions").join(name)
    }
}

fn fsck(args: &[&str]) -> (i32, String, String) {
    answer(args, "")
}

fn answer(args: &[&str], input: &str) -> (i32, String, String) {
    let mut command = Command::new("/mnt/sbin/fsck.versionfs");
    let outcome = testkit::outcome_with_input(command.args(args), input.as_bytes());
    (outcome.code, outcome.out, outcome.err)
}

#[test]
fn what_the_versions_tell_is_repaired() {
    let stage = Stage::new();
    let damages: [(&str, &dyn Fn()); 4] = [
        ("f;i: is missing or no index; 2 versions exist", &|| fs::remove_file(stage.stored("f;i")).unwrap()),
        ("f;i: is damaged at byte ", &|| {
            let index = fs::read(stage.stored("f;i")).unwrap();
            fs::write(stage.stored("f;i"), &index[..index.len() - 3]).unwrap();
        }),
        ("f;i: is damaged at byte ", &|| {
            let mut index = fs::read(stage.stored("f;i")).unwrap();
            let middle = index.len() / 2;
            index[middle] ^= 0xff;
            fs::write(stage.stored("f;i"), index).unwrap();
        }),
        ("g;f9~: was being made when the program was killed", &|| fs::write(stage.stored("g;f9~"), "x").unwrap()),
    ];
    let before: Vec<_> = ["f;s1", "f;s2", "g;s1", "g;f2"].map(|name| fs::read(stage.stored(name)).unwrap()).into();
    for (finding, damage) in damages {
        damage();
        let (code, out, err) = fsck(&["-n", DIR]);
        assert!(code == 4 && out.starts_with(&format!("/: {finding}")), "{code} {out} {err}");
        assert!(out.contains(": left\n") && out.ends_with("0 repaired, 1 errors left\n"), "{out}");
        // Nothing was changed.
        assert_eq!(fsck(&["-n", DIR]).1, out);
        let (code, out, err) = fsck(&["-p", DIR]);
        assert!(code == 1 && out.contains(": repaired\n"), "{code} {out} {err}");
        assert_eq!(fsck(&["-f", "-n", DIR]).1, format!("{DIR}: 2 files with 4 versions, clean\n"));
    }
    assert!(!stage.stored("g;f9~").exists());
    let after: Vec<_> = ["f;s1", "f;s2", "g;s1", "g;f2"].map(|name| fs::read(stage.stored(name)).unwrap()).into();
    assert_eq!(before, after);
}

#[test]
fn a_missing_delta_is_left() {
    let stage = Stage::new();
    stage.mount();
    fs::remove_file(stage.sandbox.path("at/f")).unwrap();
    stage.unmount();
    // The older versions take what they lack from the last one.
    fs::remove_file(stage.stored("f;f3")).unwrap();
    let (code, out, _) = fsck(&["-p", DIR]);
    assert_eq!(code, 5, "{out}");
    for name in ["f;s1", "f;s2"] {
        let text = format!("/: {name}: can't be reconstructed: a newer version that it needs is missing: left\n");
        assert!(out.contains(&text), "{out}");
    }
    assert_eq!(fsck(&["-p", DIR]).0, 4);
    assert!(stage.stored("f;s1").exists());
    let (code, out, _) = fsck(&["-n", "--json", DIR]);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["exit"], &report["left"], &report["sets"]), (4, &4.into(), &2.into(), &2.into()));
    assert_eq!((&report["findings"][0]["problem"], &report["findings"][0]["file"]), (&"orphan".into(), &"f;s1".into()));
}

#[test]
fn removed_names_of_one_file_leave_its_last_content() {
    let stage = Stage::new();
    stage.mount();
    let script = "echo precious >one; ln one two; rm one two; echo more >three; ln three four; rm three";
    let output = Command::new("sh").args(["-ec", script]).current_dir("/mnt/at").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    stage.unmount();
    for _ in 0..2 {
        let (code, out, err) = fsck(&["-p", DIR]);
        assert!(code == 0 && out.ends_with(", clean\n"), "{code} {out} {err}");
    }
    let links = stage.stored(";links");
    let contents: Vec<_> = fs::read_dir(links).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
    assert!(contents.contains(&b"precious\n".to_vec()));
}

#[test]
fn wrong_arguments_and_missing_directories_have_their_status() {
    let _stage = Stage::new();
    for wrong in [&["-n", "-y", DIR][..], &["-p", "-y", DIR], &[], &["-Q", DIR], &[DIR, DIR]] {
        assert_eq!(fsck(wrong).0, 16, "{wrong:?}");
    }
    let (code, _, err) = fsck(&["-n", "/mnt/missing"]);
    assert!(code == 8 && err.starts_with("fsck.versionfs: /mnt/missing: No such file"), "{code} {err}");
    assert_eq!((fsck(&["-V"]).0, fsck(&["--help"]).0, fsck(&["-a", "-f", DIR]).0), (0, 0, 0));
}

#[test]
fn a_directory_in_use_is_refused() {
    let stage = Stage::new();
    stage.mount();
    for dir in [DIR, "/mnt/at"] {
        let (code, _, err) = fsck(&["-p", dir]);
        assert!(code == 8 && err.contains("in use by the mount at /mnt/at; unmount it first"), "{code} {err}");
    }
    stage.unmount();
    assert_eq!(fsck(&["-p", DIR]).0, 0);
}

#[test]
fn questions_are_asked_on_a_terminal_only() {
    let stage = Stage::new();
    fs::write(stage.stored("g;f9~"), "x").unwrap();
    let (code, _, err) = answer(&[DIR], "y\n");
    assert!(code == 4 && err.contains("nothing is changed, as with -n"), "{code} {err}");
    for (reply, is_left) in [("n", true), ("y", false)] {
        let script = format!("printf '{reply}\\n' | script -qec '/mnt/sbin/fsck.versionfs {DIR}' /dev/null");
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(out.contains("Repair? [y/N]") && stage.stored("g;f9~").exists() == is_left, "{out}");
    }
}
