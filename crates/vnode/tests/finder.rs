//! Finding objects by number with a walk, over an in-memory tree.
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
fn many_queries_share_one_walk() {
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
fn new_renamed_and_linked_objects_are_found() {
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

/// `find` returns no error for an unknown number only if the walk could search the whole tree.
#[test]
fn unreadable_directories_are_reported() {
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
    // First fail the root's listing, then that of the first subdirectory visited.
    assert_eq!(outcomes[..2], [Err(Errno::IO), Err(Errno::IO)]);
    assert!(outcomes[2..].contains(&Ok(1)) && outcomes[2..].contains(&Err(Errno::IO)), "{outcomes:?}");
}

#[test]
fn nonblocking_and_cancelled_callers_return_at_once() {
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

/// Queries for invented numbers share walks, and the finder pauses between walks.
#[test]
fn invented_numbers_do_not_keep_the_server_walking() {
    let (fs, faults) = faulty();
    let root = fs.root();
    for i in 0..100 {
        let d = dir(&root, &format!("d{i}"));
        (0..20).for_each(|j| drop(file(&d, &format!("f{j}"))));
    }
    let finder = Finder::new();
    let stop = AtomicBool::new(false);
    faults.record();
    let queries = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for client in 0..8 {
            let (finder, root, stop, queries) = (&finder, &root, &stop, &queries);
            scope.spawn(move || {
                let mut number = 1 << 50 | client << 40;
                while !stop.load(Ordering::Relaxed) {
                    number += 1;
                    assert!(finder.find(&CX, root, number, 1).unwrap().is_empty());
                    queries.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Time for many queries, and for a second walk only.
        std::thread::sleep(Duration::from_millis(500));
        stop.store(true, Ordering::Relaxed);
    });
    let walks = faults.log().iter().filter(|op| **op == Op::Readdir).count() / 101;
    let queries = queries.into_inner();
    assert!(queries > 0 && walks <= 2, "{walks} walks for {queries} queries");
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
