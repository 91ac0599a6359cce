//! The index of a group: entries with two version slots per block.

use crate::format::{Fixed, Slot, SlotBytes, Version};
use crate::geometry::{ENTRY, GROUP_BLOCKS, PAGE, UNIT, first_of};
use crate::head::Head;
use vnode::{Cx, Errno, OpenFile, Result};
use zerocopy::{FromBytes, IntoBytes};

/// A block's index entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) slots: [Slot; 2],
    /// Whether the newest version was read in this session and is intact.
    pub(crate) checked: bool,
}

/// The slot for a new version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// This slot.
    Slot(usize),
    /// `other` if the version in `newest` is intact, else `newest`.
    Depends { newest: usize, other: usize },
}

impl Entry {
    /// Returns the newest version and its slot; `None` if the block was never written. `EIO` if the
    /// entry is damaged.
    pub(crate) fn newest(&self) -> Result<Option<(usize, &Version)>> {
        match &self.slots {
            [Slot::Damaged, _] | [_, Slot::Damaged] => Err(Errno::IO),
            [Slot::Version(a), Slot::Version(b)] => Ok(Some(if b.seq > a.seq { (1, b) } else { (0, a) })),
            [Slot::Version(a), Slot::Empty] => Ok(Some((0, a))),
            [Slot::Empty, Slot::Version(b)] => Ok(Some((1, b))),
            [Slot::Empty, Slot::Empty] => Ok(None),
        }
    }

    /// Returns the version in the other slot.
    pub(crate) fn other(&self, slot: usize) -> Option<&Version> {
        self.slots.get(1 - slot).and_then(Slot::version)
    }

    /// Whether data is stored, or may be (in a damaged entry).
    pub(crate) fn is_data(&self) -> bool {
        self.newest().map_or(true, |newest| newest.is_some_and(|(_, version)| !version.is_hole()))
    }

    /// Whether the newest version is durable, so that the older one is no longer needed.
    fn is_settled(&self, newest: &Version, head: &Head) -> bool {
        let intact = self.checked || newest.is_hole();
        head.state.is_durable(newest.seq) || (intact && newest.seq <= head.state.durable)
    }

    /// Whether an older version is kept only because the session that wrote the newest one ended
    /// before it was known to be durable.
    pub(crate) fn is_kept_in_doubt(&self, head: &Head) -> bool {
        self.newest().is_ok_and(|newest| {
            newest.is_some_and(|(slot, newest)| {
                let kept = self.other(slot).is_some_and(|older| !older.is_hole());
                kept && newest.seq <= head.state.durable && !self.is_settled(newest, head)
            })
        })
    }

    /// Returns the versions that must not be overwritten: any of them may be the block's content,
    /// now or after a power failure.
    pub(crate) fn needed(&self, head: &Head) -> impl Iterator<Item = &Version> {
        let settled = match self.newest() {
            Ok(Some((slot, newest))) if self.is_settled(newest, head) => Some(1 - slot),
            _ => None,
        };
        self.slots.iter().enumerate().filter(move |(slot, _)| Some(*slot) != settled).filter_map(|(_, s)| s.version())
    }

    /// Returns the slot for a new version. The slot of the last durable version is kept until a
    /// newer one is durable.
    pub(crate) fn target(&self, head: &Head) -> Target {
        let Ok(newest) = self.newest() else {
            return Target::Slot(usize::from(self.slots.first() != Some(&Slot::Damaged)));
        };
        let Some((slot, newest)) = newest else { return Target::Slot(0) };
        let other = 1 - slot;
        if self.other(slot).is_none() || self.is_settled(newest, head) {
            Target::Slot(other)
        } else if head.is_from_this_session(newest.seq) && newest.seq > head.state.durable {
            Target::Slot(slot)
        } else {
            Target::Depends { newest: slot, other }
        }
    }
}

/// The index of a group, as stored in the lower file.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) number: u64,
    pub(crate) entries: [Entry; GROUP_BLOCKS],
    /// The unit after the last one that was ever in use, as far as known.
    pub(crate) high: u32,
    /// Whether the space after `high` is known to contain no leftovers of lost versions.
    pub(crate) clean: bool,
}

