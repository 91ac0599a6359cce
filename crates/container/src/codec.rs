use core::fmt;
use vnode::Result;

/// The smallest block, in bytes.
pub const BLOCK_MIN: u32 = 512;

/// The largest block, in bytes.
pub const BLOCK_MAX: u32 = 1 << 20;

/// Can blocks have so many plain bytes?
#[must_use]
pub fn is_block_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && (BLOCK_MIN..=BLOCK_MAX).contains(&bytes)
}

/// The most bytes that so many plain ones may become.
#[must_use]
pub const fn encoded_limit(plain: usize) -> usize {
    2 * plain + 4096
}

/// Which block of which file: what an authenticated codec binds the block to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockAt {
    /// The file's own random id. A file that was emptied and filled again has a new one.
    pub file: [u8; 16],
    /// Which block: it begins at this times the size of a block.
    pub block: u64,
}

/// A way of storing blocks. All methods may be called by several threads at a time.
///
/// A block is given to [`BlockCodec::encode`] without the zeros at its end, and one of zeros alone not at all: it is a hole.
pub trait BlockCodec: Send + Sync + fmt::Debug {
    /// Stored in each file: files of another codec are refused with `EMEDIUMTYPE`.
    fn id(&self) -> [u8; 8];

    /// Plain bytes of a block in *new* files: a power of two from [`BLOCK_MIN`] to [`BLOCK_MAX`]. Files that exist keep theirs.
    fn block_size(&self) -> u32;

    /// The most bytes that [`BlockCodec::encode`] makes of so many; at most [`encoded_limit`], and no less for more.
    fn max_encoded(&self, plain: usize) -> usize;

    /// Appends the encoding of `plain`, which is never empty, to `out`: at least one byte.
    ///
    /// # Errors
    /// Any: the program that writes gets it.
    fn encode(&self, at: &BlockAt, plain: &[u8], out: &mut Vec<u8>) -> Result<()>;

    /// Undoes [`BlockCodec::encode`]: fills all of `out`, which is as long as `plain` was.
    ///
    /// # Errors
    /// `EIO` if `encoded` is not the encoding of exactly so many bytes at this place. It must be expected to be hostile.
    fn decode(&self, at: &BlockAt, encoded: &[u8], out: &mut [u8]) -> Result<()>;
}
