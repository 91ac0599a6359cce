#![forbid(unsafe_code)]
//! The stackable vnode interface.
//!
//! A *layer* is a file system that calls other file systems with the same interface instead of a
//! block device. It implements [`Layer`], [`Vnode`] and [`OpenFile`] and, except at the bottom of a
//! stack, holds vnodes of the layers below. It does not know what lies below it (a host directory,
//! another layer, an in-memory file system with fault injection) or above it (a FUSE server,
//! another layer, a test).
//!
//! This crate contains only traits, types and errors: no I/O, no `unsafe`, nothing specific to
//! FUSE.
//!
//! Rules that every layer follows:
//!
//! * **No default methods.** A layer names every operation: it forwards, handles or rejects it.
//! * **Operations are all or nothing.** After an error, users see the tree as it was before the
//!   operation.
//! * **Vnodes are reference-counted objects** (`Arc<dyn Vnode>`). The server keeps the lookup
//!   counts and node ids.
//! * **Stable identity.** [`Vnode::id`] is unique among the live objects of the layer. Users see it
//!   as `st_ino` and `d_ino`. It survives rename, copy-up, FORGET, remount and restart.
//! * **The kernel checks permissions** (`default_permissions`). A layer uses the caller in [`Cx`]
//!   only to create objects (owner, group, umask).
//! * **Names are bytes**, validated once by [`Name::new`].

mod attr;
mod backing;
mod call;
mod cx;
mod finder;
mod forward;
mod layer;
mod name;
mod operation;
mod ops;
mod reports;
mod shards;
mod upcalls;

pub use attr::{Attr, Kind, SetAttr, SetTime, StatFs, Time};
pub use backing::{Backing, CachedBacking, Registration};
pub use call::{Call, Processes};
pub use cx::Cx;
pub use finder::{Finder, Found};
pub use layer::{Command, CommandAccess, Layer, Properties};
pub use name::{NAME_MAX, Name};
pub use operation::Operation;
pub use ops::{
    DirEntry, Entry, HostReader, IoctlReply, NameSink, OpenFile, OpenFlags, RenameFlags, Vnode, Whence, XattrFlags,
    copy_value, read_value,
};
pub use reports::{NothingChanges, Reports};
pub use shards::{NumberHasher, NumberMap, SHARDS, shard_of};
pub use upcalls::{Drained, Upcalls, WithoutNames};

/// The error of every operation: a kernel errno.
pub use rustix::io::Errno;

/// The result of an operation.
pub type Result<T> = core::result::Result<T, Errno>;

/// Returned instead of blocking when [`Cx::may_block`] is false, before anything has changed. The
/// transport then runs the same request again on a thread that may block.
///
/// The number is the kernel-internal `EIOCBQUEUED`, which never reaches user space.
pub const MAY_BLOCK: Errno = Errno::from_raw_os_error(529);
