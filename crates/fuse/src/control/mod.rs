//! The control channel of a mount: commands with text in and text out, given by an ioctl on any
//! open file or directory of the mount.
//!
//! It needs no name beside the mount, so it works from every mount namespace that sees the mount,
//! through bind mounts of its parts, and where extended attributes are switched off. The kernel
//! passes the ioctl on as it is: a frame of [`FRAME`] bytes in, a frame of as many bytes out.
//!
//! * A program gives a command with [`call`].
//! * A server takes frames apart and makes them with [`Asked`] and [`Reply`].
//!
//! A reply that does not fit into a frame is fetched piece by piece: the first frame has a token,
//! with which the rest is asked for. A server keeps the rest for a short time and for the same user.
//!
//! # Frames
//!
//! Numbers are little-endian. The bytes up to offset 16 mean the same in every version.
//!
//! | offset | length | request | reply |
//! |---:|---:|---|---|
//! | 0 | 8 | `Strata?\n` | `Strata!\n` |
//! | 8 | 2 | [`VERSION`] of the program | [`VERSION`] of the server |
//! | 10 | 2 | 0 | 0 |
//! | 12 | 4 | 0 | 0, or the errno that the command failed with |
//! | 16 | 8 | 0, or the token of a reply whose rest is asked for | the token, or 0 if this is the end |
//! | 24 | 8 | where the rest begins, in bytes; 0 without a token | where this piece begins |
//! | 32 | 8 | 0 | length of the whole reply |
//! | 40 | 4 | length of the command's name, at most [`NAME_MAX`] | 0 |
//! | 44 | 4 | length of its input, at most [`INPUT_MAX`] | length of this piece |
//! | 48 | 16 | 0 | 0 |
//! | 64 | | the name, then the input | the piece |
//!
//! A server of another version answers `EPROTO` and its own version.

mod client;
mod frame;

pub use client::{Error, call};
pub use frame::{Asked, Malformed, Reply};

/// The ioctl: `_IOWR('S', 1, char[FRAME])`.
pub const CONTROL: u32 = 3 << 30 | (FRAME as u32) << 16 | (b'S' as u32) << 8 | 1;
/// Length of a frame, in bytes.
pub const FRAME: usize = 8192;
/// Length of a frame's header, in bytes.
pub const HEADER: usize = 64;
/// The longest piece of a reply in one frame, in bytes.
pub const PIECE_MAX: usize = FRAME - HEADER;
/// The longest name of a command, in bytes.
pub const NAME_MAX: usize = 128;
/// The longest input of a command, in bytes.
pub const INPUT_MAX: usize = FRAME - HEADER - NAME_MAX;
/// The longest reply, in bytes.
pub const REPLY_MAX: usize = 1 << 20;
/// The version of the protocol.
pub const VERSION: u16 = 1;
