//! The integration tests of `fuse`: one program, so that they are linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod again;
mod common;
mod hostile;
mod killed;
mod mounted;
mod teardown;
mod user;
