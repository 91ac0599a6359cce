//! Policies of an administrator and of users on mounts of versionfs: conflicts, reload, programs,
//! wrong files, and who may use old versions.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::process::{Command, Output};
use strata_tests::Sandbox;

const PROGRAM: &str = env!("CARGO_BIN_EXE_strata");
const CONFIG: &str = "/mnt/versionfs.conf";
const MOUNT: &str = "/mnt/at";
/// The home of ann is beside the mount, that of bob is in it.
const ANN: u32 = 4001;
const BOB: u32 = 4002;

struct Stage {
    sandbox: Sandbox,
}

impl Stage {
    fn new(config: &str) -> Self {
        let sandbox = Sandbox::new();
        for dir in ["data", "at", "bin", "ann/.config", "data/bob/.config"] {
            fs::create_dir_all(sandbox.path(dir)).unwrap();
        }
        fs::set_permissions(sandbox.path("data"), fs::Permissions::from_mode(0o777)).unwrap();
        for (home, uid) in [("ann", ANN), ("data/bob", BOB)] {
            for dir in [home.to_owned(), format!("{home}/.config")] {
                chown(sandbox.path(&dir), Some(uid), Some(uid)).unwrap();
            }
        }
        let users = format!(
            "root:x:0:0::/root:/bin/sh\nann:x:{ANN}:{ANN}::/mnt/ann:/bin/sh\nbob:x:{BOB}:{BOB}::/mnt/at/bob:/bin/sh\n"
        );
        fs::write(sandbox.path("passwd"), users).unwrap();
        rustix::mount::mount_bind(sandbox.path("passwd"), "/etc/passwd").unwrap();
        // A copy: users may have no access to the original.
        fs::copy(PROGRAM, sandbox.path("bin/strata")).unwrap();
        for name in ["versionctl", "mount.versionfs"] {
            symlink("/mnt/bin/strata", sandbox.path("bin").join(name)).unwrap();
        }
        fs::write(CONFIG, config).unwrap();
        Self { sandbox }
    }

    fn mounted(config: &str) -> Self {
        let stage = Self::new(config);
        let output = stage.mount();
        assert!(output.status.success(), "{output:?}");
        stage
    }

    fn mount(&self) -> Output {
        let mut command = Command::new("/mnt/bin/mount.versionfs");
        let options = format!("allow_other,versions,config={CONFIG},logfile=/mnt/log");
        command.args(["/mnt/data", MOUNT, "-o", &options]).output().unwrap()
    }

    /// Writes the configuration of a user before the mount, or out of band.
    fn user_config(&self, uid: u32, text: &str) {
        let path = self.sandbox.path(if uid == ANN { "ann" } else { "data/bob" }).join(".config/versionfs.conf");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        chown(&path, Some(uid), Some(uid)).unwrap();
    }

    fn log(&self) -> String {
        fs::read_to_string(self.sandbox.path("log")).unwrap_or_default()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(MOUNT).output();
    }
}

