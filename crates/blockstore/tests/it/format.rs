//! Version 1 of the format: a store that was written once is read by every later version of this
//! crate. docs/formats/block-store.md describes the bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common;
use crate::common::untrusted::{add_file, file};
use crate::common::{CX, options, put};
use blockstore::{BlockStore, RecipeId};
use memfs::MemFs;
use std::sync::Arc;
use testkit::Rng;
use vnode::Layer;

const PACKS: [(&str, &str); 2] = [
    ("p-00000001", include_str!("../fixtures/v1-pack-1.hex")),
    ("p-00000002", include_str!("../fixtures/v1-pack-2.hex")),
];

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    let line = |line: &[u8]| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n";
    bytes.chunks(48).map(line).collect()
}

/// The content of each version of the fixture.
fn versions() -> Vec<Vec<u8>> {
    let text = |n: u32| (0..n).flat_map(|i| format!("line {}\n", i * i).into_bytes()).collect::<Vec<u8>>();
    let first = text(60);
    let second = [b"a new first line\n".to_vec(), first.clone()].concat();
    let mut random = Rng::new(1);
    let large: Vec<u8> = (0..9000).map(|_| random.bits() as u8).collect();
    let mut changed = large.clone();
    changed[4000] ^= 1;
    vec![first, second.clone(), second, Vec::new(), large, changed]
}

/// Writes the fixture's store: differences, an unchanged and an empty version, several blocks, two
/// packs, a deleted version, a mark.
fn write(fs: &MemFs) -> Arc<BlockStore> {
    let store = BlockStore::open(&CX, fs.root(), options()).unwrap();
    let mut last = None;
    for bytes in versions() {
        last = Some(put(&store, b"some/file", &bytes, last).unwrap());
        store.sync(&CX).unwrap();
    }
    store.delete(&CX, RecipeId(4)).unwrap();
    store.sync(&CX).unwrap();
    store
}

#[test]
fn version_1_is_read() {
    let fs = MemFs::new();
    for (name, text) in PACKS {
        add_file(&fs, name.as_bytes(), &unhex(text));
    }
    let store = BlockStore::open(&CX, fs.root(), options()).unwrap();
    assert_eq!(store.ids(None, 10), [1, 2, 3, 5, 6].map(RecipeId));
    for id in store.ids(None, 10) {
        let (key, bytes) = common::get(&store, id).unwrap();
        assert_eq!(key, b"some/file");
        assert!(bytes == versions()[id.0 as usize - 1], "{id}");
    }
    assert!(store.check(&CX).unwrap().is_clean());
    // New versions get new ids.
    assert_eq!(put(&store, b"new", b"content", None), Ok(RecipeId(7)));
}

/// Writes the fixture of a new format version: FIXTURE_DIR=crates/blockstore/tests/fixtures.
#[test]
fn the_fixture_has_the_entries_of_the_documentation() {
    let fs = MemFs::new();
    write(&fs);
    let packs = PACKS.map(|(name, _)| file(&fs, name.as_bytes()).unwrap());
    if let Some(dir) = std::env::var_os("FIXTURE_DIR") {
        for (at, pack) in packs.iter().enumerate() {
            let path = std::path::Path::new(&dir).join(format!("v1-pack-{}.hex", at + 1));
            #[allow(clippy::disallowed_methods, reason = "the fixture is a file of the source tree")]
            std::fs::write(path, hex(pack)).unwrap();
        }
        return;
    }
    assert!(packs.iter().all(|pack| pack.starts_with(b"\x93strblk\n\x01\0\0\0")));
    let stored = PACKS.map(|(_, text)| unhex(text));
    // Headers and the first entry's kind, size and name depend on nothing but the format. Frames
    // depend on the version of Zstandard.
    assert_eq!(packs[0][..64], stored[0][..64]);
    let name = blake3::hash(&versions()[0]);
    let at = 64 + 1 + if stored[0][65] & 0x80 == 0 { 1 } else { 2 } + 4;
    assert_eq!(stored[0][64], 1);
    assert_eq!(stored[0][at..at + 24], name.as_bytes()[..24]);
}
