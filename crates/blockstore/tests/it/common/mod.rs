//! What the tests share.
#![allow(dead_code, reason = "not every test uses all of it")]

pub(crate) mod untrusted;

use blockstore::{BlockSizes, BlockStore, Options, RecipeId};
use memfs::MemFs;
use std::collections::BTreeMap;
use std::sync::Arc;
use testkit::Rng;
use vnode::{Cx, Layer, Result};

pub(crate) const CX: Cx<'static> = Cx::internal(0, 0);

/// Small blocks, packs and chains, so that little content reaches every case.
pub(crate) fn options() -> Options {
    Options {
        level: 1,
        chain: 3,
        sizes: BlockSizes { single: 600, min: 128, avg: 512, max: 2048 },
        pack_size: 8192,
        cache: 16 << 10,
        garbage_percent: 10,
        read_only: false,
    }
}

pub(crate) fn open(fs: &MemFs) -> Result<Arc<BlockStore>> {
    BlockStore::open(&CX, fs.root(), options())
}

/// Stores a version.
pub(crate) fn put(store: &BlockStore, key: &[u8], bytes: &[u8], hint: Option<RecipeId>) -> Result<RecipeId> {
    let mut read = |out: &mut [u8], at: u64| {
        let from = bytes.get(at as usize..).unwrap_or_default();
        let len = from.len().min(out.len());
        out[..len].copy_from_slice(&from[..len]);
        Ok(len)
    };
    store.put_version(&CX, key, &header(key, bytes), &mut read, hint)
}

/// Returns the header that [`put`] stores.
pub(crate) fn header(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut header = key.to_vec();
    header.extend((bytes.len() as u64).to_le_bytes());
    header.extend([5; 20]);
    header
}

/// Reads a version: its key and content.
pub(crate) fn get(store: &Arc<BlockStore>, id: RecipeId) -> Result<(Vec<u8>, Vec<u8>)> {
    let version = store.version(&CX, id)?;
    let mut out = vec![0xee; version.size() as usize + 10];
    let len = version.read_at(&CX, &mut out, 0)?;
    assert_eq!(len as u64, version.size());
    out.truncate(len);
    assert_eq!(version.header(), header(version.key(), &out));
    Ok((version.key().to_vec(), out))
}

/// What a store should contain.
pub(crate) type Model = BTreeMap<RecipeId, (Vec<u8>, Vec<u8>)>;

/// Returns the content of a store.
pub(crate) fn contents(store: &Arc<BlockStore>) -> Model {
    let ids = store.ids(None, usize::MAX);
    ids.into_iter().map(|id| (id, get(store, id).unwrap_or_else(|e| panic!("{id} is unreadable: {e}")))).collect()
}

/// Collects all garbage, in steps of `budget`.
pub(crate) fn collect(store: &BlockStore, budget: u64) -> Result<()> {
    for _ in 0..100_000 {
        if store.gc_step(&CX, budget)?.finished {
            return Ok(());
        }
    }
    panic!("the garbage collection does not end");
}

/// Returns text that compresses, mostly short.
pub(crate) fn content(rng: &mut Rng) -> Vec<u8> {
    let len = match rng.below(5) {
        0 => 0,
        1 | 2 => rng.below(700),
        3 => rng.below(3000),
        _ => rng.below(9000),
    };
    (0..len).map(|_| b'a' + (rng.bits() % 23) as u8).collect()
}

/// Changes content in one place.
pub(crate) fn edit(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let at = rng.below(bytes.len() + 1);
    let cut = (rng.below(40) as usize).min(bytes.len() - at);
    let new: Vec<u8> = (0..rng.below(40)).map(|_| rng.bits() as u8).collect();
    bytes.splice(at..at + cut, new);
}
