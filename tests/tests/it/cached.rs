//! `data=cached`: read-only mounts on which the kernel opens files without a request.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::mount::{MountFlags, mount_remount};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use strata_tests::mapping::Mapping;
use strata_tests::process::{run, try_run};
use strata_tests::{Mounted, Rng, Sandbox, Spec, Transport, on_both_transports};
use testkit::until;

/// Delay in seconds until changes made below are visible.
const CACHE: &str = "0.2";

/// Mounts the null layer over `lower` with `data=cached`.
fn cached(sandbox: &Sandbox, lower: &Path, transport: Transport, more: &str) -> Mounted {
    let options = format!("ro,data=cached,{more}");
    Mounted::with_options(Spec::wrap(lower, transport), &sandbox.path("m"), &options)
}

/// Creates a directory on an ext4, populated by `fill`.
fn create_lower(sandbox: &Sandbox, fill: impl FnOnce(&Path)) -> PathBuf {
    let lower = sandbox.ext4("lower", 256);
    fill(&lower);
    lower
}

fn make_files(dir: &Path, count: usize) {
    (0..count).for_each(|i| fs::write(dir.join(i.to_string()), format!("file {i}")).unwrap());
}

fn read_all(dir: &Path, count: usize) {
    (0..count).for_each(|i| assert_eq!(fs::read_to_string(dir.join(i.to_string())).unwrap(), format!("file {i}")));
}

/// Opening and reading files a second time sends no request. The first time costs a READ per file
/// and a single OPEN.
fn repeated_opens_and_reads_send_no_request(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = create_lower(&sandbox, |dir| make_files(dir, 200));
    let mounted = cached(&sandbox, &lower, transport, "cache=1000");
    let first = mounted.during(|| read_all(mounted.dir(), 200));
    assert_eq!((first.get("READ"), first.get("OPEN"), first.get("FLUSH")), (200, 1, 1), "{first:?}");
    let again = mounted.during(|| read_all(mounted.dir(), 200));
    assert_eq!(again.total(), 0, "{again:?}");
    assert_eq!(mounted.requests().get("RELEASE"), 0);
}

/// A union of read-only branches accepts the option without `ro`.
fn a_union_of_read_only_branches(transport: Transport) {
    let sandbox = Sandbox::new();
    let (left, right) = (sandbox.dir("left"), sandbox.dir("right"));
    fs::write(left.join("both"), "left").unwrap();
    fs::write(right.join("both"), "right").unwrap();
    fs::write(right.join("one"), "right").unwrap();
    let branches = [left, right].map(|dir| (dir, strata_tests::Mode::Ro)).to_vec();
    let spec = Spec::Union { branches, delete: strata_tests::Delete::Whiteout, transport };
    let union = Mounted::with_options(spec, &sandbox.path("u"), "data=cached");
    assert_eq!(fs::read_to_string(union.path("both")).unwrap(), "left");
    assert_eq!(fs::read_to_string(union.path("one")).unwrap(), "right");
    let again = union.during(|| drop(fs::read(union.path("one")).unwrap()));
    assert_eq!(again.total(), 0, "{again:?}");
}

/// The option is refused on a writable mount and with a layer that handles opens.
fn refused_on_writable_mounts(transport: Transport) {
    let sandbox = Sandbox::new();
    let (rw, ro) = (sandbox.dir("rw"), sandbox.dir("ro"));
    let refused = |spec: Spec, options: &str, why: &str| {
        let output = Mounted::try_new(spec, &sandbox.path("x"), options).unwrap_err();
        assert!(output.contains("option data=") && output.contains(why), "{output}");
    };
    refused(Spec::wrap(&rw, transport), "data=cached", "the mount is writable");
    refused(Spec::union(&rw, &ro, transport), "data=cached", "the mount is writable");
    refused(Spec::stack("snoopfs / ", &rw, transport), "ro,data=cached", "snoopfs");
    refused(Spec::wrap(&rw, transport), "data=writeback", "cached");
}