impl Group {
    /// Reads the index from the lower file. Entries beyond the end of the file are empty.
    pub(crate) fn load(cx: &Cx<'_>, lower: &dyn OpenFile, fixed: &Fixed, number: u64) -> Result<Self> {
        let mut bytes = [0; GROUP_BLOCKS * ENTRY as usize];
        lower.read(cx, &mut bytes, fixed.geometry.entry_at(number, 0))?;
        let mut group = Self { number, entries: [Entry::default(); GROUP_BLOCKS], high: 0, clean: false };
        for (at, (entry, bytes)) in group.entries.iter_mut().zip(bytes.chunks_exact(ENTRY as usize)).enumerate() {
            for (slot, bytes) in entry.slots.iter_mut().zip(bytes.chunks_exact(size_of::<SlotBytes>())) {
                let bytes = SlotBytes::read_from_bytes(bytes).map_err(|_| Errno::IO)?;
                *slot = bytes.parse(fixed, first_of(number).saturating_add(at as u64));
            }
        }
        group.update_high();
        Ok(group)
    }

    pub(crate) fn entry(&self, at: usize) -> Result<&Entry> {
        self.entries.get(at).ok_or(Errno::IO)
    }

    pub(crate) fn entry_mut(&mut self, at: usize) -> Result<&mut Entry> {
        self.entries.get_mut(at).ok_or(Errno::IO)
    }

    pub(crate) fn update_high(&mut self) {
        let ends = self.entries.iter().flat_map(|entry| &entry.slots).filter_map(Slot::version).map(Version::end);
        self.high = ends.max().unwrap_or(0).max(self.high);
    }

    /// Returns the pieces of the data area that must not be overwritten, sorted, as first unit and
    /// the unit after the last.
    pub(crate) fn used(&self, head: &Head) -> Vec<(u32, u32)> {
        let versions = self.entries.iter().flat_map(|entry| entry.needed(head));
        let mut used: Vec<_> = versions.filter(|v| !v.is_hole()).map(|v| (v.unit, v.end())).collect();
        used.sort_unstable();
        used
    }

    /// Returns the number of bytes that a fresh copy of the blocks would occupy.
    pub(crate) fn fresh(&self) -> u64 {
        let newest = self.entries.iter().filter_map(|entry| entry.newest().ok().flatten());
        let units: u64 = newest.map(|(_, version)| u64::from(version.units())).sum();
        if units == 0 { 0 } else { PAGE + (units * UNIT).next_multiple_of(PAGE) }
    }

    /// Returns the number of bytes that the group occupies once its dead space is punched: the
    /// index page, and every page with a needed piece.
    pub(crate) fn kept(&self, head: &Head) -> u64 {
        let (mut pages, mut next) = (0, 0);
        for (start, end) in self.used(head) {
            let first = (u64::from(start) * UNIT / PAGE).max(next);
            let after = (u64::from(end) * UNIT).div_ceil(PAGE);
            pages += after.saturating_sub(first);
            next = next.max(after);
        }
        if pages == 0 { 0 } else { PAGE + pages * PAGE }
    }

    /// Whether all its blocks are holes, even after a power failure.
    pub(crate) fn is_all_holes(&self, head: &Head) -> bool {
        self.entries.iter().all(|entry| match entry.newest() {
            Ok(Some((_, newest))) => newest.is_hole() && newest.seq <= head.state.durable,
            Ok(None) => true,
            Err(_) => false,
        })
    }

    /// Returns the bytes of the entries from `first` to `last`, and their offset in the lower file.
    pub(crate) fn bytes(&self, fixed: &Fixed, first: usize, last: usize) -> (u64, Vec<u8>) {
        let mut bytes = Vec::with_capacity((last + 1 - first) * ENTRY as usize);
        for (at, entry) in self.entries.iter().enumerate().take(last + 1).skip(first) {
            let block = first_of(self.number).saturating_add(at as u64);
            for slot in &entry.slots {
                match slot {
                    Slot::Version(v) => bytes.extend_from_slice(SlotBytes::of(v, &fixed.file, block).as_bytes()),
                    Slot::Empty => bytes.extend_from_slice(&[0; size_of::<SlotBytes>()]),
                    // Not zeros, so that damage stays detectable.
                    Slot::Damaged => bytes.extend_from_slice(&[0xff; size_of::<SlotBytes>()]),
                }
            }
        }
        (fixed.geometry.entry_at(self.number, first), bytes)
    }
}
