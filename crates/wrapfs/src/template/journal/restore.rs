//! Restoring a file in the middle of a change.

use super::super::data::{Scratch, is_zero};
use super::super::lower_io::{read_full, set_size, write_full};
use super::kept::Kept;
use super::record::{Mark, PAGE, Record};
use std::ops::Range;
use vnode::{Cx, Errno, OpenFile, Result, Vnode, Whence};

/// A change that was interrupted.
pub(super) struct Interrupted {
    pub(super) record: Record,
    /// The header that the file gets, if it is sealed.
    pub(super) head: Part,
    pub(super) blocks: Part,
}

/// Bytes of a change, and what the file may contain in their place.
pub(super) struct Part {
    pub(super) offset: u64,
    /// The bytes to write; nothing for blocks that are cut off.
    pub(super) data: Vec<u8>,
    /// All segments, with their marks.
    pub(super) marked: Vec<(Range<u64>, Mark)>,
}

impl Part {
    /// Returns the data of a segment; `None` if there is none.
    fn data_of(&self, segment: &Range<u64>) -> Option<&[u8]> {
        let (start, end) = (segment.start.checked_sub(self.offset)?, segment.end.checked_sub(self.offset)?);
        self.data.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }

    /// Whether the data is what the marks say: all of it from before the change, or from after it.
    pub(super) fn is_whole(&self) -> bool {
        let is_of = |sum: fn(&Mark) -> u32| {
            self.marked
                .iter()
                .all(|(segment, mark)| self.data_of(segment).is_none_or(|data| crc32c::crc32c(data) == sum(mark)))
        };
        is_of(|mark| mark.old) || is_of(|mark| mark.new)
    }
}

/// The file of an interrupted change.
pub(super) struct Target<'a> {
    pub(super) vnode: &'a dyn Vnode,
    pub(super) file: &'a dyn OpenFile,
    /// The stored size.
    pub(super) size: u64,
    /// The stored size of a block.
    pub(super) block: u64,
}

/// What a file contains in the place of a part.
struct Present {
    /// Where the blocks begin that contain bytes that are neither old nor new.
    foreign: Vec<u64>,
    /// Whether the file ends inside a segment that the change was writing.
    ends_in_write: bool,
}

