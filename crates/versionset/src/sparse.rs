//! Block deltas in sparse files: `foo;s8` (Versionfs paper, section 3.2, "Sparse Mode").
//!
//! A block that the version has in common with the next newer one is a hole. The others are at
//! their offsets. At the end of the file are a header, a bitmap of the blocks that are present, and
//! a checksum of each of them. An ordinary file becomes a sparse version when it is renamed and the
//! end is appended.
//!
//! While a version is being made, a block is written first, then its checksum, then its bit. So a
//! kill at any moment leaves a valid file. When no program writes to the head any more, the version
//! gets a [`Seal`], by which a later change of the head that the layer did not see is noticed.

use crate::content::{Content, Over, Partial, Piece, clamp, fill_from, next_data, read_exact, read_full, write_full};
use crate::header::{Header, MAX_HEADER};
use crate::names::Letter;
use crate::seal::{SEAL_LEN, Seal};
use crate::wire::{Reader, Writer};
use core::ops::Range;
use std::sync::Arc;
use vnode::{Cx, Errno, OpenFile, Result};

/// Size of a block in bytes.
pub const BLOCK: u64 = 4096;

/// First and last bytes of the end of the file.
const MAGIC: &[u8; 8] = b"VERSSPA1";

/// Largest size of a sparse version in bytes. Bounds the memory for its bitmap (512 MiB).
const MAX_SIZE: u64 = 1 << 44;

/// Length of the last part of the file: the offset where the end begins, a checksum, the magic.
/// The seal is in front of it.
const TAIL: u64 = 24;

/// Length of the part before the header: the magic, the size, the length of the header, and the
/// checksum of all that and the header.
const FIXED: u64 = 24;

/// Where the parts of a sparse version are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    size: u64,
    /// Where the end of the file begins: the first block behind the content.
    end: u64,
    bitmap: u64,
    checksums: u64,
    seal: u64,
    tail: u64,
}

impl Layout {
    fn new(size: u64, header_len: u64) -> Option<Self> {
        let blocks = (size <= MAX_SIZE).then(|| size.div_ceil(BLOCK))?;
        let end = blocks.checked_mul(BLOCK)?;
        let bitmap = end.checked_add(FIXED)?.checked_add(header_len)?;
        let checksums = bitmap.checked_add(blocks.div_ceil(8))?;
        let seal = checksums.checked_add(blocks.checked_mul(4)?)?;
        let tail = seal.checked_add(SEAL_LEN as u64)?;
        (tail < i64::MAX.cast_unsigned() - TAIL).then_some(Self { size, end, bitmap, checksums, seal, tail })
    }

    fn blocks(&self) -> u64 {
        self.size.div_ceil(BLOCK)
    }

    /// Returns the length of a block, which is less than [`BLOCK`] at the end.
    fn block_len(&self, block: u64) -> usize {
        usize::try_from(self.size.saturating_sub(block * BLOCK).min(BLOCK)).unwrap_or(0)
    }
}

fn tail(end: u64) -> Vec<u8> {
    let mut out = Writer::default();
    out.u64(end);
    let sum = crc32c::crc32c(&out.0);
    out.u32(sum);
    out.u32(0);
    out.0.extend_from_slice(MAGIC);
    out.0
}

fn fixed(size: u64, header: &[u8]) -> Option<Vec<u8>> {
    let mut out = Writer::default();
    out.0.extend_from_slice(MAGIC);
    out.u64(size);
    out.u32(u32::try_from(header.len()).ok()?);
    let sum = crc32c::crc32c_append(crc32c::crc32c(&out.0), header);
    out.u32(sum);
    out.0.extend_from_slice(header);
    Some(out.0)
}

/// A sparse version that is being made: blocks are added before the head changes.
#[derive(Debug)]
pub struct SparseWriter {
    file: Arc<dyn OpenFile>,
    layout: Layout,
    bitmap: Vec<u8>,
    seal: Seal,
}

impl SparseWriter {
    /// Begins a version of `size` bytes in `file`, which is empty. No block is present.
    ///
    /// # Errors
    /// `EFBIG` if the size is too large, `E2BIG` if the extended attributes are; errors of the
    /// layer below.
    pub fn begin(cx: &Cx<'_>, file: Arc<dyn OpenFile>, size: u64, header: &Header) -> Result<Self> {
        Self::start(cx, file, size, header)
    }

