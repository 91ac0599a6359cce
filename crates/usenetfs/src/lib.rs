//! Stores large directories as many small ones (Wrapfs paper, section 4.3).
//!
//! A directory with the set-user-id bit is *managed*. Users see a flat directory, while on the
//! lower layer its entries are in hidden subdirectories, the *buckets*. The [`Scheme`] maps each
//! name to a bucket. A hidden record in the directory stores the scheme and the progress of a
//! conversion (docs/formats/usenet-directory.md).
//!
//! | concept | file |
//! |---|---|
//! | mapping of names to buckets | `scheme` |
//! | the on-disk record of a directory | `record` |
//! | a managed directory: its buckets, location of entries | `managed` |
//! | cached state of live directories, and their locks | `state` |
//! | state that all vnodes share | `core` |
//! | lookup, creation and removal of entries | `entries` |
//! | rename | `rename` |
//! | directory listings | `readdir`, `listing` |
//! | attributes and the set-user-id bit | `attr` |
//! | removal of the layer's own objects before rmdir | `sweep` |
//! | splitting of large buckets | `split` |
//! | conversion from flat to managed and back | `convert` |
//! | control commands | `control`, `commands` |
//! | objects by number (file handles) | `by_number` |
//! | the vnode interface; the layer | `node`, `vnode_impl`, `layer` |
//!
//! Modules import each other without cycles, which `scripts/import-cycles.sh usenetfs` checks.
//!
//! Lock order: the layer's `multi_dir`, then directories, then the table of states. A thread must
//! hold `multi_dir` to lock more than one directory.
#![forbid(unsafe_code)]

mod attr;
mod by_number;
mod commands;
pub mod control;
mod convert;
mod core;
mod entries;
mod layer;
mod listing;
mod managed;
mod node;
mod readdir;
mod record;
mod rename;
mod scheme;
mod split;
mod state;
mod sweep;
mod vnode_impl;

pub use layer::{LAYER, UsenetFs};
pub use record::{RECORD, STORE};
pub use scheme::{Scheme, SchemeChoice};
