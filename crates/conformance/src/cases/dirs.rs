//! Names, lookups, listings, creation and removal of directories.

use crate::fixture::{ROOT, attr, counts_directories, dir, errno, file, find, list, must_find, name, names, rename};
use std::collections::BTreeSet;
use vnode::{Errno, Kind, Layer, Name, OpenFlags};

/// Any bytes except `/` and NUL, up to 255 of them.
pub fn names_are_bytes(layer: &dyn Layer) {
    let root = layer.root();
    let long = [b'x'; 255];
    for bytes in [&b"a"[..], b"...", b" ", b"\xff\xfe", b"new\nline", b"-rf", &long] {
        let name = Name::new(bytes).unwrap();
        root.create(&ROOT, name, 0o644, OpenFlags::RDWR).unwrap();
        assert!(root.lookup(&ROOT, name).unwrap().is_some(), "{name:?}");
        assert!(list(&root).iter().any(|entry| entry.0 == bytes), "{name:?}");
        root.unlink(&ROOT, name).unwrap();
    }
    assert!(list(&root).is_empty());
}

/// A negative lookup is not an error.
pub fn lookup_of_missing_names(layer: &dyn Layer) {
    let root = layer.root();
    assert!(find(&root, "nothing").is_none());
    file(&root, "something", b"");
    assert!(find(&root, "something").is_some());
    root.unlink(&ROOT, name("something")).unwrap();
    assert!(find(&root, "something").is_none());
    assert_eq!(errno(root.unlink(&ROOT, name("something"))), Errno::NOENT);
    assert_eq!(errno(root.rmdir(&ROOT, name("something"))), Errno::NOENT);
}

/// `EEXIST` for every type of existing and new object.
pub fn creating_existing_names_fails(layer: &dyn Layer) {
    let root = layer.root();
    let target = file(&root, "f", b"").vnode;
    dir(&root, "d");
    root.symlink(&ROOT, name("s"), b"nowhere").unwrap();
    for at in ["f", "d", "s"] {
        let at = name(at);
        assert_eq!(errno(root.create(&ROOT, at, 0o644, OpenFlags::RDWR)), Errno::EXIST);
        assert_eq!(errno(root.mkdir(&ROOT, at, 0o755)), Errno::EXIST);
        assert_eq!(errno(root.mknod(&ROOT, at, 0o010_644, 0)), Errno::EXIST);
        assert_eq!(errno(root.symlink(&ROOT, at, b"x")), Errno::EXIST);
        assert_eq!(errno(root.link(&ROOT, at, &target)), Errno::EXIST);
    }
    assert_eq!(names(&root), ["d", "f", "s"]);
}

/// Every entry is listed once with its type; `.` and `..` are not listed.
pub fn listings_are_complete(layer: &dyn Layer) {
    let root = layer.root();
    assert!(list(&root).is_empty());
    file(&root, "f", b"");
    dir(&root, "d");
    root.symlink(&ROOT, name("s"), b"x").unwrap();
    root.mknod(&ROOT, name("p"), 0o010_644, 0).unwrap();
    let found: Vec<_> = list(&root).into_iter().map(|(name, kind, _)| (name, kind)).collect();
    let expected = [("d", Kind::Directory), ("f", Kind::Regular), ("p", Kind::Fifo), ("s", Kind::Symlink)];
    assert_eq!(found, expected.map(|(name, kind)| (name.as_bytes().to_vec(), kind)));
}

/// Returns one page of a listing: up to `count` entries after `cookie`.
fn page(dir: &std::sync::Arc<dyn vnode::Vnode>, cookie: u64, count: usize) -> Vec<(u64, Vec<u8>)> {
    let mut page = Vec::new();
    dir.readdir(&ROOT, cookie, &mut |entry| {
        if page.len() == count {
            return false;
        }
        page.push((entry.cookie, entry.name.as_bytes().to_vec()));
        true
    })
    .unwrap();
    page
}

