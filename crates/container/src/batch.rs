//! Collects new versions of blocks of one group and writes them to the lower file.

use crate::codec::BlockAt;
use crate::container::Container;
use crate::format::{Slot, Version};
use crate::geometry::{UNIT, first_of};
use crate::group::{Entry, Group, Target};
use crate::head::Head;
use crate::scratch::with_buffer;
use std::sync::Arc;
use vnode::{Cx, Errno, Result};

/// The new content of a block.
#[derive(Clone, Copy, Debug)]
enum Content {
    Hole,
    /// Encoded bytes in the buffer, at `start`.
    Encoded {
        start: usize,
        version: Version,
    },
}

/// New contents for blocks of one group, at most one for each.
#[derive(Debug)]
pub(crate) struct Batch<'b> {
    group: u64,
    items: Vec<(usize, Content)>,
    /// Encoded blocks, each aligned to a unit.
    buffer: &'b mut Vec<u8>,
}

impl<'b> Batch<'b> {
    /// Creates an empty batch. Discards the buffer's contents.
    pub(crate) fn new(group: u64, buffer: &'b mut Vec<u8>) -> Self {
        buffer.clear();
        Self { group, items: Vec::new(), buffer }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(crate) fn add_hole(&mut self, at: usize) {
        self.items.push((at, Content::Hole));
    }

    /// Adds a block with this content, padded with zeros to a whole block.
    pub(crate) fn add(&mut self, container: &Container, head: &Head, at: usize, plain: &[u8]) -> Result<()> {
        let plain = trim_zeros(plain);
        if plain.is_empty() {
            self.add_hole(at);
            return Ok(());
        }
        let start = self.buffer.len();
        let block = BlockAt { file: head.fixed.file, block: first_of(self.group) + at as u64 };
        container.codec.encode(&block, plain, self.buffer)?;
        let encoded = self.buffer.get(start..).ok_or(Errno::IO)?;
        let len = u32::try_from(encoded.len()).ok().filter(|len| (1..=head.fixed.geometry.max_encoded()).contains(len));
        let len = len.ok_or(Errno::IO)?;
        let size = u32::try_from(plain.len()).map_err(|_| Errno::INVAL)?;
        let version = Version { seq: 0, unit: 0, len, plain: size, sum: crc32c::crc32c(encoded) };
        self.buffer.resize(start + version.units() as usize * UNIT as usize, 0);
        self.items.push((at, Content::Encoded { start, version }));
        Ok(())
    }

    /// Adds an already encoded block; `version` describes these bytes.
    pub(crate) fn add_encoded(&mut self, at: usize, version: Version, encoded: &[u8]) {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(encoded);
        self.buffer.resize(start + version.units() as usize * UNIT as usize, 0);
        self.items.push((at, Content::Encoded { start, version }));
    }

    /// Adds a block whose stored bytes don't move.
    pub(crate) fn add_in_place(&mut self, at: usize, version: Version) {
        self.items.push((at, Content::Encoded { start: 0, version }));
    }

    fn sizes(&self) -> Vec<u32> {
        let size = |(_, content): &(usize, Content)| match content {
            Content::Encoded { version, .. } => Some(version.units()),
            Content::Hole => None,
        };
        self.items.iter().filter_map(size).collect()
    }
}

/// Removes trailing zeros.
fn trim_zeros(bytes: &[u8]) -> &[u8] {
    const WORDS: usize = 64;
    let mut rest = bytes;
    while let Some((head, tail)) = rest.split_last_chunk::<WORDS>() {
        if tail != &[0; WORDS] {
            break;
        }
        rest = head;
    }
    let len = rest.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    rest.get(..len).unwrap_or(rest)
}

impl Container {
    /// Writes the new versions, then makes them the blocks' contents. After an error each block has
    /// its old or its new content; if nothing could be written, the old one.
    pub(crate) fn commit(&self, cx: &Cx<'_>, head: &mut Head, batch: &mut Batch<'_>) -> Result<()> {
        self.begin_session(cx, head, batch.items.len() as u64)?;
        let before = self.group(cx, head, batch.group)?;
        // An existing hole is not written again: zeros over a hole take no space, not even in the
        // index.
        let is_data = |at: usize| before.entry(at).is_ok_and(Entry::is_data);
        batch.items.retain(|&(at, content)| matches!(content, Content::Encoded { .. }) || is_data(at));
        if batch.is_empty() {
            return Ok(());
        }
        for &(at, _) in &batch.items {
            if let Ok(Some((_, newest))) = before.entry(at)?.newest() {
                head.space.supersede(newest);
            }
        }
        let units = self.write_data(cx, head, batch)?;
        self.write_index(cx, head, batch, &units)
    }

