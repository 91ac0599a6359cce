//! Code that the test programs share: a model of a POSIX tree, operations as data, views of whole
//! trees, and shorthands for operations by path.

// Each test program uses only some of these modules.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod admin;
pub mod config;
pub mod copies;
pub mod drain;
pub mod layer_ops;
pub mod op;
pub mod op_matrix;
pub mod path;
pub mod random_branches;
pub mod random_ops;
pub mod report;
pub mod reporting;
pub mod session;
pub mod snapshot_world;
pub mod test_union;
pub mod threads;
pub mod tree;
pub mod view;
