use super::super::data::Scratch;
use super::super::guard::guard;
use super::super::journal::{Journal, Recorded};
use super::super::lower_io::{read_full, set_size, write_full};
use super::coding::At;
use super::protect::{Change, Headers};
use super::sealed_write::SealedHeader;
use super::{FormatInode, Formatted};
use crate::hooks::{Layout, Object, Seal, State};
use std::sync::Arc;
use vnode::{Cx, Errno, OpenFile, Result, Vnode};

/// A file stored in a format, open for reading below, and for writing if it is written.
pub(crate) struct FormatFile<'a> {
    pub(crate) format: &'a Formatted,
    pub(crate) inode: &'a FormatInode,
    pub(crate) object: Object<'a>,
    pub(crate) vnode: &'a dyn Vnode,
    pub(crate) file: &'a dyn OpenFile,
    /// What the hook returned when the file was opened.
    pub(crate) opened: Option<&'a State>,
}

/// The state of the file below before it was changed.
pub(super) struct Undo<'a> {
    /// The stored size.
    pub(super) stored: u64,
    /// Overwritten bytes and their offsets.
    pub(super) blocks: Vec<(u64, Scratch)>,
    /// The record of the change under way.
    pub(super) recorded: Option<Recorded<'a>>,
    /// The header and the seal before the first change, if the file is sealed.
    pub(super) sealed: Option<SealedHeader>,
    /// Those that the change under way ends with.
    pub(super) next: Option<SealedHeader>,
}

impl Undo<'_> {
    pub(super) const fn new(stored: u64) -> Self {
        Self { stored, blocks: Vec::new(), recorded: None, sealed: None, next: None }
    }
}

impl<'f> FormatFile<'f> {
    pub(super) fn layout(&self) -> Layout {
        self.format.layout
    }

    /// Returns the stored size.
    pub(super) fn stored(&self, cx: &Cx<'_>) -> Result<u64> {
        Ok(self.vnode.getattr_open(cx, self.file)?.size)
    }

    pub(crate) fn size(&self, cx: &Cx<'_>) -> Result<u64> {
        Ok(self.layout().plain_size(self.stored(cx)?))
    }

    /// Returns the checked header; `None` if the file is empty.
    pub(super) fn header(&self, cx: &Cx<'_>) -> Result<Option<Arc<[u8]>>> {
        if let Some(header) = &*self.inode.header.lock() {
            return Ok(Some(Arc::clone(header)));
        }
        let mut header = vec![0; self.layout().header() as usize];
        let len = self.read_below(cx, &mut header, 0)?;
        if len < header.len() {
            // An incomplete header, left by a crash, counts as none. A sealed one is written at
            // once.
            return if len > 0 && self.sealed().is_some() { Err(Errno::IO) } else { Ok(None) };
        }
        guard("check_header", || self.format.hook.check_header(cx, &self.object, &header))?;
        Ok(Some(self.keep_header(header)))
    }

    fn keep_header(&self, header: Vec<u8>) -> Arc<[u8]> {
        let header: Arc<[u8]> = header.into();
        *self.inode.header.lock() = Some(Arc::clone(&header));
        header
    }

    /// Creates a header for an empty file, without writing it.
    pub(super) fn new_header(&self, cx: &Cx<'_>) -> Result<Arc<[u8]>> {
        let mut header = vec![0; self.layout().header() as usize];
        guard("new_header", || self.format.hook.new_header(cx, &self.object, &mut header))?;
        self.seal_new(cx, header.into())
    }

    /// Writes the header of an empty file, replacing leftovers of another one.
    pub(super) fn write_header(&self, cx: &Cx<'_>, header: &Arc<[u8]>, stored: u64) -> Result<()> {
        self.inode.forget_header();
        if stored > 0 {
            self.set_size_below(cx, 0)?;
        }
        self.write_below(cx, header, 0).1?;
        if self.format.journal.as_ref().is_some_and(Journal::is_durable) {
            // Records name the file by its header.
            self.file.fsync(cx, true)?;
        }
        self.keep_new(header);
        Ok(())
    }

