//! Random operations on the host and in memory produce the same trees.
#![allow(missing_docs, clippy::unwrap_used)]

mod scratch;

use conformance::random::compare;
use hostfs::{HostFs, HostOptions};
use memfs::MemFs;
use scratch::{Scratch, is_root};
use std::path::Path;
use wrapfs::WrapFs;

/// `STRATA_SEEDS=FROM..TO` selects other seeds.
fn seeds() -> std::ops::Range<u64> {
    let chosen = std::env::var("STRATA_SEEDS").ok().and_then(|range| {
        let (from, to) = range.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    chosen.unwrap_or(1..9)
}

fn host_like_memory(options: HostOptions) {
    if !is_root() {
        eprintln!("skipped: creating objects for other users requires root");
        return;
    }
    for place in [std::env::temp_dir(), Path::new("/dev/shm").to_owned()] {
        if !place.is_dir() {
            continue;
        }
        let scratch = Scratch::new(&place);
        for seed in seeds() {
            compare(seed, 3000, &*HostFs::open(&scratch.fresh(), options).unwrap(), &*MemFs::new());
        }
    }
}

#[test]
fn the_host_by_handle_is_like_memory() {
    host_like_memory(HostOptions::default());
}

#[test]
fn the_host_by_name_is_like_memory() {
    host_like_memory(HostOptions { handles: false, detach: false, directories: 4, ..HostOptions::default() });
}

#[test]
fn a_null_layer_is_like_what_is_below() {
    for seed in seeds() {
        compare(seed, 3000, &*WrapFs::new(MemFs::new()), &*MemFs::new());
    }
}
