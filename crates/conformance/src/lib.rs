//! What every layer must do, whatever it is over: tests of the vnode interface that take any [`vnode::Layer`].
//!
//! * [`ALL`] are the cases: each takes an empty, writable layer, tests one behaviour and panics if it is not what POSIX and the
//!   interface ask for. [`run_all`] runs them all, each on a layer of its own.
//! * [`handles::Handles`] are the numbers of all objects of a tree, to be found again when nobody holds them.
//! * [`random::compare`] does the same random operations on two layers and compares every answer and the trees.
//!
//! What a file system may lack (`O_TMPFILE`, `fallocate`, reflinks, ACLs) is not tested where it answers `EOPNOTSUPP`.
#![forbid(unsafe_code)]
// A test library: a failed expectation is a panic.
#![allow(clippy::unwrap_used, clippy::panic, clippy::missing_panics_doc)]

pub mod cases;
pub mod fixture;
pub mod handles;
pub mod random;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use vnode::Layer;

/// One behaviour.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name, that of the function.
    pub name: &'static str,
    /// Panics if the layer, empty at the beginning, behaves otherwise.
    pub run: fn(&dyn Layer),
}

pub use cases::ALL;

/// Runs every case on a layer that `fresh` makes for it, but those named in `except`, and panics in the end if any failed,
/// naming them.
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

/// Runs every case.
pub fn run_all(fresh: impl FnMut() -> Arc<dyn Layer>) {
    run_all_except(&[], fresh);
}
