//! The integration tests of `blockstore`: one program, so that they are linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
mod faults;
mod format;
mod hostile;
mod model;
mod threads;
