//! Every layer, and layers on layers, behave as any other.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conformance::{random, run_all};
use layers::rot13;
use memfs::MemFs;
use std::sync::Arc;
use vnode::Layer;
use wrapfs::{LayerType, Settings};

fn put(kind: &LayerType, lower: Arc<dyn Layer>) -> Arc<dyn Layer> {
    (kind.build)(lower, &Settings::new()).unwrap()
}

#[test]
fn rot13_over_memory() {
    run_all(|| put(&rot13::LAYER, MemFs::new()));
    random::compare(1, 3000, &*put(&rot13::LAYER, MemFs::new()), &*MemFs::new());
}

#[test]
fn twice_is_as_if_not_at_all() {
    let below = MemFs::new();
    let twice = put(&rot13::LAYER, put(&rot13::LAYER, below.clone()));
    random::compare(2, 1000, &*twice, &*MemFs::new());
    random::compare_trees("in the end", &*twice, &*below);
}
