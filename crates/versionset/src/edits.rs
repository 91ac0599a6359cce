//! Deltas of byte ranges: what of a version is copied from the newer one, and what is its own. The
//! common part of deltas (`foo;x8`) and text differences (`foo;t8`).

use crate::chunks::{ChunkReader, ChunkWriter};
use crate::content::{Content, Partial, Piece, for_each_part, write_full};
use crate::header::Header;
use crate::sparse::{BLOCK, COMPARED};
use crate::start;
use crate::table;
use crate::wire::{Reader, Writer};
use core::ops::Range;
use std::sync::Arc;
use vnode::{Cx, Errno, OpenFile, Result};

/// A range of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Edit {
    /// Offset in the version.
    offset: u64,
    len: u64,
    /// Offset in the newer version, or in the bytes of its own.
    from: u64,
    is_copy: bool,
}

/// What [`Edits::write`] needs beside the ranges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format<'a> {
    pub(crate) magic: &'a [u8; 8],
    pub(crate) header: &'a Header,
    /// Number of the newer version.
    pub(crate) base: u64,
    /// Zstandard level.
    pub(crate) level: i32,
}

/// The ranges of a version, without gaps from its start on.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    edits: Vec<Edit>,
    size: u64,
    /// Bytes of its own.
    own: u64,
}

impl Edits {
    /// Appends bytes of its own.
    pub(crate) fn own(&mut self, len: u64) {
        self.push(len, self.own, false);
        self.own += len;
    }

    /// Appends bytes that are at `from` in the newer version.
    pub(crate) fn copy(&mut self, len: u64, from: u64) {
        self.push(len, from, true);
    }

    /// Returns the size of the version so far.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Whether there are too many ranges to be stored.
    pub(crate) fn is_too_long(&self) -> bool {
        self.edits.len() > table::MAX_ENTRIES
    }

    fn push(&mut self, len: u64, from: u64, is_copy: bool) {
        match self.edits.last_mut() {
            _ if len == 0 => {}
            Some(last) if last.is_copy == is_copy && last.from + last.len == from => last.len += len,
            _ => self.edits.push(Edit { offset: self.size, len, from, is_copy }),
        }
        self.size += len;
    }

    /// For each range twice its length, plus 1 and the distance from the end of the last copy (zigzag)
    /// if it is a copy.
    fn encode(&self) -> Vec<u8> {
        let (mut out, mut last) = (Writer::default(), 0u64);
        for edit in &self.edits {
            out.varint(edit.len << 1 | u64::from(edit.is_copy));
            if edit.is_copy {
                let distance = edit.from.wrapping_sub(last).cast_signed();
                out.varint((distance << 1 ^ distance >> 63).cast_unsigned());
                last = edit.from + edit.len;
            }
        }
        out.0
    }

    fn decode(table: &[u8], size: u64) -> Option<Self> {
        let (mut from, mut last, mut edits) = (Reader(table), 0u64, Self::default());
        while !from.0.is_empty() {
            let word = from.varint()?;
            let len = Some(word >> 1).filter(|len| *len > 0 && *len <= size - edits.size)?;
            if word & 1 == 0 {
                edits.own(len);
            } else {
                let distance = from.varint()?;
                let start = last.wrapping_add(distance >> 1 ^ (distance & 1).wrapping_neg());
                last = start.checked_add(len).filter(|end| *end <= i64::MAX.cast_unsigned())?;
                edits.copy(len, start);
            }
            if edits.is_too_long() {
                return None;
            }
        }
        (edits.size == size).then_some(edits)
    }

    /// Writes the version to `file`, which is empty. Returns the length of the file in bytes; `None`
    /// if it takes no fewer blocks than `old`, or there are too many ranges.
    pub(crate) fn write(
        &self,
        cx: &Cx<'_>,
        file: Arc<dyn OpenFile>,
        format: &Format<'_>,
        old: &dyn Content,
    ) -> Result<Option<u64>> {
        let Format { magic, header, base, level } = *format;
        let size = old.size();
        if self.size != size || self.is_too_long() {
            return Ok(None);
        }
        let Some(table) = table::encode(&self.encode(), level) else { return Ok(None) };
        let base = if self.own == size { 0 } else { base };
        let mut start = start::encode(magic, size, base, header)?;
        start.extend_from_slice(&table);
        write_full(cx, &*file, &start, 0)?;
        let mut chunks = ChunkWriter::begin(file, start.len() as u64, self.own, level)?;
        let mut buffer = vec![0; COMPARED];
        for edit in self.edits.iter().filter(|edit| !edit.is_copy) {
            for_each_part(cx, old, edit.offset, edit.len, &mut buffer, |part| chunks.add(cx, part))?;
        }
        let len = chunks.finish(cx)?;
        Ok((len.div_ceil(BLOCK) < size.div_ceil(BLOCK)).then_some(len))
    }
}

/// A version of byte ranges, without the newer one that it copies from.
#[derive(Debug)]
pub struct Edited {
    base: u64,
    edits: Edits,
    chunks: ChunkReader,
}

impl Edited {
    /// Opens a version of `len` bytes.
    pub(crate) fn open(cx: &Cx<'_>, file: Arc<dyn OpenFile>, len: u64, magic: &[u8; 8]) -> Result<Self> {
        let start = start::read(cx, &*file, magic)?;
        let (table, end) = table::read(cx, &*file, start.end)?;
        let edits = Edits::decode(&table, start.size).ok_or(Errno::IO)?;
        let chunks = ChunkReader::open(file, end, edits.own, len)?;
        Ok(Self { base: start.base, edits, chunks })
    }

    /// Reads the header, and the base: 0 if nothing is copied.
    pub(crate) fn header(cx: &Cx<'_>, file: &dyn OpenFile, magic: &[u8; 8]) -> Result<(Header, u64)> {
        let start = start::read(cx, file, magic)?;
        Ok((start.header, start.base))
    }
}

impl Partial for Edited {
    fn size(&self) -> u64 {
        self.edits.size
    }

    fn base(&self) -> u64 {
        self.base
    }

    fn extent(&self) -> Range<u64> {
        0..self.edits.size
    }

    fn fill(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64, lacks: &mut dyn FnMut(Piece)) -> Result<()> {
        let mut done = 0;
        let first = self.edits.edits.partition_point(|edit| edit.offset + edit.len <= offset);
        for edit in self.edits.edits.get(first..).unwrap_or_default() {
            let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) else { return Ok(()) };
            let skip = (offset + done as u64).checked_sub(edit.offset).ok_or(Errno::IO)?;
            let len = usize::try_from(edit.len - skip).unwrap_or(usize::MAX).min(rest.len());
            if edit.is_copy {
                lacks(Piece { at: done, len, offset: edit.from + skip });
            } else if self.chunks.read_at(cx, rest.get_mut(..len).ok_or(Errno::IO)?, edit.from + skip)? < len {
                return Err(Errno::IO);
            }
            done += len;
        }
        if done < out.len() { Err(Errno::IO) } else { Ok(()) }
    }
}
