//! Tests of features that only this layer has: bounded descriptors, removed objects, both methods
//! of reopening an object. The conformance suite tests the rest.

use crate::hot::HotFiles;
use crate::identity::HostInode;
use crate::vnode_impl::{At, HostVnode, Locator};
use crate::{AccessTimes, HostFs, HostOptions, When};
use rustix::fs::AtFlags;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use testkit::TempDir;
use vnode::{Cx, Errno, Kind, Layer, Name, OpenFlags, RenameFlags, SetAttr, SetTime, Time, XattrFlags};

/// A directory that is removed at the end of the test.
struct Scratch(TempDir);

impl Scratch {
    fn new() -> Self {
        Self(TempDir::new())
    }

    fn open(&self, options: HostOptions) -> Arc<HostFs> {
        HostFs::open(&self.0, options).unwrap()
    }
}

fn name(bytes: &str) -> Name<'_> {
    Name::new(bytes.as_bytes()).unwrap()
}

const CX: Cx<'static> = Cx::internal(0, 0);

/// Options for both methods of reopening objects; by handle only where the host supports it.
fn both() -> [HostOptions; 2] {
    [HostOptions::default(), HostOptions { handles: false, detach: false, ..HostOptions::default() }]
}

#[test]
fn a_vnode_is_small() {
    assert_eq!(size_of::<crate::vnode_impl::HostVnode>(), 40);
}

#[test]
fn attributes_through_an_open_file_open_nothing() {
    for options in both() {
        let dir = Scratch::new();
        let fs = dir.open(options);
        let root = fs.root();
        let (entry, file) = root.create(&CX, name("f"), 0o644, OpenFlags::RDWR).unwrap();
        let kept = || fs.shared().hot.as_ref().map_or(0, HotFiles::len);
        file.write(&CX, b"text", 0).unwrap();
        for _ in 0..3 {
            assert_eq!(entry.vnode.getattr_open(&CX, &*file).unwrap().size, 4);
        }
        assert_eq!(kept(), 0);
        assert_eq!(entry.vnode.getattr_open(&CX, &*file), entry.vnode.getattr(&CX));
        root.unlink(&CX, name("f")).unwrap();
        assert_eq!(entry.vnode.getattr_open(&CX, &*file).unwrap().nlink, 0);
    }
}

#[test]
fn a_refused_access_time_setting_is_not_remembered() {
    let fs = Scratch::new().open(HostOptions { detach: false, ..HostOptions::default() });
    let ask = |when| fs.set_access_times(AccessTimes { when: Some(when), directories: None });
    let twice = [When::Never, When::Relative, When::Always].map(|when| (ask(when), ask(when)));
    // One of them is the mount's own setting.
    assert_eq!(twice.iter().filter(|(first, again)| first.is_ok() && again.is_ok()).count(), 1);
    assert_eq!(twice.iter().filter(|(first, again)| first.is_err() && first == again).count(), 2);
}

#[test]
fn errors_of_opening_name_step_and_path() {
    let scratch = Scratch::new();
    std::fs::write(scratch.0.join("file"), b"").unwrap();
    let missing = HostFs::open(&scratch.0.join("missing"), HostOptions::default()).unwrap_err();
    assert_eq!(missing.errno, Errno::NOENT);
    assert!(missing.to_string().ends_with("missing: no such directory"), "{missing}");
    let file = HostFs::open(&scratch.0.join("file"), HostOptions::default()).unwrap_err();
    assert_eq!(file.errno, Errno::NOTDIR);
}