/// Runs a shell command in the mount.
fn as_user(uid: u32, script: &str) -> (i32, String, String) {
    let uid = uid.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups", "--", "sh", "-ec", script]);
    let output = command.current_dir(MOUNT).env("PATH", "/mnt/bin:/usr/bin:/bin").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

fn done(uid: u32, script: &str) -> String {
    let (code, out, err) = as_user(uid, script);
    assert_eq!((code, &*err), (0, ""), "{script}: {out}");
    out
}

/// Returns a value of the policy of a file of the user: the value, and which file sets it.
fn policy(uid: u32, file: &str, key: &str) -> (String, String) {
    let explained: Value =
        serde_json::from_str(&done(uid, &format!("versionctl policy explain --json {file}"))).unwrap();
    let text = |field: &str| explained[key][field].as_str().unwrap_or_default().to_owned();
    (text("value"), text("source"))
}

fn from(uid: u32, file: &str, key: &str) -> String {
    let (value, source) = policy(uid, file, key);
    let source = source.rsplit_once(':').map_or(&*source, |(file, _)| file);
    let who = match source {
        CONFIG => "admin",
        "/mnt/ann/.config/versionfs.conf" => "ann",
        "/mnt/at/bob/.config/versionfs.conf" => "bob",
        other => other,
    };
    format!("{value} {who}")
}

fn versions(uid: u32, file: &str) -> Vec<u64> {
    let log: Value = serde_json::from_str(&done(uid, &format!("versionctl log --json {file}"))).unwrap();
    log["versions"].as_array().unwrap().iter().map(|version| version["version"].as_u64().unwrap()).collect()
}

const ADMIN: &str = r#"
number = "..200"
age = "none..none"
landmarks = false

[[rule]]
extension = "log"
default = true
number = "..7"
storage = "sparse"

[[rule]]
extension = "audit"
number = "..90"

[[rule]]
name = "x.audit"
number = "3..80"
versions = false

[[rule]]
path = "/mnt/at/shared/*"
storage = "full"

[bounds]
number = "..60"
"#;

const OF_ANN: &str = r#"
number = "..50"
versions = true

[[rule]]
extension = "log"
number = "..9"

[[rule]]
extension = "audit"
number = "..2"

[[rule]]
extension = "big"
number = "..100"

[[rule]]
directory = "/mnt/at/shared"
storage = "text"
"#;

const OF_BOB: &str = r#"
number = "..40"

[[rule]]
path = "~/*"
number = "..30"
"#;

#[test]
fn later_ranks_replace_earlier_ones() {
    let stage = Stage::new(ADMIN);
    stage.user_config(ANN, OF_ANN);
    stage.user_config(BOB, OF_BOB);
    assert!(stage.mount().status.success());
    done(0, "mkdir -m 777 shared");
    // 1. The top of each file.
    assert_eq!(from(ANN, "f", "number.max"), "50 ann");
    assert_eq!(from(BOB, "f", "number.max"), "40 bob");
    assert_eq!(from(0, "f", "number.max"), "200 admin");
    assert_eq!(from(ANN, "f", "landmarks"), "false admin");
    assert_eq!(from(ANN, "f", "storage"), "compress built-in");
    // 2. Built-in rules replace even the top of a user's file.
    assert_eq!(from(ANN, "f", "versions"), "true ann");
    assert_eq!(from(ANN, "f.o", "versions"), "removed built-in");
    // 3., 4. The administrator's default rules; a user's rules.
    assert_eq!(from(BOB, "f.log", "number.max"), "7 admin");
    assert_eq!(from(ANN, "f.log", "number.max"), "9 ann");
    assert_eq!(from(ANN, "f.log", "storage"), "sparse admin");
    assert_eq!(from(BOB, "bob/f", "number.max"), "30 bob");
    // 5. The administrator's other rules. Paths are those that programs see.
    assert_eq!(from(ANN, "f.audit", "number.max"), "90 admin");
    assert_eq!(from(ANN, "shared/f", "storage"), "full admin");
    // Within a rank the most restrictive value wins.
    assert_eq!(from(ANN, "x.audit", "number.max"), "80 admin");
    assert_eq!(from(ANN, "x.audit", "number.min"), "3 admin");
    assert_eq!(from(ANN, "x.audit", "versions"), "false admin");
    // Bounds change what users set.
    assert_eq!(from(ANN, "f.big", "number.max"), "60 ann");
    assert!(stage.log().contains("warning: "), "{}", stage.log());
}

#[test]
fn policies_take_effect_and_are_read_again() {
    let stage = Stage::new("age = \"none..none\"\nkeep = \"all\"\n");
    stage.user_config(BOB, "number = \"..2\"\n");
    assert!(stage.mount().status.success());
    for uid in [ANN, BOB] {
        done(uid, &format!("for n in 1 2 3 4 5 6; do echo $n >f{uid}; done"));
    }
    done(0, "versionctl clean");
    assert_eq!((versions(ANN, &format!("f{ANN}")).len(), versions(BOB, &format!("f{BOB}")).len()), (5, 2));
    stage.user_config(ANN, "number = \"..3\"\n");
    assert_eq!(from(ANN, "f", "number.max"), "none built-in");
    let (code, _, err) = as_user(ANN, "versionctl reload");
    assert!(code == 1 && !err.is_empty(), "{code} {err}");
    done(0, "versionctl reload; versionctl clean");
    assert_eq!(versions(ANN, &format!("f{ANN}")).len(), 3);
    // A wrong file changes nothing.
    fs::write(CONFIG, "numbers = 5\n").unwrap();
    let (code, _, err) = as_user(0, "versionctl reload");
    assert!(code == 1 && err.contains("versionctl policy check"), "{code} {err}");
    assert!(stage.log().contains("/mnt/versionfs.conf:1:1:"), "{}", stage.log());
    assert_eq!(from(BOB, "f", "number.max"), "2 bob");
}

#[test]
fn a_wrong_file_of_the_administrator_prevents_the_mount() {
    let stage = Stage::new("number = \"..5\"\nnumbers = 5\n");
    let output = stage.mount();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && err.contains("/mnt/versionfs.conf:2:1:"), "{err}");
    assert!(err.contains("did you mean number?"), "{err}");
}

