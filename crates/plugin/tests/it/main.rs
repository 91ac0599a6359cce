//! The integration tests of `plugin`: one program, so that they are linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod c;
mod common;
mod hostile;
mod rust;
