//! The ioctls of our own, from the side of a program: on the root of a mount, the level of the server's log is set and asked for (Wrapfs
//! paper, section 2.2).

use crate::{Errno, sys};
use std::os::fd::AsFd;

/// Sets the level: `_IOW('S', 1, __u32)`, with a number of [`LEVELS`].
pub const SET_DEBUG: u32 = 0x4004_5301;
/// Asks for the level: `_IOR('S', 2, __u32)`.
pub const GET_DEBUG: u32 = 0x8004_5302;
/// The levels and, by their places, their numbers.
pub const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Sets the level.
///
/// # Errors
/// `EPERM` for anybody but root and the mount's owner, `EINVAL` for a level that there is not, `ENOTTY` where there is no mount of ours.
pub fn set_debug(root: impl AsFd, level: u32) -> Result<(), Errno> {
    sys::set_debug(root.as_fd(), level)
}

/// Asks for the level.
///
/// # Errors
/// `ENOTTY` where there is no mount of ours.
pub fn debug(root: impl AsFd) -> Result<u32, Errno> {
    sys::debug(root.as_fd())
}
