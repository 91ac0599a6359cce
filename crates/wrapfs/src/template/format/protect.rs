//! Changes of stored blocks that leave none of them torn: see [`super::super::journal`].

use super::super::data::Scratch;
use super::super::journal::{PREFIX, Record, Recorded, Span, marks_of, most_marks};
use super::file::FormatFile;
use std::ops::{Deref, DerefMut};
use vnode::{Cx, Errno, Result};

/// Bytes to be stored, with room for a record of the journal and its marks before them.
pub(super) struct Stored {
    buffer: Scratch,
    room: usize,
}

impl Deref for Stored {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.get(self.room..).unwrap_or_default()
    }
}

impl DerefMut for Stored {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer.get_mut(self.room..).unwrap_or_default()
    }
}

/// A change of the file below that consists of several steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    /// The stored size before and after it.
    pub(super) before: u64,
    pub(super) after: u64,
    /// The stored size to set if it is interrupted.
    pub(super) size: u64,
    /// Offset and length of the bytes to write if it is interrupted: all blocks that had other
    /// contents before.
    pub(super) offset: u64,
    pub(super) len: usize,
}

/// The header of a file whose blocks change. They are the same if the file is not sealed.
#[derive(Clone, Copy)]
pub(super) struct Headers<'a> {
    /// Before and after the change.
    pub(super) old: &'a [u8],
    pub(super) new: &'a [u8],
    /// The one to write if the change is interrupted.
    pub(super) kept: &'a [u8],
}

impl<'a> Headers<'a> {
    /// Returns those of a change that keeps the header.
    pub(super) const fn unchanged(header: &'a [u8]) -> Self {
        Self { old: header, new: header, kept: header }
    }
}

impl Change {
    /// Returns the change that writes one block of `len` bytes over `old` ones, and then sets the
    /// size to `after`. One that shortens the file is taken back if it is interrupted: the bytes
    /// that it cuts off may have been changed since by another program.
    pub(super) const fn of_block(before: u64, after: u64, offset: u64, (old, len): (usize, usize)) -> Self {
        if after < before {
            Self { before, after, size: before, offset, len: old }
        } else if offset < before {
            Self { before, after, size: after, offset, len }
        } else {
            Self { before, after, size: before, offset, len: 0 }
        }
    }

    /// Returns the change that writes `len` bytes of whole blocks of `block` bytes; only the last
    /// may be shorter.
    pub(super) fn of_blocks(before: u64, offset: u64, len: usize, block: u64) -> Self {
        let end = offset + len as u64;
        let after = end.max(before);
        // Without the blocks that begin at the end of the file or later.
        let old = before.saturating_sub(offset).next_multiple_of(block).min(len as u64);
        let size = if old > 0 { before.max(offset + old) } else { before };
        Self { before, after, size, offset, len: old as usize }
    }

    /// Whether recovery makes the whole change, and does not take it back.
    pub(super) const fn redoes(&self) -> bool {
        self.len > 0 && self.before <= self.after
    }
}

impl<'f> FormatFile<'f> {
    /// Returns a buffer with arbitrary contents for this many stored bytes.
    pub(super) fn buffer(&self, len: usize) -> Stored {
        let head = self.format.head();
        let room = match self.format.journal {
            Some(_) => PREFIX + most_marks(head as u64, len as u64, self.layout().stored()) + head,
            None => 0,
        };
        Stored { buffer: Scratch::take(room + len), room }
    }

    /// Records a change before it is made, if the layer has a journal. `stored` begins with the
    /// bytes to write if the change is interrupted. The change replaces the stored bytes `old` by
    /// `new`, or by all of `stored` if that is `None`.
    pub(super) fn record(
        &self,
        cx: &Cx<'_>,
        headers: &Headers<'_>,
        change: &Change,
        (old, new): (&[u8], Option<&[u8]>),
        stored: &mut Stored,
    ) -> Result<Option<Recorded<'f>>> {
        let Some(journal) = &self.format.journal else { return Ok(None) };
        let Change { before, after, size, offset, len } = *change;
        let head = self.format.head();
        if head > 0 {
            // The record of an earlier step of the same operation would bring its header back.
            self.settle()?;
        }
        let (segment, block) = (journal.segment(), self.layout().stored());
        let blocks = Span { offset, block, segment, old, new: new.unwrap_or(stored) };
        let of_head = Span { offset: 0, block: head.max(1) as u64, segment, old: headers.old, new: headers.new };
        let marks = marks_of((head > 0).then_some(&of_head), &blocks);
        let record = Record {
            number: self.vnode.id(),
            generation: self.vnode.generation(),
            header: journal.id_of(headers.kept),
            before,
            after,
            size,
            len: u32::try_from(head + len).unwrap_or(u32::MAX),
            head: u32::try_from(head).unwrap_or(u32::MAX),
            offset,
            total: u32::try_from(blocks.len()).unwrap_or(u32::MAX),
            segment: segment as u32,
            time: None,
        };
        // The record lies directly before its data.
        let room = stored.room.checked_sub(PREFIX + marks.len() + head).ok_or(Errno::IO)?;
        let buffer = stored.buffer.get_mut(room..).unwrap_or_default();
        journal.record(cx, &record, (&marks, headers.kept.get(..head).ok_or(Errno::IO)?), buffer).map(Some)
    }

    /// Ends a change, whether or not it has succeeded: the file has no torn blocks now. After an
    /// error, the caller takes the change back, before it drops the record if that is still there.
    pub(super) fn finish(&self, cx: &Cx<'_>, recorded: &mut Option<Recorded<'f>>) -> Result<()> {
        self.make_durable(cx, recorded.as_ref())?;
        recorded.take().map_or(Ok(()), |mut recorded| recorded.clear())
    }

    /// Makes a recorded change durable, if the journal is.
    pub(super) fn make_durable(&self, cx: &Cx<'_>, recorded: Option<&Recorded<'f>>) -> Result<()> {
        match (&self.format.journal, recorded) {
            (Some(journal), Some(_)) if journal.is_durable() => self.file.fsync(cx, true),
            _ => Ok(()),
        }
    }

    /// Fails if the file must not be changed, because a record about it cannot be cleared.
    pub(super) fn settle(&self) -> Result<()> {
        self.format.journal.as_ref().map_or(Ok(()), |journal| journal.settle(self.vnode.id()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size to set, and the number of bytes to write.
    fn of(before: u64, offset: u64, len: usize) -> (u64, usize) {
        let change = Change::of_blocks(before, offset, len, 10);
        assert_eq!((change.before, change.after), (before, before.max(offset + len as u64)));
        (change.size, change.len)
    }

    #[test]
    fn only_blocks_with_old_contents_are_recorded() {
        // Within the file, its last block shorter.
        assert_eq!(of(35, 0, 20), (35, 20));
        assert_eq!(of(35, 20, 15), (35, 15));
        // The last block becomes longer.
        assert_eq!(of(35, 20, 18), (38, 18));
        assert_eq!(of(35, 20, 20), (40, 20));
        assert_eq!(of(35, 20, 34), (40, 20));
        assert_eq!(of(35, 30, 8), (38, 8));
        // New blocks only.
        assert_eq!(of(40, 40, 15), (40, 0));
        assert_eq!(of(40, 90, 15), (40, 0));
        assert_eq!(of(40, 30, 25), (40, 10));
    }
}
