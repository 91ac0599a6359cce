//! Control channel of a mount: text commands with text replies, sent by an ioctl(2) on any open
//! file or directory of the mount.
//!
//! It needs no path next to the mount, so it works from every mount namespace that contains the
//! mount, through bind mounts of its subtrees, and with extended attributes disabled. The kernel
//! passes the ioctl through unchanged: a frame of [`FRAME`] bytes in, a frame of the same size out.
//!
//! * A program sends a command with [`call`].
//! * A server decodes and encodes frames with [`ControlRequest`] and [`Reply`].
//!
//! A reply that does not fit into a frame is fetched in pieces. The first frame carries a token,
//! with which the client requests the rest. The server keeps the rest for a short time, for the
//! same user only.
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
//! | 16 | 8 | 0, or the token of a reply to be continued | the token, or 0 for the last piece |
//! | 24 | 8 | offset of the requested rest, in bytes; 0 without a token | offset of this piece |
//! | 32 | 8 | 0 | length of the whole reply |
//! | 40 | 4 | length of the command's name, at most [`NAME_MAX`] | 0 |
//! | 44 | 4 | length of its input, at most [`INPUT_MAX`] | length of this piece |
//! | 48 | 16 | 0 | 0 |
//! | 64 | | the name, then the input | the piece |
//!
//! A server with another version returns `EPROTO` and its own version.

mod client;
mod frame;

pub use client::{Error, call};
pub use frame::{ControlRequest, Malformed, Reply};

/// The ioctl command: `_IOWR('S', 1, char[FRAME])`.
pub const CONTROL: u32 = 3 << 30 | (FRAME as u32) << 16 | (b'S' as u32) << 8 | 1;
/// Length of a frame, in bytes.
pub const FRAME: usize = 8192;
/// Length of a frame's header, in bytes.
pub const HEADER: usize = 64;
/// Longest piece of a reply per frame, in bytes.
pub const PIECE_MAX: usize = FRAME - HEADER;
/// Longest name of a command, in bytes.
pub const NAME_MAX: usize = 128;
/// Longest input of a command, in bytes.
pub const INPUT_MAX: usize = FRAME - HEADER - NAME_MAX;
/// Longest reply, in bytes.
pub const REPLY_MAX: usize = 1 << 20;
/// Version of the control protocol.
pub const VERSION: u16 = 1;
