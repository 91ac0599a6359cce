//! Unions of many branches: the number of lower operations does not depend on the number of
//! branches once a directory is known.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::layer_ops::{CX, name, names};
use memfs::{Faults, MemFs, MemOptions, Op};
use std::sync::Arc;
use std::time::Duration;
use unionfs::{Branch, Delete, Mode, Options, Unionfs};
use vnode::{Errno, Layer, OpenFlags, RenameFlags, Vnode};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);

struct Many {
    faults: Faults,
    branches: Vec<Arc<MemFs>>,
    root: Arc<dyn Vnode>,
    _union: Arc<Unionfs>,
}

/// Which branch has a file.
#[derive(Clone, Copy)]
enum Spread {
    /// Each file is on one branch.
    Dist,
    /// Each file is on all branches.
    Dup,
}

/// Returns a union of `count` branches with the files `f0`, `f1`, ... The branches are `rw`, or all
/// but the first are `ro`.
fn many(count: usize, files: usize, spread: Spread, writable: bool, interval: Duration, delete: Delete) -> Many {
    let faults = Faults::new();
    let branches: Vec<_> = (0..count).map(|_| MemFs::with(MemOptions::default(), &faults)).collect();
    for n in 0..files {
        match spread {
            Spread::Dist => make(&*branches[n % count].root(), &format!("f{n}")),
            Spread::Dup => branches.iter().for_each(|branch| make(&*branch.root(), &format!("f{n}"))),
        }
    }
    let mode = |n| if n == 0 || writable { Mode::ReadWrite } else { Mode::ReadOnly };
    let listed = branches.iter().enumerate().map(|(n, layer)| Branch {
        layer: layer.clone(),
        path: format!("/{n}").into(),
        mode: mode(n),
    });
    let options = Options { check_interval: interval, delete, ..Options::default() };
    let union = Unionfs::new(listed.collect(), options).unwrap();
    Many { faults, branches, root: union.root(), _union: union }
}

fn make(dir: &dyn Vnode, file: &str) {
    dir.mknod(&CX, name(file), 0o100_644, 0).unwrap();
}

fn has(dir: &Arc<dyn Vnode>, file: &str) -> bool {
    dir.lookup(&CX, name(file)).unwrap().is_some()
}

impl Many {
    /// Returns the lower operations that `run` makes.
    fn cost(&self, run: impl FnOnce(&Arc<dyn Vnode>)) -> Vec<Op> {
        self.faults.record();
        run(&self.root);
        self.faults.log()
    }
}

#[test]
fn warm_costs_do_not_depend_on_the_number_of_branches() {
    for spread in [Spread::Dist, Spread::Dup] {
        let costs = |count| {
            let union = many(count, 256, spread, true, LONG, Delete::Whiteout);
            assert_eq!(names(&union.root).len(), 256);
            let hit = union.cost(|root| assert!((0..256).all(|n| has(root, &format!("f{n}"))))).len();
            let miss = union.cost(|root| assert!((0..100).all(|n| !has(root, &format!("none{n}"))))).len();
            let listing = union.cost(|root| assert_eq!(names(root).len(), 256)).len();
            let unlink = union.cost(|root| (0..100).for_each(|n| root.unlink(&CX, name(&format!("f{n}"))).unwrap()));
            assert!((0..100).all(|n| !has(&union.root, &format!("f{n}"))));
            assert_eq!(names(&union.root).len(), 156);
            (hit, miss, listing, unlink.len())
        };
        let few = costs(3);
        assert_eq!(few.0, 256);
        assert_eq!((few.1, few.2), (0, 0));
        for count in [16, 1024] {
            let many = costs(count);
            assert_eq!((many.0, many.1, many.2), (few.0, few.1, few.2), "{count} branches");
            // A file that is not on the leftmost branch takes a few more, and fewer are on it.
            assert!(2 * many.3 <= 3 * few.3, "unlink: {} operations, {} with 3 branches", many.3, few.3);
        }
    }
}

