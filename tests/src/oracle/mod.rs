//! A differential test: random operations on the native file system and on a tested one must return
//! the same results and leave the same tree.
//!
//! * [`population`]: the initial tree;
//! * [`op`]: the operations;
//! * [`partial`]: states that an operation may leave when the server dies;
//! * [`plan`]: choice of operations from a seed;
//! * [`run`]: execution side by side, and comparison.

mod op;
mod partial;
mod plan;
pub mod population;
mod run;

pub use run::{Interrupted, Oracle};
