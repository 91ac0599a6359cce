//! Renames with all flags.

use crate::fixture::{ROOT, attr, bytes, counts_directories, dir, errno, file, find, must_find, name, names, rename};
use std::sync::Arc;
use vnode::{Errno, Kind, Layer, RenameFlags, Result, Vnode};

const PLAIN: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: false };
const NOREPLACE: RenameFlags = RenameFlags { no_replace: true, ..PLAIN };
const EXCHANGE: RenameFlags = RenameFlags { exchange: true, ..PLAIN };
const WHITEOUT: RenameFlags = RenameFlags { whiteout: true, ..PLAIN };

fn rename_with(from: &Arc<dyn Vnode>, old: &str, to: &Arc<dyn Vnode>, new: &str, flags: RenameFlags) -> Result<()> {
    from.rename(&ROOT, name(old), to, name(new), flags)
}

/// Within a directory and between directories, for every type.
pub fn plain_renames(layer: &dyn Layer) {
    let root = layer.root();
    let (a, b) = (dir(&root, "a"), dir(&root, "b"));
    file(&a, "f", b"bytes");
    dir(&a, "d");
    a.symlink(&ROOT, name("s"), b"target").unwrap();
    rename(&a, "f", &a, "f2").unwrap();
    for (old, new) in [("f2", "f3"), ("d", "d3"), ("s", "s3")] {
        rename(&a, old, &b, new).unwrap();
        assert!(find(&a, old).is_none());
    }
    assert!(names(&a).is_empty());
    assert_eq!(names(&b), ["d3", "f3", "s3"]);
    assert_eq!(bytes(&must_find(&b, "f3").vnode), b"bytes");
    assert_eq!(must_find(&b, "s3").vnode.readlink(&ROOT).unwrap(), b"target");
}

/// A file replaces a file; a directory replaces an empty directory.
pub fn renames_replace(layer: &dyn Layer) {
    let root = layer.root();
    file(&root, "new", b"new");
    let old = file(&root, "old", b"old").vnode;
    rename(&root, "new", &root, "old").unwrap();
    assert_eq!(names(&root), ["old"]);
    assert_eq!(bytes(&must_find(&root, "old").vnode), b"new");
    assert_eq!(attr(&old).nlink, 0);
    assert_eq!(bytes(&old), b"old");
    let (x, y) = (dir(&root, "x"), dir(&root, "y"));
    file(&x, "in-x", b"");
    rename(&root, "x", &root, "y").unwrap();
    assert_eq!(names(&must_find(&root, "y").vnode), ["in-x"]);
    assert!(names(&y).is_empty());
    root.symlink(&ROOT, name("s"), b"old").unwrap();
    rename(&root, "s", &root, "old").unwrap();
    assert_eq!(names(&root), ["old", "y"]);
}

/// Failed renames change nothing.
pub fn renames_that_can_not_be(layer: &dyn Layer) {
    let root = layer.root();
    let (a, full) = (dir(&root, "a"), dir(&root, "full"));
    let b = dir(&a, "b");
    file(&root, "f", b"f");
    file(&full, "x", b"");
    assert_eq!(errno(rename(&root, "nothing", &root, "n")), Errno::NOENT);
    assert_eq!(errno(rename(&root, "f", &root, "a")), Errno::ISDIR);
    assert_eq!(errno(rename(&root, "a", &root, "f")), Errno::NOTDIR);
    // POSIX allows either errno.
    assert!(matches!(rename(&root, "a", &root, "full"), Err(Errno::NOTEMPTY | Errno::EXIST)));
    assert_eq!(errno(rename(&root, "a", &a, "c")), Errno::INVAL);
    assert_eq!(errno(rename(&root, "a", &b, "c")), Errno::INVAL);
    assert_eq!(errno(rename(&a, "b", &root, "a")), Errno::NOTEMPTY);
    let both = RenameFlags { no_replace: true, ..EXCHANGE };
    assert_eq!(errno(rename_with(&root, "f", &root, "a", both)), Errno::INVAL);
    assert_eq!(names(&root), ["a", "f", "full"]);
    assert_eq!(names(&a), ["b"]);
    assert_eq!(bytes(&must_find(&root, "f").vnode), b"f");
}

/// `RENAME_NOREPLACE`
pub fn rename_noreplace(layer: &dyn Layer) {
    let root = layer.root();
    file(&root, "a", b"a");
    file(&root, "b", b"b");
    assert_eq!(errno(rename_with(&root, "a", &root, "b", NOREPLACE)), Errno::EXIST);
    assert_eq!(errno(rename_with(&root, "a", &root, "a", NOREPLACE)), Errno::EXIST);
    assert_eq!(errno(rename_with(&root, "none", &root, "n", NOREPLACE)), Errno::NOENT);
    assert_eq!(bytes(&must_find(&root, "b").vnode), b"b");
    rename_with(&root, "a", &root, "c", NOREPLACE).unwrap();
    assert_eq!(names(&root), ["b", "c"]);
}