/// unlink asks neither the leftmost branch nor any other that does not have the name.
#[test]
fn unlink_asks_only_the_branches_that_matter() {
    for count in [3, 16, 256, 1024] {
        for (spread, file, expected) in [
            // Hidden by a whiteout.
            (Spread::Dist, "f1", vec![Op::Lookup, Op::Mknod]),
            // On the leftmost branch alone.
            (Spread::Dist, "f0", vec![Op::Unlink]),
            // Covered by a whiteout and removed.
            (Spread::Dup, "f0", vec![Op::Lookup, Op::Lookup, Op::Getattr, Op::Mknod, Op::Unlink]),
        ] {
            let union = many(count, 4, spread, false, LONG, Delete::Whiteout);
            assert_eq!(names(&union.root).len(), 4);
            let cost = union.cost(|root| root.unlink(&CX, name(file)).unwrap());
            assert_eq!(cost, expected, "{count} branches: {file}");
            assert!(!has(&union.root, file));
        }
    }
}

#[test]
fn a_directory_that_is_not_listed_is_known_after_a_few_misses() {
    let union = many(1024, 1024, Spread::Dist, false, LONG, Delete::Whiteout);
    let cost = union.cost(|root| (0..10).for_each(|n| assert!(!has(root, &format!("none{n}")))));
    assert!(cost.iter().filter(|op| **op == Op::Readdir).count() == 1024, "{} operations", cost.len());
    assert_eq!(union.cost(|root| assert!(!has(root, "other"))).len(), 0);
    assert_eq!(union.cost(|root| assert!(has(root, "f1023"))).len(), 1);
}

#[test]
fn own_changes_are_visible_at_once() {
    for delete in [Delete::Whiteout, Delete::All] {
        for writable in [true, false] {
            let union = many(16, 64, Spread::Dist, writable, LONG, delete);
            let root = &union.root;
            assert_eq!(names(root).len(), 64);
            make(&**root, "new");
            assert!(has(root, "new"));
            root.rename(&CX, name("new"), root, name("newer"), RenameFlags::default()).unwrap();
            assert!(!has(root, "new") && has(root, "newer"));
            // Copied up.
            let file = root.lookup(&CX, name("f63")).unwrap().unwrap().vnode;
            file.open(&CX, OpenFlags::RDWR).unwrap().write(&CX, b"x", 0).unwrap();
            assert!(has(root, "f63"));
            root.unlink(&CX, name("f63")).unwrap();
            root.unlink(&CX, name("f62")).unwrap();
            assert!(!has(root, "f63") && !has(root, "f62"));
            assert_eq!(root.unlink(&CX, name("f62")), Err(Errno::NOENT));
            make(&**root, "f62");
            assert!(has(root, "f62"));
            root.mkdir(&CX, name("d"), 0o755).unwrap();
            assert!(has(root, "d"));
            root.rmdir(&CX, name("d")).unwrap();
            assert!(!has(root, "d"));
            assert_eq!(names(root).len(), 64);
        }
    }
}

#[test]
fn out_of_band_changes_are_visible_after_the_interval() {
    let interval = Duration::from_millis(50);
    let union = many(16, 64, Spread::Dist, false, interval, Delete::Whiteout);
    let root = &union.root;
    assert_eq!(names(root).len(), 64);
    for round in 0..3 {
        let (made, removed) = (format!("made{round}"), format!("f{}", 9 + round));
        assert!(!has(root, &made) && has(root, &removed));
        make(&*union.branches[7].root(), &made);
        union.branches[9 + round].root().unlink(&CX, name(&removed)).unwrap();
        make(&*union.branches[3].root(), &format!(".wh.f{}", 20 + round));
        // The index never shows a name that its branch does not have.
        assert!(!has(root, &removed));
        // The other changes become visible after the interval.
        std::thread::sleep(interval);
        assert!(has(root, &made) && !has(root, &format!("f{}", 20 + round)));
        assert!(names(root).contains(&made));
    }
    // Parts that change no more are read again, and not asked in vain.
    (0..200).for_each(|n| assert!(!has(root, &format!("none{n}"))));
    assert_eq!(union.cost(|root| assert!(!has(root, "none"))).len(), 0);
}

#[test]
fn without_an_interval_out_of_band_changes_are_visible_at_once() {
    let union = many(16, 64, Spread::Dist, false, Duration::ZERO, Delete::Whiteout);
    assert_eq!(names(&union.root).len(), 64);
    assert!(!has(&union.root, "made"));
    make(&*union.branches[7].root(), "made");
    assert!(has(&union.root, "made") && names(&union.root).contains("made"));
}
