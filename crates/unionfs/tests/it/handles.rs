//! File handles: inode number and generation of each object stay the same and resolve to the object
//! after copy-up, renames and remounts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conformance::fixture::{ROOT, attr, bytes, dir, errno, file, must_find, name, names, rename};
use conformance::handles::Handles;
use memfs::{Faults, MemFs, MemOptions};
use std::sync::Arc;
use unionfs::{Branch, Delete, Mode, Numbers, Options, Unionfs};
use vnode::{Errno, Layer, OpenFlags, RenameFlags, SetAttr, Vnode};

/// Branches in memory, and the modes and options of their union.
struct TestUnion {
    layers: Vec<Arc<MemFs>>,
    modes: Vec<Mode>,
    options: Options,
}

impl TestUnion {
    /// Creates branches of these modes, with the generations 11, 12 and so on.
    fn new(modes: &[Mode]) -> Self {
        let layer = |(index, _): (u32, &Mode)| {
            let options = MemOptions { generation: 11 + index, ..MemOptions::default() };
            MemFs::with(options, &Faults::new())
        };
        let layers = (0u32..).zip(modes).map(layer).collect();
        Self { layers, modes: modes.to_vec(), options: Options::default() }
    }

    fn mount(&self) -> Arc<Unionfs> {
        let branch = |((layer, &mode), index): ((&Arc<MemFs>, &Mode), usize)| Branch {
            layer: layer.clone(),
            path: format!("/b{index}").into(),
            mode,
        };
        Unionfs::new(self.layers.iter().zip(&self.modes).zip(0..).map(branch).collect(), self.options).unwrap()
    }

    fn root(&self, branch: usize) -> Arc<dyn Vnode> {
        self.layers[branch].root()
    }
}

const TWO_BRANCHES: [Mode; 2] = [Mode::ReadWrite, Mode::ReadOnly];

fn number(dir: &Arc<dyn Vnode>, at: &str) -> u64 {
    must_find(dir, at).vnode.id()
}

fn change(vnode: &Arc<dyn Vnode>) {
    vnode.setattr(&ROOT, &SetAttr { uid: Some(7), ..SetAttr::default() }, None).unwrap();
}

#[test]
fn handles_stay_valid_after_copy_up_and_remount() {
    let test = TestUnion::new(&TWO_BRANCHES);
    let d = dir(&test.root(1), "d");
    file(&d, "f", b"as shipped");
    d.symlink(&ROOT, name("s"), b"x").unwrap();
    dir(&d, "e");
    let (union, all) = (test.mount(), ["f", "s", "e"]);
    let known = |union: &Unionfs| {
        let d = must_find(&union.root(), "d").vnode;
        all.map(|one| must_find(&d, one).vnode).map(|vnode| (vnode.id(), vnode.generation()))
    };
    let before = known(&union);
    assert!(before.iter().all(|&(_, generation)| generation == 12));
    for vnode in before.map(|(number, _)| union.vnode(&ROOT, number).unwrap()) {
        // Copy-up of a vnode that was found only by inode number must find its parents first.
        change(&vnode);
        assert_eq!(vnode.generation(), 12);
    }
    assert_eq!(names(&test.root(0).lookup(&ROOT, name("d")).unwrap().unwrap().vnode).len(), 3);
    assert_eq!(known(&union), before);
    let found = |union: &Unionfs| {
        let vnodes = before.map(|(number, _)| union.vnode(&ROOT, number).unwrap());
        assert_eq!(vnodes.clone().map(|vnode| (vnode.id(), vnode.generation())), before);
        assert_eq!(bytes(&vnodes[0]), b"as shipped");
        assert!(vnodes.iter().all(|vnode| attr(vnode).uid == 7));
    };
    found(&union);
    drop(union);
    let union = test.mount();
    found(&union);
    assert_eq!(known(&union), before);
    Handles::of(&*union).check(&*union);
}

