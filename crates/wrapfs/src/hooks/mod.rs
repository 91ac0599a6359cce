//! What an author writes: each hook is a trait of its own, and a layer has those that it needs.
//!
//! A hook may be called from many threads at once. It is called without any lock of the template's that an operation of another file could
//! wait for, except for hooks for names of a layer whose directories have a state: removing a directory waits for them. A hook's error reaches the program as that errno; a hook that panics is an `EIO`, and the panic is logged.

mod attributes;
mod commands;
mod data;
mod format;
mod ioctls;
mod names;
mod object;
mod objects;
mod operations;
mod set;
mod store;

pub use attributes::Attributes;
pub use commands::Commands;
pub use data::{Block, Data, MAX_BLOCK};
pub use format::{FileFormat, FormatBlock, Layout, MAX_HEADER};
pub use ioctls::Ioctls;
pub use names::{Matching, Names};
pub use object::{Known, Object, State};
pub use objects::Objects;
pub use operations::{Answer, Instead, Op, OpKind, OpSet, Operations, Reply, Verdict};
pub use set::Hooks;
pub use store::{LongName, NameStore, Role, StateFile};
