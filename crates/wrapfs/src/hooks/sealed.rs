use super::{FormatBlock, Object, State};
use core::fmt;
use std::ops::Range;
use vnode::{Cx, Errno, Result};

/// What binds the blocks of a file to each other and to its length.
///
/// The blocks are counted in segments of `2^shift`. A block's *weight* is a number that nobody can
/// choose or compute without a key, and that differs for each version of each block; the weight of
/// a hole is 0. So a block that was put back, or turned into a hole, changes the sum of its
/// segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seal {
    /// Plain size of the file in bytes.
    pub size: u64,
    /// Number of blocks in a segment, as a power of two.
    pub shift: u32,
    /// For each segment, the sum of the weights of its blocks, modulo 2^128. Missing sums are 0.
    pub sums: Vec<u128>,
}

/// The header of a stored file, and who uses it.
#[derive(Clone, Copy, Debug)]
pub struct FormatHeader<'a> {
    /// The file.
    pub file: &'a Object<'a>,
    /// The header, which [`super::FileFormat::check_header`] has checked.
    pub header: &'a [u8],
    /// What [`super::FileFormat::opened`] returned for the open file.
    pub opened: Option<&'a State>,
}

/// Keeps a [`Seal`] in the header of each file. The template computes and checks the sums, and
/// rewrites the header with each change of the file.
///
/// The header must lie in one page (4096 bytes), so that no kill tears it. It is best as long as a
/// page, so that all blocks of a file with one open segment can be checked at once.
pub trait Sealed: Send + Sync + fmt::Debug {
    /// Returns how many bytes at the start of the header identify the file: they do not change
    /// while it has data.
    fn fixed(&self) -> usize;

    /// Returns how many sums the header takes.
    fn segments(&self) -> usize;

    /// Returns [`Seal::shift`] of a new file.
    fn shift(&self) -> u32;

    /// Reads the seal from the header, which is untrusted.
    ///
    /// # Errors
    /// The operation fails with this errno: `EIO` if the header is forged.
    fn read_seal(&self, cx: &Cx<'_>, at: &FormatHeader<'_>) -> Result<Seal>;

    /// Writes the seal into a header. Its first [`Self::fixed`] bytes are those of `at.header`.
    ///
    /// # Errors
    /// The change fails with this errno.
    fn write_seal(&self, cx: &Cx<'_>, at: &FormatHeader<'_>, seal: &Seal, header: &mut [u8]) -> Result<()>;

    /// Returns the weight of a stored block, or of a hole.
    ///
    /// # Errors
    /// The operation fails with this errno.
    fn weigh(&self, cx: &Cx<'_>, at: &FormatBlock<'_>, stored: &[u8]) -> Result<u128>;

    /// The file is not what its seal says, in this range of plain bytes. An empty range at the end
    /// means that its length is wrong.
    ///
    /// # Errors
    /// The operation fails with this errno. `Ok`: the file is used as it is, which only a layer
    /// that is read-only may permit.
    fn broken(&self, cx: &Cx<'_>, file: &Object<'_>, bytes: Range<u64>) -> Result<()> {
        let _ = (cx, file, bytes);
        Err(Errno::IO)
    }
}
