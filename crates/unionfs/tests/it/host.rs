//! The union over directories of the host: the conformance suite, and copy-up with all attributes.
#![allow(clippy::disallowed_methods, reason = "the tests create their own directories")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::layer_ops::{CX, at, name};
use hostfs::{HostFs, HostOptions, Watch};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use testkit::TempDir;
use unionfs::{Branch, Metacopy, Mode, Options, Unionfs};
use vnode::{Errno, Layer as _, OpenFlags, Reports, SetAttr, XattrFlags};

fn branch(path: &Path, mode: Mode) -> Branch {
    let options = HostOptions { read_only: mode != Mode::ReadWrite, ..HostOptions::default() };
    Branch { layer: HostFs::open(path, options).unwrap(), path: path.to_owned(), mode }
}

fn branches(scratch: &TempDir) -> Vec<Branch> {
    vec![branch(&scratch.dir("rw"), Mode::ReadWrite), branch(&scratch.dir("ro"), Mode::ReadOnly)]
}

fn union(scratch: &TempDir) -> Arc<Unionfs> {
    Unionfs::new(branches(scratch), Options::default()).unwrap()
}

/// Runs a command in another process: the server's own changes are not reported.
fn run(program: &str, path: &Path) {
    assert!(std::process::Command::new(program).arg(path).status().unwrap().success());
}

/// Waits until the kernel has reported all changes.
fn settle(source: &Arc<dyn Reports>) {
    testkit::until("all changes are reported", || source.are_complete());
}

/// With the kernel's reports, nothing is read to verify a directory, and each change is visible to
/// the next operation all the same, before and after the report arrives.
#[test]
fn reported_changes_are_visible_to_the_next_operation() {
    const COUNT: usize = 20;
    // Only few programs change this file system, which would make reports.
    let scratch = TempDir::in_memory();
    let options = HostOptions { watch: Watch::Names, name_cache_ttl: Duration::ZERO, ..HostOptions::default() };
    let layers: Vec<_> = (0..COUNT)
        .map(|n| {
            let dir = scratch.dir(&format!("b{n}/d"));
            fs::write(dir.join(format!("f{n}")), "").unwrap();
            let options = HostOptions { read_only: n > 0, ..options };
            HostFs::open(dir.parent().unwrap(), options).unwrap()
        })
        .collect();
    let listed = layers.iter().enumerate().map(|(n, layer)| Branch {
        layer: layer.clone(),
        path: scratch.join(format!("b{n}")),
        mode: if n == 0 { Mode::ReadWrite } else { Mode::ReadOnly },
    });
    assert!(layers.iter().all(|layer| layer.reports().is_none()), "nothing is reported before the layer is attached");
    let options = Options { check_interval: Duration::from_nanos(1), ..Options::default() };
    let union = Unionfs::new(listed.collect(), options).unwrap();
    let Some(source) = layers[7].reports() else {
        testkit::skip("fanotify can't watch this file system, or not without privileges");
        return;
    };
    let (dir, part) = (at(&*union, "d"), |n: usize| scratch.join(format!("b{n}/d")));
    let has = |file: &str| dir.lookup(&CX, name(file)).unwrap().is_some();
    let list = || {
        let mut names = std::collections::BTreeSet::new();
        dir.readdir(&CX, 0, &mut |entry| names.insert(entry.name.to_string())).unwrap();
        names
    };
    for round in 0..20 {
        let (new, gone) = (format!("new{round}"), format!("f{}", (7 * round + 3) % COUNT));
        assert!(!has(&new) && has(&gone) && list().contains(&gone));
        run("touch", &part(7 * round % COUNT).join(&new));
        assert!(has(&new), "round {round}");
        run("rm", &part((7 * round + 3) % COUNT).join(&gone));
        let names = list();
        assert!(names.contains(&new) && !names.contains(&gone) && !has(&gone), "round {round}");
        if round % 2 == 0 {
            settle(&source);
            assert!(has(&new) && !has(&gone) && list() == names, "round {round}");
        }
    }
    // A change that is not reported shows that nothing is read once all reports were made.
    settle(&source);
    list();
    fs::write(part(5).join("unreported"), "").unwrap();
    settle(&source);
    assert!(!list().contains("unreported"));
    run("touch", &part(5).join("reported"));
    settle(&source);
    assert!(has("reported") && has("unreported") && list().contains("unreported"));
}

#[test]
fn host_directories_pass_the_conformance_suite() {
    testkit::need_root("it creates objects of other users");
    let mut keep = Vec::new();
    conformance::run_all(|| {
        let scratch = TempDir::new();
        let union = union(&scratch);
        keep.push(scratch);
        union
    });
}