#[test]
fn handles_of_hard_links_resolve_before_and_after_copy_up() {
    let test = TestUnion::new(&TWO_BRANCHES);
    let d = dir(&test.root(1), "d");
    let f = file(&d, "f", b"shared").vnode;
    for other in ["g", "h"] {
        test.root(1).link(&ROOT, name(other), &f).unwrap();
    }
    let union = test.mount();
    let handles = Handles::of(&*union);
    handles.check(&*union);
    let number = number(&union.root(), "g");
    // Copy the file up, then remove one name and add another; the remaining names are lower ones.
    change(&union.vnode(&ROOT, number).unwrap());
    let check = |union: &Unionfs| {
        let handles = Handles::of(union);
        assert!(handles.numbers().any(|one| one == number));
        handles.check(union);
        assert_eq!(union.vnode(&ROOT, number).unwrap().generation(), 12);
    };
    check(&union);
    union.root().unlink(&ROOT, name("g")).unwrap();
    check(&union);
    union.root().link(&ROOT, name("new"), &union.vnode(&ROOT, number).unwrap()).unwrap();
    check(&union);
    drop(union);
    let union = test.mount();
    check(&union);
    for gone in ["h", "new"] {
        union.root().unlink(&ROOT, name(gone)).unwrap();
    }
    check(&union);
    must_find(&union.root(), "d").vnode.unlink(&ROOT, name("f")).unwrap();
    assert_eq!(errno(union.vnode(&ROOT, number)), Errno::STALE);
}

/// After a rename of a directory, paths on the branches differ from those in the union.
#[test]
fn handles_of_renamed_directories_resolve_to_the_merged_directory() {
    for delete in [Delete::Whiteout, Delete::All] {
        let mut test = TestUnion::new(&[Mode::ReadWrite, Mode::ReadOnly, Mode::ReadOnly]);
        test.options.delete = delete;
        for branch in [1, 2] {
            let inner = dir(&dir(&test.root(branch), "a"), "inner");
            file(&inner, &format!("f{branch}"), b"below");
        }
        dir(&test.root(2), "b");
        let union = test.mount();
        let before = Handles::of(&*union);
        let root = union.root();
        rename(&root, "a", &must_find(&root, "b").vnode, "c").unwrap();
        let c = must_find(&must_find(&root, "b").vnode, "c").vnode;
        rename(&c, "inner", &root, "out").unwrap();
        file(&must_find(&root, "out").vnode, "new", b"above");
        // A new directory of the old name, which now hides the lower one.
        file(&dir(&root, "a"), "inner", b"another");
        drop((c, root));
        let check = |union: &Unionfs| {
            let now = Handles::of(union);
            assert!(before.numbers().all(|old| now.numbers().any(|new| new == old)), "an inode number is missing");
            now.check(union);
        };
        check(&union);
        drop(union);
        let union = test.mount();
        check(&union);
        // Copy up a file that was found by inode number, then rename its directory again.
        let f1 = number(&must_find(&union.root(), "out").vnode, "f1");
        change(&union.vnode(&ROOT, f1).unwrap());
        rename(&union.root(), "out", &union.root(), "again").unwrap();
        check(&union);
        assert_eq!(bytes(&union.vnode(&ROOT, f1).unwrap()), b"below");
    }
}

#[test]
fn handles_of_hidden_objects_are_stale() {
    let test = TestUnion::new(&[Mode::ReadWrite, Mode::ReadOnly, Mode::ReadOnly]);
    let (right, middle) = (test.root(2), test.root(1));
    for at in ["removed", "covered", "opaque"] {
        file(&dir(&right, at), "f", b"");
    }
    file(&right, "whited", b"");
    file(&right, "under", b"");
    file(&middle, "under", b"over");
    file(&middle, "covered", b"no directory");
    file(&dir(&middle, "opaque"), ".wh..wh..opq", b"");
    let union = test.mount();
    let below: Vec<u64> = Handles::of(&*test.layers[2]).numbers().collect();
    let tag = must_find(&union.root(), "whited").vnode.id() >> 48;
    let in_union = |lower: u64| tag << 48 | lower;
    let lower = |at: &str| number(&test.root(2), at);
    let shown = ["removed", "whited"].map(|at| in_union(lower(at)));
    assert_eq!(shown, ["removed", "whited"].map(|at| number(&union.root(), at)));
    union.root().unlink(&ROOT, name("whited")).unwrap();
    let removed = must_find(&union.root(), "removed").vnode;
    removed.unlink(&ROOT, name("f")).unwrap();
    drop(removed);
    union.root().rmdir(&ROOT, name("removed")).unwrap();
    let all = Handles::of(&*union);
    all.check(&*union);
    for number in below.into_iter().map(in_union).filter(|number| all.numbers().all(|one| one != *number)) {
        assert_eq!(errno(union.vnode(&ROOT, number)), Errno::STALE, "{number:#x}");
    }
    // Internal files of the union, by the inode numbers that they would have.
    let own = Handles::of(&*test.layers[0]);
    let tag = file(&union.root(), "mine", b"").vnode.id() >> 48;
    for lower in own.numbers() {
        assert_eq!(errno(union.vnode(&ROOT, tag << 48 | lower)), Errno::STALE, "{lower}");
    }
    for made_up in [2, 0x7ffe << 48 | 5, tag << 48 | 99_999, 1 << 63 | 7] {
        assert_eq!(errno(union.vnode(&ROOT, made_up)), Errno::STALE, "{made_up:#x}");
    }
}

