//! Data in another form of the same size (Wrapfs paper, sections 2.1.1 and 3.2): docs/wrapfs.md says what is promised.
//!
//! `coding` encodes and decodes one block, `inode` is what the open files of one inode share, `read`, `write`, `resize`, `zeroing`,
//! `holes` and `copy` are the operations, `patch` rewrites single blocks and takes that back.

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
pub(crate) use lower::{CodedFile, patient, require_patience};
pub(crate) use resize::changes_blocks;
pub(crate) use scratch::Scratch;
pub(crate) use zero::is_zero;
