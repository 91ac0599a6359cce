//! File handles: number and generation of each object stay, and lead to it, whatever becomes of it.
// Helpers of tests: a failed expectation is a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conformance::fixture::{ROOT, attr, bytes, dir, errno, file, must_find, name, names, rename};
use conformance::handles::Handles;
use memfs::{Faults, MemFs, MemOptions};
use std::sync::Arc;
use unionfs::{Branch, Delete, Mode, Numbers, Options, Unionfs};
use vnode::{Errno, Layer, OpenFlags, RenameFlags, SetAttr, Vnode};

/// Branches, and how they are mounted.
struct Stage {
    layers: Vec<Arc<MemFs>>,
    modes: Vec<Mode>,
    options: Options,
}

impl Stage {
    /// Branches of these modes, each with a generation of its own: 11, 12 and so on.
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

const OVER: [Mode; 2] = [Mode::ReadWrite, Mode::ReadOnly];

fn number(dir: &Arc<dyn Vnode>, at: &str) -> u64 {
    must_find(dir, at).vnode.id()
}

fn change(vnode: &Arc<dyn Vnode>) {
    vnode.setattr(&ROOT, &SetAttr { uid: Some(7), ..SetAttr::default() }, None).unwrap();
}

#[test]
fn handles_stay_over_copy_up_and_remount() {
    let stage = Stage::new(&OVER);
    let d = dir(&stage.root(1), "d");
    file(&d, "f", b"as shipped");
    d.symlink(&ROOT, name("s"), b"x").unwrap();
    dir(&d, "e");
    let (union, all) = (stage.mount(), ["f", "s", "e"]);
    let known = |union: &Unionfs| {
        let d = must_find(&union.root(), "d").vnode;
        all.map(|one| must_find(&d, one).vnode).map(|vnode| (vnode.id(), vnode.generation()))
    };
    let before = known(&union);
    assert!(before.iter().all(|&(_, generation)| generation == 12));
    for vnode in before.map(|(number, _)| union.vnode(&ROOT, number).unwrap()) {
        // The vnode was found by its number, and nothing else: copy-up needs its parents.
        change(&vnode);
        assert_eq!(vnode.generation(), 12);
    }
    assert_eq!(names(&stage.root(0).lookup(&ROOT, name("d")).unwrap().unwrap().vnode).len(), 3);
    assert_eq!(known(&union), before);
    let found = |union: &Unionfs| {
        let vnodes = before.map(|(number, _)| union.vnode(&ROOT, number).unwrap());
        assert_eq!(vnodes.clone().map(|vnode| (vnode.id(), vnode.generation())), before);
        assert_eq!(bytes(&vnodes[0]), b"as shipped");
        assert!(vnodes.iter().all(|vnode| attr(vnode).uid == 7));
    };
    found(&union);
    drop(union);
    let union = stage.mount();
    found(&union);
    assert_eq!(known(&union), before);
    Handles::of(&*union).check(&*union);
}

#[test]
fn hard_links_are_found_below_and_above() {
    let stage = Stage::new(&OVER);
    let d = dir(&stage.root(1), "d");
    let f = file(&d, "f", b"shared").vnode;
    for other in ["g", "h"] {
        stage.root(1).link(&ROOT, name(other), &f).unwrap();
    }
    let union = stage.mount();
    let handles = Handles::of(&*union);
    handles.check(&*union);
    let number = number(&union.root(), "g");
    // One name goes to the copy, one is removed, one stays below, and one is new.
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
    let union = stage.mount();
    check(&union);
    for gone in ["h", "new"] {
        union.root().unlink(&ROOT, name(gone)).unwrap();
    }
    check(&union);
    must_find(&union.root(), "d").vnode.unlink(&ROOT, name("f")).unwrap();
    assert_eq!(errno(union.vnode(&ROOT, number)), Errno::STALE);
}

/// Where a directory was renamed, paths on a branch are not those in the union.
#[test]
fn renamed_directories_are_found_with_what_they_merge() {
    for delete in [Delete::Whiteout, Delete::All] {
        let mut stage = Stage::new(&[Mode::ReadWrite, Mode::ReadOnly, Mode::ReadOnly]);
        stage.options.delete = delete;
        for branch in [1, 2] {
            let inner = dir(&dir(&stage.root(branch), "a"), "inner");
            file(&inner, &format!("f{branch}"), b"below");
        }
        dir(&stage.root(2), "b");
        let union = stage.mount();
        let before = Handles::of(&*union);
        let root = union.root();
        rename(&root, "a", &must_find(&root, "b").vnode, "c").unwrap();
        let c = must_find(&must_find(&root, "b").vnode, "c").vnode;
        rename(&c, "inner", &root, "out").unwrap();
        file(&must_find(&root, "out").vnode, "new", b"above");
        // A directory of the old name, over what is hidden now.
        file(&dir(&root, "a"), "inner", b"another");
        drop((c, root));
        let check = |union: &Unionfs| {
            let now = Handles::of(union);
            assert!(before.numbers().all(|old| now.numbers().any(|new| new == old)), "nothing was removed");
            now.check(union);
        };
        check(&union);
        drop(union);
        let union = stage.mount();
        check(&union);
        // By number alone, then copied up and moved on.
        let f1 = number(&must_find(&union.root(), "out").vnode, "f1");
        change(&union.vnode(&ROOT, f1).unwrap());
        rename(&union.root(), "out", &union.root(), "again").unwrap();
        check(&union);
        assert_eq!(bytes(&union.vnode(&ROOT, f1).unwrap()), b"below");
    }
}

#[test]
fn what_is_hidden_is_stale() {
    let stage = Stage::new(&[Mode::ReadWrite, Mode::ReadOnly, Mode::ReadOnly]);
    let (right, middle) = (stage.root(2), stage.root(1));
    for at in ["removed", "covered", "opaque"] {
        file(&dir(&right, at), "f", b"");
    }
    file(&right, "whited", b"");
    file(&right, "under", b"");
    file(&middle, "under", b"over");
    file(&middle, "covered", b"no directory");
    file(&dir(&middle, "opaque"), ".wh..wh..opq", b"");
    let union = stage.mount();
    let below: Vec<u64> = Handles::of(&*stage.layers[2]).numbers().collect();
    let tag = must_find(&union.root(), "whited").vnode.id() >> 48;
    let in_union = |lower: u64| tag << 48 | lower;
    let lower = |at: &str| number(&stage.root(2), at);
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
    // The union's own files, by the numbers that they would have.
    let own = Handles::of(&*stage.layers[0]);
    let tag = file(&union.root(), "mine", b"").vnode.id() >> 48;
    for lower in own.numbers() {
        assert_eq!(errno(union.vnode(&ROOT, tag << 48 | lower)), Errno::STALE, "{lower}");
    }
    for made_up in [2, 0x7ffe << 48 | 5, tag << 48 | 99_999, 1 << 63 | 7] {
        assert_eq!(errno(union.vnode(&ROOT, made_up)), Errno::STALE, "{made_up:#x}");
    }
}

#[test]
fn removed_files_live_while_they_are_held() {
    let stage = Stage::new(&OVER);
    file(&stage.root(1), "f", b"held");
    let union = stage.mount();
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
fn narrow_numbers_lead_to_their_objects() {
    let mut stage = Stage::new(&OVER);
    stage.options.numbers = Numbers::Narrow;
    file(&dir(&stage.root(1), "d"), "f", b"");
    let union = stage.mount();
    file(&union.root(), "g", b"");
    let handles = Handles::of(&*union);
    assert!(handles.numbers().all(|number| number < 1 << 32));
    handles.check(&*union);
    rename(&union.root(), "d", &union.root(), "e").unwrap();
    Handles::of(&*union).check(&*union);
}

/// Of exchanged directories each is found where it is.
#[test]
fn exchanged_directories_are_found() {
    let stage = Stage::new(&OVER);
    for at in ["a", "b"] {
        file(&dir(&stage.root(1), at), "f", at.as_bytes());
    }
    let union = stage.mount();
    let root = union.root();
    let before = ["a", "b"].map(|at| number(&must_find(&root, at).vnode, "f"));
    let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
    root.rename(&ROOT, name("a"), &root, name("b"), flags).unwrap();
    for (number, wanted) in before.into_iter().zip(["a", "b"]) {
        assert_eq!(bytes(&union.vnode(&ROOT, number).unwrap()), wanted.as_bytes());
    }
    Handles::of(&*union).check(&*union);
    drop((root, union));
    let union = stage.mount();
    Handles::of(&*union).check(&*union);
}

/// Whatever was done, each object is found by its number, before and after a remount.
#[test]
fn random_operations_keep_handles() {
    for (seed, modes, delete) in [
        (1, [Mode::ReadWrite, Mode::ReadOnly, Mode::ReadOnly], Delete::Whiteout),
        (2, [Mode::ReadWrite, Mode::ReadWrite, Mode::ReadOnly], Delete::Whiteout),
        (3, [Mode::ReadWrite, Mode::ReadWrite, Mode::ReadOnly], Delete::All),
        (4, [Mode::ReadWrite, Mode::ReadOnly, Mode::ReadWrite], Delete::All),
    ] {
        let mut stage = Stage::new(&modes);
        stage.options.delete = delete;
        // Something on the right to begin with: what a union of that branch alone was left with.
        let lower = Stage { layers: vec![stage.layers[2].clone()], modes: vec![Mode::ReadWrite], ..Stage::new(&[]) };
        conformance::random::go_on(seed, 400, &*lower.mount());
        let union = stage.mount();
        let before = Handles::of(&*union);
        for round in 0..5 {
            conformance::random::go_on(seed * 100 + round, 150, &*union);
            let now = Handles::of(&*union);
            now.check(&*union);
            before.check_gone(&*union, &now);
        }
        let now = Handles::of(&*union);
        drop(union);
        let union = stage.mount();
        now.check(&*union);
        before.check_gone(&*union, &now);
    }
}
