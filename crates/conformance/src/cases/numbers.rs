//! Finding objects by number, and their names.

use crate::fixture::{ROOT, attr, bytes, dir, errno, file, must_find, name, names, rename};
use std::sync::Arc;
use vnode::{Errno, Kind, Layer, OpenFlags, Vnode};

/// The remembered properties of an object without references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    number: u64,
    generation: u32,
    kind: Kind,
}

fn identity(vnode: &Arc<dyn Vnode>) -> Identity {
    assert_eq!(attr(vnode).ino, vnode.id());
    Identity { number: vnode.id(), generation: vnode.generation(), kind: vnode.kind() }
}

/// Returns the vnode with this number, after checking that it is the same object.
fn by_number(layer: &dyn Layer, of: Identity) -> Arc<dyn Vnode> {
    let vnode = layer.vnode(&ROOT, of.number).unwrap_or_else(|errno| panic!("{of:?}: {errno}"));
    assert_eq!(identity(&vnode), of);
    vnode
}

/// Returns the directory's number and the name of each name of the object, after checking that each
/// refers to it.
fn names_of(vnode: &Arc<dyn Vnode>) -> Vec<(u64, String)> {
    let mut all = Vec::new();
    vnode
        .names(&ROOT, &mut |dir, name| {
            let entry = dir.lookup(&ROOT, name).unwrap().unwrap_or_else(|| panic!("{name:?} is not there"));
            assert_eq!(identity(&entry.vnode), identity(vnode));
            all.push((dir.id(), String::from_utf8(name.as_bytes().to_vec()).unwrap()));
            true
        })
        .unwrap();
    all.sort();
    all
}

fn at(dir: &Arc<dyn Vnode>, name: &str) -> (u64, String) {
    (dir.id(), name.to_owned())
}

/// Objects of every type, including in nested directories.
pub fn objects_are_found_by_number(layer: &dyn Layer) {
    let root = layer.root();
    let (inner, numbers) = {
        let d = dir(&root, "d");
        let e = dir(&d, "e");
        let numbers = [
            identity(&d),
            identity(&file(&e, "f", b"found").vnode),
            identity(&e.symlink(&ROOT, name("s"), b"target").unwrap().vnode),
            identity(&e.mknod(&ROOT, name("p"), Kind::Fifo.mode_bits() | 0o644, 0).unwrap().vnode),
        ];
        (identity(&e), numbers)
    };
    let [outer, regular, link, fifo] = numbers;
    assert_eq!(bytes(&by_number(layer, regular)), b"found");
    assert_eq!(by_number(layer, link).readlink(&ROOT).unwrap(), b"target");
    assert_eq!(attr(&by_number(layer, fifo)).kind(), Kind::Fifo);
    // Without an earlier lookup: a directory found only by number.
    let e = by_number(layer, inner);
    assert_eq!(names(&e), ["f", "p", "s"]);
    assert_eq!(must_find(&e, "f").vnode.id(), regular.number);
    file(&e, "new", b"made");
    rename(&e, "new", &root, "moved").unwrap();
    assert_eq!(bytes(&must_find(&root, "moved").vnode), b"made");
    assert_eq!(names_of(&by_number(layer, outer)), [at(&root, "d")]);
    let by_its_number = layer.vnode(&ROOT, root.id()).unwrap();
    assert!(Arc::ptr_eq(&by_its_number, &layer.root()));
    by_number(layer, regular).open(&ROOT, OpenFlags::RDWR).unwrap().write(&ROOT, b"again", 0).unwrap();
    assert_eq!(bytes(&by_number(layer, regular)), b"again");
}

