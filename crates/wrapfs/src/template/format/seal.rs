//! The seal of a file: reading it, and checking blocks against it ([`Sealed`]).

use super::super::data::Scratch;
use super::super::guard::guard;
use super::coding::At;
use super::file::FormatFile;
use crate::hooks::{FormatBlock, FormatHeader, Seal, Sealed};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use vnode::{Cx, Errno, Result, Whence};

/// How long a thread that waits for another one's check ignores that its request was interrupted.
const PATIENCE: Duration = Duration::from_millis(100);

/// The seal of a file in use.
#[derive(Debug)]
pub(crate) struct SealInUse {
    seal: Seal,
    /// Segments that were compared with their sum since the file was first opened.
    checked: Vec<bool>,
    /// The file's length differs from the seal, and it is used all the same.
    has_other_length: bool,
}

/// A segment: its index, its blocks, and its sum.
type Unchecked = (usize, Range<u64>, u128);

impl SealInUse {
    fn new(seal: Seal, blocks: u64, is_checked: bool) -> Self {
        let checked = vec![is_checked; segments_of(&seal, blocks)];
        Self { seal, checked, has_other_length: false }
    }

    /// Returns the first segment with some of these blocks, out of `count` ones, that was not
    /// checked.
    fn unchecked(&self, blocks: &Range<u64>, count: u64) -> Option<Unchecked> {
        let (shift, end) = (self.seal.shift, blocks.end.min(count));
        let first = (blocks.start >> shift) as usize;
        let is_open = |index: &usize| self.checked.get(*index) == Some(&false);
        let index = (first..self.checked.len()).find(is_open).filter(|&index| ((index as u64) << shift) < end)?;
        let start = (index as u64) << shift;
        Some((index, start..(start + (1 << shift)).min(count), self.seal.sums.get(index).copied().unwrap_or(0)))
    }

    /// Replaces the seal after a change. Segments that did not exist before need no check.
    fn replace(&mut self, seal: Seal, blocks: u64) {
        for _ in self.seal.shift..seal.shift {
            let both = |pair: &[bool]| pair.iter().all(|&checked| checked);
            self.checked = self.checked.chunks(2).map(both).collect();
        }
        self.checked.resize(segments_of(&seal, blocks), true);
        self.seal = seal;
    }
}

/// Returns the number of segments of a file with this many blocks.
fn segments_of(seal: &Seal, blocks: u64) -> usize {
    blocks.div_ceil(1 << seal.shift) as usize
}

/// Adds a weight to the sum of a block's segment. If that is beyond the last of `most` sums, pairs
/// of segments are joined.
pub(super) fn add(seal: &mut Seal, most: usize, number: u64, weight: u128) {
    while number >> seal.shift >= most as u64 {
        let join = |pair: &[u128]| pair.iter().fold(0_u128, |sum, part| sum.wrapping_add(*part));
        seal.sums = seal.sums.chunks(2).map(join).collect();
        seal.shift += 1;
    }
    if weight == 0 {
        return;
    }
    let index = (number >> seal.shift) as usize;
    if seal.sums.len() <= index {
        seal.sums.resize(index + 1, 0);
    }
    if let Some(sum) = seal.sums.get_mut(index) {
        *sum = sum.wrapping_add(weight);
    }
}

