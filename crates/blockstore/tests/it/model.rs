//! Random operations, compared with a model: no version is lost, none is invented, and the bytes
//! are exact, also after reopening and after power failures.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{CX, Model, collect, content, contents, edit, get, open, options, put};
use blockstore::{BlockStore, Options, RecipeId};
use memfs::{Faults, MemFs, MemOptions};
use std::sync::Arc;
use testkit::Rng;
use vnode::{Errno, Layer as _, Name, OpenFlags};

fn pick(random: &mut Rng, model: &Model) -> Option<RecipeId> {
    let at = random.below(model.len().max(1));
    model.keys().nth(at).copied()
}

/// Stores a version that is like another one, or new.
fn store_some(random: &mut Rng, store: &BlockStore, model: &mut Model) {
    let hint = pick(random, model).filter(|_| random.below(4) > 0);
    let mut bytes = hint.map_or_else(|| content(random), |id| model[&id].1.clone());
    for _ in 0..random.below(3) {
        edit(random, &mut bytes);
    }
    let key = format!("file {}", random.below(5)).into_bytes();
    let id = put(store, &key, &bytes, hint).unwrap();
    assert!(model.insert(id, (key, bytes)).is_none(), "{id} is used twice");
}

fn step(random: &mut Rng, store: &Arc<BlockStore>, model: &mut Model) {
    match random.below(12) {
        0..=5 => store_some(random, store, model),
        6 | 7 => {
            if let Some(id) = pick(random, model) {
                store.delete(&CX, id).unwrap();
                model.remove(&id);
            }
        }
        8 | 9 => {
            store.gc_step(&CX, random.below(5000)).unwrap();
        }
        10 => store.sync(&CX).unwrap(),
        _ => {
            if let Some(id) = pick(random, model) {
                assert_eq!(get(store, id).unwrap(), model[&id]);
            }
        }
    }
}

#[test]
fn a_store_is_like_its_model() {
    for seed in 0..12 {
        let mut random = Rng::new(seed);
        let fs = MemFs::new();
        let mut store = open(&fs).unwrap();
        let mut model = Model::new();
        for round in 0..400 {
            step(&mut random, &store, &mut model);
            if round % 40 == 39 {
                assert!(contents(&store) == model, "seed {seed}, round {round}");
                drop(store);
                store = open(&fs).unwrap();
                assert!(contents(&store) == model, "seed {seed}, round {round}, opened again");
            }
        }
        assert!(store.check(&CX).unwrap().is_clean());
        collect(&store, u64::MAX).unwrap();
        assert!(contents(&store) == model);
        for id in model.keys() {
            store.delete(&CX, *id).unwrap();
        }
        // Two collections: the first one writes tombstones that the second one drops.
        collect(&store, 10_000).unwrap();
        collect(&store, 10_000).unwrap();
        assert!(store.usage(&CX).unwrap().bytes < 10_000, "{:?}", store.usage(&CX));
        assert_eq!(store.usage(&CX).unwrap().blocks, 0);
    }
}

#[test]
fn after_a_power_failure_everything_durable_is_there_and_nothing_else_is_wrong() {
    for seed in 0..20 {
        let mut random = Rng::new(1000 + seed);
        let options = MemOptions { lose_data: true, ..MemOptions::default() };
        let mut fs = MemFs::with(options, &Faults::new());
        let mut model = Model::new();
        for _ in 0..6 {
            let store = open(&fs).unwrap();
            assert!(contents(&store) == model);
            for _ in 0..random.below(60) {
                step(&mut random, &store, &mut model);
            }
            store.sync(&CX).unwrap();
            let durable = model.clone();
            for _ in 0..random.below(60) {
                step(&mut random, &store, &mut model);
            }
            fs = fs.recover(&Faults::new());
            let store = open(&fs).unwrap();
            let seen = contents(&store);
            // What was stored or deleted since may be lost.
            for (id, version) in &seen {
                assert!(durable.get(id).or(model.get(id)).is_none_or(|known| known == version), "seed {seed}");
            }
            let lost = durable.keys().filter(|id| model.contains_key(id) && !seen.contains_key(id)).count();
            assert_eq!(lost, 0, "seed {seed}");
            assert!(store.check(&CX).unwrap().is_clean());
            model = seen;
        }
    }
}