    /// Makes a sparse version of an ordinary file of `size` bytes with all blocks present, by
    /// appending the end.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn append(cx: &Cx<'_>, file: Arc<dyn OpenFile>, size: u64, header: &Header) -> Result<Self> {
        let mut writer = Self::start(cx, file, size, header)?;
        let mut block = vec![0; 32 * BLOCK as usize];
        let mut at = 0;
        while at < size {
            let part = clamp(&mut block, at, size);
            let len = part.len();
            if read_full(cx, &*writer.file, part, at)? < len {
                return Err(Errno::IO);
            }
            writer.record_bytes(cx, block.get(..len).unwrap_or_default(), at / BLOCK)?;
            at += len as u64;
        }
        Ok(writer)
    }

    fn start(cx: &Cx<'_>, file: Arc<dyn OpenFile>, size: u64, header: &Header) -> Result<Self> {
        let header = header.encode().ok_or(Errno::TOOBIG)?;
        let layout = Layout::new(size, header.len() as u64).ok_or(Errno::FBIG)?;
        let bitmap = vec![0; usize::try_from(layout.blocks().div_ceil(8)).map_err(|_| Errno::FBIG)?];
        let fixed = fixed(size, &header).ok_or(Errno::FBIG)?;
        if layout.tail - layout.end <= 64 * 1024 {
            // Small: the whole end in one write.
            let mut end = fixed;
            end.resize(usize::try_from(layout.tail - layout.end).map_err(|_| Errno::FBIG)?, 0);
            end.extend_from_slice(&tail(layout.end));
            write_full(cx, &*file, &end, layout.end)?;
        } else {
            write_full(cx, &*file, &fixed, layout.end)?;
            write_full(cx, &*file, &tail(layout.end), layout.tail)?;
        }
        Ok(Self { file, layout, bitmap, seal: Seal::Open })
    }

    /// Returns the seal.
    #[must_use]
    pub fn seal(&self) -> Seal {
        self.seal
    }

    /// Sets the seal.
    ///
    /// # Errors
    /// Those of the layer below.
    pub fn set_seal(&mut self, cx: &Cx<'_>, seal: Seal) -> Result<()> {
        if seal != self.seal {
            write_full(cx, &*self.file, &seal.encode(), self.layout.seal)?;
            self.seal = seal;
        }
        Ok(())
    }

    /// Returns the size of the version in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.layout.size
    }

    /// Whether the version has all of these bytes, as far as they lie within its size.
    #[must_use]
    pub fn has(&self, range: Range<u64>) -> bool {
        self.missing(range).is_none()
    }

    /// Returns the first run of blocks that `range` touches and that are absent, as a byte range
    /// that ends at the size of the version. Bytes behind that are none of the version's.
    #[must_use]
    pub fn missing(&self, range: Range<u64>) -> Option<Range<u64>> {
        let end = range.end.min(self.layout.size);
        if range.start >= end {
            return None;
        }
        let last = end.div_ceil(BLOCK);
        let first = (range.start / BLOCK..last).find(|block| !is_set(&self.bitmap, *block))?;
        let after = (first..last).find(|block| is_set(&self.bitmap, *block)).unwrap_or(last);
        Some(first * BLOCK..(after * BLOCK).min(self.layout.size))
    }

    /// Adds blocks: `data` begins at `offset`, a multiple of [`BLOCK`], and ends at the end of a
    /// block or of the version.
    ///
    /// # Errors
    /// Those of the layer below. The version is valid then, too, without these blocks.
    pub fn add(&mut self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<()> {
        write_full(cx, &*self.file, data, offset)?;
        self.record_bytes(cx, data, offset / BLOCK)
    }

    /// Records that the blocks from `first` on are present.
    fn record_bytes(&mut self, cx: &Cx<'_>, data: &[u8], first: u64) -> Result<()> {
        let mut sums = Writer::default();
        for (number, block) in (first..).zip(data.chunks(BLOCK as usize)) {
            if block.len() != self.layout.block_len(number) {
                return Err(Errno::INVAL);
            }
            sums.u32(crc32c::crc32c(block));
        }
        self.record(cx, &sums.0, first)
    }

    /// Adds blocks of zeros, which take no space: as [`Self::add`] with so many zeros.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn add_zeros(&mut self, cx: &Cx<'_>, range: Range<u64>) -> Result<()> {
        const ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];
        if next_data(cx, &*self.file, range.clone())? < range.end {
            // A kill left bytes there before they were recorded.
            for start in range.clone().step_by(BLOCK as usize) {
                let len = range.end.min(start + BLOCK) - start;
                self.add(cx, ZEROS.get(..len as usize).unwrap_or_default(), start)?;
            }
            return Ok(());
        }
        let (mut sums, first) = (Writer::default(), range.start / BLOCK);
        let whole = crc32c::crc32c(&ZEROS);
        for number in first..range.end.div_ceil(BLOCK) {
            let len = self.layout.block_len(number);
            sums.u32(if len == ZEROS.len() { whole } else { crc32c::crc32c(ZEROS.get(..len).unwrap_or_default()) });
        }
        self.record(cx, &sums.0, first)
    }

    /// Records that the blocks from `first` on are present, and have these checksums.
    fn record(&mut self, cx: &Cx<'_>, sums: &[u8], first: u64) -> Result<()> {
        let count = (sums.len() / 4) as u64;
        write_full(cx, &*self.file, sums, self.layout.checksums + first * 4)?;
        let bytes = usize::try_from(first / 8).unwrap_or(usize::MAX)
            ..usize::try_from((first + count).div_ceil(8)).unwrap_or(usize::MAX);
        let mut changed = self.bitmap.get(bytes.clone()).ok_or(Errno::INVAL)?.to_vec();
        for block in first..first + count {
            set(&mut changed, block - first / 8 * 8);
        }
        write_full(cx, &*self.file, &changed, self.layout.bitmap + first / 8)?;
        if let Some(bits) = self.bitmap.get_mut(bytes) {
            bits.copy_from_slice(&changed);
        }
        Ok(())
    }

    /// Returns the file.
    #[must_use]
    pub fn file(&self) -> &Arc<dyn OpenFile> {
        &self.file
    }

    /// Whether no block is present.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bitmap.iter().all(|byte| *byte == 0)
    }
}

