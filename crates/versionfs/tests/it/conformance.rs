//! Users see a tree like any other.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conformance::{random, run_all};
use memfs::MemFs;
use std::sync::Arc;
use versionfs::{CopyOn, Options, Storage, VersionFs};
use vnode::Layer;

fn options() -> Vec<Options> {
    let mut all = Vec::new();
    for storage in [Storage::Full, Storage::Sparse] {
        for copy_on in [CopyOn::Change, CopyOn::Write] {
            for comprehensive in [false, true] {
                all.push(Options { storage, copy_on, comprehensive, ..Options::default() });
            }
        }
    }
    all
}

#[test]
fn conforms() {
    for options in options() {
        run_all(|| VersionFs::new(MemFs::new(), options));
    }
}

#[test]
fn random_operations_give_the_same_as_on_the_layer_below() {
    for seed in 1..=20 {
        for options in options() {
            let versions: Arc<dyn Layer> = VersionFs::new(MemFs::new(), options);
            let plain: Arc<dyn Layer> = MemFs::new();
            random::compare(seed, 300, &*versions, &*plain);
        }
    }
}
