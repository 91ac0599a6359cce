//! One view behaves like the layer that it shows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{Kernel, union, views};
use memfs::MemFs;
use std::sync::Arc;
use vnode::Layer;

#[test]
fn the_suite_passes_on_the_first_view() {
    conformance::run_all(|| views(vec![MemFs::new(), MemFs::new()]).0);
}

#[test]
fn the_suite_passes_on_the_first_of_two_unions() {
    conformance::run_all(|| {
        let base = MemFs::new();
        views(vec![union(&MemFs::new(), &[&base]), union(&MemFs::new(), &[&base])]).0
    });
}

#[test]
fn random_operations_have_the_same_results_as_below() {
    for seed in 1..4 {
        let view = views(vec![MemFs::new(), MemFs::new()]).0;
        conformance::random::compare(seed, 1500, &*view, &*MemFs::new());
        let kernel = Kernel::over(views(vec![MemFs::new(), MemFs::new()]).0, 50);
        conformance::random::compare(seed + 100, 1500, &*kernel, &*MemFs::new());
    }
}

#[test]
fn objects_are_found_by_number() {
    let view: Arc<dyn Layer> = views(vec![MemFs::new(), MemFs::new()]).0;
    conformance::random::apply_random(5, 500, &*view);
    let handles = conformance::handles::Handles::of(&*view);
    handles.check(&*view);
}
