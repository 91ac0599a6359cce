//! Finding data and holes.

use crate::container::Container;
use crate::geometry::{GROUP_BLOCKS, first_of, place_of};
use crate::group::Group;
use crate::head::Head;
use crate::resize::is_stale;
use vnode::{Cx, Errno, Result, Whence};

impl Container {
    /// Finds data or a hole, with block granularity; the end of the file counts as a hole.
    ///
    /// # Errors
    /// `ENXIO` at and past the end, and if no data follows; errors of reading the lower file.
    pub fn seek(&self, cx: &Cx<'_>, offset: u64, whence: Whence) -> Result<u64> {
        let inner = self.inner.read();
        let head = inner.head.as_ref().filter(|head| offset < head.state.size).ok_or(Errno::NXIO)?;
        let size = head.fixed.geometry.block();
        let end = head.state.size;
        let (last, _) = place_of((end - 1) / size);
        let (mut number, mut at) = place_of(offset / size);
        // The result if only a hole follows.
        let nothing = match whence {
            Whence::Data => Err(Errno::NXIO),
            Whence::Hole => Ok(end),
        };
        loop {
            cx.check()?;
            let start = first_of(number).saturating_mul(size);
            match (self.next_group(cx, head, number, last)?, whence) {
                (Some(found), _) if found == number => {}
                // An entirely empty group.
                (Some(_) | None, Whence::Hole) if number <= last => return Ok(offset.max(start).min(end)),
                (Some(found), _) => (number, at) = (found, 0),
                (None, _) => return nothing,
            }
            let group = self.group(cx, head, number)?;
            for at in at..GROUP_BLOCKS {
                let place = (first_of(number) + at as u64).saturating_mul(size).max(offset);
                if place >= end {
                    return nothing;
                }
                if self.is_data(cx, head, &group, at)? == matches!(whence, Whence::Data) {
                    return Ok(place);
                }
            }
            (number, at) = (number.saturating_add(1), 0);
        }
    }

    /// Whether the block contains anything but zeros.
    fn is_data(&self, cx: &Cx<'_>, head: &Head, group: &Group, at: usize) -> Result<bool> {
        let entry = group.entry(at)?;
        if !entry.is_data() || !is_stale(head, group, at) {
            return Ok(entry.is_data());
        }
        // The file was truncated within the block; the rest may be zeros.
        let plain = self.plain(cx, head, first_of(group.number) + at as u64)?;
        Ok(plain.iter().any(|&byte| byte != 0))
    }
}
