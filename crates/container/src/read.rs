//! Reading.

use crate::codec::BlockAt;
use crate::container::Container;
use crate::format::{SECTOR, Version};
use crate::geometry::{GROUP_BLOCKS, first_of, place_of};
use crate::group::Group;
use crate::head::Head;
use crate::scratch::with_buffer;
use std::sync::Arc;
use vnode::{Cx, Errno, Result};

/// Maximum number of bytes read from the lower file at a time; at least one block is read.
const STEP: usize = 1 << 20;

/// Maximum number of bytes decoded for a caller that must not block.
const NONBLOCKING_MAX: usize = 128 << 10;

/// The current version of a block.
pub(crate) enum Current {
    Hole,
    /// Data, whose encoded bytes are in the buffer.
    Data(Version),
}

impl Container {
    /// Reads at `offset`; returns fewer bytes than requested only at the end of the file. Reads
    /// only the blocks of the range from the lower file.
    ///
    /// # Errors
    /// `EIO` if stored data is damaged or was tampered with; [`vnode::MAY_BLOCK`]; errors of
    /// reading the lower file.
    pub fn read(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        let inner = self.inner.read();
        let Some(head) = &inner.head else { return Ok(0) };
        let len = usize::try_from(head.state.size.saturating_sub(offset)).unwrap_or(usize::MAX).min(out.len());
        if len.max(head.fixed.geometry.block() as usize) > NONBLOCKING_MAX {
            cx.require_blocking()?;
        }
        let mut done = 0;
        while let Some(rest) = out.get_mut(done..len).filter(|rest| !rest.is_empty()) {
            // An error must not shorten the result: that would look like the end of the file.
            done += self.read_step(cx, head, rest, offset + done as u64)?;
        }
        Ok(done)
    }

    /// Reads from blocks of one group, at least from one block.
    fn read_step(&self, cx: &Cx<'_>, head: &Head, out: &mut [u8], offset: u64) -> Result<usize> {
        let size = head.fixed.geometry.block();
        let (block, within) = (offset / size, offset % size);
        let to_end = head.state.size - block * size;
        let portion = ((size - within) as usize).min(out.len());
        // The whole block, or all of it up to the end of the file.
        let whole = within == 0 && (out.len() as u64 >= size || out.len() as u64 >= to_end);
        if !whole {
            let plain = self.plain(cx, head, block)?;
            let out = out.get_mut(..portion).ok_or(Errno::IO)?;
            copy_padded(out, plain.get(within as usize..).unwrap_or(&[]));
            return Ok(portion);
        }
        let (group, first) = place_of(block);
        let group = self.group(cx, head, group)?;
        match self.run(head, &group, first, out.len()) {
            0 => {
                let end = self.hole_end(&group, first, out.len() as u64, size);
                out.get_mut(..end).ok_or(Errno::IO)?.fill(0);
                Ok(end)
            }
            count => with_buffer(|buffer| self.read_run(cx, head, &group, first, count, out, buffer)),
        }
    }

    /// Returns the number of blocks from `first` on that are adjacent in the lower file and lie
    /// within `len` plain bytes. 0: the first is a hole.
    fn run(&self, head: &Head, group: &Group, first: usize, len: usize) -> usize {
        let size = head.fixed.geometry.block() as usize;
        let most = len.div_ceil(size).min(STEP.div_ceil(size)).max(1);
        let mut next = None;
        let mut count = 0;
        for entry in group.entries.iter().skip(first).take(most) {
            match entry.newest() {
                Ok(Some((_, version))) if !version.is_hole() && next.is_none_or(|unit| unit == version.unit) => {
                    next = Some(version.end());
                    count += 1;
                }
                // Reading it alone reports the damage.
                Err(_) if count == 0 => return 1,
                _ => break,
            }
        }
        count
    }

    /// Returns the number of hole bytes from this block on.
    fn hole_end(&self, group: &Group, first: usize, len: u64, size: u64) -> usize {
        let holes = group.entries.iter().skip(first).take_while(|entry| !entry.is_data()).count() as u64;
        (holes * size).min(len) as usize
    }

