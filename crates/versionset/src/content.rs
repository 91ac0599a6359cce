//! The bytes of a version, whatever stores them.

use crate::seal::Seal;
use core::fmt;
use core::ops::Range;
use std::sync::Arc;
use vnode::{Cx, Errno, OpenFile, Result, Whence};

/// The bytes of a version, or of the head.
pub trait Content: Send + Sync + fmt::Debug {
    /// Returns the size in bytes.
    fn size(&self) -> u64;

    /// Reads at `offset`. Returns fewer bytes than requested only at the end.
    ///
    /// # Errors
    /// `EIO` if the version is damaged; errors of the layer below.
    fn read_at(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize>;

    /// Returns the lower file that contains exactly these bytes at the same offsets, if there is
    /// one.
    fn plain(&self) -> Option<&Arc<dyn OpenFile>>;
}

/// A file that contains the bytes as they are: the head, or a full version.
#[derive(Debug)]
pub struct Plain {
    file: Arc<dyn OpenFile>,
    size: u64,
}

impl Plain {
    /// Returns the first `size` bytes of `file`.
    #[must_use]
    pub fn new(file: Arc<dyn OpenFile>, size: u64) -> Self {
        Self { file, size }
    }
}

impl Content for Plain {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        read_full(cx, &*self.file, clamp(out, offset, self.size), offset)
    }

    fn plain(&self) -> Option<&Arc<dyn OpenFile>> {
        Some(&self.file)
    }
}

/// A version without the bytes that it has in common with a newer one.
pub trait Partial: Send + Sync + fmt::Debug {
    /// Returns the size of the version in bytes.
    fn size(&self) -> u64;

    /// Returns the number of the oldest version that the missing bytes may come from: they come
    /// from the first version from this one on, finally from the head. 0: the next newer version.
    fn base(&self) -> u64;

    /// Returns a range such that all bytes outside of it are at the same offsets in the newer
    /// version.
    fn extent(&self) -> Range<u64>;

    /// Returns what is known of the head that the missing bytes may come from.
    fn seal(&self) -> Seal {
        Seal::Open
    }

    /// Reads at `offset` the bytes that the version contains, and passes the ranges that it lacks
    /// to `lacks`. `out` lies within the size of the version.
    ///
    /// # Errors
    /// `EIO` if the version is damaged; errors of the layer below.
    fn fill(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64, lacks: &mut dyn FnMut(Piece)) -> Result<()>;
}

/// Bytes of a read that a newer version contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where they belong in the buffer.
    pub at: usize,
    /// How many they are.
    pub len: usize,
    /// Their offset in the newer version.
    pub offset: u64,
}

impl Piece {
    /// Returns the part of the buffer that the piece is for.
    ///
    /// # Errors
    /// `EIO` if it is outside.
    pub fn part<'a>(&self, out: &'a mut [u8]) -> Result<&'a mut [u8]> {
        let end = self.at.checked_add(self.len).ok_or(Errno::IO)?;
        out.get_mut(self.at..end).ok_or(Errno::IO)
    }

    /// Reads the piece from `newer`.
    ///
    /// # Errors
    /// `EIO` if `newer` is too short: the version was made from another one. Those of `newer`.
    pub fn read(&self, cx: &Cx<'_>, newer: &dyn Content, out: &mut [u8]) -> Result<()> {
        if newer.read_at(cx, self.part(out)?, self.offset)? < self.len { Err(Errno::IO) } else { Ok(()) }
    }
}

/// A partial version over the newer one that has the bytes it lacks.
#[derive(Debug)]
pub struct Over<P> {
    partial: P,
    newer: Arc<dyn Content>,
}

impl<P: Partial> Over<P> {
    /// Completes `partial` with the bytes of `newer`.
    #[must_use]
    pub fn new(partial: P, newer: Arc<dyn Content>) -> Self {
        Self { partial, newer }
    }
}

impl<P: Partial> Content for Over<P> {
    fn size(&self) -> u64 {
        self.partial.size()
    }

    fn read_at(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        let out = clamp(out, offset, self.size());
        let mut pieces = Vec::new();
        self.partial.fill(cx, out, offset, &mut |piece| pieces.push(piece))?;
        for piece in pieces {
            piece.read(cx, &*self.newer, out)?;
        }
        Ok(out.len())
    }

