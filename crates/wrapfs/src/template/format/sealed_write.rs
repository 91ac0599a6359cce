//! Changes of sealed files: the header is rewritten after the blocks.

use super::super::data::Scratch;
use super::super::guard::guard;
use super::super::journal::Recorded;
use super::coding::At;
use super::file::{FormatFile, Undo};
use super::protect::{Change, Headers, Stored};
use super::seal::add;
use crate::hooks::{Seal, Sealed};
use std::sync::Arc;
use vnode::{Cx, Errno, Result, Whence};

/// A seal and the header that contains it.
pub(super) type SealedHeader = (Arc<[u8]>, Seal);

/// The number of a block, and its stored bytes as they were read.
pub(super) type KnownBlock<'a> = (u64, &'a [u8]);

impl<'f> FormatFile<'f> {
    fn header_with(&self, cx: &Cx<'_>, sealed: &dyn Sealed, old: &[u8], seal: &Seal) -> Result<Arc<[u8]>> {
        let mut header = vec![0; old.len()];
        guard("write_seal", || sealed.write_seal(cx, &self.at_header(old), seal, &mut header))?;
        let fixed = ..sealed.fixed();
        if header.get(fixed) != old.get(fixed) {
            tracing::error!(hook = ?sealed, "write_seal changed what identifies the file");
            return Err(Errno::IO);
        }
        Ok(header.into())
    }

    /// Puts the seal of an empty file into a new header.
    pub(super) fn seal_new(&self, cx: &Cx<'_>, header: Arc<[u8]>) -> Result<Arc<[u8]>> {
        let Some(sealed) = self.sealed() else { return Ok(header) };
        self.header_with(cx, sealed, &header, &new_seal(sealed))
    }

    /// Keeps a new header, which was written.
    pub(super) fn keep_new(&self, header: &Arc<[u8]>) {
        match self.sealed() {
            Some(sealed) => self.keep_seal(Arc::clone(header), new_seal(sealed)),
            None => *self.inode.header.lock() = Some(Arc::clone(header)),
        }
    }

    /// Returns the present header and seal.
    fn present(&self, cx: &Cx<'_>) -> Result<SealedHeader> {
        let header = self.header(cx)?.ok_or(Errno::IO)?;
        let seal = self.seal(cx, &header)?.ok_or(Errno::IO)?;
        Ok((header, seal))
    }

    /// Returns the seal of the file without a block, whose stored bytes are `old`, and with another
    /// plain size. `None` in a format without seals.
    pub(super) fn seal_without(
        &self,
        cx: &Cx<'_>,
        (header, number): (&[u8], u64),
        old: &[u8],
        size: u64,
    ) -> Result<Option<Seal>> {
        let Some(sealed) = self.sealed() else { return Ok(None) };
        let Some(mut seal) = self.seal(cx, header)? else { return Err(Errno::IO) };
        if !old.is_empty() {
            self.verify(cx, header, number..number + 1)?;
            let weight = self.weigh(cx, sealed, (header, number), old)?;
            add(&mut seal, sealed.segments(), number, weight.wrapping_neg());
        }
        seal.size = size;
        Ok(Some(seal))
    }

    /// Returns the seal of the file without the blocks from `first` on, and with another plain
    /// size. `None` in a format without seals.
    pub(super) fn seal_up_to(&self, cx: &Cx<'_>, header: &[u8], first: u64, size: u64) -> Result<Option<Seal>> {
        let Some(mut seal) = self.seal(cx, header)? else { return Ok(None) };
        self.shrink(cx, header, &mut seal, first)?;
        seal.size = size;
        Ok(Some(seal))
    }

    /// As [`Self::seal_up_to`], for the blocks after block `number`, and also without that block,
    /// which is shortened. Its segment is checked: it may be the first block in it. What is taken
    /// out is the weight of `old`, the stored bytes that were decoded.
    pub(super) fn seal_cut(&self, cx: &Cx<'_>, at: At<'_>, old: &[u8], size: u64) -> Result<Option<Seal>> {
        let (header, number) = at;
        self.verify(cx, header, number..number + 1)?;
        let Some(mut seal) = self.seal_up_to(cx, header, number + 1, size)? else { return Ok(None) };
        if let Some(sealed) = self.sealed() {
            let weight = self.weigh(cx, sealed, at, old)?;
            add(&mut seal, sealed.segments(), number, weight.wrapping_neg());
        }
        Ok(Some(seal))
    }

