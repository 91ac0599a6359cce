//! Files whose blocks are stored in other sizes.
//!
//! A codec that changes the size of data (compression, authenticated encryption) breaks the rule that a byte of the upper file is a
//! byte of the lower one. A *container* is a lower file with an index that mends it: exact size to the byte, random access that reads
//! only the blocks it needs, overwriting in place, holes. The author of a codec writes [`BlockCodec`]; [`Container`] does
//! the rest over any [`vnode::OpenFile`]. The format is docs/formats/container.md.
//!
//! How it stays whole:
//!
//! * **Nothing is overwritten that may be needed.** A new version of a block goes to free space; then one write of 32 bytes, the
//!   slot in the index, makes it the block's content. A kill at any moment leaves the old or the new version.
//! * **The last durable version stays** until a newer one is known to be durable ([`Container::sync`] has returned), and so does its slot. A
//!   power failure that keeps some of the later writes and loses others leaves, for each block, the last durable version or one that
//!   was written after it: a checksum tells which of them arrived.
//! * **Growing is made safe first.** What lies in the lower file beyond the size is dead, and is removed before the size passes it.
//! * **A lower file is hostile input.** Every number in it is checked before it is used; what is wrong answers `EIO`. Memory is bounded
//!   by the size of a block and a few groups of the index, whatever the file says.
//!
//! What it does not do: authenticate the index. Who can write the lower file can't forge a block against an authenticated
//! codec, nor move one to another place or file, but can bring back an older version, make a block a hole, or change the size.
#![forbid(unsafe_code)]

mod batch;
mod cache;
mod check;
mod codec;
mod compact;
mod container;
mod format;
mod geometry;
mod group;
mod head;
mod moving;
mod punch;
mod read;
mod resize;
mod scratch;
mod seek;
mod space;
mod sync;
mod usage;
mod write;

pub use check::{Damage, Report, check};
pub use codec::{BLOCK_MAX, BLOCK_MIN, BlockAt, BlockCodec, encoded_limit, is_block_size};
pub use container::Container;
pub use head::{Probe, plain_size, probe};
