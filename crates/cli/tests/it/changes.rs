//! `strata diff`, `strata commit`, `strata discard` and `snapmerge` on directories of the host:
//! exit statuses, messages, an ordinary user, conflicts, claims, kills.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::Bed;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_strata");

impl Bed {
    /// Creates a file and the directories above it.
    fn file(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn run(&self, args: &[&str]) -> (i32, String, String) {
        self.run_as(None, args)
    }

    fn run_as(&self, uid: Option<u32>, args: &[&str]) -> (i32, String, String) {
        // Another user may not reach the directory of the program.
        let copy = self.path("strata");
        if uid.is_some() {
            fs::copy(PROGRAM, &copy).unwrap();
        }
        let mut command = Command::new(if uid.is_some() { copy.as_os_str() } else { OsStr::new(PROGRAM) });
        if let Some(name) = args.first().filter(|name| **name == "snapmerge") {
            command.arg0(name);
        }
        command.args(args.iter().skip(usize::from(args.first() == Some(&"snapmerge")))).current_dir(&self.0);
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let outcome = testkit::outcome(&mut command);
        (outcome.code, outcome.out, outcome.err)
    }
}

/// Returns the text of each file of a tree.
fn tree(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(tree(&path));
            all.insert(path, Vec::new());
        } else {
            let text = fs::read(&path).unwrap();
            all.insert(path, text);
        }
    }
    all
}

#[test]
fn changes_are_listed_committed_and_discarded() {
    let bed = Bed::new();
    bed.file("b/changed", "one\ntwo\n");
    bed.file("b/gone/x", "x");
    bed.file("b/kept", "kept");
    bed.file("u/changed", "one\n2\n");
    bed.file("u/new", "new\n");
    bed.file("u/.wh.gone", "");
    let list = ["--branches", "u:b"];
    let (code, out, _) = bed.run(&[&["diff"], &list[..]].concat());
    let lines = "changed     /changed  (8 -> 6 bytes)\nremoved     /gone/\nadded       /new\n";
    assert_eq!((code, &*out), (1, lines));
    let (_, out, _) = bed.run(&[&["diff", "-p"], &list[..], &["changed"]].concat());
    assert!(out.contains("--- a/changed\n+++ b/changed\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"), "{out}");
    let (_, out, _) = bed.run(&[&["diff", "--stat"], &list[..]].concat());
    assert!(out.ends_with("3 changes, 2 lines inserted, 1 deleted\n"), "{out}");
    let (_, out, _) = bed.run(&[&["diff", "--name-only", "-0"], &list[..], &["/new"]].concat());
    assert_eq!(out, "/new\0");

    let before = tree(&bed.0);
    let (code, out, _) = bed.run(&[&["commit", "--dry-run"], &list[..]].concat());
    assert!(code == 0 && out.ends_with("3 changes would be committed\n"), "{out}");
    assert_eq!(tree(&bed.0), before);

    let (code, _, _) = bed.run(&[&["commit"], &list[..], &["/new", "gone"]].concat());
    assert_eq!(code, 0);
    assert!(bed.path("b/new").exists() && !bed.path("b/gone").exists() && !bed.path("b/.wh.gone").exists());
    assert_eq!(tree(&bed.path("u")).into_keys().collect::<Vec<_>>(), [bed.path("u/changed")]);

    let (code, out, _) = bed.run(&[&["discard"], &list[..], &["--all"]].concat());
    assert!(code == 0 && out.ends_with("1 change discarded\n"), "{out}");
    assert!(tree(&bed.path("u")).is_empty());
    assert_eq!(bed.run(&[&["diff"], &list[..]].concat()), (0, String::new(), String::new()));
}

#[test]
fn wrong_arguments_and_branches_have_their_status() {
    let bed = Bed::new();
    bed.file("u/f", "");
    assert_eq!(bed.run(&["diff", "--branches", "u:missing"]).0, 2);
    assert_eq!(bed.run(&["diff", "--no-such-option"]).0, 2);
    assert_eq!(bed.run(&["diff", "u"]).0, 2);
    assert_eq!(bed.run(&["commit", "--branches", "u"]).0, 1);
    assert_eq!(bed.run(&["commit", "--branches", "u:missing"]).0, 32);
    assert_eq!(bed.run(&["discard", "--branches", "u:u"]).0, 1);
}