fn is_set(bitmap: &[u8], block: u64) -> bool {
    let byte = usize::try_from(block / 8).ok().and_then(|at| bitmap.get(at));
    byte.is_some_and(|byte| byte & (1 << (block % 8)) != 0)
}

fn set(bitmap: &mut [u8], block: u64) {
    if let Some(byte) = usize::try_from(block / 8).ok().and_then(|at| bitmap.get_mut(at)) {
        *byte |= 1 << (block % 8);
    }
}

/// The blocks of a sparse version.
#[derive(Debug)]
pub struct SparseBlocks {
    file: Arc<dyn OpenFile>,
    layout: Layout,
    extent: Range<u64>,
    seal: Seal,
}

impl SparseBlocks {
    /// Opens a sparse version of `len` bytes.
    ///
    /// # Errors
    /// `EIO` if the file is damaged; errors of the layer below.
    pub fn open(cx: &Cx<'_>, file: Arc<dyn OpenFile>, len: u64) -> Result<Self> {
        let (layout, _, seal) = read_end(cx, &*file, len)?;
        let blocks = layout.blocks();
        let mut extent = 0..layout.size;
        if blocks <= MAX_SCANNED {
            let bitmap = Bits::read(cx, &*file, &layout, 0..blocks)?;
            let first = (0..blocks).find(|block| bitmap.has(*block));
            let last = (0..blocks).rfind(|block| bitmap.has(*block));
            extent = match (first, last) {
                (Some(first), Some(last)) => first * BLOCK..((last + 1) * BLOCK).min(layout.size),
                _ => 0..0,
            };
        }
        Ok(Self { file, layout, extent, seal })
    }