#[test]
fn handles_of_removed_files_resolve_until_the_last_reference_drops() {
    let test = TestUnion::new(&TWO_BRANCHES);
    file(&test.root(1), "f", b"held");
    let union = test.mount();
    let number = number(&union.root(), "f");
    let held = union.vnode(&ROOT, number).unwrap();
    let open = held.open(&ROOT, OpenFlags::RDONLY).unwrap();
    union.root().unlink(&ROOT, name("f")).unwrap();
    let again = union.vnode(&ROOT, number).unwrap();
    assert!(Arc::ptr_eq(&again, &held));
    assert_eq!((attr(&again).nlink, bytes(&again)), (0, b"held".to_vec()));
    again.names(&ROOT, &mut |_, name| panic!("{name:?}")).unwrap();
    drop((again, held, open));
    assert_eq!(errno(union.vnode(&ROOT, number)), Errno::STALE);
    file(&union.root(), "f", b"new");
    assert_eq!(errno(union.vnode(&ROOT, number)), Errno::STALE);
}

#[test]
fn handles_with_narrow_inode_numbers_resolve() {
    let mut test = TestUnion::new(&TWO_BRANCHES);
    test.options.numbers = Numbers::Narrow;
    file(&dir(&test.root(1), "d"), "f", b"");
    let union = test.mount();
    file(&union.root(), "g", b"");
    let handles = Handles::of(&*union);
    assert!(handles.numbers().all(|number| number < 1 << 32));
    handles.check(&*union);
    rename(&union.root(), "d", &union.root(), "e").unwrap();
    Handles::of(&*union).check(&*union);
}

#[test]
fn handles_resolve_after_directories_are_exchanged() {
    let test = TestUnion::new(&TWO_BRANCHES);
    for at in ["a", "b"] {
        file(&dir(&test.root(1), at), "f", at.as_bytes());
    }
    let union = test.mount();
    let root = union.root();
    let before = ["a", "b"].map(|at| number(&must_find(&root, at).vnode, "f"));
    let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
    root.rename(&ROOT, name("a"), &root, name("b"), flags).unwrap();
    for (number, wanted) in before.into_iter().zip(["a", "b"]) {
        assert_eq!(bytes(&union.vnode(&ROOT, number).unwrap()), wanted.as_bytes());
    }
    Handles::of(&*union).check(&*union);
    drop((root, union));
    let union = test.mount();
    Handles::of(&*union).check(&*union);
}

/// After random operations each object is found by its inode number, before and after a remount.
#[test]
fn handles_resolve_after_random_operations() {
    for (seed, modes, delete) in [
        (1, [Mode::ReadWrite, Mode::ReadOnly, Mode::ReadOnly], Delete::Whiteout),
        (2, [Mode::ReadWrite, Mode::ReadWrite, Mode::ReadOnly], Delete::Whiteout),
        (3, [Mode::ReadWrite, Mode::ReadWrite, Mode::ReadOnly], Delete::All),
        (4, [Mode::ReadWrite, Mode::ReadOnly, Mode::ReadWrite], Delete::All),
    ] {
        let mut test = TestUnion::new(&modes);
        test.options.delete = delete;
        // Fill the rightmost branch by running operations on a union of that branch alone.
        let lower =
            TestUnion { layers: vec![test.layers[2].clone()], modes: vec![Mode::ReadWrite], ..TestUnion::new(&[]) };
        conformance::random::apply_random(seed, 400, &*lower.mount());
        let union = test.mount();
        let before = Handles::of(&*union);
        for round in 0..5 {
            conformance::random::apply_random(seed * 100 + round, 150, &*union);
            let now = Handles::of(&*union);
            now.check(&*union);
            before.check_gone(&*union, &now);
        }
        let now = Handles::of(&*union);
        drop(union);
        let union = test.mount();
        now.check(&*union);
        before.check_gone(&*union, &now);
    }
}
