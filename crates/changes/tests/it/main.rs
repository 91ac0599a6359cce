//! The integration tests of `changes`: one program, so that they are linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod case;
#[path = "../../../unionfs/tests/it/common/mod.rs"]
mod common;
mod copies;
mod faults;
mod merge;
mod model;
mod oci;