    /// Prepares the header for a change that makes `next` the seal, and keeps the old one. Returns
    /// the old and the new header.
    pub(super) fn begin_sealed(
        &self,
        cx: &Cx<'_>,
        undo: &mut Undo<'f>,
        next: Option<Seal>,
    ) -> Result<Option<[Arc<[u8]>; 2]>> {
        let (Some(sealed), Some(next)) = (self.sealed(), next) else { return Ok(None) };
        let present = self.present(cx)?;
        let header = self.header_with(cx, sealed, &present.0, &next)?;
        let headers = [Arc::clone(&present.0), Arc::clone(&header)];
        undo.sealed.get_or_insert(present);
        undo.next = Some((header, next));
        Ok(Some(headers))
    }

    /// Adds the weight of a block that will be written to a seal.
    pub(super) fn seal_with(
        &self,
        cx: &Cx<'_>,
        at: (&[u8], u64),
        stored: &[u8],
        seal: Option<Seal>,
    ) -> Result<Option<Seal>> {
        let (Some(sealed), Some(mut seal)) = (self.sealed(), seal) else { return Ok(None) };
        let weight = self.weigh(cx, sealed, at, stored)?;
        add(&mut seal, sealed.segments(), at.1, weight);
        Ok(Some(seal))
    }

    /// Writes the header of a change under way, if it is sealed. A step that can't be taken back
    /// comes after it.
    pub(super) fn write_seal(&self, cx: &Cx<'_>, undo: &mut Undo<'f>) -> Result<()> {
        if let Some((header, seal)) = undo.next.take() {
            self.write_below(cx, &header, 0).1?;
            self.keep_seal(header, seal);
        }
        Ok(())
    }

    /// Ends a change of one or no block: writes the header, if it is sealed, and clears the record.
    pub(super) fn complete(&self, cx: &Cx<'_>, undo: &mut Undo<'f>) -> Result<()> {
        self.write_seal(cx, undo)?;
        self.finish(cx, &mut undo.recorded)
    }

    /// Records that only the size changes, to `new` plain bytes, unless the change under way ends
    /// with that size. Blocks of holes are added, or whole blocks cut off.
    pub(super) fn record_size(&self, cx: &Cx<'_>, undo: &mut Undo<'f>, new: u64) -> Result<()> {
        if self.sealed().is_none() || undo.next.is_some() || new == 0 {
            return Ok(());
        }
        let (header, seal) = self.present(cx)?;
        let (before, after) = (self.stored_with_header(seal.size), self.layout().stored_size(new));
        if before == after {
            return Ok(());
        }
        let mut next = self.seal_up_to(cx, &header, self.count(new), new)?;
        if let (Some(sealed), Some(next)) = (self.sealed(), &mut next) {
            add(next, sealed.segments(), self.count(new).saturating_sub(1), 0);
        }
        let Some([old, new]) = self.begin_sealed(cx, undo, next)? else { return Ok(()) };
        let change = Change { before, after, size: after, offset: self.layout().header(), len: 0 };
        let headers = Headers { old: &old, new: &new, kept: &new };
        undo.recorded = self.record(cx, &headers, &change, (&[], None), &mut self.buffer(0))?;
        Ok(())
    }

