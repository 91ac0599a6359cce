//! The ioctls of our own, from the side of a program: on the root of a mount, the level of the server's log is set and asked for (Wrapfs
//! paper, section 2.2), and the server told of changed flags of the mount; on any file or directory, everything is made durable.

use crate::{Errno, sys};
use std::os::fd::AsFd;

/// Sets the level: `_IOW('S', 1, __u32)`, with a number of [`LEVELS`].
pub const SET_DEBUG: u32 = 0x4004_5301;
/// Asks for the level: `_IOR('S', 2, __u32)`.
pub const GET_DEBUG: u32 = 0x8004_5302;
/// Tells the server when reading is to move times of access: `_IOW('S', 3, __u32)`, with bits of [`access_times`].
pub const SET_ACCESS_TIMES: u32 = 0x4004_5303;
/// Makes everything durable, as syncfs(2) does: `_IOW('S', 4, __u32)`, with 0. The kernel does not tell FUSE servers of syncfs(2).
pub const SYNC: u32 = 0x4004_5304;
/// The levels and, by their places, their numbers.
pub const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Sets the level.
///
/// # Errors
/// `EPERM` for anybody but root and the mount's owner, `EINVAL` for a level that there is not, `ENOTTY` where there is no mount of ours.
pub fn set_debug(root: impl AsFd, level: u32) -> Result<(), Errno> {
    sys::command(root.as_fd(), SET_DEBUG, level)
}

/// Asks for the level.
///
/// # Errors
/// `ENOTTY` where there is no mount of ours.
pub fn debug(root: impl AsFd) -> Result<u32, Errno> {
    sys::debug(root.as_fd())
}

/// What [`SET_ACCESS_TIMES`] can say. What none of its bits is about stays as it is.
pub mod access_times {
    /// Never.
    pub const NOATIME: u32 = 1;
    /// If it is older than the times of modification and change, or a day old.
    pub const RELATIME: u32 = 2;
    /// Each time.
    pub const STRICTATIME: u32 = 4;
    /// Never that of directories.
    pub const NODIRATIME: u32 = 8;
    /// That of directories, too.
    pub const DIRATIME: u32 = 16;
    /// No more at all, as long as the mount is read-only.
    pub const READ_ONLY: u32 = 32;
    /// As before it was read-only.
    pub const READ_WRITE: u32 = 64;
}

/// Tells the server when reading is to move times of access.
///
/// # Errors
/// `EPERM` for anybody but root and the mount's owner, and where the server may not do it; `ENOTTY` where there is no mount of ours, or an
/// older one.
pub fn set_access_times(root: impl AsFd, times: u32) -> Result<(), Errno> {
    sys::command(root.as_fd(), SET_ACCESS_TIMES, times)
}

/// Makes everything durable that was done on the file system of `file`.
///
/// # Errors
/// As syncfs(2); `ENOTTY` where there is no mount of ours, or an older one.
pub fn sync(file: impl AsFd) -> Result<(), Errno> {
    sys::command(file.as_fd(), SYNC, 0)
}