    /// Like [`Self::commit`], with places already chosen and contents unchanged.
    pub(crate) fn commit_relocated(
        &self,
        cx: &Cx<'_>,
        head: &mut Head,
        batch: &Batch<'_>,
        units: &[u32],
    ) -> Result<()> {
        self.begin_session(cx, head, batch.items.len() as u64)?;
        self.write_pieces(cx, head, batch, units)?;
        self.write_index(cx, head, batch, units)
    }

    /// Assigns new numbers to versions whose stored bytes don't move.
    pub(crate) fn renumber(&self, cx: &Cx<'_>, head: &mut Head, batch: &Batch<'_>, units: &[u32]) -> Result<()> {
        self.begin_session(cx, head, batch.items.len() as u64)?;
        self.write_index(cx, head, batch, units)
    }

    /// Writes the index, which makes the new versions at `units` the blocks' contents.
    fn write_index(&self, cx: &Cx<'_>, head: &mut Head, batch: &Batch<'_>, units: &[u32]) -> Result<()> {
        let mut group = (*self.group(cx, head, batch.group)?).clone();
        let fresh_before = group.fresh();
        let (mut first, mut last) = (usize::MAX, 0);
        let mut units = units.iter();
        for &(at, content) in &batch.items {
            let seq = head.next_seq()?;
            let version = match content {
                Content::Hole => Version::hole(seq),
                Content::Encoded { version, .. } => Version { seq, unit: *units.next().ok_or(Errno::IO)?, ..version },
            };
            self.replace(cx, head, &mut group, at, version)?;
            (first, last) = (first.min(at), last.max(at));
        }
        group.update_high();
        let (offset, bytes) = group.bytes(&head.fixed, first, last);
        head.unsynced = true;
        let start = first_of(batch.group);
        self.cache.forget_plain(start + first as u64..=start + last as u64);
        let written = self.write_lower(cx, &bytes, offset);
        match written {
            Ok(()) => {
                head.space.note(batch.group, fresh_before, group.fresh());
                self.cache.put_group(Arc::new(group));
            }
            // The write may have been partial.
            Err(_) => {
                head.space.forget();
                self.cache.forget_groups(batch.group..=batch.group);
            }
        }
        written
    }

    /// Puts a version into the proper slot of its entry in memory.
    fn replace(&self, cx: &Cx<'_>, head: &mut Head, group: &mut Group, at: usize, mut version: Version) -> Result<()> {
        let number = group.number;
        let entry = group.entry_mut(at)?;
        if let Some(newest) = entry.slots.iter().filter_map(Slot::version).map(|v| v.seq).max() {
            // A session whose record was lost in a power failure may have assigned larger numbers.
            if newest >= version.seq {
                head.seq = newest;
                version.seq = head.next_seq()?;
                self.raise_limit(cx, head)?;
            }
        }
        let slot = match entry.target(head) {
            Target::Slot(slot) => slot,
            Target::Depends { newest, other } => {
                let candidate = entry.slots.get(newest).and_then(Slot::version).copied().ok_or(Errno::IO)?;
                if self.is_intact(cx, head, number, &candidate)? { other } else { newest }
            }
        };
        let place = entry.slots.get_mut(slot).ok_or(Errno::IO)?;
        *place = Slot::Version(version);
        entry.checked = false;
        // The new version supersedes a damaged slot.
        if let Some(other @ Slot::Damaged) = entry.slots.get_mut(1 - slot) {
            *other = Slot::Empty;
        }
        Ok(())
    }

    pub(crate) fn is_intact(&self, cx: &Cx<'_>, head: &Head, group: u64, version: &Version) -> Result<bool> {
        if version.is_hole() {
            return Ok(true);
        }
        let mut buffer = Vec::new();
        self.fetch(cx, head, group, version, &mut buffer)
    }

