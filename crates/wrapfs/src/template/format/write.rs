use super::super::data::{Scratch, blocking};
use super::super::parallel;
use super::file::{FormatFile, Undo};
use super::protect::{Change, Headers, Stored};
use std::sync::Arc;
use vnode::{Cx, Errno, Result};

/// The first or last block of a write, if it is only partly overwritten.
struct Edge {
    number: u64,
    /// Its new plain content.
    plain: Scratch,
    /// Its old stored content; empty if there was none.
    old: Scratch,
}

/// What a write will do.
struct Plan<'a> {
    data: &'a [u8],
    offset: u64,
    header: Arc<[u8]>,
    edges: [Option<Edge>; 2],
    /// The last block of the file, if the write begins after it and it must be filled up.
    tail: Option<Edge>,
    /// The stored and plain size.
    stored: u64,
    size: u64,
    /// The stored size when the blocks are written.
    now: u64,
}

impl Plan<'_> {
    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }

    /// Returns the plain content of a block, whose size is `size` unless it is the last.
    fn block(&self, number: u64, size: u64) -> Result<&[u8]> {
        if let Some(edge) = self.edges.iter().flatten().find(|edge| edge.number == number) {
            return Ok(&edge.plain);
        }
        let from = (number * size).checked_sub(self.offset).ok_or(Errno::IO)? as usize;
        self.data.get(from..from + size as usize).ok_or(Errno::IO)
    }
}

impl<'f> FormatFile<'f> {
    /// Writes as much as the layer below accepts. The caller holds the inode's lock exclusively.
    pub(crate) fn write(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        let room = self.layout().max_size().checked_sub(offset).filter(|&room| room > 0).ok_or(Errno::FBIG)?;
        let data = data.get(..usize::try_from(room).unwrap_or(usize::MAX)).unwrap_or(data);
        self.settle()?;
        // Only read until the plan is complete: the request may be restarted on another thread.
        let mut plan = self.plan(cx, data, offset)?;
        let cx = &blocking(cx);
        let mut undo = Undo::new(plan.stored);
        let written = self.prepare(cx, &mut plan, &mut undo).and_then(|()| self.write_blocks(cx, &plan));
        if written.is_err() {
            self.undo(cx, undo);
        }
        written
    }

    fn plan<'a>(&self, cx: &Cx<'_>, data: &'a [u8], offset: u64) -> Result<Plan<'a>> {
        let stored = self.stored(cx)?;
        let (size, plain) = (self.layout().plain_size(stored), self.layout().plain());
        self.check_length(cx, stored)?;
        let header = if size == 0 { self.new_header(cx)? } else { self.header(cx)?.ok_or(Errno::IO)? };
        let end = offset + data.len() as u64;
        let (first, last) = (offset / plain, (end - 1) / plain);
        let mut plan = Plan { data, offset, header, edges: [None, None], tail: None, stored, size, now: stored };
        if size > 0 {
            self.verify(cx, &plan.header, first..last + 1)?;
        }
        let is_part = |number: u64| number * plain < offset || end < (number + 1) * plain;
        let head = if is_part(first) { Some(self.edge(cx, &plan, first)?) } else { None };
        let tail = if first != last && is_part(last) { Some(self.edge(cx, &plan, last)?) } else { None };
        plan.edges = [head, tail];
        if !size.is_multiple_of(plain) && size / plain < first {
            plan.tail = Some(self.tail(cx, &plan)?);
        }
        Ok(plan)
    }

    /// Returns a block with its part of the data merged.
    fn edge(&self, cx: &Cx<'_>, plan: &Plan<'_>, number: u64) -> Result<Edge> {
        let (size, start) = (self.layout().plain(), number * self.layout().plain());
        let old = if start < plan.size { self.old_block(cx, number)? } else { Scratch::take(0) };
        let mut plain = Scratch::take(size as usize);
        let len = self.decode_old(cx, (&plan.header, number), &old, &mut plain)?;
        let (from, to) = (plan.offset.max(start), plan.end().min(start + size));
        let source = plan.data.get((from - plan.offset) as usize..(to - plan.offset) as usize);
        let (from, to) = ((from - start) as usize, (to - start) as usize);
        plain.shorten(len.max(to));
        plain.get_mut(len..from).unwrap_or_default().fill(0);
        plain.get_mut(from..to).zip(source).ok_or(Errno::IO).map(|(to, from)| to.copy_from_slice(from))?;
        Ok(Edge { number, plain, old })
    }

    /// Returns the last block of the file, filled up with zeros.
    fn tail(&self, cx: &Cx<'_>, plan: &Plan<'_>) -> Result<Edge> {
        let number = plan.size / self.layout().plain();
        let old = self.old_block(cx, number)?;
        let mut plain = Scratch::take(self.layout().plain() as usize);
        let len = self.decode_old(cx, (&plan.header, number), &old, &mut plain)?;
        plain.get_mut(len..).unwrap_or_default().fill(0);
        Ok(Edge { number, plain, old })
    }

