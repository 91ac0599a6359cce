//! The integration tests of `versionset`: one program, so that they are linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
mod fixtures;
mod hostile;
mod merge;
mod rebuild;
mod reconstruct;