#[test]
fn removed_objects_stay_usable_until_their_vnode_is_dropped() {
    for options in both() {
        let scratch = Scratch::new();
        let fs = scratch.open(options);
        let root = fs.root();
        let (file, open) = root.create(&CX, name("f"), 0o644, OpenFlags::RDWR).unwrap();
        open.write(&CX, b"abc", 0).unwrap();
        drop(open);
        let dir = root.mkdir(&CX, name("d"), 0o755).unwrap();
        root.unlink(&CX, name("f")).unwrap();
        root.rmdir(&CX, name("d")).unwrap();
        let attr = file.vnode.getattr(&CX).unwrap();
        assert_eq!((attr.nlink, attr.size), (0, 3));
        let set = SetAttr { mode: Some(0o600), size: Some(1), ..SetAttr::default() };
        assert_eq!(file.vnode.setattr(&CX, &set, None).unwrap().size, 1);
        let mut byte = [0; 8];
        assert_eq!(file.vnode.open(&CX, OpenFlags::RDONLY).unwrap().read(&CX, &mut byte, 0), Ok(1));
        assert_eq!(dir.vnode.getattr(&CX).unwrap().kind(), Kind::Directory);
        assert!(dir.vnode.lookup(&CX, name("x")).unwrap().is_none());
        dir.vnode.readdir(&CX, 0, &mut |entry| panic!("{entry:?}")).unwrap();
        assert_eq!(fs.shared().table.counts(), (2, 2));
        drop((file, dir));
        assert_eq!(fs.shared().table.counts(), (0, 0));
    }
}

#[test]
fn objects_reached_by_name_follow_renames() {
    for options in both() {
        let scratch = Scratch::new();
        let fs = scratch.open(HostOptions { directories: 1, ..options });
        let root = fs.root();
        let a = root.mkdir(&CX, name("a"), 0o755).unwrap();
        let b = a.vnode.mkdir(&CX, name("b"), 0o755).unwrap();
        let c = b.vnode.mkdir(&CX, name("c"), 0o755).unwrap();
        let (f, _) = c.vnode.create(&CX, name("f"), 0o644, OpenFlags::RDWR).unwrap();
        let g = root.link(&CX, name("g"), &f.vnode).unwrap();
        assert!(Arc::ptr_eq(&f.vnode, &g.vnode));
        root.rename(&CX, name("a"), &root, name("z"), RenameFlags::default()).unwrap();
        a.vnode.rename(&CX, name("b"), &root, name("y"), RenameFlags::default()).unwrap();
        assert_eq!(f.vnode.getattr(&CX).unwrap().nlink, 2);
        assert_eq!(c.vnode.getattr(&CX).unwrap().ino, c.vnode.id());
        root.unlink(&CX, name("g")).unwrap();
        assert_eq!(f.vnode.getattr(&CX).unwrap().nlink, 1);
        c.vnode.unlink(&CX, name("f")).unwrap();
        assert_eq!(f.vnode.getattr(&CX).unwrap().nlink, 0);
    }
}

#[test]
fn looking_up_a_name_twice_returns_one_vnode() {
    for options in both() {
        let scratch = Scratch::new();
        let fs = scratch.open(options);
        let root = fs.root();
        let made = root.symlink(&CX, name("s"), b"/etc/passwd").unwrap();
        let found = root.lookup(&CX, name("s")).unwrap().unwrap();
        assert!(Arc::ptr_eq(&made.vnode, &found.vnode));
        assert_eq!(found.vnode.readlink(&CX).unwrap(), b"/etc/passwd");
        // Only the superuser may set these.
        if found.vnode.setxattr(&CX, b"trusted.x", b"v", XattrFlags::default()) != Err(Errno::PERM) {
            let mut value = [0; 4];
            assert_eq!(found.vnode.getxattr(&CX, b"trusted.x", &mut value), Ok(1));
        }
    }
}

