//! What the tests over memory share: a model of a POSIX tree, programs of operations, and complete views.

// Each test program uses a part of it.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod bed;
pub mod config;
pub mod interesting;
pub mod op;
pub mod overlap;
pub mod path;
pub mod random;
pub mod report;
pub mod rng;
pub mod session;
pub mod threads;
pub mod tree;
pub mod view;
