//! Ownership, modes and times.

use crate::fixture::{ROOT, attr, dir, file, must_find, name, user};
use vnode::{Kind, Layer, OpenFlags, SetAttr, SetTime, Time};

/// New objects get the requested permission bits minus the umask.
pub fn modes_and_umasks(layer: &dyn Layer) {
    let root = layer.root();
    for (umask, asked, expected) in
        [(0, 0o666, 0o666), (0o022, 0o666, 0o644), (0o077, 0o777, 0o700), (0, 0o4755, 0o4755)]
    {
        let cx = user(0, 0, umask);
        let (f, _) = root.create(&cx, name("f"), asked, OpenFlags::RDWR).unwrap();
        let n = root.mknod(&cx, name("n"), 0o010_000 | asked, 0).unwrap();
        let d = root.mkdir(&cx, name("d"), asked & 0o1777).unwrap();
        assert_eq!((f.attr.perm(), n.attr.perm()), (expected, expected), "{asked:o} {umask:o}");
        assert_eq!(d.attr.perm(), expected & 0o1777);
        let s = root.symlink(&cx, name("s"), b"x").unwrap();
        assert_eq!(s.attr.perm(), 0o777);
        root.rmdir(&ROOT, name("d")).unwrap();
        for at in ["f", "n", "s"] {
            root.unlink(&ROOT, name(at)).unwrap();
        }
    }
    // The creator can write a file whatever its mode.
    let (_, open) = root.create(&user(0, 0, 0o777), name("f"), 0o666, OpenFlags::RDWR).unwrap();
    assert_eq!(open.write(&ROOT, b"x", 0), Ok(1));
}

/// For every type of object, even in a directory that the caller cannot write: the kernel has
/// already checked permissions.
pub fn owners_are_the_callers(layer: &dyn Layer) {
    let root = layer.root();
    let cx = user(1234, 5678, 0o022);
    let private = root.mkdir(&ROOT, name("private"), 0o700).unwrap().vnode;
    let (f, _) = private.create(&cx, name("f"), 0o666, OpenFlags::RDWR).unwrap();
    let d = private.mkdir(&cx, name("d"), 0o777).unwrap();
    let s = private.symlink(&cx, name("s"), b"x").unwrap();
    let n = private.mknod(&cx, name("n"), 0o010_666, 0).unwrap();
    let inside = d.vnode.mkdir(&user(7, 8, 0), name("i"), 0o755).unwrap();
    for made in [&f, &d, &s, &n] {
        assert_eq!((made.attr.uid, made.attr.gid), (1234, 5678), "{made:?}");
        assert_eq!(attr(&made.vnode).uid, 1234);
    }
    assert_eq!((inside.attr.uid, inside.attr.gid), (7, 8));
    // The next call is made by root again.
    let own = file(&private, "own", b"").attr;
    assert_eq!((own.uid, own.gid), (0, 0));
    if let Ok((unnamed, _)) = private.tmpfile(&cx, 0o666, OpenFlags::RDWR) {
        assert_eq!((unnamed.attr.uid, unnamed.attr.gid, unnamed.attr.perm()), (1234, 5678, 0o644));
    }
}

/// New objects get the directory's group, and new directories inherit the set-group-ID bit.
pub fn set_group_id_directories(layer: &dyn Layer) {
    let root = layer.root();
    let d = dir(&root, "d");
    d.setattr(&ROOT, &SetAttr { gid: Some(99), mode: Some(0o2775), ..SetAttr::default() }, None).unwrap();
    let cx = user(1, 2, 0o022);
    let (f, _) = d.create(&cx, name("f"), 0o666, OpenFlags::RDWR).unwrap();
    let sub = d.mkdir(&cx, name("sub"), 0o777).unwrap();
    let s = d.symlink(&cx, name("s"), b"x").unwrap();
    assert_eq!((f.attr.uid, f.attr.gid, f.attr.perm()), (1, 99, 0o644));
    assert_eq!((sub.attr.uid, sub.attr.gid, sub.attr.perm()), (1, 99, 0o2755));
    assert_eq!((s.attr.uid, s.attr.gid), (1, 99));
}

/// Times are stored exactly, for all types, before 1970 and after 2038.
pub fn times_to_the_nanosecond(layer: &dyn Layer) {
    let root = layer.root();
    let objects = [
        file(&root, "f", b"").vnode,
        dir(&root, "d"),
        root.symlink(&ROOT, name("s"), b"x").unwrap().vnode,
        root.mknod(&ROOT, name("p"), 0o010_644, 0).unwrap().vnode,
    ];
    for vnode in &objects {
        for (a, m) in
            [((1, 999_999_999), (2, 1)), ((-1, 5), (-1_000_000, 0)), ((5_000_000_000, 7), (1_700_000_000, 123_456_789))]
        {
            let (atime, mtime) = (Time { sec: a.0, nsec: a.1 }, Time { sec: m.0, nsec: m.1 });
            let set =
                SetAttr { atime: Some(SetTime::At(atime)), mtime: Some(SetTime::At(mtime)), ..SetAttr::default() };
            let now = vnode.setattr(&ROOT, &set, None).unwrap();
            assert_eq!((now.atime, now.mtime), (atime, mtime), "{vnode:?}");
            assert_eq!((attr(vnode).atime, attr(vnode).mtime), (atime, mtime));
        }
        let before = attr(vnode);
        let set = SetAttr { atime: Some(SetTime::At(Time { sec: 9, nsec: 9 })), ..SetAttr::default() };
        let now = vnode.setattr(&ROOT, &set, None).unwrap();
        assert_eq!(now.mtime, before.mtime, "only one was to be set");
        let now = vnode.setattr(&ROOT, &SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }, None).unwrap();
        assert!(now.mtime != before.mtime && now.atime.sec == 9);
    }
}