    /// Reads plain bytes.
    pub(crate) fn read(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        if out.is_empty() || offset >= self.layout().max_size() {
            return Ok(0);
        }
        let Some(header) = self.header(cx)? else { return Ok(0) };
        let plain = self.layout().plain();
        let mut done = 0;
        while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = offset.saturating_add(done as u64);
            let skip = at % plain;
            let blocks = (skip + rest.len() as u64).div_ceil(plain).min(self.format.chunk());
            self.verify(cx, &header, at / plain..at / plain + blocks)?;
            let mut stored = Scratch::take((blocks * self.layout().stored()) as usize);
            let start = self.layout().start_of(at / plain);
            let got = self.read_below(cx, &mut stored, start)?;
            if self.sealed_len(start, stored.len()).is_some_and(|len| len != got) {
                tracing::warn!(inode = self.vnode.id(), "the length of the file was changed below while it was in use");
                return Err(Errno::IO);
            }
            // Return an error rather than a short read, which would mean end of file.
            let bytes = stored.get(..got).unwrap_or_default();
            done += self.decode_span(cx, (&header, at / plain), bytes, (skip as usize, rest))?;
            if got < stored.len() {
                break;
            }
        }
        Ok(done)
    }

    /// Reads a stored block, which is shorter or empty at the end of the file.
    pub(super) fn old_block(&self, cx: &Cx<'_>, number: u64) -> Result<Scratch> {
        let mut stored = Scratch::take(self.layout().stored() as usize);
        let len = self.read_below(cx, &mut stored, self.layout().start_of(number))?;
        stored.shorten(len);
        Ok(stored)
    }

    /// Writes one block, whose old stored bytes are `old`. The change ends with the stored size
    /// `after`, which the caller sets if the block does not. `seal` is the seal after the change,
    /// without the block. The caller then ends the change with [`Self::complete`].
    pub(super) fn put(
        &self,
        cx: &Cx<'_>,
        undo: &mut Undo<'f>,
        (header, number): At<'_>,
        (old, plain): (Scratch, &[u8]),
        (before, after): (u64, u64),
        seal: Option<Seal>,
    ) -> Result<()> {
        let mut stored = self.buffer(self.stored_len(plain.len()));
        self.encode(cx, (header, number), plain, &mut stored)?;
        let start = self.layout().start_of(number);
        let change = Change::of_block(before, after, start, (old.len(), stored.len()));
        let seal = self.seal_with(cx, (header, number), &stored, seal)?;
        let sealed = self.begin_sealed(cx, undo, seal)?;
        let headers = match &sealed {
            None => Headers::unchanged(header),
            Some([old, new]) => Headers { old, new, kept: if change.redoes() { new } else { old } },
        };
        undo.recorded = if after < before {
            let mut kept = self.buffer(old.len());
            kept.copy_from_slice(&old);
            self.record(cx, &headers, &change, (&old, Some(&stored)), &mut kept)?
        } else {
            self.record(cx, &headers, &change, (&old, None), &mut stored)?
        };
        undo.blocks.push((start, old));
        self.write_below(cx, &stored, start).1
    }

    /// Restores the old state. Failures are logged.
    pub(super) fn undo(&self, cx: &Cx<'_>, undo: Undo<'f>) {
        let (now, mut failed) = match self.stored(cx) {
            Ok(now) => (now, None),
            Err(errno) => (u64::MAX, Some(errno)),
        };
        let sealed = undo.sealed.filter(|_| undo.stored > self.layout().header());
        let header = sealed.as_ref().map(|(header, _)| Arc::clone(header)).or_else(|| self.inode.header.lock().clone());
        let mut recorded = Vec::from_iter(undo.recorded);
        for (start, bytes) in undo.blocks.into_iter().rev().filter(|(_, bytes)| !bytes.is_empty()) {
            // An error of the journal is no reason to leave the new bytes.
            let header = header.as_deref();
            recorded.extend(self.record_undo(cx, header, (start, &bytes), (now, undo.stored)).ok().flatten());
            failed = self.write_below(cx, &bytes, start).1.err().or(failed);
        }
        if now > undo.stored {
            failed = self.set_size_below(cx, undo.stored).err().or(failed);
        }
        if let Some((header, seal)) = sealed {
            failed = self.write_below(cx, &header, 0).1.err().or(failed);
            self.put_back_seal(header, seal);
        }
        recorded.into_iter().for_each(|recorded| failed = self.finish(cx, &mut Some(recorded)).err().or(failed));
        if undo.stored <= self.layout().header() {
            self.inode.forget_header();
        }
        if let Some(errno) = failed {
            tracing::error!(%errno, inode = self.vnode.id(), "failed change not undone");
        }
    }

    /// Records that a block gets its old bytes back.
    fn record_undo(
        &self,
        cx: &Cx<'_>,
        header: Option<&[u8]>,
        (start, old): (u64, &[u8]),
        (now, stored): (u64, u64),
    ) -> Result<Option<Recorded<'f>>> {
        let Some(header) = header.filter(|_| self.format.journal.is_some()) else { return Ok(None) };
        let mut bytes = self.buffer(old.len());
        bytes.copy_from_slice(old);
        // The record of the failed change may be applied first. It completes the last block.
        let before = now.max(start + (old.len() as u64).next_multiple_of(self.layout().stored()));
        let change = Change { before, after: stored, size: stored, offset: start, len: old.len() };
        let mut present = Scratch::take(old.len());
        let len = self.read_below(cx, &mut present, start)?;
        present.shorten(len);
        let mut present_header = Scratch::take(self.format.head());
        let len = self.read_below(cx, &mut present_header, 0)?;
        present_header.shorten(len);
        let headers = Headers { old: &present_header, new: header, kept: header };
        self.record(cx, &headers, &change, (&present, None), &mut bytes)
    }

    pub(super) fn read_below(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        read_full(self.file, cx, out, offset)
    }

    /// Writes as much as possible. Returns the number of bytes written, and the error if it is
    /// short.
    pub(super) fn write_below(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> (usize, Result<()>) {
        write_full(self.file, cx, data, offset)
    }

    pub(super) fn set_size_below(&self, cx: &Cx<'_>, size: u64) -> Result<()> {
        set_size(self.vnode, self.file, cx, size)
    }
}