#[test]
fn descriptors_are_bounded_in_a_large_tree() {
    for options in both() {
        let scratch = Scratch::new();
        let fs = scratch.open(options);
        let root = fs.root();
        let mut held = Vec::new();
        for i in 0..1500 {
            let dir = root.mkdir(&CX, name(&format!("d{i}")), 0o755).unwrap();
            dir.vnode.readdir(&CX, 0, &mut |_| true).unwrap();
            let (file, _) = dir.vnode.create(&CX, name("f"), 0o644, OpenFlags::RDWR).unwrap();
            dir.vnode.unlink(&CX, name("f")).unwrap();
            held.push((dir, file));
        }
        // Other tests in this process have some open too.
        let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
        assert!(open < 800, "{open} descriptors");
        // The host may have reused the number of a removed file whose pin was closed.
        let (live, pins) = fs.shared().table.counts();
        assert!((1500..=3000).contains(&live) && pins <= 256, "{live} {pins}");
        drop(held);
        assert_eq!(fs.shared().table.counts(), (0, 0));
    }
}

#[test]
fn mounts_inside_the_directory_are_not_entered() {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    std::thread::spawn(|| {
        testkit::own_mounts();
        let scratch = Scratch::new();
        let below = scratch.0.join("d");
        std::fs::create_dir(&below).unwrap();
        std::fs::write(below.join("under"), b"").unwrap();
        mount("tmpfs", &below, "tmpfs", MountFlags::empty(), None).unwrap();
        std::fs::write(below.join("over"), b"").unwrap();

        let fs = scratch.open(HostOptions::default());
        assert!(fs.is_detached());
        let dir = fs.root().lookup(&CX, name("d")).unwrap().unwrap();
        assert!(dir.vnode.lookup(&CX, name("under")).unwrap().is_some());
        assert!(dir.vnode.lookup(&CX, name("over")).unwrap().is_none());

        let plain = scratch.open(HostOptions { detach: false, ..HostOptions::default() });
        assert_eq!(plain.root().lookup(&CX, name("d")).map(|_| ()), Err(Errno::XDEV));
        let mut listed = 0;
        plain
            .root()
            .readdir(&CX, 0, &mut |_| {
                listed += 1;
                true
            })
            .unwrap();
        assert_eq!(listed, 1);
        unmount(&below, UnmountFlags::empty()).unwrap();
        assert!(plain.root().lookup(&CX, name("d")).unwrap().is_some());
    })
    .join()
    .unwrap();
}

#[test]
fn a_read_only_layer_changes_nothing() {
    let scratch = Scratch::new();
    std::fs::write(scratch.0.join("f"), b"bytes").unwrap();
    let fs = scratch.open(HostOptions { read_only: true, ..HostOptions::default() });
    assert!(fs.properties().read_only);
    let root = fs.root();
    let file = root.lookup(&CX, name("f")).unwrap().unwrap().vnode;
    let refused = [
        root.mkdir(&CX, name("d"), 0o755).map(|_| ()),
        root.create(&CX, name("g"), 0o644, OpenFlags::RDWR).map(|_| ()),
        root.unlink(&CX, name("f")),
        root.rename(&CX, name("f"), &root, name("g"), RenameFlags::default()),
        root.link(&CX, name("g"), &file).map(|_| ()),
        file.setattr(&CX, &SetAttr { mode: Some(0), ..SetAttr::default() }, None).map(|_| ()),
        file.setxattr(&CX, b"user.x", b"", XattrFlags::default()),
        file.open(&CX, OpenFlags::RDWR).map(|_| ()),
        file.open(&CX, OpenFlags::RDONLY.with_trunc()).map(|_| ()),
    ];
    assert!(refused.iter().all(|answer| *answer == Err(Errno::ROFS)), "{refused:?}");
    assert_eq!(file.open(&CX, OpenFlags::RDONLY).unwrap().read(&CX, &mut [0; 9], 0), Ok(5));
}