impl<'f> FormatFile<'f> {
    pub(super) fn sealed(&self) -> Option<&'f dyn Sealed> {
        self.format.sealed()
    }

    pub(super) fn at_header<'a>(&'a self, header: &'a [u8]) -> FormatHeader<'a> {
        FormatHeader { file: &self.object, header, opened: self.opened }
    }

    pub(super) fn weigh(
        &self,
        cx: &Cx<'_>,
        sealed: &dyn Sealed,
        (header, number): At<'_>,
        stored: &[u8],
    ) -> Result<u128> {
        let at = FormatBlock { file: &self.object, header, number, opened: self.opened };
        guard("weigh", || sealed.weigh(cx, &at, stored))
    }

    /// Returns the number of blocks of a file of this plain size.
    pub(super) fn count(&self, size: u64) -> u64 {
        size.div_ceil(self.layout().plain())
    }

    /// Returns the stored size of a file that has a header.
    pub(super) fn stored_with_header(&self, size: u64) -> u64 {
        self.layout().stored_size(size).max(self.layout().header())
    }

    fn broken(&self, cx: &Cx<'_>, sealed: &dyn Sealed, bytes: Range<u64>) -> Result<()> {
        guard("broken", || sealed.broken(cx, &self.object, bytes))
    }

    /// Reads the seal, unless that was done, and compares the length. Does nothing in a format
    /// without seals.
    fn load_seal(&self, cx: &Cx<'_>, header: &[u8]) -> Result<()> {
        let Some(sealed) = self.sealed() else { return Ok(()) };
        if self.inode.seal.lock().is_some() {
            return Ok(());
        }
        let seal = guard("read_seal", || sealed.read_seal(cx, &self.at_header(header)))?;
        let stored = self.stored(cx)?;
        let loaded = if stored == self.stored_with_header(seal.size) {
            let count = self.count(seal.size);
            SealInUse::new(seal, count, false)
        } else {
            let size = self.layout().plain_size(stored);
            self.broken(cx, sealed, size..size)?;
            let (mut seal, count) = (Seal { size, ..seal }, self.count(size));
            // The table must not grow with a length that anybody can have chosen.
            add(&mut seal, sealed.segments(), count.saturating_sub(1), 0);
            SealInUse { has_other_length: true, ..SealInUse::new(seal, count, false) }
        };
        self.inode.seal.lock().get_or_insert(loaded);
        Ok(())
    }

    /// Reads the seal of a file that was opened, so that a file of another length is noticed even
    /// if it seems to be empty.
    pub(crate) fn check_opened(&self, cx: &Cx<'_>) -> Result<()> {
        match self.sealed().map_or(Ok(None), |_| self.header(cx))? {
            Some(header) => self.load_seal(cx, &header),
            None => Ok(()),
        }
    }

    /// Returns a copy of the seal; `None` in a format without seals.
    pub(super) fn seal(&self, cx: &Cx<'_>, header: &[u8]) -> Result<Option<Seal>> {
        self.load_seal(cx, header)?;
        Ok(self.inode.seal.lock().as_ref().map(|in_use| in_use.seal.clone()))
    }

    /// Fails if a stored file of this size, which is about to be changed, is not as long as its
    /// seal says. Otherwise the change would seal it at its wrong length.
    pub(super) fn check_length(&self, cx: &Cx<'_>, stored: u64) -> Result<()> {
        let Some(sealed) = self.sealed().filter(|_| stored > 0) else { return Ok(()) };
        let header = self.header(cx)?;
        let seal = header.map_or(Ok(None), |header| self.seal(cx, &header))?;
        if seal.is_some_and(|seal| self.stored_with_header(seal.size) == stored) {
            return Ok(());
        }
        let size = self.layout().plain_size(stored);
        self.broken(cx, sealed, size..size)
    }

    /// Compares the segments of these blocks with the seal, unless that was done since the file was
    /// first opened. Does nothing in a format without seals.
    pub(super) fn verify(&self, cx: &Cx<'_>, header: &[u8], blocks: Range<u64>) -> Result<()> {
        let Some(sealed) = self.sealed() else { return Ok(()) };
        self.load_seal(cx, header)?;
        while self.unchecked(&blocks)?.is_some() {
            cx.require_blocking()?;
            // Readahead asks for the parts of a segment at the same time. One thread checks it.
            let alone = loop {
                cx.check()?;
                if let Some(alone) = self.inode.checking.try_lock_for(PATIENCE) {
                    break alone;
                }
            };
            let Some(((index, segment, sum), size)) = self.unchecked(&blocks)? else { return Ok(()) };
            let found = self.weigh_range(cx, sealed, header, (segment.clone(), size))?;
            if found != Some(sum) {
                let plain = self.layout().plain();
                self.broken(cx, sealed, segment.start * plain..(segment.end * plain).min(size))?;
            }
            if let Some(checked) = self.inode.seal.lock().as_mut().and_then(|in_use| in_use.checked.get_mut(index)) {
                *checked = true;
            }
            drop(alone);
        }
        Ok(())
    }

    /// As [`SealInUse::unchecked`], with the plain size of the file.
    fn unchecked(&self, blocks: &Range<u64>) -> Result<Option<(Unchecked, u64)>> {
        let in_use = self.inode.seal.lock();
        let in_use = in_use.as_ref().ok_or(Errno::IO)?;
        let size = in_use.seal.size;
        Ok(in_use.unchecked(blocks, self.count(size)).map(|open| (open, size)))
    }

    /// Returns how many stored bytes a read of `len` bytes at `offset` must return. `None` if that
    /// is unknown.
    pub(super) fn sealed_len(&self, offset: u64, len: usize) -> Option<usize> {
        let in_use = self.inode.seal.lock();
        let in_use = in_use.as_ref().filter(|in_use| !in_use.has_other_length)?;
        let left = self.stored_with_header(in_use.seal.size).saturating_sub(offset);
        Some(usize::try_from(left).map_or(len, |left| left.min(len)))
    }

    /// Adds up the weights of blocks of a file of `size` plain bytes. `None` if it is shorter.
    fn weigh_range(
        &self,
        cx: &Cx<'_>,
        sealed: &dyn Sealed,
        header: &[u8],
        (blocks, size): (Range<u64>, u64),
    ) -> Result<Option<u128>> {
        let (layout, end) = (self.layout(), self.stored_with_header(size));
        let (mut sum, mut number) = (0_u128, blocks.start);
        while number < blocks.end {
            cx.check()?;
            // Holes weigh nothing, and there can be very large ones.
            match self.file.seek(cx, layout.start_of(number), Whence::Data) {
                Ok(data) => number = number.max(data.saturating_sub(layout.header()) / layout.stored()),
                Err(Errno::NXIO) => break,
                Err(_) => {}
            }
            let stop = blocks.end.min(number + self.format.chunk());
            let start = layout.start_of(number);
            let len = layout.start_of(stop).min(end).saturating_sub(start) as usize;
            let mut bytes = Scratch::take(len);
            if self.read_below(cx, &mut bytes, start)? != len {
                return Ok(None);
            }
            for (number, block) in (number..).zip(bytes.chunks(layout.stored() as usize)) {
                sum = sum.wrapping_add(self.weigh(cx, sealed, (header, number), block)?);
            }
            number = stop.max(number);
        }
        Ok(Some(sum))
    }

    /// Takes the blocks from `first` on out of a seal: all that a truncation removes.
    pub(super) fn shrink(&self, cx: &Cx<'_>, header: &[u8], seal: &mut Seal, first: u64) -> Result<()> {
        let Some(sealed) = self.sealed() else { return Ok(()) };
        let (count, shift) = (self.count(seal.size), seal.shift);
        let segment = (first >> shift) as usize;
        let cut = first..(((segment as u64) + 1) << shift).min(count);
        seal.sums.truncate(segment + 1);
        if first.trailing_zeros() >= shift {
            seal.sums.truncate(segment);
        } else if !cut.is_empty() {
            self.verify(cx, header, cut.clone())?;
            let weight = self.weigh_range(cx, sealed, header, (cut, seal.size))?.ok_or(Errno::IO)?;
            add(seal, sealed.segments(), first, weight.wrapping_neg());
        }
        Ok(())
    }

    /// Keeps the seal from before a change that was undone. All segments are checked again: the
    /// change may have removed some, and joined others.
    pub(super) fn put_back_seal(&self, header: Arc<[u8]>, seal: Seal) {
        let count = self.count(seal.size);
        *self.inode.seal.lock() = Some(SealInUse::new(seal, count, false));
        *self.inode.header.lock() = Some(header);
    }

    /// Keeps a seal, and the header that contains it, after they were written.
    pub(super) fn keep_seal(&self, header: Arc<[u8]>, seal: Seal) {
        let count = self.count(seal.size);
        match &mut *self.inode.seal.lock() {
            Some(in_use) => in_use.replace(seal, count),
            none => *none = Some(SealInUse::new(seal, count, true)),
        }
        *self.inode.header.lock() = Some(header);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_joined() {
        let mut seal = Seal { size: 0, shift: 1, sums: Vec::new() };
        for number in 0..40 {
            add(&mut seal, 3, number, 1 << number);
        }
        let sums = |from: u32, to: u32| (from..to).fold(0, |sum: u128, number| sum + (1 << number));
        assert_eq!(seal, Seal { size: 0, shift: 4, sums: vec![sums(0, 16), sums(16, 32), sums(32, 40)] });
        add(&mut seal, 3, 1 << 40, 0);
        assert_eq!((seal.sums, seal.shift), (vec![sums(0, 40)], 39));
    }

    #[test]
    fn checks_are_kept_when_segments_are_joined() {
        let seal = |shift| Seal { size: 0, shift, sums: vec![7; 3] };
        let mut in_use = SealInUse::new(seal(1), 6, false);
        in_use.checked = vec![true, true, false];
        in_use.replace(seal(2), 9);
        assert_eq!(in_use.checked, [true, false, true]);
        assert_eq!(in_use.unchecked(&(0..4), 9), None);
        assert_eq!(in_use.unchecked(&(0..5), 9), Some((1, 4..8, 7)));
        assert_eq!(in_use.unchecked(&(5..50), 7), Some((1, 4..7, 7)));
        assert_eq!(in_use.unchecked(&(8..50), 9), None);
        in_use.replace(seal(2), 4);
        in_use.replace(seal(2), 9);
        assert_eq!(in_use.checked, [true; 3]);
    }
}
