use crate::format::{Fixed, Slot, SlotBytes, Version};
use crate::geometry::{ENTRY, GROUP_BLOCKS, PAGE, UNIT, first_of};
use crate::head::Head;
use vnode::{Cx, Errno, OpenFile, Result};
use zerocopy::{FromBytes, IntoBytes};

/// What the index says of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) slots: [Slot; 2],
    /// Were the bytes of the newest version read in this session, and are they right?
    pub(crate) checked: bool,
}

/// Where a new version goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Into this slot.
    Slot(usize),
    /// Into `other` if the bytes of the version in `newest` are right, else into that.
    Depends { newest: usize, other: usize },
}

impl Entry {
    /// The newest version and its slot; `None`: the block was never written. `EIO` if the entry is damaged.
    pub(crate) fn newest(&self) -> Result<Option<(usize, &Version)>> {
        match &self.slots {
            [Slot::Damaged, _] | [_, Slot::Damaged] => Err(Errno::IO),
            [Slot::Version(a), Slot::Version(b)] => Ok(Some(if b.seq > a.seq { (1, b) } else { (0, a) })),
            [Slot::Version(a), Slot::Empty] => Ok(Some((0, a))),
            [Slot::Empty, Slot::Version(b)] => Ok(Some((1, b))),
            [Slot::Empty, Slot::Empty] => Ok(None),
        }
    }

    /// The version in the other slot.
    pub(crate) fn other(&self, slot: usize) -> Option<&Version> {
        self.slots.get(1 - slot).and_then(Slot::version)
    }

    /// Is something stored, or might it be?
    pub(crate) fn is_data(&self) -> bool {
        self.newest().map_or(true, |newest| newest.is_some_and(|(_, version)| !version.is_hole()))
    }

    /// Is the newest version durable, so that the other one is not needed any more?
    fn is_settled(&self, newest: &Version, head: &Head) -> bool {
        let right = self.checked || newest.is_hole();
        head.state.is_durable(newest.seq) || (right && newest.seq <= head.state.durable)
    }

    /// Is an older version kept only because an earlier session did not live to see the newest durable?
    pub(crate) fn is_kept_in_doubt(&self, head: &Head) -> bool {
        self.newest().is_ok_and(|newest| {
            newest.is_some_and(|(slot, newest)| {
                let kept = self.other(slot).is_some_and(|older| !older.is_hole());
                kept && newest.seq <= head.state.durable && !self.is_settled(newest, head)
            })
        })
    }

    /// The versions that must not be overwritten: one of them is the block's content, now or after a power failure.
    pub(crate) fn needed(&self, head: &Head) -> impl Iterator<Item = &Version> {
        let settled = match self.newest() {
            Ok(Some((slot, newest))) if self.is_settled(newest, head) => Some(1 - slot),
            _ => None,
        };
        self.slots.iter().enumerate().filter(move |(slot, _)| Some(*slot) != settled).filter_map(|(_, s)| s.version())
    }

    /// Where a new version goes: the slot of the last durable one stays until a newer one is durable.
    pub(crate) fn target(&self, head: &Head) -> Target {
        let Ok(newest) = self.newest() else {
            return Target::Slot(usize::from(self.slots.first() != Some(&Slot::Damaged)));
        };
        let Some((slot, newest)) = newest else { return Target::Slot(0) };
        let other = 1 - slot;
        if self.other(slot).is_none() || self.is_settled(newest, head) {
            Target::Slot(other)
        } else if head.is_own(newest.seq) && newest.seq > head.state.durable {
            Target::Slot(slot)
        } else {
            Target::Depends { newest: slot, other }
        }
    }
}

/// The index of a group, as it is in the lower file.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) number: u64,
    pub(crate) entries: [Entry; GROUP_BLOCKS],
    /// The unit after the last one that was ever in use, as far as is known.
    pub(crate) high: u32,
    /// Is it certain that nothing was left there after `high` that no version tells of?
    pub(crate) clean: bool,
}

impl Group {
    /// Reads it from the lower file. What lies beyond its end is empty.
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
        group.note_high();
        Ok(group)
    }

    pub(crate) fn entry(&self, at: usize) -> Result<&Entry> {
        self.entries.get(at).ok_or(Errno::IO)
    }

    pub(crate) fn entry_mut(&mut self, at: usize) -> Result<&mut Entry> {
        self.entries.get_mut(at).ok_or(Errno::IO)
    }

    pub(crate) fn note_high(&mut self) {
        let ends = self.entries.iter().flat_map(|entry| &entry.slots).filter_map(Slot::version).map(Version::end);
        self.high = ends.max().unwrap_or(0).max(self.high);
    }

    /// The pieces of the data area that must not be overwritten, in order: first unit and the one after the last.
    pub(crate) fn used(&self, head: &Head) -> Vec<(u32, u32)> {
        let versions = self.entries.iter().flat_map(|entry| entry.needed(head));
        let mut used: Vec<_> = versions.filter(|v| !v.is_hole()).map(|v| (v.unit, v.end())).collect();
        used.sort_unstable();
        used
    }

    /// Bytes that a fresh copy of the blocks would take below.
    pub(crate) fn fresh(&self) -> u64 {
        let newest = self.entries.iter().filter_map(|entry| entry.newest().ok().flatten());
        let units: u64 = newest.map(|(_, version)| u64::from(version.units())).sum();
        if units == 0 { 0 } else { PAGE + (units * UNIT).next_multiple_of(PAGE) }
    }

    /// Bytes that it takes if all is given back that can be: the page of the index, and those that something needed lies in.
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

    /// Are all of its blocks holes, for certain also after a power failure?
    pub(crate) fn is_void(&self, head: &Head) -> bool {
        self.entries.iter().all(|entry| match entry.newest() {
            Ok(Some((_, newest))) => newest.is_hole() && newest.seq <= head.state.durable,
            Ok(None) => true,
            Err(_) => false,
        })
    }

    /// The bytes of the entries from `first` to `last`, and where they are in the lower file.
    pub(crate) fn bytes(&self, fixed: &Fixed, first: usize, last: usize) -> (u64, Vec<u8>) {
        let mut bytes = Vec::with_capacity((last + 1 - first) * ENTRY as usize);
        for (at, entry) in self.entries.iter().enumerate().take(last + 1).skip(first) {
            let block = first_of(self.number).saturating_add(at as u64);
            for slot in &entry.slots {
                match slot {
                    Slot::Version(v) => bytes.extend_from_slice(SlotBytes::of(v, &fixed.file, block).as_bytes()),
                    Slot::Empty => bytes.extend_from_slice(&[0; size_of::<SlotBytes>()]),
                    // Never zeros: damage must stay damage.
                    Slot::Damaged => bytes.extend_from_slice(&[0xff; size_of::<SlotBytes>()]),
                }
            }
        }
        (fixed.geometry.entry_at(self.number, first), bytes)
    }
}
