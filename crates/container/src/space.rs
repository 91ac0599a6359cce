//! Free space in a group's data area: everything that no needed version occupies. No other record
//! of it exists.

use crate::container::Container;
use crate::geometry::{PAGE, UNIT};
use crate::group::Group;
use crate::head::Head;
use std::sync::Arc;
use vnode::{Cx, Errno, Result, Whence};

/// Flags of fallocate(2): `PUNCH_HOLE | KEEP_SIZE`.
const PUNCH: u32 = 2 | 1;

impl Group {
    /// Allocates space for pieces of the given sizes in units: contiguous if possible, otherwise
    /// first fit. `fresh` prefers space that was never used. `None` if there is no space.
    pub(crate) fn allocate(&self, head: &Head, sizes: &[u32], fresh: bool) -> Option<Vec<u32>> {
        let capacity = head.fixed.geometry.capacity_units();
        let mut used = self.used(head);
        let total: u64 = sizes.iter().map(|&size| u64::from(size)).sum();
        let together = u32::try_from(total).ok().and_then(|total| {
            let after_all = Some(self.high).filter(|&high| fresh && total <= capacity.saturating_sub(high));
            after_all.or_else(|| first_gap(&used, capacity, total))
        });
        if let Some(first) = together {
            let starts = sizes.iter().scan(first, |next, size| {
                *next += size;
                Some(*next - size)
            });
            return Some(starts.collect());
        }
        let mut units = Vec::with_capacity(sizes.len());
        for &size in sizes {
            let unit = first_gap(&used, capacity, size)?;
            let at = used.partition_point(|&(start, _)| start < unit);
            used.insert(at, (unit, unit + size));
            units.push(unit);
        }
        Some(units)
    }
}

/// Returns the start of the first `size` contiguous free units.
fn first_gap(used: &[(u32, u32)], capacity: u32, size: u32) -> Option<u32> {
    let mut free_from = 0;
    for &(start, end) in used {
        if start.saturating_sub(free_from) >= size && start > free_from {
            return Some(free_from);
        }
        free_from = free_from.max(end);
    }
    (capacity.saturating_sub(free_from) >= size).then_some(free_from)
}

impl Container {
    /// Releases the space of punched blocks, now that the punch is durable. Failure is not an
    /// error.
    pub(crate) fn release_punched(&self, cx: &Cx<'_>, head: &mut Head) {
        for number in std::mem::take(&mut head.space.punched) {
            let released = self.group(cx, head, number).and_then(|group| self.release(cx, head, &group));
            if released.is_err() {
                break;
            }
        }
    }

    /// Releases a group's free space: its whole pages, and the index page too if the group has only
    /// holes.
    pub(crate) fn release(&self, cx: &Cx<'_>, head: &Head, group: &Group) -> Result<()> {
        let geometry = head.fixed.geometry;
        let (number, end) = (group.number, geometry.capacity_units());
        if number > 0 && group.is_all_holes(head) {
            self.punch_data(cx, geometry.group_start(number), geometry.group_start(number + 1))?;
            self.cache.forget_groups(number..=number);
            return Ok(());
        }
        let mut free_from = 0;
        for (start, end) in group.used(head).into_iter().chain([(end, end)]) {
            if start > free_from {
                let from = geometry.unit_at(number, free_from).next_multiple_of(PAGE);
                self.punch_data(cx, from, geometry.unit_at(number, start) / PAGE * PAGE)?;
            }
            free_from = free_from.max(end);
        }
        Ok(())
    }

    /// Punches a range of the lower file, if it contains data.
    fn punch_data(&self, cx: &Cx<'_>, from: u64, to: u64) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        match self.file.seek(cx, from, Whence::Data) {
            Ok(data) if data >= to => Ok(()),
            Err(Errno::NXIO) => Ok(()),
            // Also if the lower file system can't report where data is.
            Ok(_) | Err(_) => self.file.fallocate(cx, PUNCH, from, to - from),
        }
    }

    /// Clears leftovers of versions that were never completed, because of a power failure or an
    /// error, from the space that first versions use.
    pub(crate) fn clean_above(&self, cx: &Cx<'_>, head: &Head, group: &Arc<Group>) -> Result<()> {
        if group.clean {
            return Ok(());
        }
        let from = head.fixed.geometry.unit_at(group.number, group.high);
        let to = head.fixed.geometry.group_start(group.number + 1);
        if self.vnode.getattr(cx)?.size > from {
            // Without support for punching, such leftovers may be found after another power
            // failure; reading the block is then an error.
            let _best_effort = self.file.fallocate(cx, PUNCH, from, to - from);
        }
        self.cache.put_group(Arc::new(Group { clean: true, ..(**group).clone() }));
        Ok(())
    }

    /// Returns the first group from `group` to `last` that has data in the lower file.
    pub(crate) fn next_group(&self, cx: &Cx<'_>, head: &Head, group: u64, last: u64) -> Result<Option<u64>> {
        if group > last {
            return Ok(None);
        }
        let geometry = head.fixed.geometry;
        let found = match self.file.seek(cx, geometry.group_start(group), Whence::Data) {
            Ok(data) => geometry.group_at(data).max(group),
            Err(Errno::NXIO) => return Ok(None),
            // Not supported: check every group.
            Err(_) => group,
        };
        Ok((found <= last).then_some(found))
    }
}

const _: () = assert!(PAGE.is_multiple_of(UNIT));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_gap_is_found() {
        let used = [(2, 5), (5, 6), (4, 8), (10, 20)];
        assert_eq!(first_gap(&used, 30, 2), Some(0));
        assert_eq!(first_gap(&[(0, 4), (6, 8)], 30, 2), Some(4));
        assert_eq!(first_gap(&used, 30, 3), Some(20));
        assert_eq!(first_gap(&used, 30, 10), Some(20));
        assert_eq!(first_gap(&used, 30, 11), None);
        assert_eq!(first_gap(&[], 30, 30), Some(0));
    }
}
