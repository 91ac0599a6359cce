//! Measures a store with successive releases of a source tree:
//! `releases DIR_OF_RELEASES STORE_DIR [LEVEL [CHAIN [SINGLE]]]`. The releases are the
//! subdirectories, in the order of their names. Every file that differs from the release before is
//! stored as a version, with the file's previous version as hint. Prints the space and times.
#![allow(clippy::disallowed_methods, clippy::expect_used, reason = "it reads real trees")]

use blockstore::{BlockStore, Options, RecipeId};
use hostfs::{HostFs, HostOptions};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;
use vnode::{Cx, Layer};

const CX: Cx<'static> = Cx::internal(0, 0);

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = std::fs::read_dir(dir).expect("a directory").flatten().map(|e| e.path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |at: usize| args.get(at).and_then(|arg| arg.parse::<u32>().ok());
    let mut options = Options::default();
    options.level = number(3).map_or(options.level, |n| n as i32);
    options.chain = number(4).map_or(options.chain, |n| n as u8);
    options.sizes.single = number(5).unwrap_or(options.sizes.single);
    let (releases, store_dir) = (Path::new(&args[1]), Path::new(&args[2]));
    std::fs::create_dir_all(store_dir).expect("a store");
    let host = HostFs::open(store_dir, HostOptions::default()).expect("a layer");
    let store = BlockStore::open(&CX, host.root(), options).expect("a store");
    let mut dirs: Vec<_> = std::fs::read_dir(releases).expect("releases").flatten().map(|e| e.path()).collect();
    dirs.sort();
    let mut last: BTreeMap<PathBuf, (Vec<u8>, RecipeId)> = BTreeMap::new();
    let mut all = Vec::new();
    let (mut plain, mut put) = (0, std::time::Duration::ZERO);
    for (release, dir) in dirs.iter().enumerate() {
        let mut found = Vec::new();
        files(dir, &mut found);
        for path in found {
            let bytes = std::fs::read(&path).expect("a file");
            let name = path.strip_prefix(dir).expect("below").to_path_buf();
            let hint = last.get(&name);
            if hint.is_some_and(|(old, _)| *old == bytes) {
                continue;
            }
            // About what a layer notes: mode, owner, times, operation, process.
            let mut header = vec![0u8; 48];
            header[..8].copy_from_slice(&(release as u64 * 1_000_000_007).to_le_bytes());
            header[8..12].copy_from_slice(&(all.len() as u32).wrapping_mul(2_654_435_761).to_le_bytes());
            let begin = Instant::now();
            let mut read = |out: &mut [u8], at: u64| {
                let from = bytes.get(at as usize..).unwrap_or_default();
                let len = from.len().min(out.len());
                out[..len].copy_from_slice(&from[..len]);
                Ok(len)
            };
            let key = name.as_os_str().as_encoded_bytes();
            let id = store.put_version(&CX, key, &header, &mut read, hint.map(|(_, id)| *id)).expect("stored");
            put += begin.elapsed();
            plain += bytes.len();
            all.push((id, blake3::hash(&bytes)));
            last.insert(name, (bytes, id));
        }
    }
    store.sync(&CX).expect("durable");
    let usage = store.usage(&CX).expect("usage");
    drop(store);
    let begin = Instant::now();
    let store = BlockStore::open(&CX, host.root(), options).expect("a store");
    let opened = begin.elapsed();
    // In an order that makes the cache useless: all files' first versions, then the second, ...
    let mut shuffled = all.clone();
    shuffled.sort_by_key(|(id, _)| id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let (mut took, mut worst) = (std::time::Duration::ZERO, std::time::Duration::ZERO);
    for (id, hash) in &shuffled {
        let begin = Instant::now();
        let version = store.version(&CX, *id).expect("there");
        let mut out = vec![0; version.size() as usize];
        let len = version.read_at(&CX, &mut out, 0).expect("read");
        let time = begin.elapsed();
        took += time;
        worst = worst.max(time);
        assert!(len == out.len() && blake3::hash(&out) == *hash);
    }
    let count = all.len() as u32;
    println!(
        "level {} chain {}: {count} versions, {plain} bytes -> {} bytes; put {:?}, read {:?} (max {:?}), open {:?}",
        options.level,
        options.chain,
        usage.bytes,
        put / count,
        took / count,
        worst,
        opened
    );
}