/// An entry that did not fit is the first one of the next page, for any page size.
pub fn listings_resume_at_any_cookie(layer: &dyn Layer) {
    let root = layer.root();
    let expected: Vec<String> = (0..50).map(|i| format!("entry-{i:02}")).collect();
    for at in &expected {
        file(&root, at, b"");
    }
    let whole = page(&root, 0, usize::MAX);
    assert_eq!(whole.len(), expected.len());
    for size in [1, 2, 7, 49] {
        let (mut seen, mut cookie) = (Vec::new(), 0);
        loop {
            let page = page(&root, cookie, size);
            let Some((last, _)) = page.last() else { break };
            cookie = *last;
            seen.extend(page);
        }
        assert_eq!(seen, whole, "pages of {size}");
    }
    // Resume at every cookie, in any order.
    for (at, (cookie, _)) in whole.iter().enumerate().rev() {
        assert_eq!(page(&root, *cookie, usize::MAX), whole[at + 1..]);
    }
}

/// Entries that exist throughout are listed exactly once while others are added and removed.
pub fn listings_survive_changes(layer: &dyn Layer) {
    let root = layer.root();
    for i in 0..60 {
        file(&root, &format!("stays-{i:02}"), b"");
        file(&root, &format!("goes-{i:02}"), b"");
    }
    let (mut seen, mut cookie, mut round) = (Vec::new(), 0, 0);
    loop {
        let page = page(&root, cookie, 5);
        let Some((last, _)) = page.last() else { break };
        cookie = *last;
        seen.extend(page.into_iter().map(|(_, name)| name).filter(|name| name.starts_with(b"stays")));
        if round < 60 {
            root.unlink(&ROOT, name(&format!("goes-{round:02}"))).unwrap();
            file(&root, &format!("comes-{round:02}"), b"");
        }
        round += 1;
        assert!(round < 1000, "the listing does not end");
    }
    let unique: BTreeSet<_> = seen.iter().collect();
    assert_eq!((seen.len(), unique.len()), (60, 60));
}

/// Directories larger than any buffer.
pub fn large_directories_are_listed_once(layer: &dyn Layer) {
    let root = layer.root();
    let dir = dir(&root, "large");
    for i in 0..2000 {
        dir.mknod(&ROOT, name(&format!("a-rather-long-name-of-an-entry-{i}")), 0o100_644, 0).unwrap();
    }
    let listed = list(&dir);
    let unique: BTreeSet<_> = listed.iter().map(|entry| &entry.0).collect();
    assert_eq!((listed.len(), unique.len()), (2000, 2000));
    let numbers: BTreeSet<_> = listed.iter().map(|entry| entry.2).collect();
    assert_eq!(numbers.len(), 2000);
}

/// The vnode, its attributes and listings report the same number, and no two objects share one.
pub fn numbers_agree_everywhere(layer: &dyn Layer) {
    let root = layer.root();
    let sub = dir(&root, "d");
    file(&root, "f", b"");
    file(&sub, "f", b"");
    root.symlink(&ROOT, name("s"), b"x").unwrap();
    root.mknod(&ROOT, name("c"), 0o020_644, 0x105).unwrap();
    let mut all = BTreeSet::from([root.id()]);
    assert_eq!(attr(&root).ino, root.id());
    for dir in [&root, &sub] {
        for (name, kind, ino) in list(dir) {
            let entry = dir.lookup(&ROOT, Name::new(&name).unwrap()).unwrap().unwrap();
            assert_eq!((entry.vnode.id(), entry.attr.ino, attr(&entry.vnode).ino), (ino, ino, ino));
            assert_eq!((entry.vnode.kind(), entry.attr.kind()), (kind, kind));
            assert!(ino != 0 && all.insert(ino), "number {ino} twice");
        }
    }
    assert_eq!(all.len(), 6);
}

/// Two, plus one per subdirectory.
pub fn link_counts_of_directories(layer: &dyn Layer) {
    let root = layer.root();
    if !counts_directories(&root) {
        return;
    }
    let a = dir(&root, "a");
    let before = attr(&root).nlink;
    assert_eq!(attr(&a).nlink, 2);
    dir(&a, "b");
    file(&a, "f", b"");
    assert_eq!(attr(&a).nlink, 3);
    rename(&a, "b", &root, "b").unwrap();
    assert_eq!((attr(&a).nlink, attr(&root).nlink), (2, before + 1));
    root.rmdir(&ROOT, name("b")).unwrap();
    assert_eq!(attr(&root).nlink, before);
}

