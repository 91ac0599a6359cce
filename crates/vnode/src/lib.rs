//! The stackable vnode interface.
//!
//! A *layer* is a file system that calls other file systems of the same interface instead of a disk: it
//! implements [`Layer`], [`Vnode`] and [`OpenFile`] and, except at the bottom of a stack, holds vnodes of the
//! layers below. It does not know what is under it (a host directory, another layer, a faulty memory file system of a
//! test) nor what is above it (a FUSE server, another layer, a test).
//!
//! This crate holds traits, types and errors only: no I/O, no `unsafe`, nothing of FUSE.
//!
//! Conventions that every layer keeps:
//!
//! * **No default methods.** A layer names every operation: it forwards it, handles it or refuses it.
//! * **An operation succeeds or fails as a whole.** After an error the tree that users see is as it was before.
//! * **Vnodes are objects with owners** (`Arc<dyn Vnode>`). Look-up counts and node ids belong to the server.
//! * **Identity**: [`Vnode::id`] is unique in the layer among all live objects, is what `st_ino` and `d_ino` show, and
//!   stays the same over rename, copy-up, forgetting, remount and restart.
//! * **Permission checks are the kernel's** (`default_permissions`): a layer acts on behalf of the caller in [`Cx`] when
//!   it makes new objects (owner, group, umask) and for nothing else.
//! * **Names are bytes**, checked once by [`Name::new`].

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
mod shards;
mod upcalls;

pub use attr::{Attr, Kind, SetAttr, SetTime, StatFs, Time};
pub use backing::{Backing, Kept, Registration};
pub use call::{Call, Processes};
pub use cx::Cx;
pub use finder::{Finder, Found};
pub use layer::{Command, Layer, Properties, Who};
pub use name::{NAME_MAX, Name};
pub use operation::Operation;
pub use ops::{
    DirEntry, Entry, HostReader, IoctlReply, NameSink, OpenFile, OpenFlags, RenameFlags, SeekFrom, Vnode, XattrFlags,
    give,
};
pub use shards::{NumberHasher, NumberMap, SHARDS, shard_of};
pub use upcalls::{Drained, Unattached, Upcalls};

/// What every operation fails with: an errno of the kernel's.
pub use rustix::io::Errno;

/// The answer of an operation.
pub type Result<T> = core::result::Result<T, Errno>;

/// "This would take long, and the caller must not be kept": answered, before anything was changed, only when
/// [`Cx::may_block`] is false. The transport then runs the same request again on a thread that may wait.
///
/// The number is the kernel-internal `EIOCBQUEUED`, which never reaches a program.
pub const MAY_BLOCK: Errno = Errno::from_raw_os_error(529);