#[test]
fn a_wrong_file_of_a_user_is_ignored() {
    let stage = Stage::new("");
    stage.user_config(ANN, "number = \"..5\"\n[volume]\nmax = \"1B\"\n");
    // Another user's file, through a link.
    stage.user_config(BOB, "number = \"..4\"\n");
    let conf = stage.sandbox.path("data/bob/.config/versionfs.conf");
    fs::rename(&conf, stage.sandbox.path("data/secret")).unwrap();
    symlink("/mnt/at/secret", &conf).unwrap();
    assert!(stage.mount().status.success());
    for uid in [ANN, BOB] {
        assert_eq!(from(uid, "f", "number.max"), "none built-in");
        done(uid, &format!("for n in 1 2 3; do echo $n >f{uid}; done"));
        assert_eq!(versions(uid, &format!("f{uid}")).len(), 2, "{}", stage.log());
    }
    assert!(stage.log().contains("/mnt/ann/.config/versionfs.conf:2:"), "{}", stage.log());
    // A file that others may write to, or that belongs to another user.
    fs::remove_file(&conf).unwrap();
    stage.user_config(BOB, "number = \"..4\"\n");
    fs::set_permissions(&conf, fs::Permissions::from_mode(0o666)).unwrap();
    done(0, "versionctl reload");
    assert_eq!(from(BOB, "f", "number.max"), "none built-in");
    fs::set_permissions(&conf, fs::Permissions::from_mode(0o644)).unwrap();
    chown(&conf, Some(ANN), None).unwrap();
    done(0, "versionctl reload");
    assert_eq!(from(BOB, "f", "number.max"), "none built-in");
    assert!(stage.log().contains("other users may write to it"), "{}", stage.log());
    assert!(stage.log().contains("it belongs to another user"), "{}", stage.log());
}

#[test]
fn programs_of_users_decide() {
    let stage = Stage::new("age = \"none..none\"\nkeep = \"none\"\nlandmarks = false\n[bounds]\nexternal = true\n");
    let out = stage.sandbox.dir("out");
    fs::set_permissions(&out, fs::Permissions::from_mode(0o777)).unwrap();
    let program = |name: &str, text: &str| {
        let path = stage.sandbox.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    program("decide", "id -u >/mnt/out/id; cat >/mnt/out/request; echo '{\"discard\": [2]}'");
    program("garbage", "echo '{\"discard\": [99]}'");
    program("fails", "exit 1");
    program("hangs", "sleep 1000");
    assert!(stage.mount().status.success());
    let left = |name: &str| {
        stage.user_config(ANN, &format!("external = \"/mnt/bin/{name}\"\n"));
        done(0, "versionctl reload");
        done(ANN, &format!("for n in 1 2 3 4; do echo $n >{name}; done"));
        done(0, "versionctl clean");
        versions(ANN, name)
    };
    let decided = left("decide");
    assert!(!decided.contains(&2) && decided.contains(&1) && decided.len() == 2, "{decided:?} {}", stage.log());
    assert_eq!(fs::read_to_string(out.join("id")).unwrap(), format!("{ANN}\n"));
    let request: Value = serde_json::from_str(&fs::read_to_string(out.join("request")).unwrap()).unwrap();
    assert_eq!(request["path"], "/mnt/at/decide");
    // Otherwise nothing is discarded, although `keep` would take all.
    for name in ["garbage", "fails", "hangs"] {
        assert_eq!(left(name).len(), 3, "{name}: {}", stage.log());
    }
    assert!(stage.log().contains("/mnt/bin/hangs: it took longer than 5 s"), "{}", stage.log());
}

#[test]
fn the_administrator_limits_who_may_use_old_versions() {
    let _stage = Stage::mounted("[users]\naccess = \"none\"\n[[users.override]]\nuser = \"ann\"\naccess = \"read\"\n");
    for uid in [ANN, BOB] {
        done(uid, &format!("for n in 1 2 3 4; do echo $n >f{uid}; done"));
    }
    // Fills the kernel's cache.
    assert_ne!(done(0, "ls .versions"), "");
    let refused = |uid: u32, script: &str| {
        let (code, out, err) = as_user(uid, script);
        let is_refused = ["you may not", "not permitted", "Permission denied"].iter().any(|text| err.contains(text));
        assert!(code != 0 && is_refused, "{script}: {code} {out} {err}");
        err
    };
    for command in ["log", "cat", "discard -y", "annotate"] {
        let rest = match command {
            "log" => "",
            "annotate" => "1 x",
            _ => "1",
        };
        refused(BOB, &format!("versionctl {command} f{BOB} {rest}"));
    }
    assert!(refused(BOB, "ls .versions").contains("Permission denied"));
    let newest = done(0, "ls .versions | tail -n 1");
    refused(BOB, &format!("cat .versions/{}/f{BOB}", newest.trim()));
    // Reads, but does not change.
    assert_eq!(versions(ANN, &format!("f{ANN}")).len(), 3);
    assert_eq!(done(ANN, &format!("versionctl cat f{ANN} 1; ls .versions >/dev/null")), "1\n");
    for command in ["discard -y", "pin", "annotate"] {
        let rest = if command == "annotate" { "x" } else { "" };
        refused(ANN, &format!("versionctl {command} f{ANN} 1 {rest}"));
    }
    for command in ["unlink", "chmod"] {
        let rest = if command == "chmod" { " 600" } else { "" };
        assert!(Path::new(MOUNT).join(format!("f{ANN}")).exists());
        refused(ANN, &format!("/mnt/bin/strata control . versionfs.{command} 'f{ANN}{rest}'"));
    }
    // Root is exempt, and the policy can be asked for.
    done(0, &format!("versionctl pin f{BOB} 1; versionctl log f{BOB}"));
    assert_eq!(from(BOB, "f", "storage"), "compress built-in");
}
