use super::{MAX_BLOCK, Object};
use core::fmt;
use vnode::{Cx, Result};

/// The largest header, in bytes.
pub const MAX_HEADER: u32 = 4096;

/// How a file is stored: a header, then blocks, each a fixed number of bytes longer than its plain bytes.
///
/// A plain file of no bytes is stored as no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    header: u64,
    plain: u64,
    stored: u64,
}

impl Layout {
    /// A header of so many bytes (0 to [`MAX_HEADER`]), then blocks of `plain` bytes (1 to [`MAX_BLOCK`]) that are stored in `stored` bytes
    /// (no fewer, and at most twice as many and 4096). `None` for other numbers.
    #[must_use]
    pub const fn new(header: u32, plain: u32, stored: u32) -> Option<Self> {
        let known = header <= MAX_HEADER && plain >= 1 && plain as usize <= MAX_BLOCK;
        if known && stored >= plain && stored as u64 <= 2 * plain as u64 + 4096 {
            Some(Self { header: header as u64, plain: plain as u64, stored: stored as u64 })
        } else {
            None
        }
    }

    /// Bytes of the header.
    #[must_use]
    pub const fn header(&self) -> u64 {
        self.header
    }

    /// Plain bytes of a block.
    #[must_use]
    pub const fn plain(&self) -> u64 {
        self.plain
    }

    /// Stored bytes of a whole block.
    #[must_use]
    pub const fn stored(&self) -> u64 {
        self.stored
    }

    /// Bytes that each block is longer by.
    #[must_use]
    pub const fn overhead(&self) -> u64 {
        self.stored - self.plain
    }

    /// The plain size of a file that takes so many bytes. A last block of no more than the overhead, which a crash may leave, holds
    /// nothing.
    #[must_use]
    pub const fn plain_size(&self, stored: u64) -> u64 {
        let body = stored.saturating_sub(self.header);
        body / self.stored * self.plain + (body % self.stored).saturating_sub(self.overhead())
    }

    /// The bytes that a file of this plain size takes. Saturates past [`Layout::max_size`].
    #[must_use]
    pub const fn stored_size(&self, plain: u64) -> u64 {
        if plain == 0 {
            return 0;
        }
        let rest = plain % self.plain;
        let last = if rest == 0 { 0 } else { rest + self.overhead() };
        (plain / self.plain).saturating_mul(self.stored).saturating_add(self.header + last)
    }

    /// The largest plain size, in bytes.
    #[must_use]
    pub const fn max_size(&self) -> u64 {
        self.plain_size(i64::MAX as u64)
    }

    /// Where a block begins in the stored file. Saturates.
    #[must_use]
    pub const fn start_of(&self, number: u64) -> u64 {
        number.saturating_mul(self.stored).saturating_add(self.header)
    }
}

/// A block of a stored file.
#[derive(Clone, Copy, Debug)]
pub struct FormatBlock<'a> {
    /// The file.
    pub file: &'a Object<'a>,
    /// The file's header, which was checked.
    pub header: &'a [u8],
    /// Counts blocks from the file's beginning.
    pub number: u64,
}

/// Stores data in blocks of a larger, fixed size ([`Layout`]): room for a nonce, a tag, a checksum, with random access and
/// without an index.
///
/// The template finds blocks, computes sizes, and reads and encodes anew what is only partly overwritten. The last block of a
/// file is as short as the file is. A whole block that is stored as zeros is a hole: it is zeros, and never reaches the hook. Blocks
/// of zeros that a program writes do reach it.
pub trait FileFormat: Send + Sync + fmt::Debug {
    /// Makes the header of a file that gets its first bytes, or gets bytes again after it was emptied: each time anew, with
    /// a new id of the file, for example. The buffer holds zeros.
    ///
    /// # Errors
    /// The change fails with it.
    fn new_header(&self, cx: &Cx<'_>, file: &Object<'_>, header: &mut [u8]) -> Result<()>;

    /// Is this header, of a file that is about to be read or written, one of this format? Its bytes may be anybody's.
    ///
    /// # Errors
    /// The operation fails with it: `EIO` or `EMEDIUMTYPE`, for example.
    fn check_header(&self, cx: &Cx<'_>, file: &Object<'_>, header: &[u8]) -> Result<()>;

    /// Encodes a block on its way down: `stored` is longer than `plain` by the layout's overhead.
    ///
    /// # Errors
    /// The write fails with it, and nothing of the block is written.
    fn encode_block(&self, cx: &Cx<'_>, at: &FormatBlock<'_>, plain: &[u8], stored: &mut [u8]) -> Result<()>;

    /// Decodes a block on its way up: `stored` is longer than `plain` by the layout's overhead.
    ///
    /// # Errors
    /// The read fails with it. `EIO` if these are not the bytes of this block.
    fn decode_block(&self, cx: &Cx<'_>, at: &FormatBlock<'_>, stored: &[u8], plain: &mut [u8]) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_go_both_ways() {
        for (header, plain, stored) in [(18, 4096, 4128), (0, 1, 1), (5, 10, 13), (4096, 1 << 20, (1 << 20) + 40)] {
            let layout = Layout::new(header, plain, stored).unwrap();
            let mut last = None;
            for size in (0..100).chain((1..20).flat_map(|n| [n * 4095, n * 4096, n * 4097])).chain([layout.max_size()])
            {
                let below = layout.stored_size(size);
                assert_eq!(layout.plain_size(below), size, "{layout:?}");
                assert!(below <= i64::MAX as u64);
                assert!(last.is_none_or(|(before, at)| size <= before || below > at));
                last = Some((size, below));
            }
            assert_eq!(layout.stored_size(0), 0);
        }
        let gocryptfs = Layout::new(18, 4096, 4128).unwrap();
        assert_eq!((gocryptfs.stored_size(1), gocryptfs.stored_size(4096)), (18 + 33, 18 + 4128));
        // What a crash leaves of a header or a block.
        assert_eq!([5, 18, 19, 50, 51, 18 + 4128 + 32].map(|below| gocryptfs.plain_size(below)), [0, 0, 0, 0, 1, 4096]);
    }

    #[test]
    fn layouts_that_are_not_known_are_refused() {
        for (header, plain, stored) in
            [(4097, 10, 20), (0, 0, 10), (0, 10, 9), (0, 10, 4117), (0, (1 << 20) + 1, 2 << 20)]
        {
            assert_eq!(Layout::new(header, plain, stored), None);
        }
    }
}
