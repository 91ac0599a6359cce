//! An error or a crash at every operation of the lower file system.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::{CX, Model, collect, contents, edit, open, put};
use blockstore::{BlockStore, RecipeId};
use memfs::{Count, Fault, Faults, MemFs, MemOptions, Plan};
use std::sync::Arc;
use testkit::Rng;
use vnode::{Errno, Layer, Result};

/// Upper bound for the number of lower operations of a case.
const MAX_OPERATIONS: u64 = 20_000;

/// A store with several packs, garbage, and chains of versions.
fn prepared() -> (Arc<MemFs>, Model) {
    let fs = MemFs::with(MemOptions { lose_data: true, ..MemOptions::default() }, &Faults::new());
    let store = open(&fs).unwrap();
    let mut random = Rng::new(77);
    let mut model = Model::new();
    let mut bytes: Vec<u8> = (0..5000).map(|_| random.bits() as u8).collect();
    let mut last = None;
    for round in 0..14 {
        edit(&mut random, &mut bytes);
        if round % 5 == 4 {
            bytes = (0..5000).map(|_| random.bits() as u8).collect();
        }
        let id = put(&store, b"file", &bytes, last).unwrap();
        model.insert(id, (b"file".to_vec(), bytes.clone()));
        last = Some(id);
    }
    for id in model.keys().copied().take(9).filter(|id| id.0 != 2).collect::<Vec<_>>() {
        store.delete(&CX, id).unwrap();
        model.remove(&id);
    }
    store.sync(&CX).unwrap();
    (fs, model)
}

/// What one case does: several changes, each of which may fail alone.
fn change(store: &Arc<BlockStore>, model: &mut Model, maybe: &mut Model) -> Result<()> {
    let mut random = Rng::new(9);
    let ids: Vec<RecipeId> = model.keys().copied().collect();
    let mut bytes = model[ids.last().unwrap()].1.clone();
    edit(&mut random, &mut bytes);
    let mut failure = Ok(());
    for round in 0..3 {
        match put(store, b"more", &bytes, ids.last().copied()) {
            Ok(id) => {
                assert!(!model.contains_key(&id));
                model.insert(id, (b"more".to_vec(), bytes.clone()));
            }
            Err(errno) => failure = Err(errno),
        }
        if let Err(errno) = store.gc_step(&CX, 2000) {
            failure = Err(errno);
        }
        match store.delete(&CX, ids[round]) {
            Ok(()) => drop(model.remove(&ids[round])),
            Err(errno) => {
                // It may have been done.
                failure = Err(errno);
                maybe.insert(ids[round], model[&ids[round]].clone());
            }
        }
        edit(&mut random, &mut bytes);
    }
    collect(store, 1 << 20)?;
    store.sync(&CX)?;
    failure
}

#[test]
fn an_error_at_any_operation_loses_nothing() {
    let (start, old) = prepared();
    let fs = start.fork(&Faults::new());
    change(&open(&fs).unwrap(), &mut old.clone(), &mut Model::new()).unwrap();
    assert!(common::untrusted::file(&fs, b"p-00000001").is_none(), "the case removes a pack");
    for fault in [Fault::Error(Errno::IO), Fault::Errors(Errno::IO), Fault::Errors(Errno::NOSPC)] {
        let count = if fault == Fault::Errors(Errno::NOSPC) { Count::Changes } else { Count::All };
        let end = (1..MAX_OPERATIONS).find(|&at| {
            let faults = Faults::new();
            let fs = start.fork(&faults);
            let store = open(&fs).unwrap();
            let (mut model, mut maybe) = (old.clone(), Model::new());
            faults.arm(Plan { count, at, fault });
            let answer = change(&store, &mut model, &mut maybe);
            let fired = faults.fired();
            faults.disarm();
            assert!(fired || answer.is_ok());
            assert!(contents(&store) == model, "{fault:?} at {at}");
            // The store works on.
            collect(&store, 1 << 20).unwrap();
            let id = put(&store, b"after", b"the error", None).unwrap();
            model.insert(id, (b"after".to_vec(), b"the error".to_vec()));
            assert!(contents(&store) == model, "{fault:?} at {at}");
            assert!(store.check(&CX).unwrap().is_clean(), "{fault:?} at {at}");
            drop(store);
            let store = open(&fs).unwrap();
            assert!(contents(&store) == model, "{fault:?} at {at}, opened again");
            !fired
        });
        assert!(end.is_some_and(|end| end > 8), "{end:?}");
    }
}

/// Compares a store after a crash.
fn assert_consistent(store: &Arc<BlockStore>, old: &Model, model: &Model, what: &str) {
    let seen = contents(store);
    for (id, version) in &seen {
        let known = old.get(id).or_else(|| model.get(id));
        // A version whose put failed may exist, complete.
        assert!(known.map_or(version.0 == b"more", |known| known == version), "{what}: {id} is invented");
    }
    for id in old.keys().filter(|id| model.contains_key(id)) {
        assert!(seen.contains_key(id), "{what}: {id} is lost");
    }
    assert!(store.check(&CX).unwrap().is_clean(), "{what}");
    collect(store, 1 << 20).unwrap();
    assert!(contents(store) == seen, "{what}: after a collection");
}

#[test]
fn a_kill_or_a_power_failure_at_any_operation_loses_nothing_durable() {
    let (start, old) = prepared();
    for power in [false, true] {
        let end = (1..MAX_OPERATIONS).find(|&at| {
            let faults = Faults::new();
            let fs = start.fork(&faults);
            fs.sync(&CX).unwrap();
            let store = open(&fs).unwrap();
            let (mut model, mut maybe) = (old.clone(), Model::new());
            faults.arm(Plan { count: Count::Changes, at, fault: Fault::Crash });
            let _ = change(&store, &mut model, &mut maybe);
            let fired = faults.fired();
            drop(store);
            let what = format!("power {power}, change {at}");
            let fs = if power { fs.recover(&Faults::new()) } else { fs.without_faults() };
            let store = open(&fs).unwrap();
            if !power {
                // Everything that was confirmed is there.
                let seen = contents(&store);
                assert!(
                    model.iter().all(|(id, version)| { maybe.contains_key(id) || seen.get(id) == Some(version) }),
                    "{what}"
                );
            }
            for id in maybe.keys() {
                model.remove(id);
            }
            assert_consistent(&store, &old, &model, &what);
            !fired
        });
        assert!(end.is_some_and(|end| end > 8), "{end:?}");
    }
}

#[test]
fn an_error_while_opening_changes_nothing() {
    let (start, old) = prepared();
    let end = (1..MAX_OPERATIONS).find(|&at| {
        let faults = Faults::new();
        let fs = start.fork(&faults);
        faults.arm(Plan { count: Count::All, at, fault: Fault::Error(Errno::IO) });
        let _ = open(&fs);
        let fired = faults.fired();
        faults.disarm();
        assert!(contents(&open(&fs).unwrap()) == old, "at {at}");
        !fired
    });
    assert!(end.is_some());
}
