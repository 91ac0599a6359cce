//! The integration tests of `wrapfs`: one program, so that they are linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod attached;
mod common;
mod data;
mod failing_hooks;
mod folded;
mod format;
mod format_opened;
mod hooks;
mod journal;
mod kept;
mod names;
mod objects;
mod resized;
mod sealed;
mod store;
mod xattrs;