    /// Reads blocks that are present and checks them.
    fn read_present(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<()> {
        let (first, end) = (offset / BLOCK, (offset + out.len() as u64).div_ceil(BLOCK));
        let sums = read_exact(cx, &*self.file, self.layout.checksums + first * 4, (end - first) * 4)?;
        let mut block = [0; BLOCK as usize];
        let (mut at, mut out) = (offset, out);
        for sum in sums.chunks_exact(4) {
            let number = at / BLOCK;
            let block = block.get_mut(..self.layout.block_len(number)).ok_or(Errno::IO)?;
            let read = read_full(cx, &*self.file, block, number * BLOCK)?;
            if read < block.len() || crc32c::crc32c(block).to_le_bytes() != sum {
                return Err(Errno::IO);
            }
            let from = block.get(usize::try_from(at % BLOCK).unwrap_or(0)..).ok_or(Errno::IO)?;
            let len = from.len().min(out.len());
            let (part, rest) = out.split_at_mut(len);
            part.copy_from_slice(from.get(..len).ok_or(Errno::IO)?);
            at += len as u64;
            out = rest;
        }
        if out.is_empty() { Ok(()) } else { Err(Errno::IO) }
    }
}

impl Partial for SparseBlocks {
    fn size(&self) -> u64 {
        self.layout.size
    }

    fn base(&self) -> u64 {
        0
    }

    fn extent(&self) -> Range<u64> {
        self.extent.clone()
    }

    fn seal(&self) -> Seal {
        self.seal
    }

    /// Reads the bitmap each time: while a version is being made, blocks are added to it.
    fn fill(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64, lacks: &mut dyn FnMut(Piece)) -> Result<()> {
        let limit = offset + out.len() as u64;
        let bits = Bits::read(cx, &*self.file, &self.layout, offset / BLOCK..limit.div_ceil(BLOCK))?;
        let mut at = offset;
        while at < limit {
            let (until, present) = bits.run(at, limit);
            let start = usize::try_from(at - offset).map_err(|_| Errno::IO)?;
            let end = usize::try_from(until - offset).map_err(|_| Errno::IO)?;
            if present {
                self.read_present(cx, out.get_mut(start..end).ok_or(Errno::IO)?, at)?;
            } else {
                lacks(Piece { at: start, len: end - start, offset: at });
            }
            at = until;
        }
        Ok(())
    }
}

/// Most blocks of a version whose bitmap is read when the version is opened: 4 KiB of it.
const MAX_SCANNED: u64 = 32_768;

/// A part of the bitmap.
struct Bits {
    bytes: Vec<u8>,
    /// The first block of the part, a multiple of 8.
    first: u64,
    end: u64,
}

impl Bits {
    fn read(cx: &Cx<'_>, file: &dyn OpenFile, layout: &Layout, blocks: Range<u64>) -> Result<Self> {
        let from = blocks.start / 8;
        let bytes = read_exact(cx, file, layout.bitmap + from, blocks.end.div_ceil(8).saturating_sub(from))?;
        Ok(Self { bytes, first: from * 8, end: blocks.end })
    }

    fn has(&self, block: u64) -> bool {
        block.checked_sub(self.first).is_some_and(|block| is_set(&self.bytes, block))
    }

    /// Returns the offset behind the run of blocks from `offset` on that are all present or all
    /// absent, and whether they are present.
    fn run(&self, offset: u64, limit: u64) -> (u64, bool) {
        let first = offset / BLOCK;
        let present = self.has(first);
        let after = (first..self.end).find(|block| self.has(*block) != present).unwrap_or(self.end);
        ((after * BLOCK).min(limit), present)
    }
}

/// A sparse version over the next newer one.
#[derive(Debug)]
pub struct Sparse(Over<SparseBlocks>);

impl Sparse {
    /// Opens a sparse version of `len` bytes. `newer` is the next newer version, and is read only
    /// where a block is absent. Blocks may be added while the version is open, but not during a
    /// read.
    ///
    /// # Errors
    /// `EIO` if the file is damaged; errors of the layer below.
    pub fn open(cx: &Cx<'_>, file: Arc<dyn OpenFile>, len: u64, newer: Arc<dyn Content>) -> Result<Self> {
        Ok(Self(Over::new(SparseBlocks::open(cx, file, len)?, newer)))
    }

