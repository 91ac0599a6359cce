//! Conformance tests for layers: tests of the vnode interface that accept any [`vnode::Layer`].
//!
//! * [`ALL`] lists the cases. Each takes an empty, writable layer, tests one behavior, and panics
//!   if it violates POSIX or the interface. [`run_all`] runs all cases, each on a new layer.
//! * [`handles::Handles`] records the numbers of all objects of a tree and checks that they are
//!   still found after all references have been dropped.
//! * [`random::compare`] applies the same random operations to two layers and compares all results
//!   and the trees.
//!
//! Optional features (`O_TMPFILE`, `fallocate`, reflinks, ACLs) are not tested if they return
//! `EOPNOTSUPP`.
#![forbid(unsafe_code)]
// A test library: a failed expectation panics.
#![allow(clippy::unwrap_used, clippy::panic, clippy::missing_panics_doc)]

pub mod cases;
pub mod fixture;
pub mod handles;
pub mod random;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use vnode::Layer;

/// A test of one behavior.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The name of the function.
    pub name: &'static str,
    /// Panics if the layer misbehaves. The layer must be empty.
    pub run: fn(&dyn Layer),
}

pub use cases::ALL;

/// Runs every case except those named in `except`, each on a layer created by `fresh`. Panics at
/// the end with the names of the failed cases.
pub fn run_all_except(except: &[&str], mut fresh: impl FnMut() -> Arc<dyn Layer>) {
    let mut failed = Vec::new();
    for case in ALL.iter().filter(|case| !except.contains(&case.name)) {
        let layer = fresh();
        if catch_unwind(AssertUnwindSafe(|| (case.run)(&*layer))).is_err() {
            failed.push(case.name);
        }
    }
    assert!(failed.is_empty(), "{} of {} cases failed: {}", failed.len(), ALL.len(), failed.join(", "));
}

/// Runs every case, each on a layer created by `fresh`.
pub fn run_all(fresh: impl FnMut() -> Arc<dyn Layer>) {
    run_all_except(&[], fresh);
}
