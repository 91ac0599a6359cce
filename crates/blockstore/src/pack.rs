//! Packs: append-only files of entries.

use crate::format::{BLOCK_HEAD_MAX, BODY_MAX, BlockHead, FRAME_MAX, Frame, HEADER, Kind};
use core::ops::ControlFlow;
use parking_lot::Mutex;
use std::sync::Arc;
use vnode::{Cx, Errno, Name, OpenFile, OpenFlags, Result, SetAttr, Vnode};

/// Number of bytes that one read of a small entry takes.
const FIRST_READ: usize = 2048;

/// Number of bytes that a scan reads at a time.
const SCAN_READ: usize = 256 << 10;

/// A search for the entry after a damaged one gives up after checking this many bytes.
const SEARCH_MAX: usize = 64 << 20;

/// Returns the name of a pack's file.
pub(crate) fn pack_name(number: u32) -> Vec<u8> {
    format!("p-{number:08x}").into_bytes()
}

/// Returns the name of the file that caches the index of a pack.
pub(crate) fn index_name(number: u32) -> Vec<u8> {
    format!("x-{number:08x}").into_bytes()
}

/// Returns the number of the pack whose file has this name.
pub(crate) fn pack_number(name: &[u8]) -> Option<u32> {
    let number = core::str::from_utf8(name.strip_prefix(b"p-")?).ok()?;
    let number = u32::from_str_radix(number, 16).ok()?;
    (pack_name(number) == name).then_some(number)
}

/// Reads until the buffer is full or the file ends. Returns the number of bytes.
pub(crate) fn read_full(cx: &Cx<'_>, file: &dyn OpenFile, out: &mut [u8], offset: u64) -> Result<usize> {
    let mut done = 0;
    while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read(cx, rest, offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

/// Writes everything.
pub(crate) fn write_full(cx: &Cx<'_>, file: &dyn OpenFile, bytes: &[u8], offset: u64) -> Result<()> {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        match file.write(cx, rest, offset + done as u64)? {
            0 => return Err(Errno::IO),
            n => done += n,
        }
    }
    Ok(())
}

/// An entry that was read and has the right checksum.
#[derive(Debug)]
pub(crate) struct Entry {
    frame: Frame,
    bytes: Vec<u8>,
}

impl Entry {
    pub(crate) fn kind(&self) -> Kind {
        self.frame.kind
    }

    pub(crate) fn len(&self) -> u64 {
        self.frame.len as u64
    }

    pub(crate) fn body(&self) -> &[u8] {
        self.bytes.get(self.frame.body_at..self.frame.len).unwrap_or_default()
    }
}

/// What a scan finds.
#[derive(Debug)]
pub(crate) enum Scanned<'a> {
    Entry {
        kind: Kind,
        offset: u64,
        len: u64,
        body: &'a [u8],
    },
    /// Bytes that are no entry.
    Damage {
        offset: u64,
        len: u64,
    },
}

/// A pack. Its file is opened at the first use.
#[derive(Debug)]
pub(crate) struct Pack {
    pub(crate) number: u32,
    vnode: Arc<dyn Vnode>,
    file: Mutex<Option<Arc<dyn OpenFile>>>,
}

impl Pack {
    pub(crate) fn new(number: u32, vnode: Arc<dyn Vnode>, file: Option<Arc<dyn OpenFile>>) -> Self {
        Self { number, vnode, file: Mutex::new(file) }
    }