impl Target<'_> {
    /// Writes the data where the file contains bytes from before or after the change, and cuts off
    /// the blocks that the change added at the end. What else is there remains: another program was
    /// told that this is stored, and the program whose change was interrupted was not. Returns
    /// where the blocks of that begin, or the header.
    pub(super) fn restore(&self, cx: &Cx<'_>, change: &Interrupted) -> Result<Vec<u64>> {
        let Interrupted { record, head, blocks } = change;
        let Present { mut foreign, ends_in_write } = self.compare(cx, record, blocks)?;
        if record.head > 0 {
            foreign.extend(self.compare(cx, record, head)?.foreign);
            // The seal says what size the file has, and what all blocks are.
            if !record.explains(self.size) && foreign.is_empty() {
                foreign.push(record.offset);
            }
            if !foreign.is_empty() {
                return Ok(foreign);
            }
        }
        let step = usize::try_from(self.block).map_err(|_| Errno::IO)?;
        for (start, data) in (record.offset..).step_by(step).zip(blocks.data.chunks(step)) {
            if !foreign.contains(&start) {
                write_full(self.file, cx, data, start).1?;
            }
        }
        if record.head > 0 {
            set_size(self.vnode, self.file, cx, record.size)?;
            write_full(self.file, cx, &head.data, 0).1?;
        } else {
            self.cut_off(cx, record, &foreign, ends_in_write)?;
        }
        Ok(foreign)
    }

    /// Cuts off the blocks that the change added at the end, but nothing up to the end of those of
    /// another program.
    fn cut_off(&self, cx: &Cx<'_>, record: &Record, foreign: &[u64], ends_in_write: bool) -> Result<()> {
        if !record.explains(self.size) || self.size <= record.size {
            return Ok(());
        }
        // A write makes the file longer with its first byte, and normally a kill stops it at the
        // end of a page. An undo begins with the size that the failed change has left, or with the
        // end of the last old block if recovery has already cut off the new ones. Another size was
        // set by another program.
        let whole = record.offset.saturating_add(u64::from(record.total).next_multiple_of(self.block));
        let is_of_write = ends_in_write
            || self.size == record.after
            || self.size.is_multiple_of(PAGE)
            || (record.is_undo() && [record.before, whole].contains(&self.size));
        if !record.loses_writes() && (self.size <= record.offset || !is_of_write) {
            return Ok(());
        }
        let in_gap = if self.has_no_data(cx, record.size, record.offset)? { None } else { Some(record.offset) };
        let ends = foreign.iter().map(|start| start + self.block).chain(in_gap);
        let kept = ends.fold(record.size, u64::max);
        if kept < self.size { set_size(self.vnode, self.file, cx, kept) } else { Ok(()) }
    }

    /// Marks a change from a record without marks: what the file contains now counts as old.
    pub(super) fn mark(&self, cx: &Cx<'_>, change: &mut Interrupted) -> Result<()> {
        for part in [&mut change.head, &mut change.blocks] {
            let (present, offset) = (self.present(cx, part)?, part.offset);
            let sum = |bytes: &[u8], range: &Range<u64>| {
                let (start, end) = ((range.start - offset) as usize, (range.end - offset) as usize);
                crc32c::crc32c(bytes.get(start.min(bytes.len())..end.min(bytes.len())).unwrap_or_default())
            };
            for (range, mark) in &mut part.marked {
                *mark = Mark { old: sum(&present, range), new: sum(&part.data, range) };
            }
        }
        Ok(())
    }

    /// Returns what the file contains in the place of a part, up to its end.
    fn present(&self, cx: &Cx<'_>, part: &Part) -> Result<Scratch> {
        let end = part.marked.last().map_or(part.offset, |(segment, _)| segment.end);
        let mut present = Scratch::take((end - part.offset) as usize);
        let len = read_full(self.file, cx, &mut present, part.offset)?;
        present.shorten(len);
        Ok(present)
    }

    /// Whether the file contains all data of a change: a recovery that failed later has written it.
    pub(super) fn has_data(&self, cx: &Cx<'_>, change: &Interrupted) -> Result<bool> {
        for part in [&change.head, &change.blocks] {
            if self.present(cx, part)?.get(..part.data.len()) != Some(&part.data) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Compares what the file contains with the marks of a part.
    fn compare(&self, cx: &Cx<'_>, record: &Record, part: &Part) -> Result<Present> {
        let present = self.present(cx, part)?;
        let (len, mut found) = (present.len(), Present { foreign: Vec::new(), ends_in_write: false });
        // The last block that contains bytes that only the change has written.
        let mut of_write = None;
        for (segment, mark) in &part.marked {
            let range = (segment.start - part.offset) as usize..(segment.end - part.offset) as usize;
            let bytes = present.get(range.start.min(len)..range.end.min(len)).unwrap_or_default();
            let start = segment.start - (segment.start - part.offset) % self.block;
            let is_cut_off = segment.start >= record.before && bytes.len() < range.len();
            // Another program would have replaced the whole block.
            found.ends_in_write |= is_cut_off && !bytes.is_empty() && of_write == Some(start);
            let is_lost = segment.start >= record.before && record.loses_writes() && is_zero(bytes);
            if is_cut_off && (bytes.is_empty() || of_write == Some(start)) || is_lost {
                continue;
            }
            if !is_expected(bytes, range.len(), *mark) {
                found.foreign.push(start);
            } else if mark.new != mark.old && crc32c::crc32c(bytes) == mark.new {
                of_write = Some(start);
            }
        }
        found.foreign.dedup();
        Ok(found)
    }

    /// Returns the record that brings what a change has in the place of `foreign` blocks, of all
    /// blocks if that is `None`. `None` if the change has nothing there.
    pub(super) fn kept(&self, cx: &Cx<'_>, change: &Interrupted, foreign: Option<&[u64]>) -> Result<Option<Box<Kept>>> {
        let Interrupted { record, head, blocks } = change;
        let end = record.offset + blocks.data.len() as u64;
        let size = self.vnode.getattr(cx)?.size;
        let mut range = record.offset..end;
        if record.head == 0 {
            // A block behind the end is not torn: another program has cut it off.
            let step = usize::try_from(self.block).map_err(|_| Errno::IO)?;
            let is_missing = |start: &u64| foreign.is_none_or(|foreign| foreign.contains(start));
            let missing = || (record.offset..end.min(size)).step_by(step).filter(is_missing);
            let (Some(first), Some(last)) = (missing().min(), missing().max()) else { return Ok(None) };
            range = first..end.min(last + self.block);
        }
        let rest = (range.end - record.offset) % self.block;
        if record.head == 0 && rest > 0 && size > range.end {
            // The file has become longer, so this is no longer the last block.
            range.end -= rest;
        }
        if record.head == 0 && range.is_empty() {
            return Ok(None);
        }
        let data = blocks.data.get((range.start - record.offset) as usize..(range.end - record.offset) as usize);
        let data = data.unwrap_or_default().to_vec();
        let after = if record.head > 0 { record.size } else { size.max(range.end) };
        let record = Record {
            before: size,
            after,
            size: after,
            len: record.head + u32::try_from(data.len()).map_err(|_| Errno::IO)?,
            offset: range.start,
            total: u32::try_from(data.len()).map_err(|_| Errno::IO)?,
            time: None,
            ..*record
        };
        let unmarked = |segments: &mut dyn Iterator<Item = Range<u64>>| {
            segments.map(|segment| (segment, Mark { old: 0, new: 0 })).collect()
        };
        let mut kept = Interrupted {
            head: Part { offset: 0, data: head.data.clone(), marked: unmarked(&mut record.head_segments()) },
            blocks: Part { offset: range.start, data, marked: unmarked(&mut record.segments(self.block)) },
            record,
        };
        self.mark(cx, &mut kept)?;
        Ok(Some(Box::new(Kept(kept))))
    }

    /// Whether the file has nothing but zeros between two offsets.
    fn has_no_data(&self, cx: &Cx<'_>, mut from: u64, to: u64) -> Result<bool> {
        let mut bytes = Scratch::take(64 << 10);
        while from < to {
            from = match self.file.seek(cx, from, Whence::Data) {
                Ok(data) => data,
                Err(Errno::NXIO) => return Ok(true),
                Err(errno) => return Err(errno),
            };
            let most = bytes.len().min(usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX));
            let len = read_full(self.file, cx, bytes.get_mut(..most).unwrap_or_default(), from)?;
            if !bytes.get(..len).is_some_and(is_zero) {
                return Ok(false);
            }
            from += most as u64;
        }
        Ok(true)
    }
}

/// Whether the bytes of a segment of this length are its old or its new ones.
fn is_expected(bytes: &[u8], len: usize, mark: Mark) -> bool {
    let sum = crc32c::crc32c(bytes);
    bytes.len() == len && (sum == mark.old || sum == mark.new)
}
