//! Unions as pools: the branch of new objects.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::layer_ops::{CX, at, attr, chmod, create, find, list, mkdir, name, read, split, write};
use memfs::{Faults, MemFs, MemOptions};
use std::sync::Arc;
use unionfs::{Branch, Create, Delete, Mode, Options, Order, Unionfs};
use vnode::{Errno, Layer, OpenFlags, RenameFlags, SetAttr, XattrFlags};

const MIB: u64 = 1 << 20;

/// Branches in memory with the given space in MiB.
struct Pool {
    branches: Vec<Arc<MemFs>>,
    create: Create,
}

impl Pool {
    fn new(order: Order, sizes: &[u64]) -> Self {
        let branch =
            |&size: &u64| MemFs::with(MemOptions { space: size * MIB, ..MemOptions::default() }, &Faults::new());
        let branches = sizes.iter().map(branch).collect();
        Self { branches, create: Create { order, ..Create::default() } }
    }

    fn mount(&self) -> Arc<Unionfs> {
        let branch = |(at, layer): (usize, &Arc<MemFs>)| Branch {
            layer: layer.clone(),
            path: format!("/branch/{at}").into(),
            mode: Mode::ReadWrite,
        };
        let branches = self.branches.iter().enumerate().map(branch).collect();
        Unionfs::new(branches, Options { create: self.create, ..Options::default() }).unwrap()
    }

    /// Returns the branches that have an entry at `path`.
    fn places(&self, path: &str) -> Vec<usize> {
        let has = |&at: &usize| find(&*self.branches[at], path).is_some();
        (0..self.branches.len()).filter(has).collect()
    }
}

fn unlink(layer: &dyn Layer, path: &str) {
    let (dir, file) = split(path);
    at(layer, dir).unlink(&CX, name(file)).unwrap();
}

fn rename(layer: &dyn Layer, from: &str, to: &str) {
    let ((dir, file), (new_dir, new)) = (split(from), split(to));
    at(layer, dir).rename(&CX, name(file), &at(layer, new_dir), name(new), RenameFlags::default()).unwrap();
}

#[test]
fn new_files_follow_the_policy() {
    for (order, want) in [
        (Order::Inherit, [0, 0, 0, 0]),
        (Order::First, [0, 0, 0, 0]),
        (Order::MostFree, [1, 1, 1, 1]),
        (Order::LeastFree, [2, 2, 2, 2]),
        (Order::RoundRobin, [1, 2, 0, 1]),
    ] {
        let pool = Pool::new(order, &[50, 80, 20]);
        let union = pool.mount();
        at(&*union, "").mkdir(&CX, name("d"), 0o755).unwrap();
        for (file, want) in ["d/a", "d/b", "d/c", "d/e"].into_iter().zip(want) {
            write(&*union, file, b"text");
            assert_eq!(pool.places(file), [want], "{order:?} {file}");
        }
        assert_eq!(list(&*union, "d"), ["a", "b", "c", "e"]);
        let numbers = |union: &Unionfs| ["", "d", "d/a", "d/b", "d/c"].map(|path| attr(union, path).ino);
        let before = numbers(&union);
        drop(union);
        assert_eq!(numbers(&pool.mount()), before, "{order:?}: after a remount");
    }
}

#[test]
fn full_branches_are_skipped() {
    let mut pool = Pool::new(Order::First, &[10, 10, 10]);
    pool.create.min_free = 6 * MIB;
    let union = pool.mount();
    mkdir(&*union, "d");
    for (file, branch) in [("d/a", 0), ("d/b", 1), ("d/c", 2)] {
        write(&*union, file, &vec![1; 5 * MIB as usize]);
        assert_eq!(pool.places(file), [branch]);
    }
    assert_eq!(create(&*union, "d/e").map(drop), Err(Errno::NOSPC));
    assert_eq!(create(&*union, "e").map(drop), Err(Errno::NOSPC));
    unlink(&*union, "d/b");
    create(&*union, "d/e").unwrap();
    assert_eq!(pool.places("d/e"), [1]);
    // Files of a full branch are still changed, renamed and removed there.
    rename(&*union, "d/a", "f");
    assert_eq!(pool.places("f"), [0]);
}

