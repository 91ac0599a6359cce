use super::Object;
use core::fmt;
use vnode::{Cx, Result};

/// Maximum block size in bytes.
pub const MAX_BLOCK: usize = 1 << 20;

/// A block of a file.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// The file.
    pub file: &'a Object<'a>,
    /// Block number, counted from the start of the file.
    pub number: u64,
}

/// Transforms file data without changing its size (Wrapfs paper, section 2.1.1 and Table 1).
///
/// The template splits every read, write and truncation into blocks. It reads and decodes blocks
/// that are partly overwritten, and keeps sizes, holes, appends and memory mappings correct
/// (section 3.2). The last block of a file is shorter if the file ends within it.
///
/// For a given block number and length, encoding must be a bijection: no two plain blocks may have
/// the same encoding. Blocks of zeros never reach the hooks. They are stored as zeros, so that
/// holes remain holes. The one plain block whose encoding would be zeros is stored as the encoding
/// of zeros instead.
pub trait Data: Send + Sync + fmt::Debug {
    /// Returns the block size in bytes, from 1 to [`MAX_BLOCK`]. It must never change. Any size
    /// works; powers of two of at least 4 KiB are fast.
    fn block_size(&self) -> usize;

    /// Whether the data of this file is transformed. If not, the kernel reads and writes the file
    /// directly. Called when a file is opened that has no open files, and must return the same
    /// value for the lifetime of the file.
    ///
    /// # Errors
    /// The open fails with this errno.
    fn applies(&self, cx: &Cx<'_>, file: &Object<'_>) -> Result<bool> {
        let _ = (cx, file);
        Ok(true)
    }

    /// Encodes a block to be written. Both buffers have the same length.
    ///
    /// # Errors
    /// The write fails with this errno, and nothing of the block is written.
    fn encode_data(&self, cx: &Cx<'_>, at: &Block<'_>, plain: &[u8], encoded: &mut [u8]) -> Result<()>;

    /// Decodes a block that was read. Both buffers have the same length.
    ///
    /// # Errors
    /// The read fails with this errno.
    fn decode_data(&self, cx: &Cx<'_>, at: &Block<'_>, encoded: &[u8], plain: &mut [u8]) -> Result<()>;
}