/// Cleared by chown and on request, but not on directories.
pub fn set_id_bits_are_cleared(layer: &dyn Layer) {
    let root = layer.root();
    let f = file(&root, "f", b"bytes").vnode;
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    let kill = SetAttr { kill_suidgid: true, ..SetAttr::default() };
    assert_eq!(f.setattr(&ROOT, &mode(0o6755), None).unwrap().perm(), 0o6755);
    assert_eq!(f.setattr(&ROOT, &kill, None).unwrap().perm(), 0o755);
    f.setattr(&ROOT, &mode(0o6745), None).unwrap();
    assert_eq!(f.setattr(&ROOT, &kill, None).unwrap().perm(), 0o2745);
    f.setattr(&ROOT, &mode(0o6755), None).unwrap();
    let both = SetAttr { size: Some(2), kill_suidgid: true, ..SetAttr::default() };
    let now = f.setattr(&ROOT, &both, None).unwrap();
    assert_eq!((now.perm(), now.size), (0o755, 2));
    f.setattr(&ROOT, &mode(0o4755), None).unwrap();
    assert_eq!(f.setattr(&ROOT, &SetAttr { uid: Some(5), ..SetAttr::default() }, None).unwrap().perm(), 0o755);
    // A mode set by the same call is kept.
    let both = SetAttr { uid: Some(6), mode: Some(0o4711), ..SetAttr::default() };
    assert_eq!(f.setattr(&ROOT, &both, None).unwrap().perm(), 0o4711);
    let d = dir(&root, "d");
    d.setattr(&ROOT, &mode(0o6755), None).unwrap();
    assert_eq!(d.setattr(&ROOT, &kill, None).unwrap().perm(), 0o6755);
}

/// `setattr` returns the attributes that `getattr` returns afterwards.
pub fn setattr_returns_new_attributes(layer: &dyn Layer) {
    let root = layer.root();
    let f = file(&root, "f", b"bytes").vnode;
    let set = SetAttr {
        mode: Some(0o1640),
        uid: Some(10),
        gid: Some(20),
        size: Some(3),
        atime: Some(SetTime::At(Time { sec: 1, nsec: 2 })),
        mtime: Some(SetTime::At(Time { sec: 3, nsec: 4 })),
        kill_suidgid: false,
    };
    let now = f.setattr(&ROOT, &set, None).unwrap();
    assert_eq!((now.perm(), now.uid, now.gid, now.size), (0o1640, 10, 20, 3));
    assert_eq!((now.atime, now.mtime), (Time { sec: 1, nsec: 2 }, Time { sec: 3, nsec: 4 }));
    assert_eq!((now.ino, now.kind()), (f.id(), Kind::Regular));
    let seen = must_find(&root, "f").attr;
    assert_eq!((seen.perm(), seen.uid, seen.gid, seen.size, seen.mtime), (0o1640, 10, 20, 3, now.mtime));
    let unchanged = f.setattr(&ROOT, &SetAttr::default(), None).unwrap();
    assert_eq!((unchanged.perm(), unchanged.size), (0o1640, 3));
}

/// Operations that change the entries of a directory update its times.
pub fn entry_changes_update_times(layer: &dyn Layer) {
    let root = layer.root();
    let d = dir(&root, "d");
    let old = Time { sec: 1, nsec: 1 };
    let set = SetAttr { mtime: Some(SetTime::At(old)), ..SetAttr::default() };
    let steps: [&dyn Fn(); 5] = [
        &|| drop(file(&d, "f", b"")),
        &|| drop(d.link(&ROOT, name("g"), &must_find(&d, "f").vnode).unwrap()),
        &|| crate::fixture::rename(&d, "g", &root, "g").unwrap(),
        &|| drop(dir(&d, "sub")),
        &|| d.unlink(&ROOT, name("f")).unwrap(),
    ];
    for step in steps {
        d.setattr(&ROOT, &set, None).unwrap();
        step();
        assert_ne!(attr(&d).mtime, old);
    }
    let f = must_find(&root, "g").vnode;
    f.setattr(&ROOT, &set, None).unwrap();
    f.open(&ROOT, OpenFlags::RDWR).unwrap().write(&ROOT, b"x", 0).unwrap();
    assert_ne!(attr(&f).mtime, old);
}

/// statfs returns plausible values, and the same file system for all objects.
pub fn statfs_is_consistent(layer: &dyn Layer) {
    let root = layer.root();
    let f = file(&root, "f", b"x").vnode;
    let (a, b) = (root.statfs(&ROOT).unwrap(), f.statfs(&ROOT).unwrap());
    assert_eq!(a.fsid, b.fsid);
    assert!(a.frsize > 0 && a.bsize > 0 && a.blocks > 0 && a.bfree <= a.blocks && a.bavail <= a.bfree);
    assert!(a.namemax >= 200 && a.ffree <= a.files);
}
