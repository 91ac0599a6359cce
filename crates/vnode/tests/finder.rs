//! Finding objects by number with a walk, over a tree in memory.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use memfs::{Count, Fault, Faults, MemFs, MemOptions, Op, Plan};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use vnode::{Cx, Errno, Finder, Kind, Layer, MAY_BLOCK, Name, RenameFlags, Vnode};

const CX: Cx<'static> = Cx::internal(0, 0);

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn dir(parent: &Arc<dyn Vnode>, at: &str) -> Arc<dyn Vnode> {
    parent.mkdir(&CX, name(at), 0o755).unwrap().vnode
}

fn file(parent: &Arc<dyn Vnode>, at: &str) -> Arc<dyn Vnode> {
    parent.mknod(&CX, name(at), Kind::Regular.mode_bits() | 0o644, 0).unwrap().vnode
}

fn faulty() -> (Arc<MemFs>, Faults) {
    let faults = Faults::new();
    (MemFs::with(MemOptions::default(), &faults), faults)
}

fn found(finder: &Finder, root: &Arc<dyn Vnode>, number: u64, enough: usize) -> Vec<(u64, String)> {
    let found = finder.find(&CX, root, number, enough).unwrap();
    assert!(found.iter().all(|one| one.entry.vnode.id() == number));
    found.iter().map(|one| (one.dir.id(), String::from_utf8_lossy(&one.name).into_owned())).collect()
}

#[test]
fn many_questions_cost_one_walk() {
    let (fs, faults) = faulty();
    let root = fs.root();
    let numbers: Vec<u64> = (0..20)
        .flat_map(|i| {
            let d = dir(&root, &format!("d{i}"));
            (0..50).map(|j| file(&d, &format!("f{j}")).id()).collect::<Vec<_>>()
        })
        .collect();
    let finder = Finder::new();
    faults.record();
    for &number in &numbers {
        assert_eq!(found(&finder, &root, number, 1).len(), 1);
    }
    let listed = faults.log().iter().filter(|op| **op == Op::Readdir).count();
    assert_eq!(listed, 21, "each directory once");
}

#[test]
fn what_is_new_or_moved_is_found() {
    let (fs, _) = faulty();
    let root = fs.root();
    let (a, b) = (dir(&root, "a"), dir(&root, "b"));
    let f = file(&a, "f").id();
    let finder = Finder::new();
    assert_eq!(found(&finder, &root, f, 1), [(a.id(), "f".to_owned())]);
    a.rename(&CX, name("f"), &b, name("g"), RenameFlags::default()).unwrap();
    assert_eq!(found(&finder, &root, f, 1), [(b.id(), "g".to_owned())]);
    root.rename(&CX, name("b"), &a, name("c"), RenameFlags::default()).unwrap();
    assert_eq!(found(&finder, &root, f, 1), [(b.id(), "g".to_owned())]);
    let new = file(&b, "new");
    finder.changed();
    assert_eq!(found(&finder, &root, new.id(), 1), [(b.id(), "new".to_owned())]);
    root.link(&CX, name("other"), &new).unwrap();
    finder.moved();
    assert_eq!(found(&finder, &root, new.id(), 2).len(), 2);
    assert_eq!(found(&finder, &root, new.id(), 9).len(), 2);
    b.unlink(&CX, name("new")).unwrap();
    root.unlink(&CX, name("other")).unwrap();
    assert_eq!(found(&finder, &root, new.id(), 1), []);
    assert_eq!(found(&finder, &root, 1 << 40, 1), []);
}

/// A number is stale only if nothing kept the walk from any part of the tree.
#[test]
fn what_can_not_be_searched_is_said() {
    let (fs, faults) = faulty();
    let root = fs.root();
    let (a, b) = (dir(&root, "a"), dir(&root, "b"));
    let (f, g) = (file(&a, "f").id(), file(&b, "g").id());
    let mut outcomes = Vec::new();
    for at in 2..=3 {
        let finder = Finder::new();
        let fault = Fault::Errors(Errno::IO);
        faults.arm(Plan { count: Count::Only(Op::Readdir), at, fault });
        outcomes.extend([f, g].map(|number| finder.find(&CX, &root, number, 1).map(|found| found.len())));
        faults.disarm();
    }
    // Of two directories none could be listed, then the first that was visited.
    assert_eq!(outcomes[..2], [Err(Errno::IO), Err(Errno::IO)]);
    assert!(outcomes[2..].contains(&Ok(1)) && outcomes[2..].contains(&Err(Errno::IO)), "{outcomes:?}");
}

#[test]
fn callers_that_must_not_wait_or_give_up_are_let_go() {
    let (fs, _) = faulty();
    let root = fs.root();
    let f = file(&root, "f").id();
    let finder = Finder::new();
    let cancelled = AtomicBool::new(false);
    let busy = Cx::new(0, 0, 0, 0, false, &cancelled);
    assert_eq!(finder.find(&busy, &root, f, 1).map(drop), Err(MAY_BLOCK));
    cancelled.store(true, Ordering::Relaxed);
    let gone = Cx::new(0, 0, 0, 0, true, &cancelled);
    assert_eq!(finder.find(&gone, &root, f, 1).map(drop), Err(Errno::INTR));
    assert_eq!(found(&finder, &root, f, 1).len(), 1);
}

/// Numbers that are made up share walks, and the server rests in between.
#[test]
fn made_up_numbers_do_not_keep_the_server_walking() {
    let (fs, faults) = faulty();
    let root = fs.root();
    for i in 0..100 {
        let d = dir(&root, &format!("d{i}"));
        (0..20).for_each(|j| drop(file(&d, &format!("f{j}"))));
    }
    let finder = Finder::new();
    let stop = AtomicBool::new(false);
    faults.record();
    let asked = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for client in 0..8 {
            let (finder, root, stop, asked) = (&finder, &root, &stop, &asked);
            scope.spawn(move || {
                let mut number = 1 << 50 | client << 40;
                while !stop.load(Ordering::Relaxed) {
                    number += 1;
                    assert!(finder.find(&CX, root, number, 1).unwrap().is_empty());
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(Duration::from_millis(500));
        stop.store(true, Ordering::Relaxed);
    });
    let walks = faults.log().iter().filter(|op| **op == Op::Readdir).count() / 101;
    let asked = asked.into_inner();
    assert!(asked > 0 && walks <= 2, "{walks} walks for {asked} questions");
}

#[test]
fn deep_trees_are_walked() {
    let (fs, _) = faulty();
    let root = fs.root();
    let mut deepest = fs.root();
    for _ in 0..3000 {
        deepest = dir(&deepest, "d");
    }
    let f = file(&deepest, "f").id();
    assert_eq!(found(&Finder::new(), &root, f, 1), [(deepest.id(), "f".to_owned())]);
}
