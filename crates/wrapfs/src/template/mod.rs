//! The template: implements every operation of the interface and calls the author's hooks at the
//! right places (Wrapfs paper, sections 2 and 3).
//!
//! One concept per file:
//!
//! * names: `names` (encoding), `unchanged` (no encoding), `long` (names too long for the layer
//!   below), `directory` (the state that a directory's names are encoded with), `hashed` (the
//!   default store of both), `folded` (names found in other spellings)
//! * entries: `entries` (lookup, creation, removal, renaming), `readdir`, `sweep` (removing
//!   directories that contain the store's own files), `by_number` (objects found by number)
//! * `attributes`, `xattrs`
//! * data: `data` (same size), `resized` (different size, in containers), `format` (larger blocks),
//!   `journal` (protects those from a kill), `open`, `look_through` (unwrapping files whose data is
//!   unchanged)
//! * objects in use: `record`, `paths`, `table`
//! * `watch` (observing operations), `commands` (control channel)
//! * the interface: `vnode_impl`, `node`, `file`; construction: `build`, `core`
//! * `parallel` (work on many blocks at once)
//! * hooks: `guard` (around every call), `inverse` (checks in debug builds)

mod attributes;
mod build;
mod by_number;
mod commands;
mod core;
mod data;
mod directory;
mod entries;
mod file;
mod folded;
mod format;
mod guard;
mod hashed;
mod inverse;
mod journal;
mod long;
mod look_through;
mod lower_io;
mod names;
mod node;
mod open;
mod parallel;
mod paths;
mod readdir;
mod record;
mod resized;
mod sweep;
mod table;
mod unchanged;
mod vnode_impl;
mod watch;
mod xattrs;

pub use build::Template;
pub use journal::{KeptJournals, KeptWrite};
pub(crate) use look_through::look_through;
pub use resized::Foreign;