#[test]
fn a_branch_that_refuses_for_lack_of_space_is_skipped() {
    let pool = Pool::new(Order::First, &[10, 10]);
    let union = pool.mount();
    // statfs still reports space.
    let faults = pool.branches[0].faults();
    faults.arm(memfs::Plan { count: memfs::Count::Changes, at: 1, fault: memfs::Fault::Errors(Errno::NOSPC) });
    create(&*union, "f").unwrap();
    faults.disarm();
    assert_eq!(pool.places("f"), [1]);
}

#[test]
fn existing_path_policies_create_no_directories() {
    let mut pool = Pool::new(Order::MostFree, &[20, 80, 50]);
    pool.create.existing_path = true;
    for branch in [0, 2] {
        mkdir(&*pool.branches[branch], "d");
    }
    let union = pool.mount();
    create(&*union, "d/f").unwrap();
    create(&*union, "g").unwrap();
    mkdir(&*union, "d/e");
    create(&*union, "d/e/f").unwrap();
    assert_eq!(
        ["d", "d/f", "g", "d/e", "d/e/f"].map(|path| pool.places(path)),
        [vec![0, 2], vec![2], vec![1], vec![2], vec![2]]
    );
}

/// A new part must not be hidden, and must not show what was hidden.
#[test]
fn whiteouts_and_marks_bound_the_choice() {
    let pool = Pool::new(Order::MostFree, &[20, 80]);
    for dir in ["opaque", "merged"] {
        mkdir(&*pool.branches[0], dir);
        mkdir(&*pool.branches[1], dir);
        write(&*pool.branches[1], &format!("{dir}/low"), b"low");
    }
    write(&*pool.branches[0], "opaque/.wh..wh..opq", b"");
    write(&*pool.branches[0], "merged/.wh.low", b"");
    mkdir(&*pool.branches[0], "beside");
    write(&*pool.branches[0], ".wh.beside", b"");
    let union = pool.mount();
    for file in ["opaque/f", "opaque/low", "merged/low", "beside/f"] {
        create(&*union, file).unwrap();
        assert!(find(&*pool.branches[0], file).is_some(), "{file}");
        assert_eq!(read(&*union, file), b"");
    }
    create(&*union, "merged/f").unwrap();
    assert_eq!(pool.places("merged/f"), [1]);
    // A renamed directory has a redirect: its other parts are elsewhere.
    rename(&*union, "merged", "renamed");
    create(&*union, "renamed/g").unwrap();
    assert!(find(&*pool.branches[1], "merged/g").is_some());
    assert_eq!(list(&*union, "renamed"), ["f", "g", "low"]);
    mkdir(&*union, "merged");
    create(&*union, "merged/new").unwrap();
    assert_eq!(list(&*union, "merged"), ["new"]);
    drop(union);
    let union = pool.mount();
    assert_eq!((list(&*union, "merged"), list(&*union, "renamed").len()), (vec!["new".to_owned()], 3));
}

/// A file that is renamed or linked stays on its branch, also where the new directory is missing.
#[test]
fn renames_and_links_copy_no_data() {
    let pool = Pool::new(Order::MostFree, &[20, 80]);
    mkdir(&*pool.branches[0], "left");
    let union = pool.mount();
    write(&*union, "f", b"text");
    let number = attr(&*union, "f").ino;
    let lower = attr(&*pool.branches[1], "f").ino;
    rename(&*union, "f", "left/f");
    at(&*union, "").link(&CX, name("again"), &at(&*union, "left/f")).unwrap();
    assert_eq!(attr(&*pool.branches[1], "left/f").ino, lower);
    assert_eq!((attr(&*union, "left/f").ino, attr(&*union, "again").nlink), (number, 2));
    assert_eq!(pool.places("left/f"), [1]);
}

