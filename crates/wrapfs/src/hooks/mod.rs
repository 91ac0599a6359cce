//! The hooks that an author writes. Each hook is a trait; a layer implements those that it needs.
//!
//! Hooks may be called from many threads at once. The template calls them without holding a lock
//! that an operation on another file could wait for, with two exceptions for name hooks. Removing a
//! directory with state waits for them. If names are [`Matching::Folded`], creating, removing and
//! renaming entries of the same directory wait for them.
//!
//! The program receives a hook's error as its errno. If a hook panics, the operation fails with
//! `EIO` and the panic is logged.

mod attached;
mod attributes;
mod commands;
mod data;
mod format;
mod ioctls;
mod journal;
mod names;
mod object;
mod objects;
mod operations;
mod sealed;
mod set;
mod store;
mod xattrs;

pub use attached::Attached;
pub use attributes::Attributes;
pub use commands::Commands;
pub use data::{Block, Data, MAX_BLOCK};
pub use format::{FileFormat, FormatBlock, Layout, MAX_HEADER};
pub use ioctls::Ioctls;
pub use journal::Journal;
pub use names::{Matching, Names};
pub use object::{Object, ObjectInfo, State};
pub use objects::Objects;
pub use operations::{Instead, Op, OpKind, OpSet, Operations, Outcome, Reply, Verdict};
pub use sealed::{FormatHeader, Seal, Sealed};
pub use set::Hooks;
pub(crate) use set::only_one;
pub use store::{LongName, NameStore, Role, StateFile};
pub use xattrs::{XattrName, Xattrs};
