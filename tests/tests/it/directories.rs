//! Listings of directories that change during the listing or directly in a branch.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::fs::XattrFlags;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use strata_tests::process::sh;
use strata_tests::user::{USER, as_user};
use strata_tests::{Delete, Mode, Mounted, Sandbox, Spec, Transport, acl, on_both_transports};

/// Returns the names in a directory, separated by spaces.
fn ls(dir: &Path) -> String {
    testkit::names(dir).join(OsStr::new(" ")).into_string().unwrap()
}

fn touch(path: &Path) {
    fs::write(path, "").unwrap();
}

/// Replaces `a0` by `a1` in `lower`, checks that `dir` lists the change at once, and undoes it.
fn check_visible_at_once(dir: &Path, lower: &Path, change: &str) {
    for round in 0..5 {
        touch(&lower.join("a0"));
        let before = ls(dir);
        assert!(before.contains("a0") && !before.contains("a1"), "round {round}: {before}");
        assert_eq!(ls(dir), before, "round {round}, second listing");
        sh(change, &[lower]);
        assert_eq!(ls(dir), before.replace("a0", "a1"), "round {round}");
        fs::remove_file(lower.join("a1")).unwrap();
    }
}

const DIRECTLY: &str = r#"rm "$1/a0"; touch "$1/a1""#;
/// Restores the modification time afterwards.
const AND_BACK: &str =
    r#"touch -r "$1" /mnt/times; rm "$1/a0"; touch "$1/a1"; touch -r /mnt/times "$1"; rm /mnt/times"#;

fn two_branches(sandbox: &Sandbox) -> [std::path::PathBuf; 2] {
    let branches = ["rw", "ro"].map(|name| sandbox.ext4(name, 64));
    for branch in &branches {
        fs::create_dir(branch.join("d")).unwrap();
        touch(&branch.join("d/b"));
        touch(&branch.join("b"));
    }
    branches
}

fn without_a_cache_a_branch_change_is_visible_at_once(transport: Transport) {
    let sandbox = Sandbox::new();
    let [rw, ro] = two_branches(&sandbox);
    let union = Mounted::with_options(Spec::union(&rw, &ro, transport), &sandbox.path("u"), "cache=0");
    for change in [DIRECTLY, AND_BACK] {
        for branch in [&rw, &ro] {
            check_visible_at_once(union.dir(), branch, change);
            check_visible_at_once(&union.path("d"), &branch.join("d"), change);
        }
    }
}

fn a_branch_change_is_visible_after_the_cache_time(transport: Transport) {
    let sandbox = Sandbox::new();
    let [rw, ro] = two_branches(&sandbox);
    let union = Mounted::with_options(Spec::union(&rw, &ro, transport), &sandbox.path("u"), "cache=1");
    for dir in ["", "d"] {
        assert!(!ls(&union.path(dir)).contains('c'));
        touch(&ro.join(dir).join("c"));
        // Until the cached listing expires.
        std::thread::sleep(Duration::from_millis(1100));
        assert!(ls(&union.path(dir)).contains('c'), "in /{dir}");
        assert_eq!(union.during(|| drop(ls(&union.path(dir)))).get("READDIR"), 0, "the new listing is cached");
    }
}

fn branch_changes_are_visible_through_layers_above(transport: Transport) {
    let sandbox = Sandbox::new();
    let [rw, ro] = two_branches(&sandbox);
    let union = format!("unionfs,dirs={}=rw:{}=ro", rw.display(), ro.display());
    let above = Spec::Stack { words: format!("wrapfs / wrapfs / {union}").into(), transport };
    let mut above = Mounted::with_options(above, &sandbox.path("above"), "cache=0");
    check_visible_at_once(&above.path("d"), &ro.join("d"), DIRECTLY);
    check_visible_at_once(above.dir(), &ro, AND_BACK);
    above.unmount();

    let wrap = Mounted::with_options(Spec::wrap(&ro, transport), &sandbox.path("null"), "cache=0");
    check_visible_at_once(&wrap.path("d"), &ro.join("d"), DIRECTLY);
    check_visible_at_once(&wrap.path("d"), &ro.join("d"), AND_BACK);

    let branches = vec![(rw.clone(), Mode::Ro), (ro.clone(), Mode::Ro)];
    let read_only = Spec::Union { branches, delete: Delete::Whiteout, transport };
    let read_only = Mounted::with_options(read_only, &sandbox.path("readonly"), "cache=0");
    check_visible_at_once(&read_only.path("d"), &ro.join("d"), DIRECTLY);
    check_visible_at_once(&read_only.path("d"), &rw.join("d"), AND_BACK);
}