    /// Returns the open file, for reading; the current pack's also for writing.
    pub(crate) fn file(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>> {
        let mut file = self.file.lock();
        if let Some(file) = file.as_ref().filter(|_| !flags.writes()) {
            return Ok(Arc::clone(file));
        }
        let opened = self.vnode.open(cx, flags)?;
        *file = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// Closes the file until the next use.
    pub(crate) fn close(&self) {
        *self.file.lock() = None;
    }

    pub(crate) fn is_open(&self) -> bool {
        self.file.lock().is_some()
    }

    pub(crate) fn size(&self, cx: &Cx<'_>) -> Result<u64> {
        self.vnode.getattr(cx).map(|attr| attr.size)
    }

    pub(crate) fn truncate(&self, cx: &Cx<'_>, size: u64) -> Result<()> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.vnode.setattr(cx, &set, None).map(|_| ())
    }

    /// Reads the entry at `offset` and verifies its checksum.
    ///
    /// # Errors
    /// `EIO` if there is no intact entry.
    pub(crate) fn entry(&self, cx: &Cx<'_>, offset: u64) -> Result<Entry> {
        let file = self.file(cx, OpenFlags::RDONLY)?;
        let mut bytes = vec![0; FIRST_READ];
        let len = read_full(cx, &*file, &mut bytes, offset)?;
        bytes.truncate(len);
        let frame = Frame::parse(&bytes)?;
        if frame.len > len {
            if len < FIRST_READ {
                return Err(Errno::IO);
            }
            // Not more than the file has: the length is not verified yet.
            if offset.saturating_add(frame.len as u64) > self.size(cx)? {
                return Err(Errno::IO);
            }
            bytes.resize(frame.len, 0);
            read_full(cx, &*file, bytes.get_mut(len..).unwrap_or_default(), offset + len as u64)?;
        }
        frame.verify(&bytes, self.number, offset)?;
        Ok(Entry { frame, bytes })
    }

    /// Reads the head of the block at `offset`, and the size of its entry. Its checksum is not
    /// verified.
    pub(crate) fn block_head(&self, cx: &Cx<'_>, offset: u64) -> Result<(BlockHead, u64)> {
        let mut bytes = [0; BLOCK_HEAD_MAX];
        let len = read_full(cx, &*self.file(cx, OpenFlags::RDONLY)?, &mut bytes, offset)?;
        let bytes = bytes.get(..len).unwrap_or_default();
        let frame = Frame::parse(bytes)?;
        if frame.kind != Kind::Block {
            return Err(Errno::IO);
        }
        let body = bytes.get(frame.body_at..frame.len.min(bytes.len())).ok_or(Errno::IO)?;
        Ok((BlockHead::parse(body, offset)?.0, frame.len as u64))
    }

    /// Passes everything from `from` to the end to `sink`, until it breaks. After damage, the scan
    /// goes on at the next intact entry.
    pub(crate) fn scan(
        &self,
        cx: &Cx<'_>,
        from: u64,
        sink: &mut dyn FnMut(Scanned<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let (file, size) = (self.file(cx, OpenFlags::RDONLY)?, self.size(cx)?);
        let mut window = Window { pack: self, file, bytes: Vec::new(), start: from, size };
        let mut offset = from;
        let mut budget = SEARCH_MAX;
        while offset < size {
            cx.check()?;
            let found = match window.entry(cx, offset, size)? {
                Some((frame, body)) => {
                    let len = frame.len as u64;
                    (sink(Scanned::Entry { kind: frame.kind, offset, len, body }), len)
                }
                None => {
                    let next = window.search(cx, offset, size, &mut budget)?;
                    (sink(Scanned::Damage { offset, len: next - offset }), next - offset)
                }
            };
            if found.0.is_break() {
                break;
            }
            offset += found.1;
        }
        Ok(())
    }
}

/// The part of a pack that a scan has read.
struct Window<'a> {
    pack: &'a Pack,
    file: Arc<dyn OpenFile>,
    bytes: Vec<u8>,
    start: u64,
    /// The size of the file when the scan began.
    size: u64,
}

impl Window<'_> {
    /// Returns bytes from `offset` on: `len`, or fewer at the end of the file.
    fn get(&mut self, cx: &Cx<'_>, offset: u64, len: usize) -> Result<&[u8]> {
        let within = offset.checked_sub(self.start).and_then(|at| usize::try_from(at).ok());
        let at = match within.filter(|&at| at + len <= self.bytes.len()) {
            Some(at) => at,
            None => {
                // Most packs are small, and filling the buffer takes longer than reading them.
                let left = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX);
                self.bytes.resize(len.max(SCAN_READ).min(left), 0);
                let read = read_full(cx, &*self.file, &mut self.bytes, offset)?;
                self.bytes.truncate(read);
                self.start = offset;
                0
            }
        };
        let end = (at + len).min(self.bytes.len());
        Ok(self.bytes.get(at..end).unwrap_or_default())
    }

    /// Returns the entry at `offset`, if there is an intact one.
    fn entry(&mut self, cx: &Cx<'_>, offset: u64, size: u64) -> Result<Option<(Frame, &[u8])>> {
        let number = self.pack.number;
        let Ok(frame) = Frame::parse(self.get(cx, offset, FRAME_MAX)?) else { return Ok(None) };
        if frame.len as u64 > size - offset {
            return Ok(None);
        }
        let bytes = self.get(cx, offset, frame.len)?;
        Ok(frame.verify(bytes, number, offset).ok().map(|body| (frame, body)))
    }

    /// Returns where the next intact entry after `offset` is, or the end of the pack.
    fn search(&mut self, cx: &Cx<'_>, offset: u64, size: u64, budget: &mut usize) -> Result<u64> {
        for at in offset + 1..size {
            let Ok(frame) = Frame::parse(self.get(cx, at, FRAME_MAX)?) else { continue };
            if frame.len as u64 > size - at || frame.len > BODY_MAX {
                continue;
            }
            *budget = budget.saturating_sub(frame.len);
            if *budget == 0 {
                break;
            }
            if self.entry(cx, at, size)?.is_some() {
                return Ok(at);
            }
        }
        Ok(size)
    }
}

/// Looks up a file of the store.
pub(crate) fn lookup(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<Option<Arc<dyn Vnode>>> {
    Ok(dir.lookup(cx, Name::new(name)?)?.map(|entry| entry.vnode))
}

/// Removes a file of the store, if it exists.
pub(crate) fn remove(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<()> {
    match dir.unlink(cx, Name::new(name)?) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Where the first entry of a pack is.
pub(crate) const FIRST: u64 = HEADER;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_packs_are_canonical() {
        assert_eq!(pack_number(&pack_name(0x12ab)), Some(0x12ab));
        for bad in [&b"p-1"[..], b"p-000000012", b"p-0000000G", b"x-00000001", b"p-0000000A", b"p-+0000001"] {
            assert_eq!(pack_number(bad), None);
        }
    }
}
