//! Keeps every version of every file (the Versionfs paper).
//!
//! The newest content of a file, the *head*, is an ordinary lower file. Its earlier contents are in
//! a hidden directory beside it, the store (crate `versionset`, docs/formats/version-set.md).
//!
//! | concept | file |
//! |---|---|
//! | version sets: the index and the files of a set | `set`, `rebuild` |
//! | how a version is made | `head` |
//! | the open files of an inode, and the blocks they overwrite | `session` |
//! | open files; writes; delayed truncation | `file` |
//! | owners, modes, extended attributes | `attr` |
//! | removal of names | `remove` |
//! | rename | `rename` |
//! | hard links | `link` |
//! | objects in use | `inode` |
//! | the policy of a file | `policy` |
//! | other formats of versions | `convert` |
//! | which versions are discarded | `retain` |
//! | the thread that does both; all stores of a tree | `cleaner`, `walk` |
//! | check and repair of a tree that is not mounted | `fsck` |
//! | commands for these | `commands_policy` |
//! | who made a change | `callers` |
//! | objects by number (file handles) | `by_number` |
//! | passthrough, stopped by this layer or one below | `upcalls` |
//! | the vnode interface; the layer; its options | `node`, `vnode_impl`, `layer`, `options` |
//!
//! Lock order: renames, then the session of an inode, then a version set, then the tables. Nobody
//! holds two sessions, or two sets of names; a name's set comes before its inode's.
#![forbid(unsafe_code)]

mod attr;
mod by_number;
mod callers;
mod cleaner;
mod commands_policy;
mod convert;
mod core;
mod file;
pub mod fsck;
mod head;
mod inode;
mod layer;
mod link;
mod node;
mod options;
mod policy;
mod rebuild;
mod remove;
mod rename;
mod retain;
mod session;
mod set;
mod upcalls;
mod vnode_impl;
mod walk;

pub use layer::{LAYER, VersionFs};
pub use options::{CopyOn, NoSpace, Options, Storage};
pub use policy::{CONFIG, PolicyHost, PolicySource, set_host};
