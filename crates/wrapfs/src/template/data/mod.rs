//! Data transformed without changing its size (Wrapfs paper, sections 2.1.1 and 3.2).
//! docs/wrapfs.md lists the guarantees.
//!
//! `coding` encodes and decodes one block, and `inode` is the state shared by the open files of one
//! inode. `read`, `write`, `resize`, `zeroing`, `holes` and `copy` are the operations. `patch`
//! rewrites single blocks and can undo that.

mod coding;
mod copy;
mod holes;
mod inode;
mod lower;
mod patch;
mod read;
mod resize;
mod scratch;
mod write;
mod zero;
mod zeroing;

pub(crate) use coding::Coding;
pub(crate) use copy::copy;
pub(crate) use inode::Inode;
pub(crate) use lower::{CodedFile, blocking, require_blocking_for};
pub(crate) use resize::changes_blocks;
pub(crate) use scratch::Scratch;
pub(crate) use zero::is_zero;