/// `RENAME_EXCHANGE` of any two types.
pub fn rename_exchange(layer: &dyn Layer) {
    let root = layer.root();
    let (a, b) = (dir(&root, "a"), dir(&root, "b"));
    file(&a, "f", b"f");
    let d = dir(&b, "d");
    file(&d, "in-d", b"");
    rename_with(&a, "f", &b, "d", EXCHANGE).unwrap();
    assert_eq!(names(&must_find(&a, "f").vnode), ["in-d"]);
    assert_eq!(bytes(&must_find(&b, "d").vnode), b"f");
    if counts_directories(&root) {
        assert_eq!((attr(&a).nlink, attr(&b).nlink), (3, 2));
    }
    assert_eq!(errno(rename_with(&a, "f", &b, "nothing", EXCHANGE)), Errno::NOENT);
    assert_eq!(errno(rename_with(&root, "a", &d, "in-d", EXCHANGE)), Errno::INVAL);
    assert_eq!(errno(rename_with(&d, "in-d", &root, "a", EXCHANGE)), Errno::INVAL);
    file(&root, "x", b"x");
    file(&root, "y", b"y");
    let (x, y) = (must_find(&root, "x").attr.ino, must_find(&root, "y").attr.ino);
    rename_with(&root, "x", &root, "y", EXCHANGE).unwrap();
    assert_eq!((must_find(&root, "x").attr.ino, must_find(&root, "y").attr.ino), (y, x));
    assert_eq!(bytes(&must_find(&root, "x").vnode), b"y");
}

/// `RENAME_WHITEOUT` leaves a device 0:0 under the old name, which is an ordinary entry.
pub fn rename_whiteout(layer: &dyn Layer) {
    let root = layer.root();
    let (a, b) = (dir(&root, "a"), dir(&root, "b"));
    file(&a, "f", b"f");
    file(&dir(&a, "d"), "in-d", b"");
    file(&b, "old", b"old");
    match rename_with(&a, "f", &b, "f", WHITEOUT) {
        // Not supported by every file system or layer.
        Err(Errno::INVAL) => {
            assert_eq!((names(&a), names(&b)), (vec!["d".into(), "f".into()], vec!["old".into()]));
            return;
        }
        other => other.unwrap(),
    }
    let left = must_find(&a, "f");
    assert_eq!((left.vnode.kind(), left.attr.rdev, left.attr.nlink), (Kind::CharDevice, 0, 1));
    assert_eq!(bytes(&must_find(&b, "f").vnode), b"f");
    rename_with(&a, "d", &b, "d", WHITEOUT).unwrap();
    assert_eq!(must_find(&a, "d").vnode.kind(), Kind::CharDevice);
    assert_eq!(names(&must_find(&b, "d").vnode), ["in-d"]);
    if counts_directories(&root) {
        assert_eq!((attr(&a).nlink, attr(&b).nlink), (2, 3));
    }
    let replaced = must_find(&b, "old").vnode;
    rename_with(&b, "f", &b, "old", WHITEOUT).unwrap();
    assert_eq!(attr(&replaced).nlink, 0);
    assert_eq!(bytes(&must_find(&b, "old").vnode), b"f");
    assert_eq!(errno(rename_with(&b, "old", &b, "d", RenameFlags { no_replace: true, ..WHITEOUT })), Errno::EXIST);
    assert_eq!(errno(rename_with(&b, "old", &b, "d", RenameFlags { exchange: true, ..WHITEOUT })), Errno::INVAL);
    rename_with(&b, "old", &b, "old", WHITEOUT).unwrap();
    assert_eq!((names(&a), names(&b)), (vec!["d".into(), "f".into()], vec!["d".into(), "f".into(), "old".into()]));
    for (dir, name_of) in [(&a, "d"), (&a, "f"), (&b, "f")] {
        dir.unlink(&ROOT, name(name_of)).unwrap();
    }
    assert_eq!((names(&a), names(&b)), (vec![], vec!["d".into(), "old".into()]));
}

/// As POSIX requires, both names remain.
pub fn renames_between_names_of_one_file_do_nothing(layer: &dyn Layer) {
    let root = layer.root();
    let f = file(&root, "f", b"f").vnode;
    root.link(&ROOT, name("g"), &f).unwrap();
    rename(&root, "f", &root, "g").unwrap();
    rename(&root, "f", &root, "f").unwrap();
    assert_eq!(names(&root), ["f", "g"]);
    assert_eq!(attr(&f).nlink, 2);
}

/// Held vnodes of objects in the directory remain valid.
pub fn renamed_directories_keep_their_contents(layer: &dyn Layer) {
    let root = layer.root();
    let a = dir(&root, "a");
    let b = dir(&a, "b");
    let f = file(&b, "f", b"f").vnode;
    let other = dir(&root, "other");
    rename(&root, "a", &other, "z").unwrap();
    rename(&a, "b", &root, "y").unwrap();
    assert_eq!(bytes(&f), b"f");
    assert_eq!(names(&b), ["f"]);
    file(&b, "g", b"");
    assert_eq!(names(&must_find(&root, "y").vnode), ["f", "g"]);
    assert!(names(&must_find(&other, "z").vnode).is_empty());
    b.unlink(&ROOT, name("f")).unwrap();
    assert_eq!(attr(&f).nlink, 0);
}

/// Numbers identify objects, so they must not change.
pub fn numbers_survive_renames(layer: &dyn Layer) {
    let root = layer.root();
    let d = dir(&root, "d");
    let f = file(&root, "f", b"").attr.ino;
    rename(&root, "f", &d, "g").unwrap();
    assert_eq!(must_find(&d, "g").attr.ino, f);
    rename(&root, "d", &root, "e").unwrap();
    assert_eq!(must_find(&root, "e").attr.ino, d.id());
    assert_eq!(must_find(&must_find(&root, "e").vnode, "g").attr.ino, f);
}
