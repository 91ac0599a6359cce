//! Faults of other union file systems, numbered as in docs/testing.md.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::fs::{CWD, FileType, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use strata_tests::mapping::Mapping;
use strata_tests::process::sh;
use strata_tests::{Delete, Fixture, Mode, Mounted, Rng, Sandbox, Spec, Transport, on_both_transports};
use testkit::names;

fn append(path: &Path, bytes: &[u8]) {
    File::options().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

fn exchange(a: &Path, b: &Path) -> rustix::io::Result<()> {
    renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)
}

fn ino(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

/// Fault 1: an append through one descriptor, while another reads the same file of the read-only
/// branch, does not write to that branch, and the reader sees the appended bytes.
fn f1_append_while_another_reads(transport: Transport) {
    let original = Rng::new(1).bytes(200_000);
    let fx = Fixture::new(transport, |ro| fs::write(ro.join("f"), &original).unwrap());
    let reader = File::open(fx.path("f")).unwrap();
    let mut start = vec![0; 1000];
    let read = fx.union.during(|| reader.read_exact_at(&mut start, 0).unwrap());
    assert_eq!(start, original[..1000]);
    // No passthrough yet: it could not follow the copy-up.
    assert!(read.get("READ") > 0, "a file that may still be copied up is passed through: {read:?}");
    sh("printf appended >> \"$1\"", &[fx.path("f")]);
    assert!(fs::read(fx.ro.join("f")).unwrap() == original, "the read-only branch was written");
    let mut end = vec![0; 8];
    reader.read_exact_at(&mut end, 200_000).unwrap();
    assert_eq!(end, b"appended");
    assert_eq!(reader.metadata().unwrap().len(), 200_008);
    let all = fs::read(fx.path("f")).unwrap();
    assert!(all[..200_000] == original && all[200_000..] == *b"appended");
    fx.check_read_only_branch();
    drop(reader);
    // The file is on the read-write branch, and the last file opened before the copy-up is closed.
    let mut again = File::open(fx.path("f")).unwrap();
    let read = fx.union.during(|| assert_eq!(again.read_to_end(&mut Vec::new()).unwrap(), 200_008));
    assert_eq!(read.get("READ"), 0, "a file on the read-write branch is not passed through: {read:?}");
}

/// Fault 1, reversed: bytes written through one open file are visible in all others, opened before,
/// during and after the write.
fn f1_many_open_files_of_one_file(transport: Transport) {
    let fx = Fixture::new(transport, |ro| fs::write(ro.join("f"), vec![b'.'; 10_000]).unwrap());
    let readers: Vec<File> = (0..3).map(|_| File::open(fx.path("f")).unwrap()).collect();
    let mut writers = Vec::new();
    for i in 0..5_u64 {
        let writer = File::options().read(true).write(true).open(fx.path("f")).unwrap();
        writer.write_all_at(format!("writer {i}").as_bytes(), i * 2000).unwrap();
        writers.push(writer);
    }
    drop(writers.swap_remove(0));
    append(&fx.path("f"), b"end");
    let all = fs::read(fx.path("f")).unwrap();
    for file in readers.iter().chain(&writers) {
        let mut seen = vec![0; 10_003];
        file.read_exact_at(&mut seen, 0).unwrap();
        assert!(seen == all);
    }
    for i in 0..5 {
        let text = format!("writer {i}");
        assert_eq!(all[i * 2000..i * 2000 + text.len()], *text.as_bytes());
    }
    assert!(fs::read(fx.rw.join("f")).unwrap() == all);
}

/// Faults 1 and 5: a read-only shared mapping made before the copy-up sees later writes.
fn f5_shared_mapping_follows_copy_up(transport: Transport) {
    let fx = Fixture::new(transport, |ro| fs::write(ro.join("f"), vec![b'.'; 10_000]).unwrap());
    let reader = File::open(fx.path("f")).unwrap();
    let map = Mapping::new(&reader, 10_000, ProtFlags::READ, MapFlags::SHARED).unwrap();
    assert_eq!(map.get(5000), b'.');
    let writer = File::options().write(true).open(fx.path("f")).unwrap();
    writer.write_all_at(b"new", 5000).unwrap();
    assert_eq!(map.read(4999, 5), b".new.");
    // So does a writable mapping.
    let both = File::options().read(true).write(true).open(fx.path("f")).unwrap();
    let mut writing = Mapping::new(&both, 10_000, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED).unwrap();
    writing.write(7000, b"mapped");
    assert_eq!(map.read(7000, 6), b"mapped");
    writing.sync().unwrap();
    drop((map, writing, reader, writer, both));
    let rw = fs::read(fx.rw.join("f")).unwrap();
    assert_eq!((&rw[5000..5003], &rw[7000..7006]), (&b"new"[..], &b"mapped"[..]));
}

/// Writes to a private mapping of a file on the read-only branch stay private and copy nothing up.
fn f5_private_mapping(transport: Transport) {
    let fx = Fixture::new(transport, |ro| fs::write(ro.join("f"), vec![b'.'; 10_000]).unwrap());
    let reader = File::open(fx.path("f")).unwrap();
    let mut map = Mapping::new(&reader, 10_000, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE).unwrap();
    map.write(100, b"mine");
    assert_eq!(map.read(100, 4), b"mine");
    assert_eq!(fs::read(fx.path("f")).unwrap(), vec![b'.'; 10_000]);
    assert!(
        names(&fx.rw).iter().all(|n| n.as_encoded_bytes().starts_with(b".wh.")),
        "a private mapping copied the file up"
    );
}

/// Faults 2, 5 and 6: hard links remain links to one file over copy-up and remount, whichever name
/// is used for the change.
fn f2_hard_links_stay_together(transport: Transport) {
    let mut fx = Fixture::new(transport, |ro| {
        fs::create_dir(ro.join("dir")).unwrap();
        fs::write(ro.join("a"), "old").unwrap();
        fs::hard_link(ro.join("a"), ro.join("b")).unwrap();
        fs::hard_link(ro.join("a"), ro.join("dir/c")).unwrap();
    });
    let number = ino(&fx.path("a"));
    let check = |fx: &Fixture, content: &str, names: &[&str]| {
        for name in names {
            let meta = fs::metadata(fx.path(name)).unwrap();
            assert_eq!(fs::read_to_string(fx.path(name)).unwrap(), content, "{name}");
            assert_eq!((meta.ino(), meta.nlink()), (number, names.len() as u64), "{name}: number and links");
        }
    };
    check(&fx, "old", &["a", "b", "dir/c"]);
    append(&fx.path("a"), b"+a");
    check(&fx, "old+a", &["a", "b", "dir/c"]);
    fx.remount();
    check(&fx, "old+a", &["dir/c", "b", "a"]);
    append(&fx.path("dir/c"), b"+c");
    check(&fx, "old+a+c", &["a", "b", "dir/c"]);
    fs::remove_file(fx.path("a")).unwrap();
    check(&fx, "old+a+c", &["b", "dir/c"]);
    fx.remount();
    check(&fx, "old+a+c", &["b", "dir/c"]);
    fs::hard_link(fx.path("b"), fx.path("d")).unwrap();
    fs::rename(fx.path("dir/c"), fx.path("e")).unwrap();
    check(&fx, "old+a+c", &["b", "d", "e"]);
    fx.remount();
    append(&fx.path("e"), b"+e");
    check(&fx, "old+a+c+e", &["e", "d", "b"]);
}

/// Fault 2, with a descriptor opened by one name while the file is changed by another, and with a
/// change of attributes only.
fn f2_hard_links_by_descriptor_and_by_attribute(transport: Transport) {
    let mut fx = Fixture::new(transport, |ro| {
        fs::write(ro.join("a"), "old").unwrap();
        fs::hard_link(ro.join("a"), ro.join("b")).unwrap();
    });
    let reader = File::open(fx.path("b")).unwrap();
    append(&fx.path("a"), b"+a");
    let mut seen = [0; 5];
    reader.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(&seen, b"old+a");
    drop(reader);
    fs::set_permissions(fx.path("b"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    fx.remount();
    for name in ["a", "b"] {
        let meta = fs::metadata(fx.path(name)).unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.nlink(), meta.len()), (0o600, 2, 5), "{name}");
    }
}

/// Faults 3 and 6: RENAME_EXCHANGE exchanges objects of any branches, and the result survives a
/// remount.
fn f3_exchange(transport: Transport) {
    for delete in [Delete::Whiteout, Delete::All] {
        let mut fx = Fixture::with(Sandbox::new(), 64, transport, delete, |ro| {
            for name in ["f1", "f2", "f3"] {
                fs::write(ro.join(name), name).unwrap();
            }
            for name in ["d1", "d2", "d3"] {
                fs::create_dir(ro.join(name)).unwrap();
                fs::write(ro.join(name).join("in"), name).unwrap();
            }
        });
        fs::write(fx.path("new"), "new").unwrap();
        fs::create_dir(fx.path("newdir")).unwrap();
        fs::write(fx.path("newdir/in"), "newdir").unwrap();
        let swap = |a: &str, b: &str| {
            let before = (ino(&fx.path(a)), ino(&fx.path(b)));
            exchange(&fx.path(a), &fx.path(b)).unwrap_or_else(|e| panic!("exchange of {a} and {b}: {e}"));
            assert_eq!((ino(&fx.path(b)), ino(&fx.path(a))), before, "{a} and {b}");
        };
        swap("f1", "f2");
        swap("f3", "new");
        swap("d1", "d2");
        swap("d3", "newdir");
        // A file with a directory.
        swap("f1", "d1");
        for _ in 0..2 {
            let text = |name: &str| fs::read_to_string(fx.path(name)).unwrap();
            assert_eq!(
                (text("f2"), text("d1"), text("f3"), text("new")),
                ("f1".into(), "f2".into(), "new".into(), "f3".into())
            );
            assert_eq!((text("f1/in"), text("d2/in")), ("d2".into(), "d1".into()));
            assert_eq!((text("d3/in"), text("newdir/in")), ("newdir".into(), "d3".into()));
            fx.remount();
        }
        assert_eq!(exchange(&fx.path("f1"), &fx.path("missing")), Err(Errno::NOENT));
        assert_eq!(exchange(&fx.path("d2"), &fx.path("d2/in")), Err(Errno::INVAL));
    }
}

/// Fault 4: no operation writes to a read-only branch. The fixture compares the branch at the end.
fn f4_read_only_branch_is_never_written(transport: Transport) {
    let fx = Fixture::delete_all(transport, |ro| {
        fs::create_dir(ro.join("d")).unwrap();
        for name in ["f", "g", "h", "d/f", "d/g"] {
            fs::write(ro.join(name), name).unwrap();
        }
    });
    fs::write(fx.path("f"), "overwritten").unwrap();
    File::options().write(true).truncate(true).open(fx.path("g")).unwrap();
    fs::remove_file(fx.path("h")).unwrap();
    fs::rename(fx.path("d"), fx.path("e")).unwrap();
    append(&fx.path("e/f"), b"+");
    fs::remove_file(fx.path("e/g")).unwrap();
    sh("chmod 700 \"$1\"/e; touch -d 2001-01-01 \"$1\"/e/f; chown 5:5 \"$1\"/f", &[fx.union.dir()]);
    fx.check_read_only_branch();
    assert_eq!(fs::read_to_string(fx.path("e/f")).unwrap(), "d/f+");
}

/// Fault 4: a union of read-only branches is read-only and returns the right errno.
fn f4_read_only_union(transport: Transport) {
    let sandbox = Sandbox::new();
    let disk = sandbox.ext4("disk", 64);
    let branches: Vec<_> = ["left", "right"].iter().map(|n| (disk.join(n), Mode::Ro)).collect();
    for (dir, _) in &branches {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join("f"), dir.file_name().unwrap().to_str().unwrap()).unwrap();
    }
    let union = Mounted::new(Spec::Union { branches, delete: Delete::Whiteout, transport }, &sandbox.path("u"));
    assert_eq!(fs::read_to_string(union.path("f")).unwrap(), "left");
    let refused =
        |what: std::io::Result<()>| assert_eq!(what.unwrap_err().raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    refused(File::options().write(true).open(union.path("f")).map(drop));
    refused(fs::write(union.path("new"), ""));
    refused(fs::remove_file(union.path("f")));
    refused(fs::create_dir(union.path("d")));
    refused(fs::rename(union.path("f"), union.path("g")));
    refused(symlink("x", union.path("s")));
    refused(fs::set_permissions(union.path("f"), std::os::unix::fs::PermissionsExt::from_mode(0o600)));
    // Nothing can be copied up in this union, so the file is passed through.
    let read = union.during(|| drop(fs::read(union.path("f")).unwrap()));
    assert_eq!(read.get("READ"), 0, "{read:?}");
}

/// Fault 5: a copy-up preserves the inode number and times of the file, and the times of its
/// directory.
fn f5_copy_up_keeps_inode_number_and_times(transport: Transport) {
    let mut fx = Fixture::new(transport, |ro| {
        fs::create_dir(ro.join("d")).unwrap();
        fs::write(ro.join("d/f"), "text").unwrap();
        sh(
            "touch -d '2001-02-03 04:05:06.123456789' \"$1\"; touch -a -d '2002-02-03 04:05:06.987654321' \"$1\"",
            &[ro.join("d/f")],
        );
        sh("touch -d '1999-02-03 04:05:06.111111111' \"$1\" \"$2\"", &[ro.join("d"), ro.to_owned()]);
    });
    let stat = |fx: &Fixture, name: &str| {
        let m = fs::metadata(fx.path(name)).unwrap();
        (
            m.ino(),
            m.mtime(),
            m.mtime_nsec(),
            m.atime(),
            m.atime_nsec(),
            m.dev() == fs::metadata(fx.union.dir()).unwrap().dev(),
        )
    };
    let (file, dir) = (stat(&fx, "d/f"), stat(&fx, "d"));
    assert_eq!((file.2, file.4, file.5), (123_456_789, 987_654_321, true));
    fs::set_permissions(fx.path("d/f"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    assert!(fx.rw.join("d/f").exists(), "copied up");
    assert_eq!((stat(&fx, "d/f"), stat(&fx, "d")), (file, dir));
    fx.remount();
    assert_eq!((stat(&fx, "d/f"), stat(&fx, "d")), (file, dir));
    append(&fx.path("d/f"), b"+");
    assert_eq!(stat(&fx, "d/f").0, file.0);
    assert_ne!(stat(&fx, "d/f").1, file.1, "a write did not change the time");
    fs::rename(fx.path("d/f"), fx.path("g")).unwrap();
    assert_eq!(stat(&fx, "g").0, file.0);
    fx.remount();
    assert_eq!(stat(&fx, "g").0, file.0);
}

/// Fault 6: names that begin with `.wh.` can't be created, looked up or listed.
fn f6_reserved_names(transport: Transport) {
    let fx = Fixture::new(transport, |ro| {
        fs::create_dir(ro.join("d")).unwrap();
        fs::write(ro.join("d/f"), "").unwrap();
        fs::write(ro.join("g"), "").unwrap();
    });
    fs::remove_file(fx.path("g")).unwrap();
    fs::remove_file(fx.path("d/f")).unwrap();
    assert!(fx.rw.join(".wh.g").exists() && fx.rw.join("d/.wh.f").exists(), "the whiteouts are missing");
    assert_eq!(names(fx.union.dir()), ["d"]);
    assert!(names(&fx.path("d")).is_empty());
    fs::write(fx.path("x"), "").unwrap();
    for name in [".wh.g", ".wh.x", ".wh.new", ".wh..wh..opq", ".wh..wh.work", ".wh."] {
        let path = fx.path(name);
        assert_eq!(rustix::fs::stat(&path).map(drop), Err(Errno::NOENT), "stat {name}");
        assert_eq!(rustix::fs::unlink(&path), Err(Errno::NOENT), "unlink {name}");
        let refused = |what: &str, outcome: rustix::io::Result<()>| {
            assert!(matches!(outcome, Err(Errno::PERM | Errno::INVAL)), "{what} {name}: {outcome:?}");
        };
        let mode = rustix::fs::Mode::from_raw_mode(0o644);
        refused("create", rustix::fs::open(&path, OFlags::CREATE | OFlags::WRONLY, mode).map(drop));
        refused("mkdir", rustix::fs::mkdir(&path, mode));
        refused("symlink", rustix::fs::symlink("x", &path));
        refused("link", rustix::fs::link(fx.path("x"), &path));
        refused("rename", rustix::fs::rename(fx.path("x"), &path));
        refused("mknod", rustix::fs::mknodat(CWD, &path, FileType::Fifo, mode, 0));
    }
    assert!(!fx.path("g").exists() && fx.path("x").exists());
}

/// Fault 6: O_TMPFILE works, and a file linked from it persists.
fn f6_unnamed_files(transport: Transport) {
    let mut fx = Fixture::new(transport, |ro| fs::create_dir(ro.join("d")).unwrap());
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let fd = rustix::fs::open(fx.path("d"), flags, rustix::fs::Mode::from_raw_mode(0o640)).unwrap();
    let mut file = File::from(fd);
    file.write_all(b"unnamed").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert!(names(&fx.path("d")).is_empty());
    let from = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    rustix::fs::linkat(CWD, &from, CWD, fx.path("d/named"), rustix::fs::AtFlags::SYMLINK_FOLLOW).unwrap();
    let number = file.metadata().unwrap().ino();
    drop(file);
    fx.remount();
    assert_eq!(fs::read_to_string(fx.path("d/named")).unwrap(), "unnamed");
    assert_eq!(ino(&fx.path("d/named")), number);
    drop(File::from(rustix::fs::open(fx.path("d"), flags, rustix::fs::Mode::empty()).unwrap()));
    assert_eq!(names(&fx.path("d")), ["named"]);
}

/// Faults 5 and 8: a directory on the read-only branch is renamed, at a cost independent of its
/// size.
fn f8_directory_rename(transport: Transport) {
    for delete in [Delete::Whiteout, Delete::All] {
        let mut fx = Fixture::with(Sandbox::new(), 64, transport, delete, |ro| {
            fs::create_dir_all(ro.join("big/deep/er")).unwrap();
            for i in 0..1000 {
                fs::write(ro.join(format!("big/{i}")), "").unwrap();
            }
            fs::write(ro.join("big/deep/er/f"), "deep").unwrap();
            fs::create_dir(ro.join("other")).unwrap();
        });
        let number = ino(&fx.path("big"));
        let below = ino(&fx.path("big/deep/er/f"));
        fs::rename(fx.path("big"), fx.path("moved")).unwrap();
        assert!(!fx.path("big").exists());
        let entries: usize = sh("find \"$1\" | wc -l", &[&fx.rw]).trim().parse().unwrap();
        assert!(entries < 20, "{entries} entries on the read-write branch after the rename of a directory");
        // Rename it again, move it into another directory, and rename an object in it.
        fs::rename(fx.path("moved/deep"), fx.path("moved/shallow")).unwrap();
        fs::rename(fx.path("moved"), fx.path("other/again")).unwrap();
        for _ in 0..2 {
            assert_eq!(ino(&fx.path("other/again")), number);
            assert_eq!(ino(&fx.path("other/again/shallow/er/f")), below);
            assert_eq!(names(&fx.path("other/again")).len(), 1001);
            assert_eq!(fs::read_to_string(fx.path("other/again/shallow/er/f")).unwrap(), "deep");
            assert_eq!(names(fx.union.dir()), ["other"]);
            fx.remount();
        }
        append(&fx.path("other/again/shallow/er/f"), b"+");
        assert_eq!(rustix::fs::rename(fx.path("other"), fx.path("other/again/x")), Err(Errno::INVAL));
        fx.remount();
        assert_eq!(fs::read_to_string(fx.path("other/again/shallow/er/f")).unwrap(), "deep+");
    }
}

/// Faults 7 and 8: a directory created in the place of a renamed one is empty, and the renamed one
/// keeps its contents.
fn f7_replaced_directory(transport: Transport) {
    for delete in [Delete::Whiteout, Delete::All] {
        let mut fx = Fixture::with(Sandbox::new(), 64, transport, delete, |ro| {
            fs::create_dir_all(ro.join("etc/conf")).unwrap();
            fs::write(ro.join("etc/conf/a"), "old a").unwrap();
            fs::write(ro.join("etc/b"), "old b").unwrap();
        });
        // As package managers do: create the new directory, rename the old one, rename the new one
        // to its place.
        fs::create_dir_all(fx.path("etc.new/conf")).unwrap();
        fs::write(fx.path("etc.new/conf/a"), "new a").unwrap();
        fs::rename(fx.path("etc"), fx.path("etc.old")).unwrap();
        fs::rename(fx.path("etc.new"), fx.path("etc")).unwrap();
        for _ in 0..2 {
            assert_eq!(names(fx.union.dir()), ["etc", "etc.old"]);
            assert_eq!(names(&fx.path("etc")), ["conf"]);
            assert_eq!(fs::read_to_string(fx.path("etc/conf/a")).unwrap(), "new a");
            assert_eq!(names(&fx.path("etc.old")), ["b", "conf"]);
            assert_eq!(fs::read_to_string(fx.path("etc.old/conf/a")).unwrap(), "old a");
            fx.remount();
        }
        // Remove the old one and create it again: it is empty.
        fs::remove_dir_all(fx.path("etc.old")).unwrap();
        fs::create_dir(fx.path("etc.old")).unwrap();
        assert!(names(&fx.path("etc.old")).is_empty());
        fs::remove_dir_all(fx.path("etc")).unwrap();
        fx.remount();
        assert_eq!(names(fx.union.dir()), ["etc.old"]);
        fs::create_dir(fx.path("etc")).unwrap();
        assert!(names(&fx.path("etc")).is_empty());
        // Rename onto an empty directory that hides a full one.
        fs::create_dir(fx.path("etc/x")).unwrap();
        fs::remove_dir(fx.path("etc/x")).unwrap();
        fs::rename(fx.path("etc.old"), fx.path("etc")).unwrap();
        fx.remount();
        assert!(names(&fx.path("etc")).is_empty());
    }
}

on_both_transports!(
    f1_append_while_another_reads,
    f1_many_open_files_of_one_file,
    f2_hard_links_stay_together,
    f2_hard_links_by_descriptor_and_by_attribute,
    f3_exchange,
    f4_read_only_branch_is_never_written,
    f4_read_only_union,
    f5_shared_mapping_follows_copy_up,
    f5_private_mapping,
    f5_copy_up_keeps_inode_number_and_times,
    f6_reserved_names,
    f6_unnamed_files,
    f7_replaced_directory,
    f8_directory_rename,
);