    fn plain(&self) -> Option<&Arc<dyn OpenFile>> {
        None
    }
}

/// Returns the part of `out` that lies before `size` when `out` is read at `offset`.
pub fn clamp(out: &mut [u8], offset: u64, size: u64) -> &mut [u8] {
    let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
    let len = out.len().min(left);
    out.get_mut(..len).unwrap_or_default()
}

/// Reads from a lower file until `out` is full or the file ends.
///
/// # Errors
/// Those of the lower file.
pub fn read_full(cx: &Cx<'_>, file: &dyn OpenFile, out: &mut [u8], offset: u64) -> Result<usize> {
    let mut done = 0;
    while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read(cx, rest, offset + done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

/// Whether all bytes are zero.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|part| ZEROS.starts_with(part))
}

/// Returns where the first data of a range of a lower file begins; the end of the range if it is a
/// hole, or lies behind the end of the file.
///
/// # Errors
/// Those of the lower file, but none if it does not know its holes: then all of it is data.
pub fn next_data(cx: &Cx<'_>, file: &dyn OpenFile, range: Range<u64>) -> Result<u64> {
    match file.seek(cx, range.start, Whence::Data) {
        Err(Errno::NXIO) => Ok(range.end),
        found => found_in(&range, range.start, found),
    }
}

/// Returns where the first hole of a range of a lower file begins; the end of the range if there is
/// none.
///
/// # Errors
/// As [`next_data`].
pub fn next_hole(cx: &Cx<'_>, file: &dyn OpenFile, range: Range<u64>) -> Result<u64> {
    match file.seek(cx, range.start, Whence::Hole) {
        Err(Errno::NXIO) => Ok(range.start),
        found => found_in(&range, range.end, found),
    }
}

fn found_in(range: &Range<u64>, unknown: u64, found: Result<u64>) -> Result<u64> {
    match found {
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY) => Ok(unknown),
        found => Ok(found?.clamp(range.start, range.end)),
    }
}

/// Writes all of `data` to a lower file.
///
/// # Errors
/// Those of the lower file; `EIO` if it accepts nothing.
pub fn write_full(cx: &Cx<'_>, file: &dyn OpenFile, data: &[u8], offset: u64) -> Result<()> {
    let mut done = 0;
    while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
        match file.write(cx, rest, offset + done as u64)? {
            0 => return Err(Errno::IO),
            written => done += written,
        }
    }
    Ok(())
}

/// Reads exactly `len` bytes of a version file.
///
/// # Errors
/// `EIO` if the file is too short, `ENOMEM`; errors of the layer below.
pub(crate) fn read_exact(cx: &Cx<'_>, file: &dyn OpenFile, offset: u64, len: u64) -> Result<Vec<u8>> {
    let len = usize::try_from(len).map_err(|_| Errno::NOMEM)?;
    let mut bytes = Vec::new();
    // The length may come from a hostile file.
    bytes.try_reserve_exact(len).map_err(|_| Errno::NOMEM)?;
    bytes.resize(len, 0);
    if read_full(cx, file, &mut bytes, offset)? < len {
        return Err(Errno::IO);
    }
    Ok(bytes)
}

/// Reads exactly as many bytes of a content as fit into `out`.
///
/// # Errors
/// `EIO` if the content is too short; those of the content.
pub(crate) fn fill_from(cx: &Cx<'_>, content: &dyn Content, out: &mut [u8], offset: u64) -> Result<()> {
    if content.read_at(cx, out, offset)? < out.len() { Err(Errno::IO) } else { Ok(()) }
}

/// Passes `len` bytes of a content from `offset` on to `take`, as much at a time as fits into
/// `buffer`.
///
/// # Errors
/// `EIO` if the content is too short; those of the content and of `take`.
pub(crate) fn for_each_part(
    cx: &Cx<'_>,
    content: &dyn Content,
    offset: u64,
    len: u64,
    buffer: &mut [u8],
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut at = offset;
    while at < offset + len {
        let part = clamp(buffer, at, offset + len);
        fill_from(cx, content, part, at)?;
        take(part)?;
        at += part.len() as u64;
    }
    Ok(())
}
