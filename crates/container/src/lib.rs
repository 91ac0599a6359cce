//! Container files: random access to files whose blocks are stored compressed or encrypted.
//!
//! Compression and authenticated encryption change the size of data. So an offset in the *upper*
//! file, which users see, no longer equals the offset in the *lower* file, which stores the encoded
//! data. A *container* is a lower file with an index that maps the upper file's blocks to their
//! encoded data. It supports sizes in bytes, reads of only the blocks needed, overwriting of any
//! range, and holes. The author of a codec implements [`BlockCodec`]; [`Container`] does the rest
//! on top of any [`vnode::OpenFile`]. docs/formats/container.md describes the format.
//!
//! How a container stays consistent:
//!
//! * **Data in use is never overwritten.** A new version of a block is written to free space. Then
//!   one 32-byte write to the block's slot in the index makes that version current. If the process
//!   is killed at any moment, the block has its old or its new content.
//! * **The last durable version is kept**, together with its slot, until a newer one is known to be
//!   durable ([`Container::sync`] has returned). A power failure may keep some of the later writes
//!   and lose others. Each block then has its last durable version or one written after it;
//!   checksums show which versions reached the disk.
//! * **The tail is cleared before the file grows.** Data beyond the upper file's size is dead. It
//!   is removed before a larger size includes it again.
//! * **The lower file is untrusted input.** Every number in it is checked before use, and invalid
//!   ones return `EIO`. Memory use is bounded by the size of a block and a few groups of the index,
//!   independent of the file's content.
//!
//! Not provided: authentication of the index. With an authenticated codec, an attacker with write
//! access to the lower file can't forge a block or move one to another place or file. The attacker
//! can bring back an older version of a block, turn a block into a hole, or change the size.
//!
//! | module | contents |
//! |---|---|
//! | `codec` | the interface of a codec |
//! | `container` | an open container: changes of the header, write sessions |
//! | `format`, `geometry` | the on-disk format and its offsets |
//! | `head`, `group` | the header and an index group in memory |
//! | `read`, `write`, `seek`, `punch`, `resize`, `sync` | the operations |
//! | `batch` | collecting and writing new versions of blocks |
//! | `space`, `usage`, `compact`, `relocate` | free space, and reclaiming dead space |
//! | `check` | offline check and repair |
//! | `cache`, `scratch` | caches and buffers |
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
mod punch;
mod read;
mod relocate;
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