/// Entries inherit group and ACLs from the directory as users see it, whatever its other parts
/// have.
#[test]
fn new_objects_inherit_from_the_visible_directory() {
    let pool = Pool::new(Order::MostFree, &[20, 80]);
    mkdir(&*pool.branches[0], "d");
    let union = pool.mount();
    create(&*union, "d/before").unwrap();
    let dir = at(&*union, "d");
    dir.setattr(&CX, &SetAttr { uid: Some(5), gid: Some(77), ..SetAttr::default() }, None).unwrap();
    chmod(&*union, "d", 0o2775);
    create(&*union, "d/f").unwrap();
    mkdir(&*union, "d/sub");
    assert_eq!((pool.places("d/f"), pool.places("d/sub")), (vec![1], vec![1]));
    assert_eq!(attr(&*union, "d/f").gid, 77);
    assert_eq!((attr(&*union, "d/sub").gid, attr(&*union, "d/sub").perm() & 0o2000), (77, 0o2000));
    // user::rw-, group::---, other::---
    let entries = [(1_u16, 6_u16), (4, 0), (0x20, 0)];
    let entry = |(tag, perm): (u16, u16)| [tag.to_le_bytes(), perm.to_le_bytes(), [0xff; 2], [0xff; 2]].concat();
    let acl: Vec<u8> = 2_u32.to_le_bytes().into_iter().chain(entries.into_iter().flat_map(entry)).collect();
    dir.setxattr(&CX, b"system.posix_acl_default", &acl, XattrFlags::default()).unwrap();
    create(&*union, "d/g").unwrap();
    assert_eq!((pool.places("d/g"), attr(&*union, "d/g").perm()), (vec![1], 0o600));
}

/// Removing a directory leaves nothing behind, so that a new one of its name can lie anywhere.
#[test]
fn removed_directories_leave_no_whiteouts() {
    let pool = Pool::new(Order::RoundRobin, &[20, 20, 20]);
    let union = pool.mount();
    for _ in 0..3 {
        mkdir(&*union, "d");
        for file in 0..6 {
            write(&*union, &format!("d/{file}"), b"x");
        }
        assert_eq!(pool.places("d"), [0, 1, 2]);
        for file in 0..6 {
            unlink(&*union, &format!("d/{file}"));
        }
        at(&*union, "").rmdir(&CX, name("d")).unwrap();
        for branch in &pool.branches {
            let left = list(&**branch, "").into_iter().filter(|name| !name.starts_with(".wh..wh."));
            assert_eq!(left.collect::<Vec<_>>(), [""; 0]);
        }
    }
}

#[test]
fn unnamed_files_follow_the_policy() {
    let pool = Pool::new(Order::MostFree, &[20, 80]);
    let union = pool.mount();
    let (entry, file) = at(&*union, "").tmpfile(&CX, 0o600, OpenFlags::RDWR).unwrap();
    file.write(&CX, b"text", 0).unwrap();
    at(&*union, "").link(&CX, name("f"), &entry.vnode).unwrap();
    assert_eq!((pool.places("f"), read(&*union, "f")), (vec![1], b"text".to_vec()));
}

/// A redirect leads to the old name of a directory on the branches to the right. A file there,
/// which ends the directory, is hidden by a new file of that name, and remains when that is
/// removed.
#[test]
fn removing_a_file_extends_no_renamed_directory() {
    let pool = Pool::new(Order::First, &[64, 64, 64, 64]);
    for (branch, path) in [(0, "sub"), (1, "sub"), (3, "sub")] {
        mkdir(&*pool.branches[branch], path);
    }
    for (branch, path) in [(1, "sub/own"), (2, "sub"), (3, "sub/hidden")] {
        write(&*pool.branches[branch], path, b"x");
    }
    let options = Options { create: pool.create, delete: Delete::All, ..Options::default() };
    let branch = |(at, layer): (usize, &Arc<MemFs>)| Branch {
        layer: layer.clone(),
        path: format!("/branch/{at}").into(),
        mode: Mode::ReadWrite,
    };
    let union = Unionfs::new(pool.branches.iter().enumerate().map(branch).collect(), options).unwrap();
    assert_eq!(list(&*union, "sub"), ["own"]);
    rename(&*union, "sub", "both");
    for replaced in [false, true] {
        create(&*union, "sub").unwrap();
        if replaced {
            create(&*union, "other").unwrap();
            rename(&*union, "other", "sub");
            rename(&*union, "sub", "moved");
        } else {
            unlink(&*union, "sub");
        }
        assert_eq!((list(&*union, "both"), find(&*union, "sub").is_some()), (vec!["own".to_owned()], false));
    }
    drop(union);
    assert_eq!(list(&*pool.mount(), "both"), ["own"]);
}