/// The kernel keeps the listing, and its next permission check has the new rights: after an ACL was
/// set through the mount, or a mode in the branch.
fn rights_of_a_listed_directory_change_at_once(transport: Transport) {
    let sandbox = Sandbox::new();
    let [rw, ro] = two_branches(&sandbox);
    for spec in [Spec::wrap(&rw, transport), Spec::union(&rw, &ro, transport)] {
        for cache in ["cache=60", "cache=0"] {
            let mounted = Mounted::with_options(spec.clone(), &sandbox.path("m"), cache);
            let chmod = |dir: &Path, mode| fs::set_permissions(dir, fs::Permissions::from_mode(mode)).unwrap();
            let denied = |dir: &Path| match as_user(USER, || fs::metadata(dir.join("b"))) {
                Ok(_) => false,
                Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
            };
            let list = |dir: &Path| assert_eq!((ls(dir), ls(dir)), (ls(dir), "b".to_owned()));
            let dir = mounted.path("d");
            for round in 0..5 {
                chmod(&dir, 0o705);
                list(&dir);
                assert!(!denied(&dir), "round {round}, {cache}");
                // Without permissions of the group, the kernel takes it that there is no ACL.
                let acl = acl::encode(7, 0, 5, 5, (USER.uid, 0), (2000, 5));
                rustix::fs::setxattr(&dir, acl::ACCESS, &acl, XattrFlags::empty()).unwrap();
                let counts = mounted.during(|| assert!(denied(&dir), "round {round}, {cache}"));
                assert_eq!(counts.get("READDIR") + counts.get("READDIRPLUS"), 0);
                let counts = mounted.during(|| list(&dir));
                assert!(cache == "cache=0" || counts.get("READDIR") + counts.get("READDIRPLUS") == 0, "{counts:?}");
                rustix::fs::removexattr(&dir, acl::ACCESS).unwrap();
            }
            // The listing is stale as well by the next access.
            let other = mounted.path("moved");
            for round in 0..4 {
                chmod(&dir, 0o705);
                list(&dir);
                assert!(!denied(&dir), "round {round}, {cache}");
                rustix::fs::setxattr(
                    &dir,
                    acl::ACCESS,
                    &acl::encode(7, 0, 5, 5, (USER.uid, 0), (2000, 5)),
                    XattrFlags::empty(),
                )
                .unwrap();
                match round {
                    0 => fs::rename(&dir, &other).and_then(|()| fs::rename(&other, &dir)).unwrap(),
                    1 => drop(sh(
                        r#"touch -r "$1" /mnt/times; touch "$1/new"; rm "$1/new"; touch -r /mnt/times "$1"; rm /mnt/times"#,
                        &[&dir],
                    )),
                    2 => drop(sh(r#"chattr +d "$1" && chattr -d "$1""#, &[&dir])),
                    _ => fs::set_permissions(dir.join("b"), fs::Permissions::from_mode(0o604)).unwrap(),
                }
                assert!(denied(&dir), "change {round}, {cache}");
                rustix::fs::removexattr(&dir, acl::ACCESS).unwrap();
            }
            chmod(&dir, 0o755);
            if cache == "cache=0" {
                for round in 0..5 {
                    assert_eq!(ls(mounted.dir()), ls(mounted.dir()));
                    assert!(!denied(mounted.dir()), "round {round}");
                    chmod(&rw, 0o700);
                    assert!(denied(mounted.dir()), "round {round}");
                    chmod(&rw, 0o755);
                }
            }
        }
    }
}

/// A directory of one branch becomes merged and ceases to be merged.
fn a_directory_created_in_a_branch_is_merged_at_once(transport: Transport) {
    let sandbox = Sandbox::new();
    let [rw, ro] = two_branches(&sandbox);
    let union = Mounted::with_options(Spec::union(&rw, &ro, transport), &sandbox.path("u"), "cache=0");
    for (single, other) in [(&rw, &ro), (&ro, &rw)] {
        let dir = union.path("single");
        fs::create_dir(single.join("single")).unwrap();
        touch(&single.join("single/a"));
        assert_eq!(ls(&dir), "a");
        sh(r#"mkdir "$1/single"; touch "$1/single/b""#, &[other]);
        assert_eq!(ls(&dir), "a b");
        fs::remove_dir_all(other.join("single")).unwrap();
        assert_eq!(ls(&dir), "a");
        fs::remove_dir_all(single.join("single")).unwrap();
    }
}

/// A frozen file system. Another process thaws it even if this one hangs or is killed.
struct Frozen {
    dir: std::path::PathBuf,
    rescue: std::process::Child,
}

impl Frozen {
    fn new(dir: &Path) -> Self {
        let mut rescue = std::process::Command::new("bash");
        rescue.args(["-c", r#"for i in {1..60}; do sleep 1; done; fsfreeze -u "$1""#, "bash"]).arg(dir);
        let rescue = rescue.spawn().unwrap();
        sh(r#"fsfreeze -f "$1""#, &[dir]);
        Self { dir: dir.to_owned(), rescue }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        strata_tests::process::try_run(std::process::Command::new("fsfreeze").arg("-u").arg(&self.dir));
        let _gone = self.rescue.kill();
        let _gone = self.rescue.wait();
    }
}

/// Starts a shell script that will block, on another CPU than the readers use: the
/// server's thread for that CPU blocks as well.
fn spawn_blocking(script: &str, dir: &Path) -> std::process::Child {
    let mut command = std::process::Command::new("taskset");
    let child = command.args(["-c", "1", "bash", "-c", script, "bash"]).arg(dir).spawn().unwrap();
    // The kernel does not tell when it blocks.
    std::thread::sleep(Duration::from_millis(300));
    child
}

/// Returns the result of a reader with cold caches, within a time shorter than the freeze.
fn read_while_blocked(dir: &Path) -> String {
    let mut command = std::process::Command::new("taskset");
    command.args(["-c", "0", "timeout", "10", "bash", "-c"]);
    command.arg(r#"cd "$1"; ls -A | tr '\n' ' '; for f in u0 u1 u2 u3 none; do stat -c %n $f 2>/dev/null || echo -; done | tr '\n' ' '; cat u4"#);
    strata_tests::process::run(command.arg("bash").arg(dir))
}

/// A writer waits until the read-write branch is thawed. Lookups and listings must not wait with
/// it.
fn a_blocked_writer_blocks_no_reader(transport: Transport) {
    let before = r#"cd "$1"; "#;
    for (what, script) in [
        ("append", "echo more >> d/f"),
        ("append in a directory with a copy", "echo more >> copied/f"),
        ("chmod", "chmod 600 d/f"),
        ("chmod of an empty file", "chmod 600 d/empty"),
        ("setxattr", "setfattr -n user.a -v b d/f"),
        ("create elsewhere", "touch other/new"),
        ("unlink elsewhere", "rm other/f"),
        ("rename elsewhere", "mv other/f other/g"),
    ] {
        let sandbox = Sandbox::new();
        let [rw, ro] = ["rw", "ro"].map(|name| sandbox.ext4(name, 64));
        for dir in ["d", "copied", "other"] {
            sh(r#"mkdir "$1"; cd "$1"; echo text > f; touch empty u0 u1 u2 u3; echo read > u4"#, &[ro.join(dir)]);
        }
        let mut union = Mounted::with_options(Spec::union(&rw, &ro, transport), &sandbox.path("u"), "cache=0");
        fs::write(union.path("copied/empty"), "copied up").unwrap();
        let inodes = |dir: &str| sh(r#"cd "$1"; stat -c '%n %i' . *"#, &[union.path(dir)]);
        let numbers = ["d", "copied", "other"].map(inodes);
        let frozen = Frozen::new(&rw);
        let mut writer = spawn_blocking(&format!("{before}{script}"), union.dir());
        // The kernel itself blocks readers of a directory in which an entry is being changed.
        let elsewhere = what.contains("elsewhere");
        for dir in ["d", "copied", "other"].iter().filter(|dir| !elsewhere || **dir != "other") {
            let begun = std::time::Instant::now();
            let seen = read_while_blocked(&union.path(dir));
            assert_eq!(seen, "empty f u0 u1 u2 u3 u4 u0 u1 u2 u3 - read\n", "{what}, in {dir}");
            assert!(begun.elapsed() < Duration::from_secs(5), "{what}, in {dir}: {:?}", begun.elapsed());
        }
        assert!(writer.try_wait().unwrap().is_none(), "{what} did not wait for the thaw");
        drop(frozen);
        assert!(writer.wait().unwrap().success(), "{what}");
        if !elsewhere {
            assert_eq!(["d", "copied", "other"].map(inodes), numbers, "{what}");
        }
        union.remount();
        if !elsewhere {
            let inodes = |dir: &str| sh(r#"cd "$1"; stat -c '%n %i' . *"#, &[union.path(dir)]);
            assert_eq!(["d", "copied", "other"].map(inodes), numbers, "{what}, mounted again");
        }
    }
}

on_both_transports!(
    without_a_cache_a_branch_change_is_visible_at_once,
    a_branch_change_is_visible_after_the_cache_time,
    branch_changes_are_visible_through_layers_above,
    rights_of_a_listed_directory_change_at_once,
    a_directory_created_in_a_branch_is_merged_at_once,
    a_blocked_writer_blocks_no_reader,
);
