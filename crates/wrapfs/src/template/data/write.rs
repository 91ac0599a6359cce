//! Writing (Wrapfs paper, section 3.2): partly overwritten blocks are read and decoded first, then
//! whole blocks are encoded and written.

use super::lower::{CodedFile, OldBlock, SIZE_MAX, blocking};
use super::patch::Undo;
use super::scratch::Scratch;
use vnode::{Cx, Errno, Result};

/// The first or last block of a write, if it is only partly overwritten.
struct Edge {
    number: u64,
    /// Its new plain content, at its new length.
    plain: Scratch,
    /// Its old encoded content.
    old: OldBlock,
}

/// What a write will do.
struct Plan<'a> {
    data: &'a [u8],
    offset: u64,
    end: u64,
    edges: [Option<Edge>; 2],
}

impl CodedFile<'_> {
    /// Writes as much as the layer below accepts. The caller holds the inode's lock exclusively.
    pub(crate) fn write(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        let room = SIZE_MAX.checked_sub(offset).filter(|&room| room > 0).ok_or(Errno::FBIG)?;
        let data = data.get(..usize::try_from(room).unwrap_or(usize::MAX)).unwrap_or(data);
        // Only read until the plan is complete: the request may be restarted on another thread.
        let plan = self.plan(cx, data, offset)?;
        let old_size = if self.begins_past_end(cx, &plan)? { Some(self.size(cx)?) } else { None };
        let cx = &blocking(cx);
        self.finish(cx, Undo::default(), |undo| {
            if let Some(size) = old_size {
                undo.size_was(size);
                self.lengthen_last(cx, undo, size, self.start_of(offset / self.coding.block()))?;
            }
            self.write_blocks(cx, &plan)
        })
    }

    /// Reads the partly overwritten blocks and merges the new data.
    fn plan<'a>(&self, cx: &Cx<'_>, data: &'a [u8], offset: u64) -> Result<Plan<'a>> {
        let block = self.coding.block();
        let end = offset + data.len() as u64;
        let (first, last) = (offset / block, (end - 1) / block);
        let edge = |number: u64| self.edge(cx, data, offset, number).map(Some);
        let first_is_part = !offset.is_multiple_of(block) || (first == last && !end.is_multiple_of(block));
        let head = if first_is_part { edge(first)? } else { None };
        let tail = if first != last && !end.is_multiple_of(block) { edge(last)? } else { None };
        Ok(Plan { data, offset, end, edges: [head, tail] })
    }

    fn edge(&self, cx: &Cx<'_>, data: &[u8], offset: u64, number: u64) -> Result<Edge> {
        let block = self.coding.block();
        let start = self.start_of(number);
        let end = offset + data.len() as u64;
        let mut plain = Scratch::take(block as usize);
        let old = self.plain_block(cx, number, &mut plain)?;
        let len = old.len.max((end - start).min(block) as usize);
        let (to, from) = (offset.saturating_sub(start) as usize, start.saturating_sub(offset) as usize);
        let source = data.get(from..).unwrap_or_default();
        plain.iter_mut().skip(to).zip(source).for_each(|(to, from)| *to = *from);
        plain.shorten(len);
        Ok(Edge { number, plain, old })
    }

    /// Whether there is a gap between the end of the file and the write.
    fn begins_past_end(&self, cx: &Cx<'_>, plan: &Plan<'_>) -> Result<bool> {
        let in_file = plan.edges.iter().flatten().any(|edge| edge.old.len > 0);
        if in_file || plan.offset == 0 {
            return Ok(false);
        }
        let start = plan.offset - plan.offset % self.coding.block();
        Ok(start > 0 && self.read_below(cx, &mut [0], start - 1)? == 0)
    }

    /// Encodes and writes some blocks at a time. Returns the number of bytes of the data that were
    /// written.
    fn write_blocks(&self, cx: &Cx<'_>, plan: &Plan<'_>) -> Result<usize> {
        let block = self.coding.block();
        let mut start = plan.offset - plan.offset % block;
        while start < plan.end {
            let stop = plan.end.min(start + self.coding.chunk() as u64).next_multiple_of(block);
            let written = self.encode_part(cx, plan, start, stop).and_then(|encoded| {
                let (len, why) = self.write_below(cx, &encoded, start);
                why.inspect_err(|&errno| start += self.repair_short_write(cx, plan, start, len, errno))
            });
            if let Err(errno) = written {
                let taken = start.saturating_sub(plan.offset) as usize;
                return if taken > 0 { Ok(taken) } else { Err(errno) };
            }
            start = stop;
        }
        Ok(plan.data.len())
    }

    /// Returns the encoded blocks of the write from `start` to `stop`.
    fn encode_part(&self, cx: &Cx<'_>, plan: &Plan<'_>, start: u64, stop: u64) -> Result<Scratch> {
        let block = self.coding.block() as usize;
        let mut encoded = Scratch::take((stop - start) as usize);
        let mut len = 0;
        for (number, out) in (start / block as u64..).zip(encoded.chunks_mut(block)) {
            if let Some(edge) = plan.edges.iter().flatten().find(|edge| edge.number == number) {
                let out = out.get_mut(..edge.plain.len()).ok_or(Errno::IO)?;
                self.encode(cx, number, &edge.plain, out)?;
                len += out.len();
            } else {
                let from = (self.start_of(number) - plan.offset) as usize;
                let plain = plan.data.get(from..from + block).ok_or(Errno::IO)?;
                self.encode(cx, number, plain, out)?;
                len += block;
            }
        }
        encoded.shorten(len);
        Ok(encoded)
    }

    /// Repairs a short write, of which the layer below accepted only `len` bytes from `start`. A
    /// partly written block is restored if its old content is known, or cut off if it was the last.
    /// Returns the number of bytes in whole blocks.
    fn repair_short_write(&self, cx: &Cx<'_>, plan: &Plan<'_>, start: u64, len: usize, errno: Errno) -> u64 {
        let block = self.coding.block();
        let part = len as u64 % block;
        let whole = len as u64 - part;
        if part == 0 {
            return whole;
        }
        let torn = start + whole;
        let old = plan.edges.iter().flatten().find(|edge| self.start_of(edge.number) == torn).map(|edge| &edge.old);
        let mended = match old.map_or(&[][..], OldBlock::bytes) {
            [] => match self.size(cx) {
                Ok(size) if size == torn + part => self.set_size_below(cx, torn),
                Ok(_) => Err(errno),
                Err(errno) => Err(errno),
            },
            bytes => {
                let restored = self.write_below(cx, bytes, torn).1;
                let end = torn + bytes.len() as u64;
                if part > bytes.len() as u64 { restored.and_then(|()| self.set_size_below(cx, end)) } else { restored }
            }
        };
        if let Err(errno) = mended {
            self.report_damaged(errno, torn);
        }
        whole
    }
}
