//! A bottom in memory: a whole POSIX tree as a [`vnode::Layer`], for tests.
//!
//! Everything is deterministic: numbers, times (a counter) and the order of entries depend on the operations alone.
//!
//! [`Faults`] is a plan, shared by any number of file systems, that lets the k-th of their operations fail, or "crash" all of
//! them. A test runs an operation of the layer above for k = 1, 2, 3, ... until it completes without a fault, and looks at
//! the result each time: through [`MemFs::dump`], or after [`MemFs::recover`] as a new mount would find it.
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
pub use layer::MemFs;
pub use shared::MemOptions;

#[cfg(test)]
mod tests;
