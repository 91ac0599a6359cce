//! Serves a stack of layers to the kernel: FUSE requests become vnode operations.
//!
//! What is decided here and nowhere else:
//!
//! * which vnodes the kernel knows, by which node id, and how often it looked them up ([`nodes`]);
//! * which files are open, and for each inode whether its data goes through the kernel's page cache and this server, or
//!   straight to the host file ([`files`]: passthrough);
//! * on mounts where the kernel opens files without asking, which files stay open for its READs ([`held`]);
//! * when pages that the kernel keeps of a file are out of date ([`pages`]);
//! * how long the kernel may remember names and attributes ([`Config::cache`]), less where they change without its knowledge ([`mapped`]);
//! * who may give which command through the control channel, and who answers it ([`control`]);
//! * how a refusal of the kernel's is noticed, for layers that want to know ([`watch`]).
//!
//! A layer below sees only the vnode interface. The opcode's method in `ops.rs` (or `dirs.rs` for listing) has the name of the
//! opcode and calls the vnode operation of the same name.
#![forbid(unsafe_code)]

mod by_number;
mod caller;
mod config;
mod control;
mod convert;
mod dirs;
mod files;
mod held;
mod listed;
mod mapped;
mod mount;
mod nodes;
mod ops;
mod pages;
mod successors;
mod suid;
mod teller;
mod watch;
mod watching;

pub use config::Config;
pub use control::{Command, Invocation, Run};
pub use mount::{Mounted, mount};
