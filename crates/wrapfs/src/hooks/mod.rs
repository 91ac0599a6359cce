//! What an author writes: each hook is a trait of its own, and a layer has those that it needs.
//!
//! Hooks are called without any lock of the template's that another operation of another file could wait for; a hook may be called
//! from many threads at once. A hook's error reaches the program as that errno; a hook that panics is an `EIO`, and the panic is logged.

mod attributes;
mod data;
mod ioctls;
mod names;
mod object;
mod objects;
mod operations;
mod set;

pub use attributes::Attributes;
pub use data::{Block, Data, MAX_BLOCK};
pub use ioctls::Ioctls;
pub use names::{Matching, Names};
pub use object::{Known, Object, State};
pub use objects::Objects;
pub use operations::{Answer, Instead, Op, OpKind, OpSet, Operations, Reply, Verdict};
pub use set::Hooks;
