//! The integration tests of `viewfs`: one program, so that they are linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
mod conformance;
mod oracle;
