//! Single blocks that are read, changed and written again, and how that is taken back when what they were changed for fails.

use super::lower::CodedFile;
use super::scratch::Scratch;
use super::zero::is_zero;
use vnode::{Cx, Errno, Result};

/// What the file below was before blocks of it were changed.
#[derive(Default)]
pub(crate) struct Undo {
    blocks: Vec<(u64, Vec<u8>)>,
    /// The size, if it has become larger.
    size: Option<u64>,
}

impl Undo {
    /// The file is about to become larger.
    pub(crate) const fn size_was(&mut self, size: u64) {
        if self.size.is_none() {
            self.size = Some(size);
        }
    }
}

impl CodedFile<'_> {
    /// Makes the block `len` bytes long (the last of the file, or all of a block), lets `change` change it, and writes it where that makes a
    /// difference. Where only zeros are added at the end of zeros, it is left to the caller to make the file larger.
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
        // Of a block that becomes shorter, the bytes past its new end are not touched here.
        let touched = old.bytes().get(..old.len.min(len)).unwrap_or_default();
        undo.blocks.push((start, touched.to_vec()));
        self.write_below(cx, &new, start).1
    }

    /// Makes everything as it was. What can't be is said in the log.
    pub(crate) fn undo(&self, cx: &Cx<'_>, undo: Undo) {
        for (start, bytes) in undo.blocks.into_iter().rev() {
            if let (_, Err(errno)) = self.write_below(cx, &bytes, start) {
                self.lost(errno, start);
            }
        }
        if let Some(size) = undo.size
            && let Err(errno) = self.set_size_below(cx, size)
        {
            tracing::error!(%errno, inode = self.vnode.id(), "a file that could not be written to is longer than it was");
        }
    }

    /// A block is neither what it was nor what it should have become.
    pub(crate) fn lost(&self, errno: Errno, start: u64) {
        let (inode, len) = (self.vnode.id(), self.coding.block());
        tracing::error!(%errno, inode, "{len} bytes at {start} are damaged: they could only be written in part");
    }

    /// The old last block of a file that is about to become larger than `size` is encoded anew, at the length that it will have.
    pub(crate) fn lengthen_last(&self, cx: &Cx<'_>, undo: &mut Undo, size: u64, new_size: u64) -> Result<()> {
        let block = self.coding.block();
        let number = size / block;
        if size.is_multiple_of(block) || new_size <= size {
            return Ok(());
        }
        self.rewrite(cx, undo, number, block.min(new_size - self.start_of(number)), |_| {})
    }

    /// Does what a change is finished with; if that fails, everything is as it was.
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