/// Every change fails with EROFS, even if a remount that bypasses the helper made the mount
/// writable. No write is lost silently.
fn every_change_is_refused(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = create_lower(&sandbox, |dir| {
        fs::write(dir.join("f"), "kept").unwrap();
        fs::create_dir(dir.join("d")).unwrap();
    });
    for first in ["read", "write"] {
        let mounted = cached(&sandbox, &lower, transport, "");
        if first == "read" {
            assert_eq!(fs::read_to_string(mounted.path("f")).unwrap(), "kept");
        }
        refuses_changes(&mounted);
        mount_remount(mounted.dir(), MountFlags::empty(), c"").unwrap();
        refuses_changes(&mounted);
        assert_eq!(fs::read_to_string(mounted.path("f")).unwrap(), "kept");
    }
    assert_eq!(fs::read_to_string(lower.join("f")).unwrap(), "kept");
    assert_eq!(fs::read_dir(&lower).unwrap().count(), 2);
}

fn refuses_changes(mounted: &Mounted) {
    let refused = |what: &str, done: std::io::Result<()>| {
        let errno = done.err().and_then(|error| error.raw_os_error());
        assert_eq!(errno, Some(Errno::ROFS.raw_os_error()), "{what}");
    };
    let (file, new) = (mounted.path("f"), mounted.path("new"));
    refused("O_TRUNC", File::options().write(true).truncate(true).open(&file).map(drop));
    refused("write", File::options().write(true).open(&file).and_then(|mut f| f.write_all(b"lost")));
    refused("append", File::options().append(true).open(&file).and_then(|mut f| f.write_all(b"lost")));
    refused("truncate", File::options().write(true).open(&file).and_then(|f| f.set_len(1)));
    let reading_and_truncating = rustix::fs::open(&file, OFlags::RDONLY | OFlags::TRUNC, Mode::empty());
    refused("O_RDONLY | O_TRUNC", reading_and_truncating.map(drop).map_err(Into::into));
    let allocate = |f: File| rustix::fs::fallocate(&f, FallocateFlags::empty(), 0, 8192).map_err(Into::into);
    refused("fallocate", File::options().write(true).open(&file).and_then(allocate));
    refused("create", File::create(&new).map(drop));
    refused("mkdir", fs::create_dir(&new));
    refused("symlink", std::os::unix::fs::symlink("f", &new));
    refused("link", fs::hard_link(&file, &new));
    refused("rename", fs::rename(&file, &new));
    refused("unlink", fs::remove_file(&file));
    refused("rmdir", fs::remove_dir(mounted.path("d")));
    refused("chmod", fs::set_permissions(&file, fs::Permissions::from_mode(0o600)));
    refused("setxattr", {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&file, "user.a", b"b", flags).map_err(Into::into)
    });
}

/// The helper refuses to make the mount writable, and allows changes of other flags.
fn a_remount_keeps_it_read_only(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = create_lower(&sandbox, |dir| make_files(dir, 1));
    let mounted = cached(&sandbox, &lower, transport, "");
    let remount = |options: &str| {
        let mut command = Command::new(Mounted::program().unwrap());
        try_run(command.arg0("/sbin/mount.fuse.wrapfs").arg("none").arg(mounted.dir()).arg("-o").arg(options))
    };
    let output = remount("remount,rw");
    assert!(!output.status.success() && output.text.contains("data=cached"), "{}", output.text);
    assert!(!remount("remount,nosuid").status.success(), "that would make it writable");
    let output = remount("remount,ro,nosuid,data=cached");
    assert!(output.status.success(), "{}", output.text);
    assert!(File::create(mounted.path("new")).is_err());
}

