//! Which parts of a group's data area are free: what no version that is needed lies in. There is no other record of it.

use crate::container::Container;
use crate::geometry::{PAGE, UNIT};
use crate::group::Group;
use crate::head::Head;
use std::sync::Arc;
use vnode::{Cx, Errno, Result, SeekFrom};

/// `fallocate` makes a hole and keeps the size.
const PUNCH: u32 = 2 | 1;

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
    /// Gives the space of punched blocks back, now that all is durable. That it can't be done is no error.
    pub(crate) fn release_punched(&self, cx: &Cx<'_>, head: &mut Head) {
        for number in std::mem::take(&mut head.space.punched) {
            let released = self.group(cx, head, number).and_then(|group| self.release(cx, head, &group));
            if released.is_err() {
                break;
            }
        }
    }

    /// Gives a group's free space back: whole pages of it, and the page of its index if there is nothing else.
    pub(crate) fn release(&self, cx: &Cx<'_>, head: &Head, group: &Group) -> Result<()> {
        let geometry = head.fixed.geometry;
        let (number, end) = (group.number, geometry.capacity_units());
        if number > 0 && group.is_void(head) {
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

    /// Punches a range of the lower file, if there is anything in it.
    fn punch_data(&self, cx: &Cx<'_>, from: u64, to: u64) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        match self.file.seek(cx, from, SeekFrom::Data) {
            Ok(data) if data >= to => Ok(()),
            Err(Errno::NXIO) => Ok(()),
            // Also where the lower file system can't say.
            Ok(_) | Err(_) => self.file.fallocate(cx, PUNCH, from, to - from),
        }
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
        let found = match self.file.seek(cx, geometry.group_start(group), SeekFrom::Data) {
            Ok(data) => geometry.group_at(data).max(group),
            Err(Errno::NXIO) => return Ok(None),
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
