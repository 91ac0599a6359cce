//! The bottom of every stack: a directory of the host as a [`vnode::Layer`].
//!
//! * **Beneath its root only.** The root is a private, detached clone of the mount that the directory lies on, where that is
//!   permitted: what is mounted over it or beneath it, our own FUSE mount among it, is never crossed. Every step from there
//!   is one name in one directory, and symbolic links are never followed.
//! * **No descriptor per vnode.** An object is reached again by its file handle (name_to_handle_at(2)); where the file system
//!   or our privileges don't allow that, by its parent and name, which are kept right over changes made through us and
//!   verified at each use. Which of the two, is found out once, by trying, when the layer is opened.
//! * **A bounded number of descriptors**: recently used directories, listings that may be continued, and objects that were
//!   removed while somebody still holds their vnode (see [`HostOptions`]). Open files are limited by user, and one user's open
//!   files of one inode with the same flags share a descriptor.
//! * **A file that is used again is not opened again**: its descriptor is kept for a second or two ([`hot`]), where that can't be seen.
//! * **What is missing is known**: a directory in which names were looked for in vain is listed once, so that the next costs no
//!   system call. What others make there is seen after [`HostOptions::believed`].
//! * **The caller owns what it makes**: file-system uid and gid of the thread are switched for the one system call that
//!   makes an object, and its umask is applied by the host, so that default ACLs work as they do natively. Each thread that
//!   makes objects leaves the process's shared file-system context (`CLONE_FS`) for that: its umask is its own from then on.
//!
//! Where to find what: [`HostFs::open`] in `layer`, handles and numbers in `handle` and `identity`, live vnodes and removed
//! ones in `table`, descriptors in `dirs`, `opened` and `reach`, who
//! may use how many in `descriptors`, objects by number in `by_number`, names that are missing in `names`, the caller in `caller`, one writer at a time in `claim`, and the operations in
//! `attr`, `create`, `remove`, `readdir`, `xattr`, `ioctl` and `file`. `sys` is the only module with `unsafe`: system calls that rustix has no safe form of.
#![deny(unsafe_code)]

mod attr;
mod by_number;
mod caller;
mod casefold;
mod claim;
mod create;
mod descriptors;
mod dirs;
mod file;
mod handle;
mod hot;
mod identity;
mod ioctl;
mod layer;
mod names;
mod opened;
mod reach;
mod readdir;
mod remove;
mod sys;
mod table;
mod vnode_impl;
mod xattr;

pub use layer::{AccessTimes, HostFs, HostOptions, OpenError, When};

#[cfg(test)]
mod tests;
