//! fallocate(2).

use super::super::lower_io::touch;
use super::lower::{CodedFile, SIZE_MAX, blocking};
use super::patch::Undo;
use vnode::{Cx, Errno, Result};

const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 0x10;
const UNSHARE_RANGE: u32 = 0x40;

/// A range to zero, and the file size before and after.
#[derive(Clone, Copy)]
struct Zeroed {
    from: u64,
    to: u64,
    size: u64,
    new_size: u64,
}

impl CodedFile<'_> {
    /// Allocates, punches or zeroes a range. Ranges cannot be removed or inserted
    /// (`FALLOC_FL_COLLAPSE_RANGE`, `INSERT_RANGE`), because a block's encoding may depend on its
    /// position.
    pub(crate) fn fallocate(&self, cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let end = offset.checked_add(len).filter(|&end| end <= SIZE_MAX).ok_or(Errno::FBIG)?;
        let keeps_size = mode & KEEP_SIZE != 0;
        let size = self.size(cx)?;
        let new_size = if keeps_size { size } else { size.max(end) };
        let cx = &blocking(cx);
        match mode & !KEEP_SIZE {
            0 | UNSHARE_RANGE => self.finish(cx, Undo::default(), |undo| {
                self.lengthen_last(cx, undo, size, new_size)?;
                self.file.fallocate(cx, mode, offset, len)
            }),
            PUNCH_HOLE if keeps_size => self.zero(cx, mode, Zeroed { from: offset, to: end, size, new_size }),
            ZERO_RANGE => self.zero(cx, mode, Zeroed { from: offset, to: end, size, new_size }),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// Zeroes a range: whole blocks directly below, since zeros are stored as zeros; partial blocks
    /// are re-encoded.
    fn zero(&self, cx: &Cx<'_>, mode: u32, range: Zeroed) -> Result<()> {
        let Zeroed { from, to, size, new_size } = range;
        if from >= new_size {
            // Beyond the end there is nothing to encode, but the times of the file change.
            return self.file.fallocate(cx, mode, from, to - from);
        }
        let block = self.coding.block();
        let whole_from = from.next_multiple_of(block);
        let whole_to = if to >= new_size { to } else { to - to % block };
        self.finish(cx, Undo::default(), |undo| {
            if !from.is_multiple_of(block) {
                self.zero_in_block(cx, undo, from / block, range)?;
            }
            if !to.is_multiple_of(block) && to < new_size && (from.is_multiple_of(block) || to / block != from / block)
            {
                self.zero_in_block(cx, undo, to / block, range)?;
            }
            if size / block < from / block {
                self.lengthen_last(cx, undo, size, new_size)?;
            }
            if whole_from < whole_to {
                self.file.fallocate(cx, mode, whole_from, whole_to - whole_from)
            } else if new_size > size {
                self.set_size_below(cx, new_size)
            } else {
                // The rest may have been zeros before.
                touch(self.vnode, cx);
                Ok(())
            }
        })
    }

    /// Zeroes the part of the range within one block, and gives the block its new length.
    fn zero_in_block(&self, cx: &Cx<'_>, undo: &mut Undo, number: u64, range: Zeroed) -> Result<()> {
        let start = self.start_of(number);
        let len = self.coding.block().min(range.new_size - start);
        let (from, to) = (range.from.saturating_sub(start), len.min(range.to - start));
        self.rewrite(cx, undo, number, len, |plain| {
            if let Some(part) = plain.get_mut(from as usize..to as usize) {
                part.fill(0);
            }
        })
    }
}
