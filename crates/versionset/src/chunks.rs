//! A sequence of bytes as independently compressed chunks with an index, so that reads may begin
//! anywhere.
//!
//! The index is in front of the chunks, because the length of the sequence is known beforehand. Its
//! entries are read one at a time: an open file takes the memory of one chunk, however large it is.

use crate::content::{clamp, read_exact, write_full};
use crate::wire::{Reader, Writer};
use core::fmt;
use parking_lot::Mutex;
use std::sync::Arc;
use vnode::{Cx, Errno, OpenFile, Result};
use zstd::bulk::{Compressor, Decompressor};

/// Bytes of a chunk before compression. The last one may be shorter.
pub(crate) const CHUNK: u64 = 128 * 1024;

/// Length of an entry of the index: where the chunk is, its stored length, a checksum.
const ENTRY: u64 = 16;

/// Entries of the index that are written at once.
const BUFFERED: usize = 4096;

/// Returns the checksum of a chunk, which no other chunk of the sequence has by its place alone.
fn checksum(number: u64, plain: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), plain)
}

/// Writes a sequence.
pub(crate) struct ChunkWriter {
    file: Arc<dyn OpenFile>,
    compressor: Compressor<'static>,
    /// Bytes that do not yet fill a chunk.
    pending: Vec<u8>,
    entries: Writer,
    /// Where `entries` belong.
    index: u64,
    number: u64,
    end: u64,
}

impl ChunkWriter {
    /// Begins a sequence of `len` bytes at offset `at` of the file. `level` is a Zstandard level.
    pub(crate) fn begin(file: Arc<dyn OpenFile>, at: u64, len: u64, level: i32) -> Result<Self> {
        let compressor = Compressor::new(level).map_err(|_| Errno::INVAL)?;
        let end = len.div_ceil(CHUNK).checked_mul(ENTRY).and_then(|index| index.checked_add(at));
        let end = end.ok_or(Errno::FBIG)?;
        Ok(Self { file, compressor, pending: Vec::new(), entries: Writer::default(), index: at, number: 0, end })
    }

    /// Appends bytes.
    pub(crate) fn add(&mut self, cx: &Cx<'_>, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            let room = (CHUNK as usize).saturating_sub(self.pending.len());
            let (taken, rest) = data.split_at(room.min(data.len()));
            self.pending.extend_from_slice(taken);
            data = rest;
            if self.pending.len() == CHUNK as usize {
                self.write_chunk(cx)?;
            }
        }
        Ok(())
    }

    /// Completes the sequence. Returns the offset of its end in the file.
    pub(crate) fn finish(mut self, cx: &Cx<'_>) -> Result<u64> {
        if !self.pending.is_empty() {
            self.write_chunk(cx)?;
        }
        self.write_entries(cx)?;
        Ok(self.end)
    }

    fn write_chunk(&mut self, cx: &Cx<'_>) -> Result<()> {
        let mut stored = vec![0; self.pending.len()];
        // This fails if the frame does not fit: the chunk is stored as it is.
        let len = match self.compressor.compress_to_buffer(&self.pending, &mut stored) {
            Ok(len) if len < self.pending.len() => len,
            _ => {
                stored.copy_from_slice(&self.pending);
                stored.len()
            }
        };
        write_full(cx, &*self.file, stored.get(..len).unwrap_or(&stored), self.end)?;
        self.entries.u64(self.end);
        self.entries.u32(u32::try_from(len).map_err(|_| Errno::IO)?);
        self.entries.u32(checksum(self.number, &self.pending));
        self.end += len as u64;
        self.number += 1;
        self.pending.clear();
        if self.entries.0.len() >= BUFFERED * ENTRY as usize { self.write_entries(cx) } else { Ok(()) }
    }

    fn write_entries(&mut self, cx: &Cx<'_>) -> Result<()> {
        write_full(cx, &*self.file, &self.entries.0, self.index)?;
        self.index += self.entries.0.len() as u64;
        self.entries.0.clear();
        Ok(())
    }
}

/// Reads a sequence.
pub(crate) struct ChunkReader {
    file: Arc<dyn OpenFile>,
    index: u64,
    /// Length of the sequence in bytes.
    len: u64,
    /// The last chunk that was read.
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    number: u64,
    plain: Vec<u8>,
    decompressor: Option<Decompressor<'static>>,
}

impl ChunkReader {
    /// Opens a sequence of `len` bytes at offset `index` of the file.
    ///
    /// # Errors
    /// `EIO` if a file of `file_len` bytes is too short for its index.
    pub(crate) fn open(file: Arc<dyn OpenFile>, index: u64, len: u64, file_len: u64) -> Result<Self> {
        let end = len.div_ceil(CHUNK).checked_mul(ENTRY).and_then(|bytes| bytes.checked_add(index));
        if end.is_none_or(|end| end > file_len) {
            return Err(Errno::IO);
        }
        Ok(Self { file, index, len, last: Mutex::default() })
    }

    /// Returns the length of the sequence in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Reads at `offset`. Returns fewer bytes than requested only at the end.
    pub(crate) fn read_at(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        let out = clamp(out, offset, self.len);
        let mut done = 0;
        while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = offset + done as u64;
            done += self.read_chunk(cx, at / CHUNK, at % CHUNK, rest)?;
        }
        Ok(done)
    }

    /// Copies the bytes of a chunk from `skip` on to `out`. Returns their number, never 0.
    fn read_chunk(&self, cx: &Cx<'_>, number: u64, skip: u64, out: &mut [u8]) -> Result<usize> {
        let mut last = self.last.lock();
        if last.plain.is_empty() || last.number != number {
            self.load(cx, number, &mut last)?;
        }
        let from = usize::try_from(skip).ok().and_then(|skip| last.plain.get(skip..)).ok_or(Errno::IO)?;
        let len = from.len().min(out.len());
        if len == 0 {
            return Err(Errno::IO);
        }
        out.get_mut(..len).ok_or(Errno::IO)?.copy_from_slice(from.get(..len).ok_or(Errno::IO)?);
        Ok(len)
    }

    fn load(&self, cx: &Cx<'_>, number: u64, last: &mut Last) -> Result<()> {
        let entry = read_exact(cx, &*self.file, self.index + number * ENTRY, ENTRY)?;
        let mut from = Reader(&entry);
        let (at, len) = (from.u64().ok_or(Errno::IO)?, from.u32().ok_or(Errno::IO)?);
        let sum = from.u32().ok_or(Errno::IO)?;
        let plain_len = usize::try_from(self.len.saturating_sub(number * CHUNK).min(CHUNK)).map_err(|_| Errno::IO)?;
        if len as usize > plain_len || at > i64::MAX.cast_unsigned() - CHUNK {
            return Err(Errno::IO);
        }
        let stored = read_exact(cx, &*self.file, at, len.into())?;
        let mut plain = core::mem::take(&mut last.plain);
        if stored.len() == plain_len {
            plain = stored;
        } else {
            let decompressor = match &mut last.decompressor {
                Some(decompressor) => decompressor,
                none => none.insert(Decompressor::new().map_err(|_| Errno::NOMEM)?),
            };
            plain.resize(plain_len, 0);
            let len = decompressor.decompress_to_buffer(&stored, &mut plain[..]).map_err(|_| Errno::IO)?;
            if len < plain_len {
                return Err(Errno::IO);
            }
        }
        if checksum(number, &plain) != sum {
            return Err(Errno::IO);
        }
        (last.plain, last.number) = (plain, number);
        Ok(())
    }
}

impl fmt::Debug for ChunkReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkReader({} bytes at {} of {:?})", self.len, self.index, self.file)
    }
}
