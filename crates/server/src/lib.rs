//! Serves a stack of layers to the kernel: translates FUSE requests into vnode operations.
//!
//! This crate alone handles:
//!
//! * the vnodes that the kernel knows, their node ids and lookup counts ([`nodes`]);
//! * open files, and the data path of each inode: through the kernel's page cache and this server,
//!   or directly to the host file ([`files`]: passthrough);
//! * files kept open for READs on mounts where the kernel opens files without a request
//!   ([`open_cache`]);
//! * invalidation of the kernel's page cache ([`page_cache`]) and directory listings
//!   ([`listing_cache`]), sent by one thread ([`notifier`]);
//! * replies older than a change of which the kernel was notified ([`reports`]);
//! * how long the kernel may cache names and attributes ([`Config::cache`]), and shorter times for
//!   files that change through a shared mapping ([`shared_mappings`]);
//! * files whose mode the kernel may not know, after an ACL was set ([`unsent_modes`]);
//! * permissions and execution of control commands ([`control`]);
//! * detection of requests that the kernel refuses, for layers that audit them
//!   ([`refusal_detector`]).
//!
//! Layers see only the vnode interface. Each opcode is a method of the same name in `ops.rs` (or
//! `dirs.rs` for listings), which calls the vnode operation of the same name.
#![forbid(unsafe_code)]

mod caller;
mod config;
mod control;
mod convert;
mod directories;
mod dirs;
mod ended;
mod export;
mod files;
mod known_names;
mod listing_cache;
mod mount;
mod nodes;
mod notifier;
mod open_cache;
mod ops;
mod page_cache;
mod refusal_detector;
mod refusal_server;
mod reports;
mod shared_mappings;
mod successors;
mod suid;
mod unsent_modes;

pub use config::Config;
pub use control::{Command, Invocation, Run};
pub use mount::{Mounted, mount, serve_device};