#[test]
fn reading_a_read_only_layer_changes_no_access_time() {
    let scratch = Scratch::new();
    let rw = scratch.open(HostOptions::default());
    let (file, open) = rw.root().create(&CX, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    assert_eq!(open.write(&CX, b"hello", 0), Ok(5));
    // Older than the last change, so a read would update it.
    let old = SetAttr { atime: Some(SetTime::At(Time { sec: 1000, nsec: 7 })), ..SetAttr::default() };
    let before = file.vnode.setattr(&CX, &old, None).unwrap().atime;
    let ro = scratch.open(HostOptions { read_only: true, ..HostOptions::default() });
    if !ro.is_detached() {
        return;
    }
    let file = ro.root().lookup(&CX, name("f")).unwrap().unwrap().vnode;
    assert_eq!(file.open(&CX, OpenFlags::RDONLY).unwrap().read(&CX, &mut [0; 9], 0), Ok(5));
    assert_eq!(file.getattr(&CX).unwrap().atime, before);
}

#[test]
fn file_flag_ioctls_are_forwarded_and_others_refused() {
    let scratch = Scratch::new();
    let fs = scratch.open(HostOptions::default());
    let root = fs.root();
    let (file, _) = root.create(&CX, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    let mut out = [0; 8];
    // FS_IOC_GETFLAGS, with the 4 bytes that FUSE requests and the 8 in its number.
    for len in [4, 8] {
        match file.vnode.ioctl(&CX, 0x8008_6601, &[], &mut out[..len]) {
            Err(Errno::NOTTY) => return,
            other => assert_eq!(other.map(|reply| (reply.result, reply.len)), Ok((0, len))),
        }
    }
    // FS_NODUMP_FL
    file.vnode.ioctl(&CX, 0x4008_6602, &0x40u32.to_ne_bytes(), &mut []).unwrap();
    file.vnode.ioctl(&CX, 0x8008_6601, &[], &mut out[..4]).unwrap();
    assert_eq!(out[0] & 0x40, 0x40);
    // FS_IOC_FSGETXATTR
    let mut attributes = [0; 28];
    assert_eq!(root.ioctl(&CX, 0x801c_581f, &[], &mut attributes).map(|reply| reply.len), Ok(28));
    // TIOCSTI, FICLONE; and FS_IOC_SETFLAGS and FS_IOC_FSSETXATTR with other sizes in their
    // numbers, which programs can send past the kernel's permission check.
    for other in [0x5412, 0x4004_9409, 0x4004_6602, 0x4000_6602, 0x4020_5820] {
        assert_eq!(file.vnode.ioctl(&CX, other, &[0; 8], &mut out), Err(Errno::NOTTY));
    }
}

/// Repeats negative lookups until the directory's names are cached.
fn miss_many(dir: &Arc<dyn vnode::Vnode>) {
    for number in 0..64 {
        assert!(dir.lookup(&CX, name(&format!("missing-{number}"))).unwrap().is_none());
    }
}

#[test]
fn a_created_name_ends_its_negative_lookup() {
    let scratch = Scratch::new();
    let fs = scratch.open(HostOptions { name_cache_ttl: Duration::from_secs(3600), ..HostOptions::default() });
    let dir = fs.root().mkdir(&CX, name("d"), 0o755).unwrap().vnode;
    let other = fs.root().mkdir(&CX, name("other"), 0o755).unwrap().vnode;
    miss_many(&dir);
    dir.create(&CX, name("created"), 0o644, OpenFlags::RDWR).unwrap();
    dir.mknod(&CX, name("made"), 0o100_644, 0).unwrap();
    dir.mkdir(&CX, name("directory"), 0o755).unwrap();
    dir.symlink(&CX, name("symlink"), b"x").unwrap();
    let (entry, _open) = dir.tmpfile(&CX, 0o644, OpenFlags::RDWR).unwrap();
    dir.link(&CX, name("linked"), &entry.vnode).unwrap();
    other.mknod(&CX, name("x"), 0o100_644, 0).unwrap();
    other.rename(&CX, name("x"), &dir, name("renamed"), RenameFlags::default()).unwrap();
    for made in ["created", "made", "directory", "symlink", "linked", "renamed"] {
        assert!(dir.lookup(&CX, name(made)).unwrap().is_some(), "{made}");
    }
    // A removed name can be created again, and a new directory can replace one whose names were
    // cached.
    dir.unlink(&CX, name("made")).unwrap();
    assert!(dir.lookup(&CX, name("made")).unwrap().is_none());
    dir.mknod(&CX, name("made"), 0o100_644, 0).unwrap();
    assert!(dir.lookup(&CX, name("made")).unwrap().is_some());
    miss_many(&other);
    fs.root().rmdir(&CX, name("other")).unwrap();
    let other = fs.root().mkdir(&CX, name("other"), 0o755).unwrap().vnode;
    std::fs::write(scratch.0.join("other/f"), b"").unwrap();
    assert!(other.lookup(&CX, name("f")).unwrap().is_some());
}

/// An operation that creates a name.
type Attempt<'a> = &'a dyn Fn(Name<'_>) -> Result<(), Errno>;

#[test]
fn eexist_adds_an_out_of_band_name_to_the_cache() {
    let scratch = Scratch::new();
    let fs = scratch.open(HostOptions { name_cache_ttl: Duration::from_secs(3600), ..HostOptions::default() });
    let dir = fs.root().mkdir(&CX, name("d"), 0o755).unwrap().vnode;
    let file = fs.root().mknod(&CX, name("f"), 0o100_644, 0).unwrap().vnode;
    if !fs.shared().caches_names() {
        return;
    }
    let no_replace = RenameFlags { no_replace: true, ..RenameFlags::default() };
    miss_many(&dir);
    let attempts: [(&str, Attempt<'_>); 7] = [
        ("create", &|name| dir.create(&CX, name, 0o644, OpenFlags::RDWR).map(drop)),
        ("mknod", &|name| dir.mknod(&CX, name, 0o100_644, 0).map(drop)),
        ("mkdir", &|name| dir.mkdir(&CX, name, 0o755).map(drop)),
        ("symlink", &|name| dir.symlink(&CX, name, b"x").map(drop)),
        ("link", &|name| dir.link(&CX, name, &file).map(drop)),
        ("rename", &|new| fs.root().rename(&CX, name("f"), &dir, new, no_replace)),
        ("replace", &|new| fs.root().rename(&CX, name("f"), &dir, new, RenameFlags::default())),
    ];
    for (what, make) in attempts {
        std::fs::create_dir(scratch.0.join("d").join(what)).unwrap();
        assert!(dir.lookup(&CX, name(what)).unwrap().is_none(), "{what}: names are not cached");
        let errno = if what == "replace" { Errno::ISDIR } else { Errno::EXIST };
        assert_eq!(make(name(what)), Err(errno), "{what}");
        assert!(dir.lookup(&CX, name(what)).unwrap().is_some(), "{what}");
    }
}

#[test]
fn out_of_band_names_are_found_after_the_ttl() {
    let scratch = Scratch::new();
    let asks = scratch.open(HostOptions { name_cache_ttl: Duration::ZERO, ..HostOptions::default() });
    let believes = scratch.open(HostOptions { name_cache_ttl: Duration::from_millis(50), ..HostOptions::default() });
    miss_many(&asks.root());
    miss_many(&believes.root());
    for round in 0..3 {
        let made = format!("f{round}");
        std::fs::write(scratch.0.join(&made), b"").unwrap();
        assert!(asks.root().lookup(&CX, name(&made)).unwrap().is_some());
        std::thread::sleep(Duration::from_millis(60));
        assert!(believes.root().lookup(&CX, name(&made)).unwrap().is_some());
        miss_many(&believes.root());
    }
}

#[test]
fn listing_for_the_name_cache_keeps_the_access_time() {
    let scratch = Scratch::new();
    let fs = scratch.open(HostOptions::default());
    let old = SetAttr { atime: Some(SetTime::At(Time { sec: 1000, nsec: 7 })), ..SetAttr::default() };
    let before = fs.root().setattr(&CX, &old, None).unwrap().atime;
    miss_many(&fs.root());
    assert_eq!(fs.root().getattr(&CX).unwrap().atime, before);
}

#[test]
fn a_created_object_that_cannot_be_looked_up_is_removed() {
    for options in both() {
        let scratch = Scratch::new();
        let fs = scratch.open(options);
        let root = fs.root();
        let root = root.as_any().downcast_ref::<HostVnode>().unwrap();
        let dir = root.dir_to_change().unwrap();
        let at = |name: &str| scratch.0.join(name);
        for errno in [Errno::MFILE, Errno::NOMEM] {
            std::fs::write(at("f"), b"").unwrap();
            std::fs::create_dir(at("d")).unwrap();
            assert_eq!(root.entry_or_undo(&dir, name("f"), AtFlags::empty(), Err(errno)).unwrap_err(), errno);
            assert_eq!(root.entry_or_undo(&dir, name("d"), AtFlags::REMOVEDIR, Err(errno)).unwrap_err(), errno);
            assert!(!at("f").exists() && !at("d").exists());
        }
        // Another process has removed it, and may have created another.
        std::fs::write(at("f"), b"").unwrap();
        assert_eq!(root.entry_or_undo(&dir, name("f"), AtFlags::empty(), Err(Errno::NOENT)).unwrap_err(), Errno::NOENT);
        assert!(at("f").exists());
        assert!(root.entry_or_undo(&dir, name("f"), AtFlags::empty(), root.entry_of_name(&dir, name("f"))).is_ok());
        assert!(at("f").exists());
    }
}

#[test]
fn a_deep_chain_of_parents_is_dropped_without_recursion() {
    const DEPTH: u64 = 100_000;
    let scratch = Scratch::new();
    let [_, by_name] = both();
    let fs = scratch.open(by_name);
    let shared = fs.shared();
    let root = fs.root().as_any().downcast_ref::<HostVnode>().unwrap().shared_self().unwrap();
    let chain = || {
        (2..DEPTH).fold(Arc::clone(&root), |parent, ino| {
            let at = At { parent, name: b"d".as_slice().into() };
            let locator = Locator::place(Kind::Directory, HostInode { dev: 1, ino }, at);
            shared.table.intern(HostVnode::new(Arc::clone(shared), ino, locator))
        })
    };
    let (lowest, lower) = (chain(), chain());
    assert!(Arc::ptr_eq(&lowest, &lower));
    drop(lower);
    assert_eq!(shared.table.counts(), (DEPTH as usize - 2, 0));
    drop(lowest);
    assert_eq!(shared.table.counts(), (0, 0));
}

#[test]
fn a_removed_directory_can_be_synced() {
    for options in both() {
        let scratch = Scratch::new();
        let root = scratch.open(options).root();
        let dir = root.mkdir(&CX, name("d"), 0o755).unwrap().vnode;
        root.rmdir(&CX, name("d")).unwrap();
        assert_eq!(dir.fsync(&CX, false), Ok(()));
    }
}

/// A handle can reach every inode of the file system; a number invented by a client must not.
#[test]
fn numbers_of_objects_outside_the_root_are_stale() {
    use std::os::unix::fs::MetadataExt;
    for options in both() {
        let scratch = Scratch::new();
        let (inside, outside) = (scratch.0.join("inside"), scratch.0.join("outside"));
        std::fs::create_dir_all(inside.join("d/e")).unwrap();
        std::fs::create_dir_all(outside.join("d")).unwrap();
        let ino = |path: PathBuf| std::fs::symlink_metadata(path).unwrap().ino();
        for dir in [&inside, &outside] {
            std::fs::write(dir.join("d/f"), dir.to_str().unwrap()).unwrap();
            std::os::unix::fs::symlink("x", dir.join("s")).unwrap();
        }
        // A file with one of its two names inside.
        std::fs::hard_link(outside.join("d/f"), inside.join("d/e/shared")).unwrap();
        let fs = HostFs::open(&inside, options).unwrap();
        let find = |path: PathBuf| fs.vnode(&CX, ino(path)).map(|vnode| vnode.kind());
        for path in ["d", "s"].map(|name| outside.join(name)).into_iter().chain([outside.clone(), scratch.0.to_owned()])
        {
            assert_eq!(find(path.clone()), Err(Errno::STALE), "{options:?} {}", path.display());
        }
        assert_eq!(find(inside.join("d/e")), Ok(Kind::Directory));
        assert_eq!(find(inside.join("s")), Ok(Kind::Symlink));
        assert_eq!(find(inside.join("d/f")), Ok(Kind::Regular));
        let shared = fs.vnode(&CX, ino(outside.join("d/f"))).unwrap();
        let mut names = Vec::new();
        shared
            .names(&CX, &mut |dir, name| {
                names.push((dir.id(), name.as_bytes().to_vec()));
                true
            })
            .unwrap();
        assert_eq!(names, [(ino(inside.join("d/e")), b"shared".to_vec())]);
        // Moved out of the root out of band, and no longer referenced.
        let moved = ino(inside.join("d/e"));
        std::fs::rename(inside.join("d/e"), outside.join("e")).unwrap();
        drop(shared);
        assert_eq!(fs.vnode(&CX, moved).map(drop), Err(Errno::STALE));
        assert_eq!(find(outside.join("d/f")), Err(Errno::STALE));
    }
}

/// The generation belongs to the object and does not depend on how it was found.
#[test]
fn generations_are_stable_and_distinguish_reused_numbers() {
    let scratch = Scratch::new();
    std::fs::write(scratch.0.join("f"), "first").unwrap();
    let (number, generation) = {
        let f = scratch.open(HostOptions::default()).root().lookup(&CX, name("f")).unwrap().unwrap().vnode;
        (f.id(), f.generation())
    };
    let fs = scratch.open(HostOptions::default());
    assert_eq!(fs.vnode(&CX, number).unwrap().generation(), generation);
    if !fs.uses_handles() {
        return;
    }
    std::fs::remove_file(scratch.0.join("f")).unwrap();
    for i in 0..100 {
        std::fs::write(scratch.0.join(format!("g{i}")), "other").unwrap();
    }
    match fs.vnode(&CX, number) {
        Ok(other) => assert_ne!(other.generation(), generation),
        Err(errno) => assert_eq!(errno, Errno::STALE),
    }
}

/// Nothing is opened for a caller that must not block.
#[test]
fn finding_by_number_may_block() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.0.join("d")).unwrap();
    let number = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(scratch.0.join("d")).unwrap());
    for options in both() {
        let fs = scratch.open(options);
        static NEVER: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
        let busy = Cx::new(0, 0, 0, 0, false, &NEVER);
        assert_eq!(fs.vnode(&busy, number).map(drop), Err(vnode::MAY_BLOCK));
        let held = fs.vnode(&CX, number).unwrap();
        assert!(fs.vnode(&busy, number).is_ok());
        drop(held);
    }
}

#[test]
fn a_layer_becomes_writable_and_read_only_in_use() {
    for detach in [true, false] {
        let scratch = Scratch::new();
        let fs = scratch.open(HostOptions { read_only: true, detach, ..HostOptions::default() });
        let root = fs.root();
        let make = |file: &str| root.mknod(&CX, name(file), Kind::Regular.mode_bits() | 0o644, 0).map(drop);
        assert_eq!(make("a"), Err(Errno::ROFS));
        fs.set_read_only(false).unwrap();
        assert_eq!((make("a"), fs.properties().read_only), (Ok(()), false));
        let (_, file) = root.create(&CX, name("b"), 0o644, OpenFlags::WRONLY).unwrap();
        if fs.is_detached() {
            // The kernel refuses it, and the layer stays as it is.
            assert_eq!(fs.set_read_only(true), Err(Errno::BUSY));
            assert_eq!(make("c"), Ok(()));
        }
        drop(file);
        fs.set_read_only(true).unwrap();
        assert_eq!((make("d"), fs.properties().read_only), (Err(Errno::ROFS), true));
    }
}
