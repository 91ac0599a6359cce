//! Extreme values, compared with the native file system: for files of both branches and after a
//! remount.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::fs::{
    AtFlags, CWD, OFlags, SeekFrom, Timespec, Timestamps, XattrFlags, fcntl_setfl, getxattr, seek, setxattr, utimensat,
};
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use strata_tests::mapping::Mapping;
use strata_tests::{Delete, Fixture, Mode, Mounted, Sandbox, Spec, Transport, on_both_transports};

const GIB: u64 = 1 << 30;

/// Creates a file of 5 GiB that is one hole, except for a few bytes at 1 GiB and at the end.
fn make_sparse(path: &Path) {
    let file = File::create(path).unwrap();
    file.set_len(5 * GIB).unwrap();
    file.write_all_at(b"middle", GIB).unwrap();
    file.write_all_at(b"end", 5 * GIB - 3).unwrap();
    file.sync_all().unwrap();
}

/// Returns the offsets of a file's data extents and its number of blocks.
fn extents(path: &Path) -> (Vec<u64>, u64) {
    let file = File::open(path).unwrap();
    let mut found = Vec::new();
    let mut at = 0;
    while let Ok(data) = seek(&file, SeekFrom::Data(at)) {
        at = seek(&file, SeekFrom::Hole(data)).unwrap();
        found.extend([data, at]);
    }
    (found, file.metadata().unwrap().blocks())
}

/// The copy-up of a file larger than 4 GiB keeps its holes, and writes behind them work.
fn large_files_keep_their_holes(transport: Transport) {
    let mut fx = Fixture::new(transport, |ro| make_sparse(&ro.join("old")));
    make_sparse(&fx.path("new"));
    let native = fx.ro.join("old");
    for name in ["old", "new"] {
        let path = fx.path(name);
        assert_eq!(extents(&path), extents(&native), "{name}");
        let file = File::options().read(true).write(true).open(&path).unwrap();
        assert_eq!(file.write_at(b"more", 5 * GIB + 100).unwrap(), 4);
        file.sync_all().unwrap();
        let mut bytes = [0; 6];
        file.read_exact_at(&mut bytes, GIB).unwrap();
        assert_eq!(&bytes, b"middle", "{name}");
        let (found, blocks) = extents(&path);
        assert_eq!(found.first(), Some(&GIB), "{name}");
        assert!(blocks <= 64, "{name}: {blocks} blocks for a few bytes");
    }
    fx.remount();
    for name in ["old", "new"] {
        let file = File::open(fx.path(name)).unwrap();
        let mut bytes = [0; 107];
        file.read_exact_at(&mut bytes, 5 * GIB - 3).unwrap();
        assert_eq!((&bytes[..3], &bytes[103..]), (&b"end"[..], &b"more"[..]), "{name}");
        assert_eq!(file.metadata().unwrap().len(), 5 * GIB + 104, "{name}");
    }
}

/// The first and last second that ext4 can store, times outside that range, and nanoseconds before
/// 1970.
fn times_beyond_the_range_of_ext4(transport: Transport) {
    let mut fx = Fixture::new(transport, |ro| {
        for i in 0..6 {
            fs::write(ro.join(format!("old{i}")), "").unwrap();
        }
    });
    let native = fx.sandbox.ext4("native", 16).join("f");
    fs::write(&native, "").unwrap();
    let times = [
        (-(1 << 31), 0),
        (-(1 << 31) - 9, 5),
        (-1, 999_999_999),
        ((1 << 32) + 5, 1),
        ((14 << 30) - 1, 7),
        (1 << 40, 1),
    ];
    let seen = |path: &Path| {
        let meta = fs::metadata(path).unwrap();
        (meta.atime(), meta.atime_nsec(), meta.mtime(), meta.mtime_nsec())
    };
    let mut right = Vec::new();
    for (i, (tv_sec, tv_nsec)) in times.into_iter().enumerate() {
        let time = Timespec { tv_sec, tv_nsec };
        let both = Timestamps { last_access: time, last_modification: time };
        let set = |path: &Path| utimensat(CWD, path, &both, AtFlags::empty());
        let result = set(&native);
        right.push(seen(&native));
        for name in [format!("old{i}"), format!("new{i}")] {
            let path = fx.path(&name);
            if !path.exists() {
                fs::write(&path, "").unwrap();
            }
            assert_eq!(set(&path), result, "{name}: {time:?}");
            assert_eq!(seen(&path), right[i], "{name}: {time:?}");
        }
    }
    fx.remount();
    for (i, right) in right.iter().enumerate() {
        for name in [format!("old{i}"), format!("new{i}")] {
            assert_eq!(&seen(&fx.path(&name)), right, "{name}");
        }
    }
}