    /// Writes whole blocks from `first` on; only the last may be shorter, and either all or none of
    /// them have old contents. `known` are the stored bytes of blocks that the new ones were made
    /// from. After an error, the file is as before.
    pub(super) fn write_sealed(
        &self,
        cx: &Cx<'_>,
        sealed: &dyn Sealed,
        first: u64,
        stored: &mut Stored,
        known: &[KnownBlock<'_>],
    ) -> Result<()> {
        let (header, seal) = self.present(cx)?;
        let (layout, start, len) = (self.layout(), self.layout().start_of(first), stored.len());
        let now = self.stored_with_header(seal.size);
        let block = layout.stored() as usize;
        let count = (len.div_ceil(block)) as u64;
        let mut old = Scratch::take(now.saturating_sub(start).min(count * layout.stored()) as usize);
        if !old.is_empty() {
            self.verify(cx, &header, first..first + count)?;
            self.read_old(cx, &mut old, first, known)?;
        }
        let mut next = Seal { size: seal.size.max(layout.plain_size(start + len as u64)), ..seal.clone() };
        for (number, bytes) in (first..).zip(old.chunks(block)) {
            let weight = self.weigh(cx, sealed, (&header, number), bytes)?;
            add(&mut next, sealed.segments(), number, weight.wrapping_neg());
        }
        for (number, bytes) in (first..).zip(stored.chunks(block)) {
            add(&mut next, sealed.segments(), number, self.weigh(cx, sealed, (&header, number), bytes)?);
        }
        let new_header = self.header_with(cx, sealed, &header, &next)?;
        let change = Change::of_blocks(now, start, len, layout.stored());
        let kept = if change.redoes() { &new_header } else { &header };
        let headers = Headers { old: &header, new: &new_header, kept };
        let mut recorded = self.record(cx, &headers, &change, (&old, None), stored)?;
        let (len, blocks) = self.write_below(cx, stored, start);
        let written = blocks.and_then(|()| self.write_below(cx, &new_header, 0).1);
        // A write that can't be made durable is taken back, too: the caller takes back its size.
        match written.and_then(|()| self.finish(cx, &mut recorded)) {
            Ok(()) => {
                self.keep_seal(new_header, next);
                Ok(())
            }
            Err(errno) => {
                self.take_back(cx, (old.get(..len).unwrap_or(&old), start), &header, now, recorded.as_ref());
                Err(errno)
            }
        }
    }

    /// Reads stored blocks from `first` on that will be overwritten. Those that are known are not
    /// read again: the storage may answer with other ones, and what it answered first would be
    /// sealed.
    fn read_old(&self, cx: &Cx<'_>, old: &mut [u8], first: u64, known: &[KnownBlock<'_>]) -> Result<()> {
        let block = self.layout().stored() as usize;
        let is_known = known.iter().any(|&(number, bytes)| number == first && bytes.len() == old.len());
        if !is_known && self.read_below(cx, old, self.layout().start_of(first))? != old.len() {
            return Err(Errno::IO);
        }
        for (number, to) in (first..).zip(old.chunks_mut(block)) {
            if let Some((_, bytes)) = known.iter().find(|(known, _)| *known == number) {
                if to.len() != bytes.len() {
                    return Err(Errno::IO);
                }
                to.copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// Takes back a failed change of blocks: writes the old ones, sets the size, and writes the old
    /// header of a sealed file. Failures are logged. The record must not be cleared before.
    pub(super) fn take_back(
        &self,
        cx: &Cx<'_>,
        (old, start): (&[u8], u64),
        header: &[u8],
        size: u64,
        recorded: Option<&Recorded<'f>>,
    ) {
        let restored = self.write_below(cx, old, start).1;
        let restored = restored.and_then(|()| self.set_size_below(cx, size));
        let restored = restored.and_then(|()| self.write_below(cx, header, 0).1);
        if let Err(errno) = restored.and_then(|()| self.make_durable(cx, recorded)) {
            tracing::error!(%errno, inode = self.vnode.id(), "failed write not undone: blocks can be unreadable");
        }
    }

    /// Returns the first block from `first` on that is not a hole below, or `after`.
    fn next_data(&self, cx: &Cx<'_>, first: u64, after: u64) -> u64 {
        match self.file.seek(cx, self.layout().start_of(first), Whence::Data) {
            Ok(data) => (data.saturating_sub(self.layout().header()) / self.layout().stored()).clamp(first, after),
            Err(Errno::NXIO) => after,
            Err(_) => first,
        }
    }

    /// Stores holes in place of whole blocks of a sealed file. Does nothing in a format without
    /// seals, where this needs no record.
    pub(super) fn write_holes(&self, cx: &Cx<'_>, mut first: u64, after: u64) -> Result<()> {
        let Some(sealed) = self.sealed() else { return Ok(()) };
        while first < after {
            cx.check()?;
            let data = self.next_data(cx, first, after);
            if data > first {
                // These are holes, if the seal says so.
                let header = self.header(cx)?.ok_or(Errno::IO)?;
                self.verify(cx, &header, first..data)?;
                first = data;
                continue;
            }
            let stop = after.min(first + self.format.chunk());
            let mut stored = self.buffer(((stop - first) * self.layout().stored()) as usize);
            stored.fill(0);
            self.write_sealed(cx, sealed, first, &mut stored, &[])?;
            first = stop;
        }
        Ok(())
    }
}

fn new_seal(sealed: &dyn Sealed) -> Seal {
    Seal { size: 0, shift: sealed.shift(), sums: Vec::new() }
}
