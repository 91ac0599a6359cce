//! The integration tests of `conformance`: one program, so that they are linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod layers;
mod random;
