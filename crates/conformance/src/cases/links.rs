//! Hard and symbolic links, unlinked and unnamed files.

use crate::fixture::{ROOT, attr, bytes, dir, errno, file, find, must_find, name, names, read_from, rename};
use vnode::{Errno, Kind, Layer, OpenFlags, SetAttr, SetTime, Time, XattrFlags};

/// Number, link count, data and attributes.
pub fn hard_links_are_one_object(layer: &dyn Layer) {
    let root = layer.root();
    let d = dir(&root, "d");
    let f = file(&root, "f", b"one").vnode;
    let g = d.link(&ROOT, name("g"), &f).unwrap();
    assert_eq!((g.attr.ino, g.attr.nlink), (f.id(), 2));
    g.vnode.open(&ROOT, OpenFlags::RDWR).unwrap().write(&ROOT, b"two", 0).unwrap();
    assert_eq!(bytes(&f), b"two");
    f.setattr(&ROOT, &SetAttr { mode: Some(0o600), ..SetAttr::default() }, None).unwrap();
    assert_eq!(must_find(&d, "g").attr.perm(), 0o600);
    root.unlink(&ROOT, name("f")).unwrap();
    assert_eq!(attr(&f).nlink, 1);
    assert_eq!(bytes(&must_find(&d, "g").vnode), b"two");
    root.link(&ROOT, name("f"), &g.vnode).unwrap();
    assert_eq!(must_find(&root, "f").attr.ino, f.id());
    // Symbolic links and special files can have several names too.
    let s = root.symlink(&ROOT, name("s"), b"x").unwrap().vnode;
    assert_eq!(root.link(&ROOT, name("s2"), &s).unwrap().attr.nlink, 2);
    assert_eq!(must_find(&root, "s2").vnode.kind(), Kind::Symlink);
    let p = root.mknod(&ROOT, name("p"), 0o010_644, 0).unwrap().vnode;
    assert_eq!(root.link(&ROOT, name("p2"), &p).unwrap().attr.ino, p.id());
}

/// To directories, and onto existing names.
pub fn links_that_can_not_be(layer: &dyn Layer) {
    let root = layer.root();
    let d = dir(&root, "d");
    let f = file(&root, "f", b"").vnode;
    assert_eq!(errno(root.link(&ROOT, name("e"), &d)), Errno::PERM);
    assert_eq!(errno(root.link(&ROOT, name("f"), &f)), Errno::EXIST);
    root.unlink(&ROOT, name("f")).unwrap();
    assert_eq!(errno(root.link(&ROOT, name("g"), &f)), Errno::NOENT);
    assert_eq!(names(&root), ["d"]);
}

/// Unlinked files remain fully usable through the open file and the vnode.
pub fn unlinked_files_live_while_held(layer: &dyn Layer) {
    let root = layer.root();
    let (entry, open) = root.create(&ROOT, name("f"), 0o644, OpenFlags::RDWR).unwrap();
    open.write(&ROOT, b"before", 0).unwrap();
    root.unlink(&ROOT, name("f")).unwrap();
    assert!(find(&root, "f").is_none());
    open.write(&ROOT, b"after!", 6).unwrap();
    let now = attr(&entry.vnode);
    assert_eq!((now.nlink, now.size, now.ino), (0, 12, entry.vnode.id()));
    assert_eq!(read_from(&*open, 0, 99), b"beforeafter!");
    let set = SetAttr { mode: Some(0o640), size: Some(3), ..SetAttr::default() };
    let now = entry.vnode.setattr(&ROOT, &set, Some(&*open)).unwrap();
    assert_eq!((now.perm(), now.size), (0o640, 3));
    let time = Time { sec: 5, nsec: 6 };
    let set = SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() };
    assert_eq!(entry.vnode.setattr(&ROOT, &set, None).unwrap().mtime, time);
    assert_eq!(bytes(&entry.vnode), b"bef");
    entry.vnode.setxattr(&ROOT, b"user.x", b"v", XattrFlags::default()).unwrap();
    // The name can be reused for another object.
    let other = file(&root, "f", b"other");
    assert_ne!(other.attr.ino, entry.attr.ino);
    assert_eq!(read_from(&*open, 0, 99), b"bef");
}