    #[allow(clippy::too_many_arguments)] // A step of `read_step`, which has all of these.
    fn read_run(
        &self,
        cx: &Cx<'_>,
        head: &Head,
        group: &Group,
        first: usize,
        count: usize,
        out: &mut [u8],
        buffer: &mut Vec<u8>,
    ) -> Result<usize> {
        let size = head.fixed.geometry.block() as usize;
        let versions: Vec<Version> = (first..first + count)
            .map_while(|at| group.entry(at).ok()?.newest().ok()?.map(|(_, version)| *version))
            .collect();
        let start = versions.first().map_or(0, |version| version.unit);
        if let Some(last) = versions.last() {
            let len = head.fixed.geometry.unit_at(0, last.unit) - head.fixed.geometry.unit_at(0, start);
            let encoded = resized(buffer, len as usize + last.len as usize);
            self.read_lower(cx, encoded, head.fixed.geometry.unit_at(group.number, start))?;
        }
        let mut done = 0;
        for at in first..(first + count).min(GROUP_BLOCKS) {
            let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) else { break };
            let portion = rest.len().min(size);
            let rest = rest.get_mut(..portion).ok_or(Errno::IO)?;
            let read = versions.get(at - first).and_then(|version| {
                let from = (version.unit - start) as usize * crate::geometry::UNIT as usize;
                let encoded = buffer.get(from..from + version.len as usize)?;
                (crc32c::crc32c(encoded) == version.sum).then_some((version, encoded))
            });
            let block = first_of(group.number) + at as u64;
            let result = match read {
                Some((version, encoded)) => self.decode(head, block, version, encoded, rest),
                None => self.plain_of(cx, head, group, at).map(|plain| copy_padded(rest, &plain)),
            };
            match result {
                Ok(()) => done += portion,
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Decodes a block into `out`, which covers the block up to the end of the file.
    fn decode(&self, head: &Head, block: u64, version: &Version, encoded: &[u8], out: &mut [u8]) -> Result<()> {
        let at = BlockAt { file: head.fixed.file, block };
        let plain = version.plain as usize;
        if plain <= out.len() {
            let (exact, zeros) = out.split_at_mut(plain);
            zeros.fill(0);
            return self.codec.decode(&at, encoded, exact);
        }
        // The file was truncated within the block.
        let mut bytes = vec![0; plain];
        self.codec.decode(&at, encoded, &mut bytes)?;
        copy_padded(out, &bytes);
        Ok(())
    }

    /// Returns the content of a block up to its trailing zeros or the end of the file.
    pub(crate) fn plain(&self, cx: &Cx<'_>, head: &Head, block: u64) -> Result<Arc<Vec<u8>>> {
        if let Some(plain) = self.cache.plain(block) {
            return Ok(plain);
        }
        let (group, at) = place_of(block);
        let group = self.group(cx, head, group)?;
        let plain = Arc::new(self.plain_of(cx, head, &group, at)?);
        self.cache.put_plain(block, Arc::clone(&plain));
        Ok(plain)
    }

    fn plain_of(&self, cx: &Cx<'_>, head: &Head, group: &Group, at: usize) -> Result<Vec<u8>> {
        with_buffer(|buffer| {
            let Current::Data(version) = self.current(cx, head, group, at, buffer)? else { return Ok(Vec::new()) };
            let block = first_of(group.number) + at as u64;
            let mut plain = vec![0; version.plain as usize];
            let encoded = buffer.get(..version.len as usize).ok_or(Errno::IO)?;
            self.codec.decode(&BlockAt { file: head.fixed.file, block }, encoded, &mut plain)?;
            let to_end = head.state.size.saturating_sub(block * head.fixed.geometry.block());
            plain.truncate(usize::try_from(to_end).unwrap_or(usize::MAX));
            Ok(plain)
        })
    }

    /// Returns the current version of a block: the newest, if its bytes reached the disk.
    pub(crate) fn current(
        &self,
        cx: &Cx<'_>,
        head: &Head,
        group: &Group,
        at: usize,
        buffer: &mut Vec<u8>,
    ) -> Result<Current> {
        let entry = group.entry(at)?;
        let Some((slot, newest)) = entry.newest()? else { return Ok(Current::Hole) };
        if newest.is_hole() {
            return Ok(Current::Hole);
        }
        if self.fetch(cx, head, group.number, newest, buffer)? {
            return Ok(Current::Data(*newest));
        }
        // It was intact once, so this is damage.
        if head.state.is_durable(newest.seq) || head.is_from_this_session(newest.seq) {
            return Err(Errno::IO);
        }
        match entry.other(slot) {
            Some(older) if older.is_hole() => Ok(Current::Hole),
            Some(older) if self.fetch(cx, head, group.number, older, buffer)? => Ok(Current::Data(*older)),
            Some(older) if head.state.is_durable(older.seq) => Err(Errno::IO),
            // The buffer holds the bytes of the oldest version, which was the block's first. Before
            // it, the block was a hole.
            oldest => {
                let unit = oldest.map_or(newest.unit, |older| older.unit);
                let arrived = !has_unwritten_sector(buffer, head.fixed.geometry.unit_at(group.number, unit));
                if arrived { Err(Errno::IO) } else { Ok(Current::Hole) }
            }
        }
    }

    /// Reads the bytes of a version and returns whether they are intact.
    pub(crate) fn fetch(
        &self,
        cx: &Cx<'_>,
        head: &Head,
        group: u64,
        version: &Version,
        buffer: &mut Vec<u8>,
    ) -> Result<bool> {
        let encoded = resized(buffer, version.len as usize);
        self.read_lower(cx, encoded, head.fixed.geometry.unit_at(group, version.unit))?;
        Ok(crc32c::crc32c(encoded) == version.sum)
    }
}

/// Whether a sector of `bytes`, read at `offset`, is still in its initial state (zeros).
fn has_unwritten_sector(bytes: &[u8], offset: u64) -> bool {
    let first = (SECTOR - (offset % SECTOR as u64) as usize).min(bytes.len());
    let (head, rest) = bytes.split_at(first);
    let is_zero = |part: &[u8]| !part.is_empty() && part.iter().all(|&byte| byte == 0);
    is_zero(head) || rest.chunks(SECTOR).any(is_zero)
}

/// Returns the buffer's first `len` bytes, with arbitrary content.
fn resized(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    buffer.resize(len, 0);
    buffer
}

/// Copies `from` and fills the rest with zeros.
fn copy_padded(out: &mut [u8], from: &[u8]) {
    let len = from.len().min(out.len());
    let (data, zeros) = out.split_at_mut(len);
    data.copy_from_slice(from.get(..len).unwrap_or(from));
    zeros.fill(0);
}