/// Changes below are visible once attributes have expired: a change in place, a change of size, and
/// a new file of the same name; through a new open and through a held one.
fn changes_below_become_visible(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = create_lower(&sandbox, |dir| {
        fs::write(dir.join("f"), "old text").unwrap();
        fs::write(dir.join("g"), "old text").unwrap();
    });
    let mounted = cached(&sandbox, &lower, transport, &format!("cache={CACHE}"));
    let (file, below) = (mounted.path("f"), lower.join("f"));
    let held = File::open(&file).unwrap();
    let by_held = || {
        let mut bytes = [0; 64];
        let len = held.read_at(&mut bytes, 0).unwrap();
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    };
    let by_new = || fs::read_to_string(&file).unwrap();
    assert_eq!((by_held(), by_new()), ("old text".to_owned(), "old text".to_owned()));
    for text in ["new text", "longer than before", "short", ""] {
        // In place, without truncating it.
        let writing = File::options().write(true).open(&below).unwrap();
        writing.write_all_at(text.as_bytes(), 0).unwrap();
        writing.set_len(text.len() as u64).unwrap();
        until(&format!("{text:?} through the held file"), || by_held() == text);
        until(&format!("{text:?} through a new open"), || by_new() == text);
    }
    assert_eq!(fs::read_to_string(mounted.path("g")).unwrap(), "old text");
    fs::write(lower.join("other"), "another file").unwrap();
    fs::rename(lower.join("other"), lower.join("g")).unwrap();
    until("another file", || fs::read_to_string(mounted.path("g")).is_ok_and(|text| text == "another file"));
    fs::remove_file(lower.join("g")).unwrap();
    until("removal", || fs::read(mounted.path("g")).is_err());
}

/// With `cache=0` a change below is visible at once, also through a held file.
fn without_a_cache_changes_below_are_visible_at_once(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = create_lower(&sandbox, |dir| fs::write(dir.join("f"), "0000").unwrap());
    let mounted = cached(&sandbox, &lower, transport, "cache=0");
    let mut bytes = [0; 4];
    let held = File::open(mounted.path("f")).unwrap();
    for i in 1..200 {
        let text = format!("{i:04}");
        // The size is unchanged: only the modification time differs.
        File::options().write(true).open(lower.join("f")).unwrap().write_all_at(text.as_bytes(), 0).unwrap();
        assert_eq!(held.read_at(&mut bytes, 0).unwrap(), 4);
        assert_eq!(std::str::from_utf8(&bytes), Ok(&*text));
        assert_eq!(fs::read_to_string(mounted.path("f")).unwrap(), text);
    }
}

/// A mapping shows changes made below after the attributes were refreshed.
fn a_mapping_shows_changes_below(transport: Transport) {
    let sandbox = Sandbox::new();
    let data = Rng::new(3).bytes(64 << 10);
    let lower = create_lower(&sandbox, |dir| fs::write(dir.join("f"), &data).unwrap());
    let mounted = cached(&sandbox, &lower, transport, &format!("cache={CACHE}"));
    let file = File::open(mounted.path("f")).unwrap();
    let map = Mapping::new(&file, data.len(), ProtFlags::READ, MapFlags::SHARED).unwrap();
    assert_eq!(map.read(0, data.len()), data);
    File::options().write(true).open(lower.join("f")).unwrap().write_all_at(b"changed", 5000).unwrap();
    until("the change through the mapping", || {
        let _ = fs::metadata(mounted.path("f"));
        map.read(5000, 7) == b"changed"
    });
}

