//! The layer shows the replicas' tree unchanged, for every type of object, from every replica, and
//! if a replica fails at any call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::{Behaviour, CX, Replicas, quick};
use lbfs::{Isolate, LbFs, Options, Policy};
use memfs::{Count, Dump, Fault, Faults, MemFs, MemOptions, Plan};
use std::collections::HashSet;
use std::sync::Arc;
use testkit::{seen, until};
use vnode::{Attr, Errno, Layer, Vnode};

/// Returns a tree that random operations created.
fn random_tree(seed: u64) -> Arc<MemFs> {
    let (tree, twin) = (MemFs::new(), MemFs::new());
    conformance::random::compare(seed, 1500, &*tree, &*twin);
    tree
}

fn replicas_of(tree: &Arc<MemFs>, may_hang: bool) -> Replicas {
    let mut replicas = Replicas::new(3, may_hang, |_| {});
    replicas.trees = (0..3).map(|_| tree.fork(&Faults::new())).collect();
    replicas
}

fn dump(fs: &LbFs) -> Dump {
    Dump::of(fs).unwrap().without_ids()
}

#[test]
fn the_layer_shows_the_replicas_tree() {
    for seed in 1..5 {
        let tree = random_tree(seed);
        let wanted = tree.dump().without_ids();
        for (_, policy) in Policy::ALL {
            let replicas = replicas_of(&tree, seed % 2 == 0);
            let fs = replicas.mount(Options { policy, compare: 3, ..quick() });
            assert_eq!(dump(&fs).differences(&wanted), "", "seed {seed}, {policy:?}");
        }
    }
}

#[test]
fn the_tree_is_the_same_while_one_replica_fails() {
    let tree = random_tree(7);
    let wanted = tree.dump().without_ids();
    for behaviour in [Behaviour::Fails(Errno::IO), Behaviour::Fails(Errno::NOTCONN), Behaviour::Hangs] {
        for bad in 0..3 {
            let replicas = replicas_of(&tree, true);
            let fs = replicas.mount(quick());
            replicas.gates[bad].set(behaviour);
            assert_eq!(dump(&fs).differences(&wanted), "", "{behaviour:?} of {bad}");
        }
    }
}

/// For every k, the k-th call of one replica fails, or all calls from the k-th on. Callers must not
/// notice.
#[test]
fn a_failure_at_any_call_is_hidden() {
    let tree = MemFs::with(MemOptions::default(), &Faults::new());
    conformance::random::compare(11, 800, &*tree, &*MemFs::new());
    let wanted = tree.dump().without_ids();
    for errno in [Errno::IO, Errno::NOTCONN, Errno::STALE] {
        for fault in [Fault::Error(errno), Fault::Errors(errno)] {
            let mut at = 3;
            loop {
                let faults = Faults::new();
                let bad = tree.fork(&faults);
                let good = tree.fork(&Faults::new());
                let source = |tree: Arc<MemFs>, name: &str| {
                    let open = move || Ok(Arc::clone(&tree) as Arc<dyn Layer>);
                    lbfs::Source { name: name.to_owned(), open: Box::new(open) }
                };
                let sources = vec![source(Arc::clone(&bad), "bad"), source(good, "good")];
                faults.arm(Plan { count: Count::All, at, fault });
                let fs = LbFs::new(sources, Options { isolate: Isolate::Never, ..quick() }).unwrap();
                assert_eq!(dump(&fs).differences(&wanted), "", "{fault:?} at {at}");
                if !faults.fired() {
                    break;
                }
                at += 1;
            }
            assert!(at > 30, "hardly any call reached the replica");
        }
    }
}

/// Numbers are unique except for hard links, and listings agree with attributes.
#[test]
fn numbers_are_unique_and_agree() {
    let tree = random_tree(3);
    let replicas = replicas_of(&tree, false);
    let fs = replicas.mount(quick());
    let (all, below) = (Dump::of(&*fs).unwrap(), tree.dump());
    let mut of = std::collections::HashMap::new();
    for (path, node) in &all.0 {
        let lower = below.0[path].ino;
        assert_eq!(*of.entry(node.ino).or_insert(lower), lower, "{}", path.escape_ascii());
    }
    let lowers: HashSet<u64> = below.0.values().map(|node| node.ino).collect();
    assert_eq!(of.len(), lowers.len());
    check_listings(&fs.root());
}

fn check_listings(dir: &Arc<dyn Vnode>) {
    let mut entries = Vec::new();
    let mut found = Vec::new();
    dir.readdir(&CX, 0, &mut |entry| {
        let there = dir.lookup(&CX, entry.name).unwrap().unwrap();
        assert_eq!(there.vnode.kind(), entry.kind);
        entries.push(entry.name.as_bytes().to_vec());
        found.push(there);
        true
    })
    .unwrap();
    // While objects are live, listings have their numbers.
    let mut again = found.iter().map(|entry| entry.attr.ino);
    dir.readdir(&CX, 0, &mut |entry| again.next() == Some(entry.ino)).unwrap();
    assert_eq!(again.next(), None);
    found.iter().filter(|entry| entry.vnode.kind() == vnode::Kind::Directory).for_each(|e| check_listings(&e.vnode));
}

/// Returns the attributes that must not depend on the replica.
fn replica_independent(attr: Attr) -> (u64, u64, vnode::Time, u32, u32, u32, u32, Option<vnode::Time>) {
    (attr.ino, attr.size, attr.mtime, attr.mode, attr.uid, attr.gid, attr.nlink, attr.btime)
}

#[test]
fn attributes_do_not_depend_on_the_replica() {
    let tree = random_tree(5);
    let replicas = replicas_of(&tree, false);
    let fs = replicas.mount(quick());
    let mut entries = Vec::new();
    fs.root()
        .readdir(&CX, 0, &mut |entry| {
            entries.push(fs.root().lookup(&CX, entry.name).unwrap().unwrap());
            true
        })
        .unwrap();
    assert!(!entries.is_empty());
    for away in 0..3 {
        replicas.gates[away].set(Behaviour::Fails(Errno::NOTCONN));
        for entry in &entries {
            assert_eq!(replica_independent(entry.vnode.getattr(&CX).unwrap()), replica_independent(entry.attr));
        }
        replicas.gates[away].set(Behaviour::Healthy);
        until("it is back", || seen(common::states(&fs), |all| all[away] == "up"));
    }
}

/// Objects are found by number, even in a new layer and on another replica.
#[test]
fn objects_are_found_by_number() {
    for seed in 1..4 {
        let tree = random_tree(seed);
        let replicas = replicas_of(&tree, false);
        let handles = {
            let fs = replicas.mount(quick());
            let handles = conformance::handles::Handles::of(&*fs);
            handles.check(&*fs);
            handles
        };
        assert!(handles.count() > 20, "seed {seed}");
        let fs = replicas.mount(quick());
        handles.check(&*fs);
        replicas.gates[1].set(Behaviour::Fails(Errno::NOTCONN));
        replicas.gates[2].set(Behaviour::Fails(Errno::NOTCONN));
        handles.check(&*fs);
        for unknown in [2, 1 << 63 | 5, u64::MAX] {
            assert_eq!(fs.vnode(&CX, unknown).map(drop), Err(Errno::STALE));
        }
    }
}