#[test]
fn copy_up_preserves_data_attributes_and_symbolic_links() {
    testkit::need_root("it creates objects of other users");
    let scratch = TempDir::new();
    let ro = scratch.dir("ro");
    fs::create_dir_all(ro.join("a/b")).unwrap();
    fs::write(ro.join("a/b/f"), vec![7; 300_000]).unwrap();
    fs::set_permissions(ro.join("a/b/f"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(ro.join("a"), fs::Permissions::from_mode(0o2750)).unwrap();
    std::os::unix::fs::symlink("over/there", ro.join("a/b/l")).unwrap();
    let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH + std::time::Duration::new(1, 5));
    fs::File::options().write(true).open(ro.join("a/b/f")).unwrap().set_times(times).unwrap();
    let before = fs::metadata(ro.join("a/b/f")).unwrap();

    let whole = || {
        let options = Options { metacopy: Metacopy::Off, ..Options::default() };
        Unionfs::new(branches(&scratch), options).unwrap()
    };
    let mounted = whole();
    let file = at(&*mounted, "a/b/f");
    let number = file.id();
    file.setxattr(&CX, b"user.note", b"value", XattrFlags::default()).unwrap();
    let attr = file.getattr(&CX).unwrap();
    assert_eq!((attr.ino, attr.perm(), attr.size), (number, 0o4751, 300_000));
    assert_eq!((attr.mtime.sec, attr.mtime.nsec), (1, 5));

    let copy = scratch.dir("rw").join("a/b/f");
    let meta = fs::metadata(&copy).unwrap();
    assert_eq!((meta.mode(), meta.uid(), meta.gid()), (before.mode(), before.uid(), before.gid()));
    assert_eq!(fs::read(&copy).unwrap(), vec![7; 300_000]);
    assert_eq!(fs::metadata(scratch.dir("rw").join("a")).unwrap().mode() & 0o7777, 0o2750);

    let link = at(&*mounted, "a/b/l");
    link.setattr(&CX, &SetAttr { uid: Some(5), ..SetAttr::default() }, None).unwrap();
    assert_eq!(fs::read_link(scratch.dir("rw").join("a/b/l")).unwrap(), Path::new("over/there"));
    drop((file, link, mounted));

    let again = whole();
    assert_eq!(at(&*again, "a/b/f").id(), number, "the inode number changed over a remount");
    let mut value = [0; 16];
    assert_eq!(at(&*again, "a/b/f").getxattr(&CX, b"user.note", &mut value).unwrap(), 5);
    assert!(!scratch.dir("rw").join(".wh..wh.work").exists());
}

#[test]
fn an_open_reader_sees_the_copy_and_the_lower_file_is_unchanged() {
    testkit::need_root("it creates objects of other users");
    let scratch = TempDir::new();
    fs::write(scratch.dir("ro").join("f"), b"old").unwrap();
    let union = union(&scratch);
    let file = at(&*union, "f");
    let reader = file.open(&CX, OpenFlags::RDONLY).unwrap();
    assert!(reader.backing().is_none(), "the file may still be copied up");
    let writer = file.open(&CX, OpenFlags(0o2001)).unwrap();
    assert!(writer.backing().is_some(), "a file on the leftmost branch is never copied");
    assert_eq!(writer.write(&CX, b" and new", 0).unwrap(), 8);
    let mut out = [0; 32];
    assert_eq!(reader.read(&CX, &mut out, 0).unwrap(), 11);
    assert_eq!(&out[..11], b"old and new");
    assert_eq!(fs::read(scratch.dir("ro").join("f")).unwrap(), b"old");
}

/// A directory of a branch is replaced out of band while it is in use.
#[test]
fn a_replaced_directory_is_another_object() {
    let scratch = TempDir::new();
    let union = union(&scratch);
    let (dir, other) = (scratch.dir("rw/d"), scratch.dir("rw/e"));
    fs::write(other.join("x"), b"x").unwrap();
    let old = at(&*union, "d");
    let number = old.id();
    fs::remove_dir(&dir).unwrap();
    fs::rename(&other, &dir).unwrap();
    // Until the cached entries expire.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert_eq!(old.getattr(&CX).map(drop), Err(Errno::STALE));
    assert_eq!(old.lookup(&CX, name("x")).map(drop), Err(Errno::STALE));
    assert_eq!(old.mkdir(&CX, name("y"), 0o755).map(drop), Err(Errno::STALE));
    let new = at(&*union, "d");
    assert_ne!(new.id(), number);
    assert!(new.lookup(&CX, name("x")).unwrap().is_some());
    assert_eq!(old.getattr(&CX).map(drop), Err(Errno::STALE));
}

/// A directory that loses a part out of band is the same one.
#[test]
fn a_directory_that_keeps_a_part_is_the_same_object() {
    let scratch = TempDir::new();
    let union = union(&scratch);
    let (left, right) = (scratch.dir("rw/d"), scratch.dir("ro/d"));
    fs::write(right.join("x"), b"x").unwrap();
    let dir = at(&*union, "d");
    let number = dir.id();
    fs::remove_dir(&left).unwrap();
    // Until the cached entries expire.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert_eq!(dir.getattr(&CX).unwrap().ino, number);
    assert!(dir.lookup(&CX, name("x")).unwrap().is_some());
    assert!(Arc::ptr_eq(&at(&*union, "d"), &dir));
}