/// Only empty directories can be removed.
pub fn removing_directories(layer: &dyn Layer) {
    let root = layer.root();
    let a = dir(&root, "a");
    file(&a, "f", b"");
    file(&root, "f", b"");
    assert_eq!(errno(root.rmdir(&ROOT, name("a"))), Errno::NOTEMPTY);
    assert_eq!(errno(root.rmdir(&ROOT, name("f"))), Errno::NOTDIR);
    a.unlink(&ROOT, name("f")).unwrap();
    root.rmdir(&ROOT, name("a")).unwrap();
    assert!(find(&root, "a").is_none());
    assert_eq!(names(&root), ["f"]);
    // The name can be reused by any type.
    file(&root, "a", b"x");
}

/// A removed directory that is still referenced has no entries, and none can be created.
pub fn removed_directories_are_empty(layer: &dyn Layer) {
    let root = layer.root();
    let gone = dir(&root, "gone");
    let other = file(&root, "other", b"").vnode;
    root.rmdir(&ROOT, name("gone")).unwrap();
    assert!(list(&gone).is_empty());
    assert!(find(&gone, "x").is_none());
    assert_eq!(attr(&gone).kind(), Kind::Directory);
    assert_eq!(errno(gone.create(&ROOT, name("x"), 0o644, OpenFlags::RDWR)), Errno::NOENT);
    assert_eq!(errno(gone.mkdir(&ROOT, name("x"), 0o755)), Errno::NOENT);
    assert_eq!(errno(gone.link(&ROOT, name("x"), &other)), Errno::NOENT);
    assert_eq!(errno(rename(&root, "other", &gone, "x")), Errno::NOENT);
    // A new directory of the same name is a different object.
    let again = dir(&root, "gone");
    file(&again, "x", b"");
    assert!(list(&gone).is_empty());
}

/// `ENOTDIR` for all other types.
pub fn only_directories_have_entries(layer: &dyn Layer) {
    let root = layer.root();
    let f = file(&root, "f", b"").vnode;
    let s = root.symlink(&ROOT, name("s"), b".").unwrap().vnode;
    for vnode in [&f, &s] {
        assert_eq!(errno(vnode.lookup(&ROOT, name("x"))), Errno::NOTDIR);
        assert_eq!(errno(vnode.readdir(&ROOT, 0, &mut |_| true)), Errno::NOTDIR);
        assert_eq!(errno(vnode.create(&ROOT, name("x"), 0o644, OpenFlags::RDWR)), Errno::NOTDIR);
        assert_eq!(errno(vnode.mkdir(&ROOT, name("x"), 0o755)), Errno::NOTDIR);
        assert_eq!(errno(vnode.symlink(&ROOT, name("x"), b"y")), Errno::NOTDIR);
        assert_eq!(errno(vnode.mknod(&ROOT, name("x"), 0o010_644, 0)), Errno::NOTDIR);
        assert_eq!(errno(vnode.link(&ROOT, name("x"), &f)), Errno::NOTDIR);
        assert_eq!(errno(vnode.unlink(&ROOT, name("x"))), Errno::NOTDIR);
        assert_eq!(errno(vnode.rmdir(&ROOT, name("x"))), Errno::NOTDIR);
        assert_eq!(errno(rename(&root, "f", vnode, "x")), Errno::NOTDIR);
        assert_eq!(errno(rename(vnode, "x", &root, "y")), Errno::NOTDIR);
    }
    assert_eq!(names(&root), ["f", "s"]);
}

/// Deeper than the number of directories kept open.
pub fn deep_trees(layer: &dyn Layer) {
    let mut at = layer.root();
    let mut all = vec![at.clone()];
    for _ in 0..300 {
        at = dir(&at, "deeper");
        all.push(at.clone());
    }
    file(&at, "bottom", b"found");
    let mut again = layer.root();
    for _ in 0..300 {
        again = must_find(&again, "deeper").vnode;
    }
    assert_eq!(crate::fixture::bytes(&must_find(&again, "bottom").vnode), b"found");
    // Access the held vnodes in an order that defeats caches.
    for i in (0..300).map(|i| (i * 7) % 301) {
        assert_eq!(names(&all[i]), ["deeper"]);
    }
}