/// Names of directories and of files with one or several names, before and after a rename; the root
/// has none.
pub fn names_are_told(layer: &dyn Layer) {
    let root = layer.root();
    let d = dir(&root, "d");
    let e = dir(&d, "e");
    let f = file(&e, "f", b"").vnode;
    assert_eq!(names_of(&root), []);
    assert_eq!(names_of(&d), [at(&root, "d")]);
    assert_eq!(names_of(&e), [at(&d, "e")]);
    assert_eq!(names_of(&f), [at(&e, "f")]);
    root.link(&ROOT, name("g"), &f).unwrap();
    let mut both = [at(&e, "f"), at(&root, "g")];
    both.sort();
    assert_eq!(names_of(&f), both);
    let mut count = 0;
    f.names(&ROOT, &mut |_, _| {
        count += 1;
        false
    })
    .unwrap();
    assert_eq!(count, 1, "the sink has enough");
    rename(&d, "e", &root, "x").unwrap();
    assert_eq!(names_of(&e), [at(&root, "x")]);
    rename(&root, "g", &d, "h").unwrap();
    let mut both = [at(&e, "f"), at(&d, "h")];
    both.sort();
    assert_eq!(names_of(&f), both);
    e.unlink(&ROOT, name("f")).unwrap();
    assert_eq!(names_of(&f), [at(&d, "h")]);
}

/// After a rename, a hard link or a rename of a parent directory, the number finds the object.
pub fn numbers_lead_to_what_was_renamed(layer: &dyn Layer) {
    let root = layer.root();
    let (a, b, f, g) = {
        let (a, b) = (dir(&root, "a"), dir(&root, "b"));
        let inner = dir(&a, "inner");
        let (f, g) = (file(&inner, "f", b"f").vnode, file(&a, "g", b"g").vnode);
        (identity(&a), identity(&b), identity(&f), identity(&g))
    };
    rename(&root, "a", &must_find(&root, "b").vnode, "c").unwrap();
    assert_eq!(bytes(&by_number(layer, f)), b"f");
    let moved = by_number(layer, a);
    assert_eq!(names_of(&moved), [(b.number, "c".to_owned())]);
    rename(&moved, "g", &root, "h").unwrap();
    drop(moved);
    assert_eq!(names_of(&by_number(layer, g)), [at(&root, "h")]);
    let k = by_number(layer, b).link(&ROOT, name("k"), &by_number(layer, g)).unwrap();
    assert_eq!(identity(&k.vnode), g);
    drop(k);
    root.unlink(&ROOT, name("h")).unwrap();
    assert_eq!(names_of(&by_number(layer, g)), [(b.number, "k".to_owned())]);
}

/// Numbers of removed objects, and invented numbers.
pub fn numbers_of_nothing_are_stale(layer: &dyn Layer) {
    let root = layer.root();
    let numbers = {
        let d = dir(&root, "d");
        let (f, g) = (file(&d, "f", b"").vnode, file(&root, "g", b"").vnode);
        [identity(&d), identity(&f), identity(&g)]
    };
    let held = by_number(layer, numbers[2]);
    let d = by_number(layer, numbers[0]);
    d.unlink(&ROOT, name("f")).unwrap();
    root.unlink(&ROOT, name("g")).unwrap();
    assert_eq!(attr(&held).nlink, 0);
    assert_eq!(names_of_removed(&held), 0);
    drop((held, d));
    root.rmdir(&ROOT, name("d")).unwrap();
    for gone in numbers {
        // The object may still be in use, but it has no name, and no other object has its number.
        if let Ok(vnode) = layer.vnode(&ROOT, gone.number) {
            assert!(
                vnode.getattr(&ROOT).is_err_and(|e| e == Errno::STALE) || names_of_removed(&vnode) == 0,
                "{gone:?}"
            );
        }
    }
    for made_up in [0, 1 << 40, 1 << 47, 0x0abc_def0_1234_5678, 1 << 63, u64::MAX] {
        assert_eq!(errno(layer.vnode(&ROOT, made_up)), Errno::STALE, "{made_up:#x}");
    }
}

fn names_of_removed(vnode: &Arc<dyn Vnode>) -> usize {
    let mut count = 0;
    match vnode.names(&ROOT, &mut |_, _| {
        count += 1;
        true
    }) {
        Ok(()) | Err(Errno::STALE) => count,
        Err(errno) => panic!("{errno}"),
    }
}