#[test]
fn an_open_version_survives_its_deletion() {
    let fs = MemFs::new();
    let store = open(&fs).unwrap();
    let mut random = Rng::new(5);
    let mut model = Model::new();
    for _ in 0..30 {
        store_some(&mut random, &store, &mut model);
    }
    let open_versions: Vec<_> = model.keys().map(|id| store.version(&CX, *id).unwrap()).collect();
    for id in model.keys() {
        store.delete(&CX, *id).unwrap();
        assert!(store.version(&CX, *id).is_err());
    }
    collect(&store, 3000).unwrap();
    for version in &open_versions {
        let mut out = vec![0; version.size() as usize];
        assert_eq!(version.read_at(&CX, &mut out, 0), Ok(out.len()));
        assert!(out == model[&version.id()].1);
    }
    drop(open_versions);
    collect(&store, 3000).unwrap();
    assert_eq!(store.usage(&CX).unwrap().blocks, 0);
}

#[test]
fn reads_at_any_offset_are_exact() {
    let fs = MemFs::new();
    let store = open(&fs).unwrap();
    let bytes: Vec<u8> = (0..20_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    let id = put(&store, b"k", &bytes, None).unwrap();
    let version = store.version(&CX, id).unwrap();
    let mut random = Rng::new(3);
    for _ in 0..500 {
        let at = random.below(21_000) as usize;
        let mut out = vec![0; random.below(5000) as usize];
        let len = version.read_at(&CX, &mut out, at as u64).unwrap();
        assert_eq!(out[..len], bytes[at.min(20_000)..(at + out.len()).min(20_000)]);
    }
}

#[test]
fn equal_content_is_stored_once_and_a_version_takes_a_few_dozen_bytes() {
    let fs = MemFs::new();
    let store = open(&fs).unwrap();
    let bytes: Vec<u8> = (0..50_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    let first = put(&store, b"some/key", &bytes, None).unwrap();
    let before = store.usage(&CX).unwrap();
    let mut last = first;
    for _ in 0..100 {
        last = put(&store, b"some/key", &bytes, Some(last)).unwrap();
    }
    let after = store.usage(&CX).unwrap();
    assert_eq!(after.blocks, before.blocks);
    assert!((after.bytes - before.bytes) / 100 < 40, "{}", (after.bytes - before.bytes) / 100);
    assert_eq!(get(&store, last).unwrap().1, bytes);
    // Without a hint, the blocks are found by their names.
    put(&store, b"other", &bytes, None).unwrap();
    assert_eq!(store.usage(&CX).unwrap().blocks, before.blocks);
}

#[test]
fn a_store_opened_for_reading_changes_nothing() {
    let fs = MemFs::new();
    let writer = open(&fs).unwrap();
    let id = put(&writer, b"key", &[7; 5000], None).unwrap();
    drop(writer);
    // What a power failure leaves behind the last entry.
    let pack = fs.root().lookup(&CX, Name::new(b"p-00000001").unwrap()).unwrap().unwrap().vnode;
    let size = pack.getattr(&CX).unwrap().size;
    pack.open(&CX, OpenFlags::WRONLY).unwrap().write(&CX, b"torn", size).unwrap();
    let reader = BlockStore::open(&CX, fs.root(), Options { read_only: true, ..options() }).unwrap();
    assert_eq!(reader.version(&CX, id).unwrap().size(), 5000);
    assert_eq!(reader.delete(&CX, id), Err(Errno::ROFS));
    assert_eq!(reader.gc_step(&CX, 1), Err(Errno::ROFS));
    assert_eq!(put(&reader, b"key", b"new", None), Err(Errno::ROFS));
    assert_eq!(pack.getattr(&CX).unwrap().size, size + 4);
}
