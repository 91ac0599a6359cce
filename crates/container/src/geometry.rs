//! The layout of a container: offsets of groups, index entries and data.

use crate::codec::{BlockCodec, encoded_limit, is_block_size};
use vnode::{Errno, Result};

/// Number of blocks in a group.
pub(crate) const GROUP_BLOCKS: usize = 48;

/// Size of an allocation unit in bytes.
pub(crate) const UNIT: u64 = 64;

/// Size of the first page of each group: the header in group 0, then the index.
pub(crate) const PAGE: u64 = 4096;

/// Offset of the index in that page.
const INDEX: u64 = 1024;

/// Size of an index entry in bytes: two slots.
pub(crate) const ENTRY: u64 = 64;

/// Number of blocks of the maximum encoded size that a group's data area holds: 48 current
/// versions, 48 kept versions, one new version, and a reserve. If an allocation fails, the kept
/// versions are freed. With 49 pieces in use there are at most 50 gaps, and 49 + 50 < 100, so one
/// gap is large enough.
const AREA_BLOCKS: u64 = 100;

/// Maximum file offset.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// Positions of the parts of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    block: u32,
    max_encoded: u32,
}

impl Geometry {
    /// Returns `EINVAL` for sizes that the format does not allow.
    pub(crate) fn new(block: u32, max_encoded: usize) -> Result<Self> {
        let known = is_block_size(block) && (1..=encoded_limit(block as usize)).contains(&max_encoded);
        let max = u32::try_from(max_encoded).ok().filter(|_| known);
        Ok(Self { block, max_encoded: max.ok_or(Errno::INVAL)? })
    }

    /// Returns the geometry that a codec needs with this block size: `EINVAL` for sizes that the
    /// format does not allow.
    pub(crate) fn of_codec(codec: &dyn BlockCodec, block: u32) -> Result<Self> {
        Self::new(block, codec.max_encoded(block as usize))
    }

    /// Returns the plain size of a block in bytes.
    pub(crate) const fn block_size(self) -> u32 {
        self.block
    }

    /// Returns the plain size of a block in bytes, for positions in the file.
    pub(crate) fn block(self) -> u64 {
        u64::from(self.block)
    }

    /// Returns the maximum size of an encoded block in bytes.
    pub(crate) fn max_encoded(self) -> u32 {
        self.max_encoded
    }

    /// Returns the size of a group's data area in bytes.
    pub(crate) fn capacity(self) -> u64 {
        (AREA_BLOCKS * u64::from(self.max_encoded).next_multiple_of(UNIT)).next_multiple_of(PAGE)
    }

    /// Returns the number of units in a group's data area.
    pub(crate) fn capacity_units(self) -> u32 {
        (self.capacity() / UNIT) as u32
    }

    fn span(self) -> u64 {
        PAGE + self.capacity()
    }

    /// Returns the maximum plain size of a file in bytes.
    pub(crate) fn max_size(self) -> u64 {
        (OFFSET_MAX / self.span()).saturating_mul(self.group_bytes()).min(OFFSET_MAX)
    }

    /// Returns the plain size of a group in bytes.
    pub(crate) fn group_bytes(self) -> u64 {
        GROUP_BLOCKS as u64 * self.block()
    }

    /// Returns the group at an offset of the lower file.
    pub(crate) fn group_at(self, lower: u64) -> u64 {
        lower / self.span()
    }

    /// Returns the offset of a group in the lower file. Saturates beyond the maximum size of any
    /// file.
    pub(crate) fn group_start(self, group: u64) -> u64 {
        group.saturating_mul(self.span())
    }

    /// Returns the offset of an entry of a group's index in the lower file.
    pub(crate) fn entry_at(self, group: u64, entry: usize) -> u64 {
        self.group_start(group).saturating_add(INDEX + entry as u64 * ENTRY)
    }

    /// Returns the offset of a unit of a group's data area in the lower file.
    pub(crate) fn unit_at(self, group: u64, unit: u32) -> u64 {
        self.group_start(group).saturating_add(PAGE + u64::from(unit) * UNIT)
    }
}

/// Returns the group of a block, and the block's entry in it.
pub(crate) fn place_of(block: u64) -> (u64, usize) {
    (block / GROUP_BLOCKS as u64, (block % GROUP_BLOCKS as u64) as usize)
}

/// Returns the first block of a group.
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
    fn offsets_are_below_the_maximum() {
        for block in (9..=20).map(|bits| 1u32 << bits) {
            let geometry = Geometry::new(block, block as usize + 40).unwrap();
            let (group, entry) = place_of((geometry.max_size() - 1) / geometry.block());
            assert!(geometry.entry_at(group, entry) < OFFSET_MAX);
            assert!(geometry.group_start(group + 1) <= OFFSET_MAX);
            assert_eq!(geometry.group_at(geometry.unit_at(group, geometry.capacity_units() - 1)), group);
        }
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for (block, max) in [(0, 10), (256, 10), (1000, 10), (1 << 21, 10), (512, 0), (512, 6000), (u32::MAX, 10)] {
            assert_eq!(Geometry::new(block, max), Err(Errno::INVAL));
        }
    }
}
