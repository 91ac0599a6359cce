//! The interface of a codec.

use core::fmt;
use vnode::Result;

/// Minimum block size in bytes.
pub const BLOCK_MIN: u32 = 512;

/// Maximum block size in bytes.
pub const BLOCK_MAX: u32 = 1 << 20;

/// Whether `bytes` is a valid plain block size.
#[must_use]
pub fn is_block_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && (BLOCK_MIN..=BLOCK_MAX).contains(&bytes)
}

/// Returns the maximum encoded size of `plain` bytes.
#[must_use]
pub const fn encoded_limit(plain: usize) -> usize {
    2 * plain + 4096
}

/// Identifies a block of a file. An authenticated codec binds the block's content to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockAt {
    /// The file's random id. A file that is truncated to zero and written again gets a new one.
    pub file: [u8; 16],
    /// Block number: the block begins at this number times the block size.
    pub block: u64,
}

/// A codec for stored blocks. All methods may be called concurrently.
///
/// [`BlockCodec::encode`] receives a block without its trailing zeros. It is not called for a block
/// of zeros, which is a hole.
pub trait BlockCodec: Send + Sync + fmt::Debug {
    /// Returns the codec's id, which is stored in each file. Files of another codec are refused
    /// with `EMEDIUMTYPE`.
    fn id(&self) -> [u8; 8];

    /// Returns the plain block size for *new* files: a power of two from [`BLOCK_MIN`] to
    /// [`BLOCK_MAX`]. Existing files keep theirs.
    fn block_size(&self) -> u32;

    /// Returns the maximum number of bytes that [`BlockCodec::encode`] produces from `plain` bytes:
    /// at most [`encoded_limit`], and never decreasing with `plain`.
    fn max_encoded(&self, plain: usize) -> usize;

    /// Appends the encoding of `plain`, at least one byte, to `out`. `plain` is never empty.
    ///
    /// # Errors
    /// Any errno; the writing program receives it.
    fn encode(&self, at: &BlockAt, plain: &[u8], out: &mut Vec<u8>) -> Result<()>;

    /// Reverses [`BlockCodec::encode`]: fills all of `out`, which is as long as `plain` was.
    ///
    /// # Errors
    /// `EIO` if `encoded` is not the encoding of that many bytes for this block. The input is
    /// untrusted.
    fn decode(&self, at: &BlockAt, encoded: &[u8], out: &mut [u8]) -> Result<()>;
}
