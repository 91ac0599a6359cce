use super::Object;
use core::fmt;
use vnode::{Cx, Result};

/// The largest block, in bytes.
pub const MAX_BLOCK: usize = 1 << 20;

/// A block of a file.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// The file.
    pub file: &'a Object<'a>,
    /// Counts blocks from the file's beginning.
    pub number: u64,
}

/// Changes data, not its size (Wrapfs paper, section 2.1.1 and Table 1).
///
/// The template cuts every read, write and truncation into blocks, reads and decodes what is only partly overwritten, and keeps sizes, holes,
/// appends and mappings right (section 3.2). A file's last block is as short as the file is.
///
/// For one block of one file at one length, encoding must be a bijection: no two plain blocks may have the same encoding. Blocks of zeros
/// never reach the hooks: they are stored as zeros, so that holes stay holes, and the one plain block that would be encoded as zeros is
/// stored as the encoding of zeros instead.
pub trait Data: Send + Sync + fmt::Debug {
    /// Bytes of a block, 1 to [`MAX_BLOCK`]: always the same. Any number does; powers of two from 4 KiB up are fast.
    fn block_size(&self) -> usize;

    /// Are the data of this file changed at all? A file whose data are not is read and written by the kernel itself. Asked when a file that
    /// nobody has open is opened, and must be answered the same for the life of the file.
    ///
    /// # Errors
    /// The open fails with it.
    fn applies(&self, cx: &Cx<'_>, file: &Object<'_>) -> Result<bool> {
        let _ = (cx, file);
        Ok(true)
    }

    /// Encodes a block on its way down. Both buffers have the same length.
    ///
    /// # Errors
    /// The write fails with it, and nothing of the block is written.
    fn encode_data(&self, cx: &Cx<'_>, at: &Block<'_>, plain: &[u8], encoded: &mut [u8]) -> Result<()>;

    /// Decodes a block on its way up. Both buffers have the same length.
    ///
    /// # Errors
    /// The read fails with it.
    fn decode_data(&self, cx: &Cx<'_>, at: &Block<'_>, encoded: &[u8], plain: &mut [u8]) -> Result<()>;
}