#[test]
fn hostile_names_do_not_reach_the_terminal() {
    let bed = Bed::new();
    fs::create_dir_all(bed.path("b")).unwrap();
    fs::create_dir_all(bed.path("u")).unwrap();
    fs::write(bed.path("u").join(OsStr::from_bytes(b"\x1b[2J\xff")), "").unwrap();
    let (_, out, _) = bed.run(&["diff", "-b", "u:b"]);
    assert_eq!(out, "added       /\\u{1b}[2J\\xff\n");
    let (_, out, _) = bed.run(&["diff", "-b", "u:b", "--json"]);
    assert!(out.contains("\"path\":[47,27,91,50,74,255]"), "{out}");
}

#[test]
fn conflicts_are_named_and_nothing_is_done() {
    let bed = Bed::new();
    bed.file("b/f", "base");
    bed.file("u/f", "mine");
    bed.file("u/other", "other");
    testkit::tick();
    bed.file("b/f", "theirs");
    let (code, _, err) = bed.run(&["commit", "-b", "u:b"]);
    assert_eq!(code, 3);
    assert!(err.starts_with("strata: /f: has changed below"), "{err}");
    assert!(!bed.path("b/other").exists());
    assert!(err.contains("--skip-conflicts or --force"), "{err}");
    let (code, _, err) = bed.run(&["snapmerge", "--base", "u", "b"]);
    assert!(code == 3 && err.contains("use --force") && !err.contains("--skip-conflicts"), "{err}");
    assert_eq!(bed.run(&["commit", "-b", "u:b", "--skip-conflicts"]).0, 0);
    assert!(bed.path("b/other").exists() && fs::read(bed.path("b/f")).unwrap() == b"theirs");
    assert_eq!(bed.run(&["commit", "-b", "u:b", "--force"]).0, 0);
    assert!(fs::read(bed.path("b/f")).unwrap() == b"mine" && tree(&bed.path("u")).is_empty());
}

#[test]
fn a_branch_in_use_is_refused() {
    let bed = Bed::new();
    bed.file("u/f", "");
    fs::create_dir(bed.path("b")).unwrap();
    let held = fs::File::open(bed.path("u")).unwrap();
    held.lock().unwrap();
    let (code, _, err) = bed.run(&["commit", "-b", "u:b"]);
    assert!(code == 32 && err.contains("in use by a mounted union"), "{code} {err}");
    assert!(bed.path("u/f").exists());
}