    /// Reads the header of a sparse version of `len` bytes, and whether every block is present.
    ///
    /// # Errors
    /// `EIO` if the file is damaged; errors of the layer below.
    pub fn header(cx: &Cx<'_>, file: &dyn OpenFile, len: u64) -> Result<(Header, bool)> {
        let (layout, header, _) = read_end(cx, file, len)?;
        let mut at = 0;
        while at < layout.blocks() {
            let end = (at + MAX_SCANNED).min(layout.blocks());
            let bits = Bits::read(cx, file, &layout, at..end)?;
            if !(at..end).all(|block| bits.has(block)) {
                return Ok((header, false));
            }
            at = end;
        }
        Ok((header, true))
    }

    /// Writes `old` to `file`, which is empty: the blocks that differ from any of `newer`. Without
    /// a newer content, all blocks. Returns the writer; its bitmap says what was written.
    ///
    /// # Errors
    /// `E2BIG` if the extended attributes are too large; errors of the contents and of the layer
    /// below.
    pub fn write(
        cx: &Cx<'_>,
        file: Arc<dyn OpenFile>,
        header: &Header,
        old: &dyn Content,
        newer: &[&dyn Content],
    ) -> Result<SparseWriter> {
        let size = old.size();
        let mut writer = SparseWriter::begin(cx, file, size, &header.stored_as(Letter::Sparse, size))?;
        let mut buffer = vec![0; COMPARED];
        let mut at = 0;
        while at < size {
            let part = clamp(&mut buffer, at, size);
            let differ = differing(cx, old, newer, part, at)?;
            for run in differ {
                let offset = at + run.start as u64;
                writer.add(cx, part.get(run).ok_or(Errno::IO)?, offset)?;
            }
            at += part.len() as u64;
        }
        Ok(writer)
    }

    /// Reads a sparse version into a writer, to add blocks to it.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn reopen(cx: &Cx<'_>, file: Arc<dyn OpenFile>, len: u64) -> Result<SparseWriter> {
        let (layout, _, seal) = read_end(cx, &*file, len)?;
        let bitmap = read_exact(cx, &*file, layout.bitmap, layout.blocks().div_ceil(8))?;
        Ok(SparseWriter { file, layout, bitmap, seal })
    }
}

/// Bytes that are compared at a time.
pub(crate) const COMPARED: usize = 32 * BLOCK as usize;

/// Reads `old` at `offset` into `part`. Returns the runs of blocks that differ from any of `newer`.
pub(crate) fn differing(
    cx: &Cx<'_>,
    old: &dyn Content,
    newer: &[&dyn Content],
    part: &mut [u8],
    offset: u64,
) -> Result<Vec<Range<usize>>> {
    fill_from(cx, old, part, offset)?;
    let mut differs = vec![newer.is_empty(); part.len().div_ceil(BLOCK as usize)];
    let mut other = vec![0; part.len()];
    for content in newer {
        let read = content.read_at(cx, &mut other, offset)?;
        let same =
            other.get(..read).unwrap_or_default().chunks(BLOCK as usize).map(Some).chain(core::iter::repeat(None));
        for ((block, same), differs) in part.chunks(BLOCK as usize).zip(same).zip(&mut differs) {
            *differs |= same != Some(block);
        }
    }
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (number, _) in differs.iter().enumerate().filter(|(_, differs)| **differs) {
        let (start, end) = (number * BLOCK as usize, ((number + 1) * BLOCK as usize).min(part.len()));
        match runs.last_mut() {
            Some(run) if run.end == start => run.end = end,
            _ => runs.push(start..end),
        }
    }
    Ok(runs)
}

impl Content for Sparse {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        self.0.read_at(cx, out, offset)
    }

    fn plain(&self) -> Option<&Arc<dyn OpenFile>> {
        None
    }
}

fn read_end(cx: &Cx<'_>, file: &dyn OpenFile, len: u64) -> Result<(Layout, Header, Seal)> {
    let at = len.checked_sub(TAIL).ok_or(Errno::IO)?;
    let (seal, bytes) = read_last(cx, file, at)?;
    let end = Reader(&bytes).u64().filter(|end| *end <= at && tail(*end) == bytes).ok_or(Errno::IO)?;
    let bytes = read_exact(cx, file, end, FIXED)?;
    let mut from = Reader(&bytes);
    let is_ours = from.take(MAGIC.len()) == Some(MAGIC);
    let (size, header_len) = (from.u64().ok_or(Errno::IO)?, from.u32().ok_or(Errno::IO)?);
    if !is_ours || header_len as usize > MAX_HEADER {
        return Err(Errno::IO);
    }
    let layout = Layout::new(size, header_len.into()).ok_or(Errno::IO)?;
    if layout.end != end || layout.tail != at {
        return Err(Errno::IO);
    }
    let header = read_exact(cx, file, end + FIXED, header_len.into())?;
    if fixed(size, &header).is_none_or(|expected| !expected.starts_with(&bytes)) {
        return Err(Errno::IO);
    }
    Ok((layout, Header::decode(&header).ok_or(Errno::IO)?, seal))
}

