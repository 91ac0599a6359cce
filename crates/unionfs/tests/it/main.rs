//! The integration tests of `unionfs`: one program, so that they are linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod branch_changes;
mod branch_sets;
mod branches;
mod common;
mod conformance;
mod control;
mod faults;
mod fsck;
mod fsck_snapshots;
mod handles;
mod host;
mod hostile;
mod hung_branches;
mod interleaved;
mod listing;
mod many_branches;
mod metacopy;
mod model;
mod model_random;
mod model_threads;
mod moves;
mod moving;
mod pools;
mod records;
mod reports;
mod snapshot_recovery;
mod snapshots;
mod unpack;
mod watched;
