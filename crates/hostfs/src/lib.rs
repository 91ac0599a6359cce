//! The bottom layer of most stacks: exports a directory of the host as a [`vnode::Layer`].
//!
//! * **Confined to its root.** Where permitted, the root is a private, detached clone of the mount
//!   that holds the directory. Mounts on top of the directory or inside it, including our own FUSE
//!   mount, are never crossed. Every path step is one name in one directory, and symbolic links are
//!   never followed.
//! * **No descriptor per vnode.** The layer reopens an object by its file handle
//!   (name_to_handle_at(2)). Where the file system or missing privileges rule that out, it uses the
//!   parent directory and name, which are updated on changes through this layer and verified on
//!   each use. A probe at open time selects the method.
//! * **A bounded number of descriptors** for recently used directories, for listings that may be
//!   continued, and for removed objects whose vnode is still referenced (see [`HostOptions`]). Open
//!   files are limited per user. One user's open files of one inode with the same flags share a
//!   descriptor.
//! * **Hot files**: from the second use on, the descriptor of a file stays open for one to two
//!   seconds after each use ([`hot`]), where this is not observable.
//! * **Negative lookups are cached**: after several failed lookups in a directory, the layer lists
//!   the directory once. Further negative lookups then need no system call. Out-of-band changes
//!   become visible after [`HostOptions::name_cache_ttl`].
//! * **Out-of-band changes are reported** to the layer above where [`Watch`] asks for it, the
//!   server has `CAP_SYS_ADMIN`, and the file system is local. Elsewhere the layer can limit how
//!   long names and attributes are cached ([`HostOptions::unreported_lifetime`]).
//! * **The caller owns the objects it creates**: the thread switches its file-system uid and gid
//!   for the one system call that creates the object. The host applies the caller's umask, so
//!   default ACLs work as they do natively. For this, each thread that creates objects leaves the
//!   process's shared file-system context (`CLONE_FS`) and keeps its own umask from then on.
//!
//! | module | contents |
//! |---|---|
//! | `layer` | [`HostFs::open`], options, per-file-system traits |
//! | `vnode_impl` | the vnode and its operations, one line each |
//! | `handle`, `identity` | file handles, vnode numbers |
//! | `table` | live vnodes, descriptors of removed objects |
//! | `reopen` | lookup, and opening an object again by handle or by parent and name |
//! | `by_number` | vnodes from numbers, names of an object |
//! | `name_cache` | negative lookups |
//! | `dirs`, `opened`, `hot`, `descriptors` | descriptor caches, and how many each user may have |
//! | `caller` | the caller's ids and umask |
//! | `claim` | exclusive use of the directory |
//! | `watch`, `fanotify`, `lifetimes` | reports of out-of-band changes; what may be cached without them |
//! | `attr`, `create`, `remove`, `readdir`, `xattr`, `ioctl`, `file` | the operations |
//! | `sys` | system calls without a safe form in rustix; the only module with `unsafe` |
#![deny(unsafe_code)]

mod attr;
mod by_number;
mod caller;
mod casefold;
mod claim;
mod create;
mod descriptors;
mod dirs;
mod fanotify;
mod file;
mod handle;
mod hot;
mod identity;
mod ioctl;
mod layer;
mod lifetimes;
mod name_cache;
mod opened;
mod readdir;
mod remove;
mod reopen;
mod sys;
mod table;
mod vnode_impl;
mod watch;
mod xattr;

pub use layer::{AccessTimes, HostFs, HostOptions, OpenError, When};
pub use sys::restrict_mounts;
pub use watch::Watch;

#[cfg(test)]
mod tests;