/// The root of the lower branch belongs to root; a directory in it to the user.
#[test]
fn a_user_commits_into_his_own_directory_below_a_root_of_others() {
    const USER: u32 = 65_534;
    testkit::need_root("it acts as another user");
    let bed = Bed::new();
    fs::set_permissions(&bed.0, fs::Permissions::from_mode(0o755)).unwrap();
    bed.file("b/etc", "root's");
    bed.file("b/home/f", "old");
    bed.file("b/home/gone", "");
    bed.file("u/home/f", "new");
    bed.file("u/home/.wh.gone", "");
    bed.file("u/etc", "changed");
    for path in ["b/home", "b/home/f", "b/home/gone", "u", "u/home", "u/home/f", "u/home/.wh.gone", "u/etc"] {
        std::os::unix::fs::chown(bed.path(path), Some(USER), Some(USER)).unwrap();
    }
    let (code, _, err) = bed.run_as(Some(USER), &["commit", "--force", "-b", "u:b"]);
    assert_eq!(code, 5, "{err}");
    assert!(err.contains("/etc: can't create the file"), "{err}");
    assert_eq!(fs::read(bed.path("b/home/f")).unwrap(), b"new");
    assert!(!bed.path("b/home/gone").exists() && fs::read(bed.path("b/etc")).unwrap() == b"root's");
    assert!(bed.path("u/etc").exists() && !bed.path("u/home").exists());
    let left: Vec<_> =
        tree(&bed.path("b")).into_keys().filter(|path| path.to_string_lossy().contains(".wh.")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn snapshots_are_merged() {
    let bed = Bed::new();
    bed.file("base/a", "0");
    bed.file("base/b", "0");
    bed.file("base/c/x", "0");
    bed.file("1/a", "1");
    bed.file("2/.wh.b", "");
    bed.file("2/a", "2");
    bed.file("3/c/x", "3");
    bed.file("3/new", "3");
    let (code, out, err) = bed.run(&["snapmerge", "3", "2", "1"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(tree(&bed.path("3")).is_empty() && tree(&bed.path("2")).is_empty());
    // The whiteout still hides something further below.
    assert!(bed.path("1/.wh.b").exists() && fs::read(bed.path("1/a")).unwrap() == b"2");
    let (code, out, err) = bed.run(&["snapmerge", "--base", "1", "base"]);
    assert_eq!(code, 0, "{out}{err}");
    let mut files = tree(&bed.path("base"));
    files.retain(|path, _| path.is_file());
    // Newer snapshots may know the files by their numbers.
    assert!(files.remove(&bed.path("base/.wh..wh.ident")).is_some());
    let files: Vec<_> = files.into_iter().collect();
    let want = [("a", "2"), ("c/x", "3"), ("new", "3")];
    assert_eq!(files, want.map(|(path, text)| (bed.path("base").join(path), text.as_bytes().to_vec())));
    assert!(tree(&bed.path("1")).is_empty());
}

#[test]
fn a_merge_that_needs_the_branches_below_is_refused() {
    let bed = Bed::new();
    bed.file("base/old/x", "0");
    bed.file("2/new/.wh..wh.redirect", "strata-redirect 1\n/old\n");
    fs::set_permissions(bed.path("2/new/.wh..wh.redirect"), fs::Permissions::from_mode(0o444)).unwrap();
    bed.file("2/.wh..wh.moved", "");
    bed.file("2/.wh.old", "");
    fs::create_dir(bed.path("1")).unwrap();
    let (code, _, err) = bed.run(&["snapmerge", "2", "1"]);
    assert!(code == 1 && err.contains("/new: was renamed") && err.contains("--below"), "{err}");
    let (code, out, err) = bed.run(&["snapmerge", "--below", "base", "2", "1"]);
    assert_eq!(code, 0, "{out}{err}");
    assert_eq!(fs::read(bed.path("1/new/x")).unwrap(), b"0");
    assert!(bed.path("1/.wh.old").exists() && tree(&bed.path("2")).is_empty());
}

#[test]
fn a_killed_commit_is_completed_by_the_next() {
    let bed = Bed::new();
    for at in 0..300 {
        bed.file(&format!("b/d{}/f{at}", at % 7), "old");
        bed.file(&format!("u/d{}/f{at}", at % 7), &format!("new {at}"));
        bed.file(&format!("b/gone{}/g{at}", at % 5), "x");
    }
    (0..5).for_each(|at| bed.file(&format!("u/.wh.gone{at}"), ""));
    let mut kills = 0;
    for wait in [3, 5, 8, 12, 20, 30, 45, 60, 90, 130] {
        let mut child = Command::new(PROGRAM)
            .args(["commit", "--force", "-b", "u:b"])
            .current_dir(&bed.0)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // The kill comes at different steps.
        std::thread::sleep(Duration::from_millis(wait));
        kills += u32::from(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        // Each file of the union has its new text, on one of the branches.
        for at in 0..300 {
            let path = format!("d{}/f{at}", at % 7);
            let text = fs::read(bed.path("u").join(&path)).or_else(|_| fs::read(bed.path("b").join(&path))).unwrap();
            assert_eq!(text, format!("new {at}").as_bytes());
        }
    }
    assert!(kills > 0);
    let (code, _, err) = bed.run(&["commit", "--force", "-b", "u:b"]);
    assert_eq!(code, 0, "{err}");
    assert!(tree(&bed.path("u")).is_empty());
    let files = tree(&bed.path("b"));
    assert_eq!(files.len(), 307, "{:?}", files.keys());
}

/// A directory in which a file system is mounted can't be removed: nothing in it is touched, and
/// the other changes are committed.
#[test]
fn a_directory_with_a_mount_inside_stays() {
    let _mounts = strata_tests::Sandbox::new();
    let bed = Bed::new();
    for path in ["b/gone/a", "b/gone/m/hidden", "b/file/m/hidden", "b/again/m/hidden", "b/old", "b/other/x"] {
        bed.file(path, path);
    }
    for path in ["u/.wh.gone", "u/file", "u/.wh.again", "u/again/new", "u/.wh.old", "u/.wh.other", "u/new"] {
        bed.file(path, "new");
    }
    let points = ["b/gone/m", "b/file/m", "b/again/m"].map(|point| bed.path(point));
    for point in &points {
        rustix::mount::mount("tmpfs", point, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    }
    let before = tree(&bed.path("b/gone"));
    let (code, out, err) = bed.run(&["commit", "-n", "-b", "u:b"]);
    assert_eq!((code, out.lines().last()), (5, Some("4 changes would be committed")), "{out}{err}");
    let (code, out, err) = bed.run(&["commit", "-b", "u:b"]);
    assert_eq!(
        (code, &*out),
        (5, "added       /again/new\nadded       /new\nremoved     /old\nremoved     /other/\n4 changes committed\n"),
        "{err}"
    );
    for path in ["/gone: can't remove", "/file: can't replace", "/again/m: can't remove"] {
        assert!(err.contains(path) && err.contains("unmount that file system"), "{err}");
    }
    assert_eq!(tree(&bed.path("b/gone")), before);
    assert!(bed.path("b/again/m").exists() && bed.path("b/file").is_dir() && !bed.path("b/old").exists());
    for point in &points {
        rustix::mount::unmount(point, rustix::mount::UnmountFlags::empty()).unwrap();
    }
    let (code, _, err) = bed.run(&["commit", "-b", "u:b"]);
    assert_eq!(code, 0, "{err}");
    let names: Vec<_> = tree(&bed.path("b")).into_keys().collect();
    assert_eq!(names, ["b/again", "b/again/new", "b/file", "b/new"].map(|path| bed.path(path)));
}

/// Another directory in place of the base: nothing that leads to the base may be dropped.
#[test]
fn a_commit_without_the_base_is_refused() {
    let sandbox = strata_tests::Sandbox::new();
    let disk = sandbox.ext4("disk", 64);
    let run = |args: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.current_dir(&disk);
        if let Some(name) = args.first().filter(|name| name.contains('.')) {
            command.arg0(name).args(&args[1..]);
        } else {
            command.args(args);
        }
        testkit::outcome(&mut command)
    };
    let shell = |script: &str| testkit::outcome(Command::new("sh").args(["-ec", script]).current_dir(&disk)).succeeds();
    for (name, script, reason) in [
        ("moved", "mv u/dir u/moved", "/moved: was renamed"),
        ("metacopy", "chmod 600 u/big", "/big: has its data on a branch below"),
        ("links", "echo more >>u/one; rm u/one", "has copies of files with several names"),
    ] {
        shell(&format!(
            "mkdir -p u base/dir empty b0 {name}; echo x >base/dir/x; echo 1 >base/one; ln base/one base/two
            head -c 3000000 /dev/zero >base/big; echo other >base/other"
        ));
        let dirs = format!("dirs=/mnt/disk/{name}=rw:/mnt/disk/base=ro");
        run(&["mount.unionfs", "none", "/mnt/disk/u", "-o", &dirs]).succeeds();
        shell(&format!("{script}; echo new >u/new; rm u/other"));
        // The server holds the lock until it ends.
        shell(&format!("umount u; flock -w 60 {name} true"));
        let before = tree(&disk.join(name));
        for args in [&["commit", "-b", &format!("{name}:empty")][..], &["commit", "-b", &format!("b0:{name}:empty")]] {
            // Nothing is committed from an empty branch, but the target's index may not be pruned.
            let refused = run(args);
            if args[2].starts_with("b0") && name != "links" {
                continue;
            }
            assert!(refused.code == 1 && refused.err.contains(reason), "{args:?}: {}{}", refused.out, refused.err);
            assert!(refused.err.contains("--branches"), "{}", refused.err);
        }
        assert_eq!(tree(&disk.join(name)), before);
        assert!(tree(&disk.join("empty")).is_empty());
        // What does not depend on the base can be committed, if only that is selected.
        if name != "links" {
            run(&["commit", "-b", &format!("{name}:empty"), "new"]).succeeds();
            assert_eq!(fs::read(disk.join("empty/new")).unwrap(), b"new\n");
        }
        run(&["commit", "-b", &format!("{name}:base")]).succeeds();
        assert!(tree(&disk.join(name)).is_empty() && !disk.join("base/other").exists());
        shell("rm -r base empty b0");
    }
}

/// What was removed below by others is no reason to refuse a commit.
#[test]
fn a_commit_of_files_whose_base_was_removed_is_made() {
    let sandbox = strata_tests::Sandbox::new();
    let disk = sandbox.ext4("disk", 64);
    let shell = |script: &str| testkit::outcome(Command::new("sh").args(["-ec", script]).current_dir(&disk)).succeeds();
    shell("mkdir -p u b base/dir; echo x >base/dir/x; head -c 3000000 /dev/zero >base/big; cp base/big base/other");
    let mut mount = Command::new(PROGRAM);
    mount.arg0("mount.unionfs").args(["none", "/mnt/disk/u", "-o", "dirs=/mnt/disk/b=rw:/mnt/disk/base=ro"]);
    testkit::outcome(&mut mount).succeeds();
    shell("mv u/dir u/moved; echo y >u/moved/y; chmod 600 u/big u/other");
    shell("umount u; flock -w 60 b true; rm -r base/dir base/big");
    let commit = testkit::outcome(Command::new(PROGRAM).args(["commit", "-b", "b:base"]).current_dir(&disk));
    assert_eq!(commit.code, 0, "{}", commit.err);
    assert_eq!(fs::read(disk.join("base/moved/y")).unwrap(), b"y\n");
    assert!(tree(&disk.join("b")).is_empty(), "{:?}", tree(&disk.join("b")).keys());
}
