//! What the tests over memory share: a model of a POSIX tree, programs of operations, and complete views.

pub mod bed;
pub mod config;
pub mod interesting;
pub mod op;
pub mod path;
pub mod random;
pub mod report;
pub mod rng;
pub mod session;
pub mod tree;
pub mod view;
