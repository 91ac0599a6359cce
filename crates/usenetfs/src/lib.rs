//! Large directories that are stored as many small ones (Wrapfs paper, section 4.3).
//!
//! A directory with the set-user-id bit is *managed*: above it looks flat, below its entries lie in hidden subdirectories, the *buckets*.
//! In which bucket an entry lies follows from its name alone ([`Scheme`]); what the directory's form is stands in a hidden record in it
//! (docs/formats/usenet-directory.md).
//!
//! One concept per file: `scheme` (from names to buckets), `record` (the form of a directory), `managed` (where an entry is), `state` (what
//! is known of live directories, and their locks), `core` (what all vnodes share), `entries` (what is found, made, removed), `rename`,
//! `readdir` and `listing`, `attr` (counts, times, and the bit), `sweep` (a directory that goes), `split` (buckets that grew), `convert`
//! (from flat to managed and back, step by step), `control` and `commands` (how a program asks for that), `by_number` (file handles),
//! `node` and `vnode_impl` (the interface), `layer`.
//!
//! Modules import each other downward only: `scripts/import-cycles.sh usenetfs`.
//!
//! Locks, in this order: the layer's `several` (whoever locks more than one directory), directories, the table of states. Nobody waits for a
//! directory while holding another without `several`.
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
pub use scheme::{Scheme, Wanted};
