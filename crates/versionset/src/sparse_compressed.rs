//! Block deltas without holes, compressed: `foo;z8` (Versionfs paper, section 6.1).
//!
//! The blocks that differ from the newer version follow one another in compressed chunks. A table
//! has the runs of blocks that are present.

use crate::chunks::{ChunkReader, ChunkWriter};
use crate::content::{Content, Partial, Piece, clamp, write_full};
use crate::header::Header;
use crate::names::Letter;
use crate::sparse::{BLOCK, COMPARED, differing};
use crate::start;
use crate::table;
use crate::wire::{Reader, Writer};
use core::ops::Range;
use std::sync::Arc;
use vnode::{Cx, Errno, OpenFile, Result};

const MAGIC: &[u8; 8] = b"VERSSPZ1";

/// A run of blocks that are present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// Offset in the version.
    offset: u64,
    len: u64,
    /// Offset in the stored blocks.
    stored: u64,
}

/// The blocks of a sparse compressed version.
#[derive(Debug)]
pub struct SparseCompressed {
    size: u64,
    base: u64,
    runs: Vec<Run>,
    chunks: ChunkReader,
}

impl SparseCompressed {
    /// Writes the blocks of `old` that differ from `newer`, the version with number `base` or the
    /// head, to `file`, which is empty. Returns the length of the file in bytes; `None` if it takes
    /// no fewer blocks than `old`, or the blocks are too scattered.
    ///
    /// # Errors
    /// `E2BIG` if the extended attributes are too large, `EINVAL` for the level; errors of the
    /// contents and of the layer below.
    pub fn write(
        cx: &Cx<'_>,
        file: Arc<dyn OpenFile>,
        header: &Header,
        old: &dyn Content,
        newer: &dyn Content,
        base: u64,
        level: i32,
    ) -> Result<Option<u64>> {
        let size = old.size();
        let Some(runs) = runs(cx, old, newer)? else { return Ok(None) };
        let stored = runs.last().map_or(0, |run| run.stored + run.len);
        let Some(table) = table::encode(&encode(&runs), level) else { return Ok(None) };
        let base = if stored == size { 0 } else { base };
        let mut start = start::encode(MAGIC, size, base, &header.stored_as(Letter::SparseCompressed, size))?;
        start.extend_from_slice(&table);
        write_full(cx, &*file, &start, 0)?;
        let mut chunks = ChunkWriter::begin(file, start.len() as u64, stored, level)?;
        let mut buffer = vec![0; COMPARED];
        for run in &runs {
            crate::content::for_each_part(cx, old, run.offset, run.len, &mut buffer, |part| chunks.add(cx, part))?;
        }
        let len = chunks.finish(cx)?;
        Ok((len.div_ceil(BLOCK) < size.div_ceil(BLOCK)).then_some(len))
    }

    /// Opens a version of `len` bytes.
    ///
    /// # Errors
    /// `EIO` if the file is damaged; errors of the layer below.
    pub fn open(cx: &Cx<'_>, file: Arc<dyn OpenFile>, len: u64) -> Result<Self> {
        let start = start::read(cx, &*file, MAGIC)?;
        let (table, end) = table::read(cx, &*file, start.end)?;
        let runs = decode(&table, start.size).ok_or(Errno::IO)?;
        let stored = runs.last().map_or(0, |run| run.stored + run.len);
        let chunks = ChunkReader::open(file, end, stored, len)?;
        Ok(Self { size: start.size, base: start.base, runs, chunks })
    }

    /// Reads the header, and the base: 0 if no block is missing.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn header(cx: &Cx<'_>, file: &dyn OpenFile) -> Result<(Header, u64)> {
        let start = start::read(cx, file, MAGIC)?;
        Ok((start.header, start.base))
    }
}

/// Returns the runs of blocks that differ. `None` if there are too many.
fn runs(cx: &Cx<'_>, old: &dyn Content, newer: &dyn Content) -> Result<Option<Vec<Run>>> {
    let (mut runs, mut stored): (Vec<Run>, u64) = (Vec::new(), 0);
    let mut buffer = vec![0; COMPARED];
    let mut at = 0;
    while at < old.size() {
        let part = clamp(&mut buffer, at, old.size());
        for run in differing(cx, old, &[newer], part, at)? {
            let (offset, len) = (at + run.start as u64, run.len() as u64);
            match runs.last_mut() {
                Some(last) if last.offset + last.len == offset => last.len += len,
                _ => runs.push(Run { offset, len, stored }),
            }
            stored += len;
        }
        if runs.len() > table::MAX_ENTRIES {
            return Ok(None);
        }
        at += part.len() as u64;
    }
    Ok(Some(runs))
}

/// Writes, for each run, the number of blocks that are absent before it and of those in it.
fn encode(runs: &[Run]) -> Vec<u8> {
    let (mut out, mut block) = (Writer::default(), 0);
    for run in runs {
        let (first, count) = (run.offset / BLOCK, run.len.div_ceil(BLOCK));
        out.varint(first.saturating_sub(block));
        out.varint(count);
        block = first + count;
    }
    out.0
}

fn decode(table: &[u8], size: u64) -> Option<Vec<Run>> {
    let (mut from, mut block, mut stored) = (Reader(table), 0u64, 0);
    let mut runs = Vec::new();
    while !from.0.is_empty() {
        let first = block.checked_add(from.varint()?)?;
        block = first.checked_add(from.varint().filter(|count| *count > 0)?)?;
        if block > size.div_ceil(BLOCK) || runs.len() >= table::MAX_ENTRIES {
            return None;
        }
        let (offset, end) = (first * BLOCK, (block * BLOCK).min(size));
        runs.push(Run { offset, len: end.checked_sub(offset)?, stored });
        stored += end - offset;
    }
    Some(runs)
}

impl Partial for SparseCompressed {
    fn size(&self) -> u64 {
        self.size
    }

    fn base(&self) -> u64 {
        self.base
    }

    fn extent(&self) -> Range<u64> {
        let end = self.runs.last().map_or(0, |run| run.offset + run.len);
        self.runs.first().map_or(0, |run| run.offset)..end
    }

    fn fill(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64, lacks: &mut dyn FnMut(Piece)) -> Result<()> {
        let mut done = 0;
        let mut next = self.runs.partition_point(|run| run.offset + run.len <= offset);
        while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = offset + done as u64;
            let run = self.runs.get(next);
            let until = |end: u64| usize::try_from(end - at).unwrap_or(usize::MAX).min(rest.len());
            let Some(run) = run.filter(|run| run.offset <= at) else {
                let len = run.map_or(rest.len(), |run| until(run.offset));
                lacks(Piece { at: done, len, offset: at });
                done += len;
                continue;
            };
            let len = until(run.offset + run.len);
            let part = rest.get_mut(..len).ok_or(Errno::IO)?;
            if self.chunks.read_at(cx, part, run.stored + (at - run.offset))? < len {
                return Err(Errno::IO);
            }
            done += len;
            next += 1;
        }
        Ok(())
    }
}
