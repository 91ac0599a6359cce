//! Random operations on the host and in memory produce the same trees.
#![allow(missing_docs, clippy::unwrap_used)]

use conformance::random::compare;
use hostfs::{HostFs, HostOptions};
use memfs::MemFs;
use std::path::Path;
use testkit::TempDir;
use wrapfs::WrapFs;

fn host_like_memory(options: HostOptions) {
    testkit::need_root("it creates objects of other users");
    for place in [std::env::temp_dir(), Path::new("/dev/shm").to_owned()] {
        if !place.is_dir() {
            continue;
        }
        let scratch = TempDir::within(&place);
        for seed in testkit::seeds(8) {
            compare(seed, 3000, &*HostFs::open(&scratch.dir(&seed.to_string()), options).unwrap(), &*MemFs::new());
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
    for seed in testkit::seeds(8) {
        compare(seed, 3000, &*WrapFs::new(MemFs::new()), &*MemFs::new());
    }
}
