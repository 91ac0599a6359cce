//! Keeps every version of every file (the Versionfs paper; docs/versionfs.md,
//! docs/design/versionfs.md).
//!
//! The newest content of a file, the *head*, is an ordinary lower file. Its earlier contents are in
//! a hidden directory beside it, the store (crate `versionset`, docs/formats/version-set.md).
//!
//! | concept | file |
//! |---|---|
//! | version sets: the index and the files of a set | `set`, `lost_records` |
//! | how a version is made | `head` |
//! | the open files of an inode, and the blocks they overwrite | `session` |
//! | open files; writes; delayed truncation | `file` |
//! | owners, modes, extended attributes | `attr` |
//! | removal of names | `remove` |
//! | rename | `rename` |
//! | hard links | `link` |
//! | objects in use | `inode` |
//! | the policy of a file | `policy` |
//! | other formats of versions; content-addressed ones | `convert`, `blocks` |
//! | which versions are discarded | `retain` |
//! | the thread that does both; all stores of a tree | `cleaner`, `walk` |
//! | the bound of all versions together; full disks | `space/` |
//! | names whose last state had no room | `lost` |
//! | numbers that removed sets have used | `floor` |
//! | check and repair of a tree that is not mounted | `fsck` |
//! | commands for these | `commands_policy` |
//! | who made a change | `callers` |
//! | the log of all operations (comprehensive mode, users whom the administrator wants logged) | `audit/` |
//! | objects by number (file handles) | `by_number` |
//! | commands and their replies | `commands`, `commands_lost`, `reply` |
//! | changes of versions and of whole sets by commands; who may | `change_versions`, `change_sets`, `permission` |
//! | which content a name had at a time | `history` |
//! | read-only vnodes of old versions | `past/` |
//! | times and tags in commands and options | `when`, `tags` |
//! | names under which old versions are opened | `token` |
//! | what the layer above is told of the changes by commands | `reports` |
//! | passthrough, stopped by this layer or one below | `upcalls` |
//! | the vnode interface; the layer; its options | `node`, `vnode_impl`, `layer`, `options` |
//!
//! Lock order: renames, then the session of an inode, then a version set, then the tables, then the
//! audit log. Only who holds the lock of renames holds two sessions, or two sets of names; a name's
//! set comes before its inode's. Nobody who holds one of these makes a pass (`space`), which takes
//! sessions and sets.
#![forbid(unsafe_code)]

mod attr;
mod audit;
mod blocks;
mod by_number;
mod callers;
mod change_sets;
mod change_versions;
mod cleaner;
mod commands;
mod commands_lost;
mod commands_policy;
mod content_time;
mod convert;
mod copy;
mod core;
mod entry;
mod file;
mod floor;
pub mod fsck;
mod head;
mod history;
mod inode;
mod layer;
mod link;
mod lost;
mod lost_records;
mod node;
mod options;
mod origins;
mod past;
mod permission;
mod policy;
mod remove;
mod rename;
mod reply;
mod reports;
mod retain;
mod session;
mod set;
mod sets_of_dir;
mod space;
mod tags;
mod token;
mod upcalls;
mod vnode_impl;
mod walk;
mod when;

pub use layer::{LAYER, VersionFs};
pub use options::{CopyOn, NoSpace, Options, Storage};
pub use policy::{Below, CONFIG, MAX_BELOW, PolicyHost, PolicySource, set_host};
