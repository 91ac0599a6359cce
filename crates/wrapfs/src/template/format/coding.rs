//! Encoding and decoding of blocks.

use super::super::data::{Scratch, is_zero};
use super::super::guard::guard;
use super::super::inverse;
use super::super::parallel;
use super::file::FormatFile;
use crate::hooks::FormatBlock;
use vnode::{Cx, Errno, Result};

/// Number of plain bytes that a thread processes at a time; at least a block.
const PIECE: usize = 16 << 10;

/// A block: its file's header and its number.
pub(super) type At<'a> = (&'a [u8], u64);

impl FormatFile<'_> {
    /// Returns the stored length of a block with `plain` bytes.
    pub(super) fn stored_len(&self, plain: usize) -> usize {
        plain + self.layout().overhead() as usize
    }

    /// Returns the number of plain bytes in a block of this stored length.
    fn plain_len(&self, stored: usize) -> usize {
        stored.saturating_sub(self.layout().overhead() as usize)
    }

    /// Decodes stored blocks, of which only the last may be short, and skips the first `skip` plain
    /// bytes. Returns the number of bytes produced: fewer than `out` takes if the blocks end.
    pub(super) fn decode_span(
        &self,
        cx: &Cx<'_>,
        (header, first): At<'_>,
        stored: &[u8],
        (skip, out): (usize, &mut [u8]),
    ) -> Result<usize> {
        let (block, plain) = (self.layout().stored() as usize, self.layout().plain() as usize);
        let (mut done, mut number, mut stored) = (0, first, stored);
        if skip > 0 {
            let (head, rest) = stored.split_at(block.min(stored.len()));
            done = self.decode_part(cx, (header, number), head, (skip, out))?;
            (number, stored) = (number + 1, rest);
        }
        let out = out.get_mut(done..).unwrap_or_default();
        let whole = (stored.len() / block).min(out.len() / plain);
        let (blocks, rest) = stored.split_at(whole * block);
        let (to, out) = out.split_at_mut(whole * plain);
        self.decode_whole(cx, (header, number), blocks, to)?;
        let tail = rest.get(..block.min(rest.len())).unwrap_or_default();
        Ok(done + to.len() + self.decode_part(cx, (header, number + whole as u64), tail, (0, out))?)
    }

    /// Returns the number of blocks that a thread processes at a time.
    pub(super) fn piece(&self) -> usize {
        (PIECE / self.layout().plain() as usize).max(1)
    }

    /// Decodes whole blocks.
    fn decode_whole(&self, cx: &Cx<'_>, (header, first): At<'_>, stored: &[u8], plain: &mut [u8]) -> Result<()> {
        let (block, size, piece) = (self.layout().stored() as usize, self.layout().plain() as usize, self.piece());
        let pieces = stored.chunks(piece * block).zip(plain.chunks_mut(piece * size));
        parallel::for_each((first..).step_by(piece).zip(pieces), |(first, (stored, plain))| {
            let mut blocks = (first..).zip(stored.chunks_exact(block).zip(plain.chunks_exact_mut(size)));
            blocks.try_for_each(|(number, (from, to))| self.decode(cx, (header, number), from, to))
        })
    }

    /// Decodes a block, and copies as much as `out` takes of it after the first `skip` bytes.
    fn decode_part(&self, cx: &Cx<'_>, at: At<'_>, stored: &[u8], (skip, out): (usize, &mut [u8])) -> Result<usize> {
        let len = self.plain_len(stored.len());
        if len <= skip || out.is_empty() {
            return Ok(0);
        }
        if let (0, Some(out)) = (skip, out.get_mut(..len)) {
            return self.decode(cx, at, stored, out).map(|()| len);
        }
        let mut plain = Scratch::take(len);
        self.decode(cx, at, stored, &mut plain)?;
        let part = plain.get(skip..).unwrap_or_default();
        let len = part.len().min(out.len());
        copy(part.get(..len), out.get_mut(..len))?;
        Ok(len)
    }

    /// Decodes one block, `plain` bytes of which are `stored`.
    pub(super) fn decode(&self, cx: &Cx<'_>, (header, number): At<'_>, stored: &[u8], plain: &mut [u8]) -> Result<()> {
        if stored.len() as u64 == self.layout().stored() && is_zero(stored) {
            plain.fill(0);
            return Ok(());
        }
        let at = FormatBlock { file: &self.object, header, number, opened: self.opened };
        guard("decode_block", || self.format.hook.decode_block(cx, &at, stored, plain))
    }

    /// Decodes a block into the start of a buffer for a whole one. Returns its length.
    pub(super) fn decode_old(&self, cx: &Cx<'_>, at: At<'_>, stored: &[u8], plain: &mut [u8]) -> Result<usize> {
        let len = self.plain_len(stored.len());
        match plain.get_mut(..len) {
            Some([]) => Ok(0),
            Some(plain) => self.decode(cx, at, stored, plain).map(|()| len),
            None => Err(Errno::IO),
        }
    }

    /// Encodes one block. All of `stored` is overwritten.
    pub(super) fn encode(&self, cx: &Cx<'_>, (header, number): At<'_>, plain: &[u8], stored: &mut [u8]) -> Result<()> {
        let at = FormatBlock { file: &self.object, header, number, opened: self.opened };
        guard("encode_block", || self.format.hook.encode_block(cx, &at, plain, stored))?;
        if stored.len() as u64 == self.layout().stored() && is_zero(stored) && !is_zero(plain) {
            // It would be read as a hole.
            tracing::error!(hook = ?self.format.hook, number, "encode_block returned all zeros");
            return Err(Errno::IO);
        }
        if !inverse::CHECKED {
            return Ok(());
        }
        let mut again = Scratch::take(plain.len());
        let decoded = self.decode(cx, (header, number), stored, &mut again);
        let input = || format!("block {number} of inode {}", self.vnode.id());
        inverse::check(["encode_block", "decode_block"], input, plain, decoded.map(|()| &*again))
    }
}

/// Copies bytes between buffers of the same length.
fn copy(from: Option<&[u8]>, to: Option<&mut [u8]>) -> Result<()> {
    let (from, to) = from.zip(to).filter(|(from, to)| from.len() == to.len()).ok_or(Errno::IO)?;
    to.copy_from_slice(from);
    Ok(())
}