    /// Allocates space for the encoded blocks and writes them. On a full disk, first frees the
    /// versions that are kept only against a power failure.
    fn write_data(&self, cx: &Cx<'_>, head: &mut Head, batch: &Batch<'_>) -> Result<Vec<u32>> {
        let sizes = batch.sizes();
        let group = self.group(cx, head, batch.group)?;
        // The first version of a block is written to unused space. Recovery can then detect that it
        // did not reach the disk.
        let is_first = |at: usize| group.entry(at).is_ok_and(|entry| matches!(entry.newest(), Ok(None)));
        let fresh = batch.items.iter().any(|&(at, _)| is_first(at));
        if fresh && !sizes.is_empty() {
            self.clean_above(cx, head, &group)?;
        }
        if let Some(units) = group.allocate(head, &sizes, fresh) {
            match self.write_pieces(cx, head, batch, &units) {
                Err(Errno::NOSPC | Errno::DQUOT) => {}
                written => return written.map(|()| units),
            }
        }
        self.make_durable(cx, head, true)?;
        let group = self.checked_group(cx, head, batch.group)?;
        let units = group.allocate(head, &sizes, false).ok_or(Errno::NOSPC)?;
        self.write_pieces(cx, head, batch, &units).map(|()| units)
    }

    /// Reads all versions of a group that are in doubt. An intact one counts as durable afterwards.
    pub(crate) fn checked_group(&self, cx: &Cx<'_>, head: &Head, number: u64) -> Result<Arc<Group>> {
        let mut group = (*self.group(cx, head, number)?).clone();
        for entry in &mut group.entries {
            if let Ok(Some((slot, newest))) = entry.newest()
                && entry.other(slot).is_some()
                && !head.state.is_durable(newest.seq)
            {
                entry.checked = self.is_intact(cx, head, number, newest)?;
            }
        }
        let group = Arc::new(group);
        self.cache.put_group(Arc::clone(&group));
        Ok(group)
    }

    /// Writes the encoded blocks to their places, adjacent ones with one write.
    fn write_pieces(&self, cx: &Cx<'_>, head: &mut Head, batch: &Batch<'_>, units: &[u32]) -> Result<()> {
        let mut pieces: Vec<(u32, usize, usize)> = Vec::new();
        let encoded = batch.items.iter().filter_map(|(_, content)| match content {
            Content::Encoded { start, version } => Some((*start, version.units())),
            Content::Hole => None,
        });
        for ((start, count), &unit) in encoded.zip(units) {
            let end = start + count as usize * UNIT as usize;
            match pieces.last_mut() {
                Some((first, from, to)) if u64::from(*first) + (*to - *from) as u64 / UNIT == u64::from(unit) => {
                    *to = end;
                }
                _ => pieces.push((unit, start, end)),
            }
        }
        head.unsynced |= !pieces.is_empty();
        for (unit, from, to) in pieces {
            let bytes = batch.buffer.get(from..to).ok_or(Errno::IO)?;
            self.write_lower(cx, bytes, head.fixed.geometry.unit_at(batch.group, unit))?;
        }
        Ok(())
    }

    /// Runs `work` with a batch of a group, then commits the batch.
    pub(crate) fn with_batch<R>(
        &self,
        cx: &Cx<'_>,
        head: &mut Head,
        group: u64,
        work: impl FnOnce(&Self, &mut Head, &mut Batch<'_>) -> Result<R>,
    ) -> Result<R> {
        with_buffer(|buffer| {
            let mut batch = Batch::new(group, buffer);
            let result = work(self, head, &mut batch)?;
            if !batch.is_empty() {
                self.commit(cx, head, &mut batch)?;
            }
            Ok(result)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_zeros_are_trimmed() {
        for len in [0, 1, 63, 64, 65, 1000] {
            assert_eq!(trim_zeros(&vec![0; len]), b"");
            for last in 0..len {
                let mut bytes = vec![0; len];
                bytes[last] = 1;
                assert_eq!(trim_zeros(&bytes).len(), last + 1);
            }
        }
    }
}
