//! Untrusted packs: no panic, bounded memory, and nothing is returned that was not stored.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::untrusted::{add_file, exercise, file, fix_checksums, with_pack};
use crate::common::{CX, Model, content, contents, edit, get, open, put};
use memfs::MemFs;
use proptest::prelude::*;
use testkit::Rng;
use vnode::Layer;

const PACK: &[u8] = b"p-00000001";

/// Returns a pack with most kinds of entries.
fn sample() -> (Vec<u8>, Model) {
    let fs = MemFs::new();
    let store = open(&fs).unwrap();
    let mut random = Rng::new(4);
    let mut model = Model::new();
    let mut bytes: Vec<u8> = (0..1500).map(|_| random.bits() as u8).collect();
    let mut last = None;
    for round in 0..8 {
        edit(&mut random, &mut bytes);
        let id = put(&store, b"key", &bytes, last).unwrap();
        model.insert(id, (b"key".to_vec(), bytes.clone()));
        last = Some(id);
        if round == 3 {
            store.sync(&CX).unwrap();
        }
    }
    let first = *model.keys().next().unwrap();
    store.delete(&CX, first).unwrap();
    model.remove(&first);
    store.sync(&CX).unwrap();
    let id = put(&store, b"last", b"after a mark", None).unwrap();
    model.insert(id, (b"last".to_vec(), b"after a mark".to_vec()));
    assert_eq!(store.usage(&CX).unwrap().packs, 1);
    (file(&fs, PACK).unwrap(), model)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_packs(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 1usize..5), 1..12),
        cut in proptest::option::of(any::<prop::sample::Index>()),
        fix: bool,
        sealed: bool,
    ) {
        let (mut bytes, _) = sample();
        for (at, value, len) in edits {
            let at = at.index(bytes.len());
            let end = (at + len).min(bytes.len());
            bytes[at..end].fill(value);
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if fix {
            fix_checksums(&mut bytes);
        }
        let fs = with_pack(&bytes);
        if sealed {
            add_file(&fs, b"p-00000002", b"");
        }
        exercise(&fs);
    }

    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..2000), fix: bool, index: bool) {
        let mut pack = sample().0[..64].to_vec();
        pack.extend(&bytes);
        if fix {
            fix_checksums(&mut pack);
        }
        let fs = with_pack(&pack);
        if index {
            add_file(&fs, b"p-00000002", b"");
            add_file(&fs, b"x-00000001", &bytes);
        }
        exercise(&fs);
    }
}

/// Every damaged byte is noticed, costs only the versions that need it, and is repaired.
#[test]
fn a_damaged_byte_is_never_returned() {
    let (bytes, model) = sample();
    for at in (0..bytes.len()).filter(|at| *at < 200 || at % 7 == 0) {
        let mut bad = bytes.clone();
        bad[at] ^= 0x20;
        let fs = with_pack(&bad);
        // A later pack, so that damage is not taken for the end of an interrupted write.
        add_file(&fs, b"p-00000002", b"");
        let Ok(store) = open(&fs) else {
            assert!((8..12).contains(&at), "byte {at}");
            continue;
        };
        for (id, version) in &model {
            if let Ok(seen) = get(&store, *id) {
                assert!(seen == *version, "byte {at}, version {id}");
            }
        }
        let report = store.check(&CX).unwrap();
        assert!(!report.is_clean(), "byte {at}: {report:?}");
        store.repair(&CX).unwrap();
        let kept = contents(&store);
        assert!(kept.iter().all(|(id, version)| model.get(id).is_none_or(|known| known == version)), "byte {at}");
        drop(store);
        assert!(contents(&open(&fs).unwrap()) == kept, "byte {at}: opened again");
    }
}

#[test]
fn a_missing_or_wrong_index_file_changes_nothing() {
    let fs = MemFs::new();
    let store = open(&fs).unwrap();
    let mut random = Rng::new(8);
    let mut model = Model::new();
    for _ in 0..40 {
        let bytes = content(&mut random);
        let id = put(&store, b"k", &bytes, None).unwrap();
        model.insert(id, (b"k".to_vec(), bytes));
    }
    drop(store);
    let index = file(&fs, b"x-00000001").expect("the first pack is complete");
    assert!(index.len() > 30);
    for bytes in [&index[..10], b"", &[0xff; 100]] {
        fs.root().unlink(&CX, vnode::Name::new(b"x-00000001").unwrap()).unwrap();
        add_file(&fs, b"x-00000001", bytes);
        assert!(contents(&open(&fs).unwrap()) == model);
        assert_eq!(file(&fs, b"x-00000001").as_ref(), Some(&index));
    }
}

/// A block whose base is found by its place, and has a wrong name with a right checksum. Moved to
/// another pack, the block would be looked for by that name.
#[test]
fn a_base_with_a_wrong_name_costs_no_version() {
    for cut in [1942, 2363] {
        let (mut bytes, _) = sample();
        bytes[68..72].fill(0);
        bytes.truncate(cut);
        fix_checksums(&mut bytes);
        let fs = with_pack(&bytes);
        add_file(&fs, b"p-00000002", b"");
        let store = open(&fs).unwrap();
        let readable: Model =
            store.ids(None, 50).into_iter().filter_map(|id| Some((id, get(&store, id).ok()?))).collect();
        assert!(!readable.is_empty());
        assert!(!store.repair(&CX).unwrap().is_clean());
        assert!(contents(&store) == readable);
        // The same after further changes.
        let fs = with_pack(&bytes);
        add_file(&fs, b"p-00000002", b"");
        exercise(&fs);
    }
}