/// Other ways to read: O_DIRECT, past a hole, sendfile(2), cp(1), and executing a program.
fn every_way_to_read(transport: Transport) {
    let sandbox = Sandbox::new();
    let data = Rng::new(4).bytes(3 << 20);
    let lower = create_lower(&sandbox, |dir| {
        fs::write(dir.join("f"), &data).unwrap();
        let holes = File::create(dir.join("holes")).unwrap();
        holes.write_all_at(b"end", 1 << 20).unwrap();
        fs::copy("/bin/true", dir.join("true")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.join("null"),
            rustix::fs::FileType::CharacterDevice,
            0o666.into(),
            0x103,
        )
        .unwrap();
    });
    let mounted = cached(&sandbox, &lower, transport, "");
    let path = mounted.path("f");

    let direct = File::options().read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(&path).unwrap();
    let mut back = Vec::new();
    (&direct).read_to_end(&mut back).unwrap();
    assert!(back == data, "O_DIRECT");

    let holes = File::open(mounted.path("holes")).unwrap();
    assert_eq!(rustix::fs::seek(&holes, SeekFrom::Data(0)), Ok(1 << 20));
    assert_eq!(rustix::fs::seek(&holes, SeekFrom::Hole(0)), Ok(0));
    assert_eq!(rustix::fs::seek(&holes, SeekFrom::Data(2 << 20)), Err(Errno::NXIO));

    let file = File::open(&path).unwrap();
    let target = File::create(sandbox.path("sent")).unwrap();
    let mut offset = 0;
    while offset < data.len() as u64 {
        assert!(rustix::fs::sendfile(&target, &file, Some(&mut offset), 1 << 20).unwrap() > 0);
    }
    assert!(fs::read(sandbox.path("sent")).unwrap() == data, "sendfile");
    // cp(1) seeks holes, and uses copy_file_range(2) between two file systems.
    run(Command::new("cp").args(["--sparse=always"]).arg(mounted.path("holes")).arg(sandbox.path("copied")));
    assert!(fs::read(sandbox.path("copied")).unwrap() == fs::read(lower.join("holes")).unwrap(), "cp");
    file.sync_all().unwrap();
    file.sync_data().unwrap();

    assert_eq!(run(&mut Command::new(mounted.path("true"))), "");
    assert_eq!(fs::metadata(mounted.path("f")).unwrap().len(), data.len() as u64);
    let null = File::open(mounted.path("null")).unwrap();
    assert!(null.metadata().unwrap().file_type().is_char_device() && null.metadata().unwrap().rdev() == 0x103);
    assert_eq!((&null).read(&mut [0; 8]).unwrap(), 0);
}

/// Programs that read many files concurrently get the right bytes, whichever files the server has
/// open.
fn many_readers_of_many_files(transport: Transport) {
    const FILES: u64 = 400;
    let sandbox = Sandbox::new();
    let block = |i: u64| Rng::new(i).bytes(8192);
    let lower =
        create_lower(&sandbox, |dir| (0..FILES).for_each(|i| fs::write(dir.join(i.to_string()), block(i)).unwrap()));
    let mounted = cached(&sandbox, &lower, transport, "");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let mounted = &mounted;
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                // With O_DIRECT, so that each read is a READ request.
                let flags = OFlags::DIRECT.bits().cast_signed();
                for _ in 0..1000 {
                    let i = rng.below(FILES);
                    let mut file =
                        File::options().read(true).custom_flags(flags).open(mounted.path(i.to_string())).unwrap();
                    let mut bytes = Vec::new();
                    file.read_to_end(&mut bytes).unwrap();
                    assert!(bytes == block(i), "file {i}");
                }
            });
        }
    });
}

/// The server keeps few files open, for a short time: a file removed below frees its blocks.
fn cached_open_files_are_bounded_and_expire(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = create_lower(&sandbox, |dir| {
        make_files(dir, 1000);
        fs::write(dir.join("large"), vec![7; 32 << 20]).unwrap();
    });
    let mounted = cached(&sandbox, &lower, transport, "");
    // The number of other descriptors (devices, directories) varies.
    let is_ours = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().parse::<u32>().is_ok());
    let open = || {
        let all = fs::read_dir(format!("/proc/{}/fd", mounted.server())).unwrap();
        all.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok()).filter(|path| is_ours(path)).count()
    };
    read_all(mounted.dir(), 1000);
    assert!((1..=128).contains(&open()), "{} after 1,000 files", open());
    until("close of all files", || open() == 0);

    let free = || {
        let stat = rustix::fs::statvfs(&lower).unwrap();
        stat.f_bfree * stat.f_frsize
    };
    let before = free();
    assert_eq!(fs::read(mounted.path("large")).unwrap().len(), 32 << 20);
    fs::remove_file(lower.join("large")).unwrap();
    until("freed space", || free() >= before + (30 << 20));
}

on_both_transports!(
    repeated_opens_and_reads_send_no_request,
    a_union_of_read_only_branches,
    refused_on_writable_mounts,
    every_change_is_refused,
    a_remount_keeps_it_read_only,
    changes_below_become_visible,
    without_a_cache_changes_below_are_visible_at_once,
    a_mapping_shows_changes_below,
    every_way_to_read,
    many_readers_of_many_files,
    cached_open_files_are_bounded_and_expire,
);
