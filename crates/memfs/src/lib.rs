//! An in-memory bottom layer for tests: a complete POSIX tree as a [`vnode::Layer`].
//!
//! It is deterministic: numbers, times (a counter) and the order of entries depend only on the
//! operations.
//!
//! [`Faults`] injects faults by a plan that any number of file systems share. It makes the k-th
//! operation fail, or "crashes" all of the file systems. A test runs an operation of the layer
//! above for k = 1, 2, 3, ... until it completes without a fault. After each run it checks the
//! result, with [`MemFs::dump`], or after [`MemFs::recover`] as a new mount would see it.
#![forbid(unsafe_code)]

mod acl;
mod data;
mod dump;
mod faults;
mod file;
mod layer;
mod node;
mod ops;
mod rename;
mod shared;
mod tree;
mod xattr;

pub use dump::{Dump, Node};
pub use faults::{Count, Fault, Faults, Op, Plan};
pub use layer::{MemFs, Subtree};
pub use shared::MemOptions;

#[cfg(test)]
mod tests;