    /// Writes the header of an empty file, cuts off leftovers of a crash after the last block, and
    /// fills up that block.
    fn prepare(&self, cx: &Cx<'_>, plan: &mut Plan<'_>, undo: &mut Undo<'f>) -> Result<()> {
        if plan.size == 0 {
            self.write_header(cx, &plan.header, plan.stored)?;
            plan.now = self.layout().header();
            return Ok(());
        }
        let right = self.layout().stored_size(plan.size);
        if plan.stored > right {
            self.set_size_below(cx, right)?;
            undo.stored = right;
        }
        plan.now = right;
        if let Some(tail) = plan.tail.take() {
            let after = self.layout().start_of(tail.number + 1);
            let at = (&*plan.header, tail.number);
            let seal = self.seal_without(cx, at, &tail.old, self.layout().plain_size(after))?;
            self.put(cx, undo, at, (tail.old, &*tail.plain), (right, after), seal)?;
            self.complete(cx, undo)?;
            plan.now = after;
        }
        Ok(())
    }

    /// Encodes and writes some blocks at a time. Returns the number of bytes of the data that were
    /// written.
    fn write_blocks(&self, cx: &Cx<'_>, plan: &Plan<'_>) -> Result<usize> {
        let plain = self.layout().plain();
        let after = plan.end().div_ceil(plain);
        let (mut number, mut now, old) = (plan.offset / plain, plan.now, self.count(plan.size));
        let sealed = self.sealed();
        let known: Vec<_> = plan.edges.iter().flatten().map(|edge| (edge.number, &*edge.old)).collect();
        while number < after {
            let mut stop = after.min(number + self.format.chunk());
            if sealed.is_some() && number < old {
                stop = stop.min(old);
            }
            let written = self.encode_part(cx, plan, number, stop).and_then(|mut stored| {
                if let Some(sealed) = sealed {
                    return self.write_sealed(cx, sealed, number, &mut stored, &known);
                }
                let start = self.layout().start_of(number);
                let old = self.overwritten(cx, (start, stored.len()), now)?;
                let change = Change::of_blocks(now, start, stored.len(), self.layout().stored());
                let mut recorded =
                    self.record(cx, &Headers::unchanged(&plan.header), &change, (&old, None), &mut stored)?;
                let (len, why) = self.write_below(cx, &stored, start);
                if why.is_err() {
                    number += self.repair_short_write(cx, (number, len as u64), &old, now);
                }
                let ended = self.finish(cx, &mut recorded);
                if why.is_ok() && ended.is_err() {
                    // The caller takes back the size, so the blocks must fit it.
                    self.take_back(cx, (&old, start), &[], now, recorded.as_ref());
                }
                now = change.after;
                why.and(ended)
            });
            if let Err(errno) = written {
                let taken = (number * plain).saturating_sub(plan.offset) as usize;
                return if taken > 0 { Ok(taken) } else { Err(errno) };
            }
            number = stop;
        }
        Ok(plan.data.len())
    }

    /// Returns the stored blocks of the write from `first` to `stop`.
    fn encode_part(&self, cx: &Cx<'_>, plan: &Plan<'_>, first: u64, stop: u64) -> Result<Stored> {
        let (size, block) = (self.layout().plain(), self.layout().stored());
        let last = self.stored_len(plan.block(stop - 1, size)?.len());
        let mut stored = self.buffer(((stop - 1 - first) * block) as usize + last);
        let pieces = (first..).step_by(self.piece()).zip(stored.chunks_mut(self.piece() * block as usize));
        parallel::for_each(pieces, |(first, stored)| {
            let mut blocks = (first..).zip(stored.chunks_mut(block as usize));
            blocks.try_for_each(|(number, out)| self.encode(cx, (&plan.header, number), plan.block(number, size)?, out))
        })?;
        Ok(stored)
    }

    /// Returns the stored bytes that a write of `len` bytes at `start` overwrites in a file of
    /// `now` stored bytes.
    fn overwritten(&self, cx: &Cx<'_>, (start, len): (u64, usize), now: u64) -> Result<Scratch> {
        let mut old = Scratch::take(now.saturating_sub(start).min(len as u64) as usize);
        if self.read_below(cx, &mut old, start)? != old.len() {
            tracing::warn!(inode = self.vnode.id(), "the length of the file was changed below while it was in use");
            return Err(Errno::IO);
        }
        Ok(old)
    }

    /// Repairs a short write, of which the layer below accepted only `len` bytes from block `first`
    /// on: a partly written block gets back its bytes in `old`, which begins at block `first`. The
    /// layer below has space for them, since it accepted others. Returns the number of whole blocks
    /// written to the file, which had `now` stored bytes.
    fn repair_short_write(&self, cx: &Cx<'_>, (first, len): (u64, u64), old: &[u8], now: u64) -> u64 {
        let whole = len / self.layout().stored();
        let (torn, written) = ((whole * self.layout().stored()) as usize, len as usize);
        if torn == written {
            return whole;
        }
        let (start, end) = (self.layout().start_of(first + whole), self.layout().start_of(first) + len);
        let kept = old.get(torn..written.min(old.len())).unwrap_or_default();
        let mended = self.write_below(cx, kept, start).1;
        let mended = if end > now { mended.and(self.set_size_below(cx, now.max(start))) } else { mended };
        if let Err(errno) = mended {
            let (inode, plain) = (self.vnode.id(), self.layout().plain());
            let offset = (first + whole) * plain;
            tracing::error!(%errno, inode, "block of {plain} bytes at offset {offset} damaged by a partial write");
        }
        whole
    }
}