/// `EISDIR`
pub fn unlinking_a_directory_fails(layer: &dyn Layer) {
    let root = layer.root();
    dir(&root, "d");
    assert_eq!(errno(root.unlink(&ROOT, name("d"))), Errno::ISDIR);
    assert_eq!(names(&root), ["d"]);
}

/// `O_TMPFILE`, followed by linking.
pub fn unnamed_files(layer: &dyn Layer) {
    let root = layer.root();
    let (entry, open) = match root.tmpfile(&ROOT, 0o600, OpenFlags::RDWR) {
        Err(Errno::OPNOTSUPP) => return,
        other => other.unwrap(),
    };
    assert_eq!((entry.attr.nlink, entry.attr.perm(), entry.vnode.kind()), (0, 0o600, Kind::Regular));
    assert!(names(&root).is_empty());
    open.write(&ROOT, b"unnamed", 0).unwrap();
    assert_eq!(attr(&entry.vnode).size, 7);
    entry.vnode.setxattr(&ROOT, b"user.x", b"v", XattrFlags::default()).unwrap();
    let named = root.link(&ROOT, name("named"), &entry.vnode).unwrap();
    assert_eq!((named.attr.ino, named.attr.nlink), (entry.vnode.id(), 1));
    drop((entry, open, named));
    assert_eq!(bytes(&must_find(&root, "named").vnode), b"unnamed");
    root.unlink(&ROOT, name("named")).unwrap();
    let (_, only_read) = root.tmpfile(&ROOT, 0o600, OpenFlags::RDWR).unwrap();
    drop(only_read);
    assert!(names(&root).is_empty());
}

/// Symbolic links are objects of their own and never followed.
pub fn symbolic_links(layer: &dyn Layer) {
    let root = layer.root();
    file(&root, "target", b"t");
    let long = [b'x'; 1000];
    for (at, target) in [("short", &b"target"[..]), ("up", b"../../etc/passwd"), ("odd", b"/\xff//\n"), ("long", &long)]
    {
        let entry = root.symlink(&ROOT, name(at), target).unwrap();
        assert_eq!((entry.attr.kind(), entry.attr.size), (Kind::Symlink, target.len() as u64));
        assert_eq!(must_find(&root, at).vnode.readlink(&ROOT).unwrap(), target);
    }
    let s = must_find(&root, "short").vnode;
    assert_eq!(errno(must_find(&root, "target").vnode.readlink(&ROOT)), Errno::INVAL);
    assert_eq!(errno(s.open(&ROOT, OpenFlags::RDONLY)), Errno::LOOP);
    assert_eq!(errno(s.setattr(&ROOT, &SetAttr { mode: Some(0o600), ..SetAttr::default() }, None)), Errno::OPNOTSUPP);
    let time = Time { sec: 100, nsec: 7 };
    let set = SetAttr { uid: Some(3), mtime: Some(SetTime::At(time)), ..SetAttr::default() };
    let now = s.setattr(&ROOT, &set, None).unwrap();
    assert_eq!((now.uid, now.mtime), (3, time));
    let target = must_find(&root, "target").attr;
    assert!(target.uid == 0 && target.mtime != time && target.perm() == 0o644);
}

/// Including files that are not open, and replaced files.
pub fn vnodes_of_removed_files_answer(layer: &dyn Layer) {
    let root = layer.root();
    let f = file(&root, "f", b"f").vnode;
    let s = root.symlink(&ROOT, name("s"), b"target").unwrap().vnode;
    let p = root.mknod(&ROOT, name("p"), 0o010_600, 0).unwrap().vnode;
    file(&root, "new", b"");
    rename(&root, "new", &root, "f").unwrap();
    root.unlink(&ROOT, name("s")).unwrap();
    root.unlink(&ROOT, name("p")).unwrap();
    for vnode in [&f, &s, &p] {
        let now = attr(vnode);
        assert_eq!((now.nlink, now.ino, now.kind()), (0, vnode.id(), vnode.kind()));
    }
    assert_eq!(s.readlink(&ROOT).unwrap(), b"target");
    assert_eq!(bytes(&f), b"f");
}