/// Extended attributes of 64 KiB, the kernel's limit, on a lower file system that can store them.
fn large_xattrs(transport: Transport) {
    const KEY: &str = "user.large";
    let value = vec![b'v'; 65536];
    let sandbox = Sandbox::new();
    let (rw, ro) = (sandbox.dir("rw"), sandbox.dir("ro"));
    fs::write(ro.join("old"), "text").unwrap();
    setxattr(ro.join("old"), KEY, &value, XattrFlags::empty()).unwrap();
    let mut union = Mounted::new(Spec::union(&rw, &ro, transport), &sandbox.path("u"));
    fs::write(union.path("new"), "text").unwrap();
    setxattr(union.path("new"), KEY, &value, XattrFlags::empty()).unwrap();
    let more = [&value[..], b"v"].concat();
    assert_eq!(
        setxattr(union.path("new"), KEY, &more, XattrFlags::empty()),
        setxattr(ro.join("old"), KEY, &more, XattrFlags::empty())
    );
    fs::set_permissions(union.path("old"), fs::Permissions::from_mode(0o600)).unwrap();
    assert!(rw.join("old").exists(), "old was not copied up");
    for _ in 0..2 {
        for name in ["old", "new"] {
            let mut found = vec![0; 70_000];
            let len = getxattr(union.path(name), KEY, &mut found).unwrap();
            assert_eq!(&found[..len], &value, "{name}");
        }
        union.remount();
    }
}

/// Symbolic links with names that the union reserves are not followed: their targets don't change,
/// and the union works.
fn symlinks_at_reserved_names_are_not_followed(transport: Transport) {
    let sandbox = Sandbox::new();
    let (rw, ro, victim) = (sandbox.dir("rw"), sandbox.dir("ro"), sandbox.dir("victim"));
    fs::create_dir(ro.join("d")).unwrap();
    fs::write(ro.join("d/a"), "text").unwrap();
    fs::hard_link(ro.join("d/a"), ro.join("d/b")).unwrap();
    fs::write(victim.join("file"), "kept").unwrap();
    for branch in [&rw, &ro] {
        for name in [".wh..wh.work", ".wh..wh.links"] {
            symlink(&victim, branch.join(name)).unwrap();
        }
        for name in [".wh..wh.ident", ".wh..wh.ident.new"] {
            symlink(victim.join("file"), branch.join(name)).unwrap();
        }
    }
    let branches = vec![(rw.clone(), Mode::Rw), (ro.clone(), Mode::Ro)];
    let mut union = Mounted::new(Spec::Union { branches, delete: Delete::Whiteout, transport }, &sandbox.path("u"));
    fs::write(union.path("d/a"), "changed").unwrap();
    union.remount();
    assert_eq!(fs::read_to_string(union.path("d/b")).unwrap(), "changed");
    assert_eq!(fs::read_to_string(victim.join("file")).unwrap(), "kept");
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 1);
    assert!(fs::symlink_metadata(ro.join(".wh..wh.links")).unwrap().is_symlink());
}

/// A write through a mapping reaches its offset although the file's only or another descriptor has
/// O_APPEND, or had it before.
fn mapped_writes_to_files_opened_with_append(transport: Transport) {
    let sandbox = Sandbox::new();
    let lower = sandbox.dir("lower");
    for layer in ["wrapfs / ", "zstd / "] {
        let mut mounted =
            Mounted::with_options(Spec::stack(layer, &lower, transport), &sandbox.path("m"), "passthrough=off");
        let path = mounted.path("f");
        fs::write(&path, [b'.'; 4096]).unwrap();
        let mut file = File::options().read(true).append(true).open(&path).unwrap();
        let mut mapping = Mapping::new(&file, 4096, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED).unwrap();
        mapping.write(0, b"mapped");
        mapping.sync().unwrap();
        file.write_all(b"end").unwrap();
        fcntl_setfl(&file, OFlags::empty()).unwrap();
        file.write_all_at(b"set", 8).unwrap();
        fcntl_setfl(&file, OFlags::APPEND).unwrap();
        file.write_all(b"END").unwrap();
        drop((file, mapping));
        mounted.remount();
        let text = fs::read(&path).unwrap();
        assert_eq!(text.len(), 4102, "{layer}");
        assert_eq!((&text[..12], &text[4096..]), (&b"mapped..set."[..], &b"endEND"[..]), "{layer}");
        fs::remove_file(&path).unwrap();
    }
}

on_both_transports!(
    mapped_writes_to_files_opened_with_append,
    large_files_keep_their_holes,
    times_beyond_the_range_of_ext4,
    large_xattrs,
    symlinks_at_reserved_names_are_not_followed
);