/// Reads the seal and the tail, which begins at `at`.
fn read_last(cx: &Cx<'_>, file: &dyn OpenFile, at: u64) -> Result<(Seal, Vec<u8>)> {
    let from = at.checked_sub(SEAL_LEN as u64).ok_or(Errno::IO)?;
    let mut bytes = read_exact(cx, file, from, SEAL_LEN as u64 + TAIL)?;
    let tail = bytes.split_off(SEAL_LEN);
    Ok((Seal::decode(&bytes), tail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::Plain;
    use crate::version::tests::example;
    use memfs::MemFs;
    use vnode::{Layer as _, Name, OpenFlags};

    fn file(fs: &MemFs, name: &str) -> Arc<dyn OpenFile> {
        let name = Name::new(name.as_bytes()).unwrap();
        fs.root().create(&Cx::internal(0, 0), name, 0o600, OpenFlags::RDWR).unwrap().1
    }

    fn len(cx: &Cx<'_>, file: &dyn OpenFile) -> u64 {
        let mut at = 0;
        let mut buffer = [0; 65536];
        loop {
            match read_full(cx, file, &mut buffer, at).unwrap() {
                0 => return at,
                read => at += read as u64,
            }
        }
    }

    fn header() -> Header {
        Header { version: example(8), xattrs: vec![(b"user.x".to_vec(), b"y".to_vec())] }
    }

    fn all(cx: &Cx<'_>, content: &dyn Content) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(content.size()).unwrap()];
        let read = content.read_at(cx, &mut bytes, 0)?;
        assert_eq!(read, bytes.len());
        Ok(bytes)
    }

    fn bytes(len: usize, seed: usize) -> Vec<u8> {
        (0..len).map(|i| u8::try_from((i * 31 + i / 4096 + seed) % 251).unwrap()).collect()
    }

    #[test]
    fn absent_blocks_come_from_the_newer_version() {
        let fs = MemFs::new();
        let cx = Cx::internal(0, 0);
        for size in [0, 1, 4095, 4096, 4097, 40_000, 3_000_000] {
            let old = bytes(size, 1);
            let mut new = old.clone();
            new.extend_from_slice(b"longer");
            let (sparse, head) = (file(&fs, &format!("s{size}")), file(&fs, &format!("h{size}")));
            let mut writer = SparseWriter::begin(&cx, Arc::clone(&sparse), size as u64, &header()).unwrap();
            for block in (0..size.div_ceil(4096)).step_by(3) {
                let range = block * 4096..((block + 2) * 4096).min(size);
                assert!(!writer.has(range.start as u64..range.end as u64));
                writer.add(&cx, &old[range.clone()], range.start as u64).unwrap();
                assert!(writer.has(range.start as u64..range.end as u64));
                new[range].fill(0xff);
            }
            write_full(&cx, &*head, &new, 0).unwrap();
            let head: Arc<dyn Content> = Arc::new(Plain::new(head, new.len() as u64));
            let length = len(&cx, &*sparse);
            assert_eq!(Sparse::header(&cx, &*sparse, length).unwrap(), (header(), size <= 2 * 4096));
            let version = Sparse::open(&cx, Arc::clone(&sparse), length, head).unwrap();
            assert!(all(&cx, &version).unwrap() == old, "{size}");
            let reopened = Sparse::reopen(&cx, sparse, length).unwrap();
            assert_eq!(reopened.bitmap, writer.bitmap);
        }
    }

    #[test]
    fn zeros_take_no_space() {
        let fs = MemFs::new();
        let cx = Cx::internal(0, 0);
        for left in [None, Some(5 * BLOCK)] {
            let size = 100 * BLOCK + 17;
            let (sparse, head) = (file(&fs, &format!("s{left:?}")), file(&fs, &format!("h{left:?}")));
            let mut writer = SparseWriter::begin(&cx, Arc::clone(&sparse), size, &header()).unwrap();
            if let Some(at) = left {
                write_full(&cx, &*sparse, &[7; 2 * BLOCK as usize], at).unwrap();
            }
            writer.add_zeros(&cx, 2 * BLOCK..size).unwrap();
            writer.add(&cx, &[1; 2 * BLOCK as usize], 0).unwrap();
            let holds_data = next_data(&cx, &*sparse, 2 * BLOCK..size).unwrap() < size;
            assert_eq!(holds_data, left.is_some());
            let head: Arc<dyn Content> = Arc::new(Plain::new(head, 0));
            let length = len(&cx, &*sparse);
            let version = Sparse::open(&cx, sparse, length, head).unwrap();
            let mut wanted = vec![0; usize::try_from(size).unwrap()];
            wanted[..2 * BLOCK as usize].fill(1);
            assert!(all(&cx, &version).unwrap() == wanted);
        }
    }

    #[test]
    fn bytes_behind_the_end_are_not_missing() {
        let fs = MemFs::new();
        let cx = Cx::internal(0, 0);
        let writer = SparseWriter::begin(&cx, file(&fs, "s"), 5000, &header()).unwrap();
        for (range, missing) in [
            (4999..9000, Some(4096..5000)),
            (5000..9000, None),
            (5000..5001, None),
            (4096..4096, None),
            (6000..7000, None),
            (0..1, Some(0..4096)),
        ] {
            assert_eq!(writer.missing(range.clone()), missing, "{range:?}");
            assert_eq!(writer.has(range.clone()), missing.is_none(), "{range:?}");
        }
    }

    #[test]
    fn an_ordinary_file_becomes_sparse_by_appending() {
        let fs = MemFs::new();
        let cx = Cx::internal(0, 0);
        for size in [0, 1, 4096, 200_000] {
            let (old, lower) = (bytes(size, 2), file(&fs, &format!("f{size}")));
            write_full(&cx, &*lower, &old, 0).unwrap();
            SparseWriter::append(&cx, Arc::clone(&lower), size as u64, &header()).unwrap();
            let empty: Arc<dyn Content> = Arc::new(Plain::new(file(&fs, &format!("e{size}")), 0));
            let length = len(&cx, &*lower);
            assert!(Sparse::header(&cx, &*lower, length).unwrap().1);
            assert!(all(&cx, &Sparse::open(&cx, lower, length, empty).unwrap()).unwrap() == old);
        }
    }

    #[test]
    fn damage_is_an_error_and_never_other_bytes() {
        let fs = MemFs::new();
        let cx = Cx::internal(0, 0);
        let (old, new) = (bytes(20_000, 1), bytes(20_000, 2));
        let (sparse, head) = (file(&fs, "s"), file(&fs, "h"));
        let mut writer = SparseWriter::begin(&cx, Arc::clone(&sparse), 20_000, &header()).unwrap();
        writer.add(&cx, &old, 0).unwrap();
        write_full(&cx, &*head, &new, 0).unwrap();
        let head: Arc<dyn Content> = Arc::new(Plain::new(head, 20_000));
        let length = len(&cx, &*sparse);
        let whole = {
            let mut whole = vec![0; usize::try_from(length).unwrap()];
            read_full(&cx, &*sparse, &mut whole, 0).unwrap();
            whole
        };
        for at in (0..whole.len()).step_by(7) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            write_full(&cx, &*sparse, &damaged, 0).unwrap();
            let bitmap = usize::try_from(writer.layout.bitmap).unwrap();
            if at == bitmap {
                // A cleared bit reads the newer version: only checksums of whole versions could
                // tell.
                continue;
            }
            match Sparse::open(&cx, Arc::clone(&sparse), length, Arc::clone(&head)) {
                Ok(version) => match all(&cx, &version) {
                    Ok(read) => assert!(read == old, "byte {at}"),
                    Err(errno) => assert_eq!(errno, Errno::IO),
                },
                Err(errno) => assert_eq!(errno, Errno::IO),
            }
        }
    }
}
