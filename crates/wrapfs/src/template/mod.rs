//! The template: every operation of the interface, with the author's hooks at the right places (Wrapfs paper, sections 2 and 3).
//!
//! Each concept is a file: `names` (what a name is below), `long` (names that are too long there), `directory` (what a directory's names are encoded with), `hashed` (the usual store of both), `folded` (names that
//! are found in other spellings), `entries` (what is found, made, removed
//! and moved), `attributes`, `record` and `paths` (what is kept with objects in use),
//! `by_number` (what was found by number), `data`, `resized` (data of another size), `watch` (before and after), `commands` (of the control channel), `open`, `vnode_impl` and `file` (the interface), `look_through` (files of the null layer and of the template that leave data alone), `guard` (around every hook), `inverse`
//! (what debug builds check of hooks).

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
mod long;
mod look_through;
mod names;
mod node;
mod open;
mod paths;
mod readdir;
mod record;
mod resized;
mod sweep;
mod table;
mod vnode_impl;
mod watch;

pub use build::Template;
pub(crate) use look_through::look_through;
pub use resized::Foreign;
