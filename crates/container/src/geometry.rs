use crate::codec::{encoded_limit, is_block_size};
use vnode::{Errno, Result};

/// Blocks of a group.
pub(crate) const GROUP_BLOCKS: usize = 48;

/// What space is allocated in, in bytes.
pub(crate) const UNIT: u64 = 64;

/// The page that each group begins with: the header in group 0, then the index.
pub(crate) const PAGE: u64 = 4096;

/// Where the index begins in that page.
const INDEX: u64 = 1024;

/// Bytes of an index entry: two slots.
pub(crate) const ENTRY: u64 = 64;

/// A group's data area holds so many blocks of the largest encoded size: 48 that are current, 48 versions that are kept, one new. An
/// allocation that fails makes the kept ones go: with 49 pieces in use there are at most 50 gaps, and 49 + 50 < 100, so
/// that one of the gaps is large enough.
const ROOM: u64 = 100;

/// The largest offset of a file.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// Where things are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    block: u32,
    max_encoded: u32,
}

impl Geometry {
    /// `EINVAL` for sizes that the format does not know.
    pub(crate) fn new(block: u32, max_encoded: usize) -> Result<Self> {
        let known = is_block_size(block) && (1..=encoded_limit(block as usize)).contains(&max_encoded);
        let max = u32::try_from(max_encoded).ok().filter(|_| known);
        Ok(Self { block, max_encoded: max.ok_or(Errno::INVAL)? })
    }

    /// Plain bytes of a block.
    pub(crate) fn block(self) -> u64 {
        u64::from(self.block)
    }

    /// The most bytes of an encoded block.
    pub(crate) fn max_encoded(self) -> u32 {
        self.max_encoded
    }

    /// Bytes of a group's data area.
    pub(crate) fn capacity(self) -> u64 {
        (ROOM * u64::from(self.max_encoded).next_multiple_of(UNIT)).next_multiple_of(PAGE)
    }

    /// Units of a group's data area.
    pub(crate) fn capacity_units(self) -> u32 {
        (self.capacity() / UNIT) as u32
    }

    fn span(self) -> u64 {
        PAGE + self.capacity()
    }

    /// The largest size of a plain file, in bytes.
    pub(crate) fn max_size(self) -> u64 {
        (OFFSET_MAX / self.span()).saturating_mul(self.group_bytes()).min(OFFSET_MAX)
    }

    /// Plain bytes of a group.
    pub(crate) fn group_bytes(self) -> u64 {
        GROUP_BLOCKS as u64 * self.block()
    }

    /// The group that an offset of the lower file lies in.
    pub(crate) fn group_at(self, lower: u64) -> u64 {
        lower / self.span()
    }

    /// Where a group begins in the lower file. Saturates beyond every file's largest size.
    pub(crate) fn group_start(self, group: u64) -> u64 {
        group.saturating_mul(self.span())
    }

    /// Where an entry of a group's index is in the lower file.
    pub(crate) fn entry_at(self, group: u64, entry: usize) -> u64 {
        self.group_start(group).saturating_add(INDEX + entry as u64 * ENTRY)
    }

    /// Where a unit of a group's data area is in the lower file.
    pub(crate) fn unit_at(self, group: u64, unit: u32) -> u64 {
        self.group_start(group).saturating_add(PAGE + u64::from(unit) * UNIT)
    }
}

/// The group of a block, and its entry there.
pub(crate) fn place_of(block: u64) -> (u64, usize) {
    (block / GROUP_BLOCKS as u64, (block % GROUP_BLOCKS as u64) as usize)
}

/// The first block of a group.
pub(crate) fn first_of(group: u64) -> u64 {
    group.saturating_mul(GROUP_BLOCKS as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_allocation_finds_a_gap() {
        for (block, max) in [(512, 1), (512, 600), (1 << 20, (2 << 20) + 4096)] {
            let geometry = Geometry::new(block, max).unwrap();
            let max = (max as u64).next_multiple_of(UNIT);
            let pieces = GROUP_BLOCKS as u64 + 1;
            assert!(geometry.capacity() > pieces * max + (pieces + 1) * (max - UNIT));
            assert!(u32::try_from(geometry.capacity() / UNIT).is_ok());
        }
    }

    #[test]
    fn places_stay_below_the_largest_offset() {
        for block in (9..=20).map(|bits| 1u32 << bits) {
            let geometry = Geometry::new(block, block as usize + 40).unwrap();
            let (group, entry) = place_of((geometry.max_size() - 1) / geometry.block());
            assert!(geometry.entry_at(group, entry) < OFFSET_MAX);
            assert!(geometry.group_start(group + 1) <= OFFSET_MAX);
            assert_eq!(geometry.group_at(geometry.unit_at(group, geometry.capacity_units() - 1)), group);
        }
    }

    #[test]
    fn sizes_that_are_not_known_are_refused() {
        for (block, max) in [(0, 10), (256, 10), (1000, 10), (1 << 21, 10), (512, 0), (512, 6000), (u32::MAX, 10)] {
            assert_eq!(Geometry::new(block, max), Err(Errno::INVAL));
        }
    }
}
