//! The integration tests of `usenetfs`: one program, so that they are linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod conformance;
mod conversion;
mod faults;
