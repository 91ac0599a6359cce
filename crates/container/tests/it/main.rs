//! The integration tests of `container`: one program, so that they are linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod check;
mod common;
mod faults;
mod hostile;
mod power;
mod shadow;
mod space;
