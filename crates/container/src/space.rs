//! Which parts of a group's data area are free: what no version that is needed lies in. There is no other record of it.

use crate::container::Container;
use crate::geometry::{PAGE, UNIT};
use crate::group::Group;
use crate::head::Head;
use std::sync::Arc;
use vnode::{Cx, Result};

/// `fallocate` makes a hole and keeps the size.
const PUNCH: u32 = 2 | 1;

/// Holes are made in a group when so many bytes were freed, ...
const FREED: u64 = 256 << 10;

/// ... and none smaller than this.
const SMALLEST: u64 = 32 << 10;

impl Group {
    /// Finds places for pieces of so many units: one behind the other where that is possible, else each where it fits first. `fresh`:
    /// rather where nothing has been yet. `None`: there is no room.
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

/// Where the first `size` units in a row are that nothing lies in.
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
    /// Gives free space of the groups that are in memory back to the lower file system, if there is enough of it. To be called when
    /// all is durable. That it can't be done is no error.
    pub(crate) fn release_some(&self, cx: &Cx<'_>, head: &Head) {
        for number in self.cache.group_numbers() {
            if let Some(group) = self.cache.group(number).filter(|group| group.freed >= FREED) {
                self.release(cx, head, &group);
            }
        }
    }

    /// Gives a group's free space back.
    pub(crate) fn release(&self, cx: &Cx<'_>, head: &Head, group: &Arc<Group>) {
        let geometry = head.fixed.geometry;
        let mut free_from = 0;
        let end = (geometry.capacity_units(), geometry.capacity_units());
        for (start, end) in group.used(head).into_iter().chain([end]) {
            if start > free_from {
                let from = geometry.unit_at(group.number, free_from).next_multiple_of(PAGE);
                let to = geometry.unit_at(group.number, start) / PAGE * PAGE;
                if to.saturating_sub(from) >= SMALLEST && self.file.fallocate(cx, PUNCH, from, to - from).is_err() {
                    break;
                }
            }
            free_from = free_from.max(end);
        }
        self.cache.put_group(Arc::new(Group { freed: 0, ..(**group).clone() }));
    }

    /// Removes what a power failure or an error left of versions that never came to be, where new blocks go first.
    pub(crate) fn clean_above(&self, cx: &Cx<'_>, head: &Head, group: &Arc<Group>) -> Result<()> {
        if group.clean {
            return Ok(());
        }
        let from = head.fixed.geometry.unit_at(group.number, group.high);
        let to = head.fixed.geometry.group_start(group.number + 1);
        if self.vnode.getattr(cx)?.size > from {
            // Where there are no holes, such leftovers may be met after one more power failure: then it is an error to read them.
            let _best_effort = self.file.fallocate(cx, PUNCH, from, to - from);
        }
        self.cache.put_group(Arc::new(Group { clean: true, ..(**group).clone() }));
        Ok(())
    }

    /// The first group at or after this one that has something in the lower file; `None` if there is none up to `last`.
    pub(crate) fn next_group(&self, cx: &Cx<'_>, head: &Head, group: u64, last: u64) -> Result<Option<u64>> {
        if group > last {
            return Ok(None);
        }
        let geometry = head.fixed.geometry;
        let found = match self.file.seek(cx, geometry.group_start(group), vnode::SeekFrom::Data) {
            Ok(data) => geometry.group_at(data).max(group),
            Err(vnode::Errno::NXIO) => return Ok(None),
            // It can't say: then every group is looked at.
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
