//! Read-modify-write of single blocks, with undo if the operation fails later.

use super::lower::CodedFile;
use super::scratch::Scratch;
use super::zero::is_zero;
use vnode::{Cx, Errno, Result};

/// The state of the file below before blocks were changed.
#[derive(Default)]
pub(crate) struct Undo {
    blocks: Vec<(u64, Vec<u8>)>,
    /// The old size, if the file has grown.
    size: Option<u64>,
}

impl Undo {
    /// Records the size of a file that is about to grow.
    pub(crate) const fn size_was(&mut self, size: u64) {
        if self.size.is_none() {
            self.size = Some(size);
        }
    }
}

impl CodedFile<'_> {
    /// Resizes a block to `len` bytes (its length in the file after the operation), applies
    /// `change`, and writes it if it differs. If only zeros are appended to zeros, nothing is
    /// written and the caller must extend the file.
    pub(crate) fn rewrite(
        &self,
        cx: &Cx<'_>,
        undo: &mut Undo,
        number: u64,
        len: u64,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let len = usize::try_from(len).map_err(|_| Errno::IO)?;
        let mut plain = Scratch::take(len);
        let old = self.plain_block(cx, number, &mut plain)?;
        change(&mut plain);
        let mut new = Scratch::take(len);
        self.encode(cx, number, &plain, &mut new)?;
        let (same, added) = new.split_at(old.len.min(len));
        if old.bytes().starts_with(same) && (added.is_empty() || (is_zero(same) && is_zero(added))) {
            return Ok(());
        }
        let start = self.start_of(number);
        if old.len < len {
            undo.size_was(start + old.len as u64);
        }
        // When a block becomes shorter, the bytes beyond its new end are not touched here.
        let touched = old.bytes().get(..old.len.min(len)).unwrap_or_default();
        undo.blocks.push((start, touched.to_vec()));
        self.write_below(cx, &new, start).1
    }

    /// Restores the old state. Failures are logged.
    pub(crate) fn undo(&self, cx: &Cx<'_>, undo: Undo) {
        for (start, bytes) in undo.blocks.into_iter().rev() {
            if let (_, Err(errno)) = self.write_below(cx, &bytes, start) {
                self.report_damaged(errno, start);
            }
        }
        if let Some(size) = undo.size
            && let Err(errno) = self.set_size_below(cx, size)
        {
            tracing::error!(%errno, inode = self.vnode.id(), "file not truncated to its old size after a failed write");
        }
    }

    /// Reports a block that has neither its old nor its new content.
    pub(crate) fn report_damaged(&self, errno: Errno, start: u64) {
        let (inode, len) = (self.vnode.id(), self.coding.block());
        tracing::error!(%errno, inode, "{len} bytes at offset {start} damaged by a partial write");
    }

    /// Re-encodes the last block at its new length, before a file of `size` bytes grows to
    /// `new_size`.
    pub(crate) fn lengthen_last(&self, cx: &Cx<'_>, undo: &mut Undo, size: u64, new_size: u64) -> Result<()> {
        let block = self.coding.block();
        let number = size / block;
        if size.is_multiple_of(block) || new_size <= size {
            return Ok(());
        }
        self.rewrite(cx, undo, number, block.min(new_size - self.start_of(number)), |_| {})
    }

    /// Runs the last step of a change, and undoes the change if that fails.
    pub(crate) fn finish<T>(
        &self,
        cx: &Cx<'_>,
        mut undo: Undo,
        change: impl FnOnce(&mut Undo) -> Result<T>,
    ) -> Result<T> {
        let done = change(&mut undo);
        if done.is_err() {
            self.undo(cx, undo);
        }
        done
    }
}
