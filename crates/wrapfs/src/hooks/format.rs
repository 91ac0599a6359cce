use super::{MAX_BLOCK, Object, Sealed, State};
use core::fmt;
use vnode::{Cx, OpenFlags, Result};

/// Maximum header size in bytes.
pub const MAX_HEADER: u32 = 4096;

/// How a file is stored: a header, followed by blocks. Each stored block is a fixed number of bytes
/// longer than its plain data.
///
/// An empty plain file is stored as an empty file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    header: u64,
    plain: u64,
    stored: u64,
}

impl Layout {
    /// Returns a layout with a header of `header` bytes (0 to [`MAX_HEADER`]) and blocks of `plain`
    /// bytes (1 to [`MAX_BLOCK`]) stored in `stored` bytes. `stored` must be at least `plain`, and
    /// at most twice `plain` plus 4096. Returns `None` for invalid sizes.
    #[must_use]
    pub const fn new(header: u32, plain: u32, stored: u32) -> Option<Self> {
        let known = header <= MAX_HEADER && plain >= 1 && plain as usize <= MAX_BLOCK;
        if known && stored >= plain && stored as u64 <= 2 * plain as u64 + 4096 {
            Some(Self { header: header as u64, plain: plain as u64, stored: stored as u64 })
        } else {
            None
        }
    }

    /// Returns the header size in bytes.
    #[must_use]
    pub const fn header(&self) -> u64 {
        self.header
    }

    /// Returns the number of plain bytes in a block.
    #[must_use]
    pub const fn plain(&self) -> u64 {
        self.plain
    }

    /// Returns the number of stored bytes in a whole block.
    #[must_use]
    pub const fn stored(&self) -> u64 {
        self.stored
    }

    /// Returns the number of bytes by which each stored block exceeds its plain data.
    #[must_use]
    pub const fn overhead(&self) -> u64 {
        self.stored - self.plain
    }

    /// Returns the plain size of a stored file of this size. A final block no longer than the
    /// overhead, which a crash may leave, holds no data.
    #[must_use]
    pub const fn plain_size(&self, stored: u64) -> u64 {
        let body = stored.saturating_sub(self.header);
        body / self.stored * self.plain + (body % self.stored).saturating_sub(self.overhead())
    }

    /// Returns the stored size of a file of this plain size. Saturates above [`Layout::max_size`].
    #[must_use]
    pub const fn stored_size(&self, plain: u64) -> u64 {
        if plain == 0 {
            return 0;
        }
        let rest = plain % self.plain;
        let last = if rest == 0 { 0 } else { rest + self.overhead() };
        (plain / self.plain).saturating_mul(self.stored).saturating_add(self.header + last)
    }

    /// Returns the maximum plain size in bytes.
    #[must_use]
    pub const fn max_size(&self) -> u64 {
        self.plain_size(i64::MAX as u64)
    }

    /// Returns the offset of a block in the stored file. Saturates.
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
    /// The file's header, which has been checked.
    pub header: &'a [u8],
    /// Block number, counted from the start of the file.
    pub number: u64,
    /// What [`FileFormat::opened`] returned for the open file that the block is read or written
    /// through.
    pub opened: Option<&'a State>,
}

/// Stores data in blocks of a larger, fixed size ([`Layout`]). This leaves room for a nonce, a tag
/// or a checksum per block, and allows random access without an index.
///
/// The template locates blocks, computes sizes, and reads and re-encodes blocks that are partly
/// overwritten. The last block of a file is shorter if the file ends within it. A whole stored
/// block of zeros is a hole: it reads as zeros and never reaches the hook. Blocks of zeros that a
/// program writes do reach it.
///
/// The blocks of one request may be encoded or decoded on several threads at once.
pub trait FileFormat: Send + Sync + fmt::Debug {
    /// The file is being opened or created, or is truncated without an open file. The result
    /// belongs to that open file, and every block that is read or written through it gets it. It is
    /// dropped when the open file is closed; a memory mapping keeps it open.
    ///
    /// # Errors
    /// The open or the truncation fails with this errno.
    fn opened(&self, cx: &Cx<'_>, file: &Object<'_>, flags: OpenFlags) -> Result<Option<State>> {
        let _ = (cx, file, flags);
        Ok(None)
    }

    /// The data of an open file will be used: read, written, allocated, searched for holes, or
    /// changed in size. Called also if no block is encoded or decoded then. `opened` is what
    /// [`Self::opened`] returned.
    ///
    /// # Errors
    /// The operation fails with this errno, and nothing is changed.
    fn used(&self, cx: &Cx<'_>, opened: Option<&State>) -> Result<()> {
        let _ = (cx, opened);
        Ok(())
    }

    /// Returns the hooks that bind the blocks of a file to each other, if the format has them.
    fn sealed(&self) -> Option<&dyn Sealed> {
        None
    }

    /// Creates the header of a file that receives its first data, or receives data again after
    /// truncation to zero. Each call should create a new header, for example with a new file ID.
    /// The buffer is zeroed.
    ///
    /// # Errors
    /// The change fails with this errno.
    fn new_header(&self, cx: &Cx<'_>, file: &Object<'_>, header: &mut [u8]) -> Result<()>;

    /// Checks the header of a file before it is read or written. The bytes are untrusted.
    ///
    /// # Errors
    /// The operation fails with this errno, for example `EIO` or `EMEDIUMTYPE`.
    fn check_header(&self, cx: &Cx<'_>, file: &Object<'_>, header: &[u8]) -> Result<()>;

    /// Encodes a block to be written. `stored` is longer than `plain` by the layout's overhead. The
    /// hook must overwrite all of it: it may contain bytes of other blocks.
    ///
    /// # Errors
    /// The write fails with this errno, and nothing of the block is written.
    fn encode_block(&self, cx: &Cx<'_>, at: &FormatBlock<'_>, plain: &[u8], stored: &mut [u8]) -> Result<()>;

    /// Decodes a block that was read. `stored` is longer than `plain` by the layout's overhead.
    ///
    /// # Errors
    /// The read fails with this errno. `EIO` if these are not the bytes of this block.
    fn decode_block(&self, cx: &Cx<'_>, at: &FormatBlock<'_>, stored: &[u8], plain: &mut [u8]) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_and_stored_sizes_are_inverse() {
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
        // A partly written header or block, as a crash leaves it.
        assert_eq!([5, 18, 19, 50, 51, 18 + 4128 + 32].map(|below| gocryptfs.plain_size(below)), [0, 0, 0, 0, 1, 4096]);
    }

    #[test]
    fn invalid_layouts_are_refused() {
        for (header, plain, stored) in
            [(4097, 10, 20), (0, 0, 10), (0, 10, 9), (0, 10, 4117), (0, (1 << 20) + 1, 2 << 20)]
        {
            assert_eq!(Layout::new(header, plain, stored), None);
        }
    }
}
