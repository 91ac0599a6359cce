//! Punching holes.

use crate::batch::Batch;
use crate::container::Container;
use crate::geometry::{GROUP_BLOCKS, first_of, place_of};
use crate::group::Group;
use crate::head::Head;
use core::ops::Range;
use vnode::{Cx, Result};

/// Minimum number of plain bytes for which space is released immediately, which takes an fsync of
/// the lower file. Less is released with the next fsync.
const RELEASE_NOW: u64 = 1 << 20;

impl Container {
    /// Zeros a range, like fallocate(2) with `PUNCH_HOLE | KEEP_SIZE`; whole blocks become holes.
    ///
    /// # Errors
    /// `EIO` if a partially zeroed block can't be read, `EINTR`, and errors of writing to the lower
    /// file.
    pub fn punch(&self, cx: &Cx<'_>, offset: u64, len: u64) -> Result<()> {
        cx.require_blocking()?;
        let mut inner = self.inner.write();
        let size = inner.head.as_ref().map_or(0, |head| head.state.size);
        let range = offset..offset.saturating_add(len).min(size);
        if range.is_empty() {
            return Ok(());
        }
        let head = self.head_for_change(cx, &mut inner)?;
        let (first, last) = groups_of(head, &range);
        let (mut next, mut freed) = (first, 0);
        while let Some(number) = self.next_group(cx, head, next, last)? {
            cx.check()?;
            let group = self.group(cx, head, number)?;
            let now = self.with_batch(cx, head, number, |this, head, batch| {
                let mut freed = 0;
                for at in 0..GROUP_BLOCKS {
                    freed += this.stage_punch(cx, head, &group, batch, at, &range)?;
                }
                Ok(freed)
            })?;
            if now > 0 {
                head.space.punch(number);
            }
            freed += now;
            next = number + 1;
        }
        if freed >= RELEASE_NOW && self.make_durable(cx, head, true).is_ok() {
            self.release_range(cx, head, first, last);
        }
        Ok(())
    }

    /// Adds the rest of a block to the batch; returns how many bytes became a hole.
    fn stage_punch(
        &self,
        cx: &Cx<'_>,
        head: &Head,
        group: &Group,
        batch: &mut Batch<'_>,
        at: usize,
        range: &Range<u64>,
    ) -> Result<u64> {
        let size = head.fixed.geometry.block();
        let block = first_of(group.number) + at as u64;
        let start = block * size;
        let (from, to) = (range.start.max(start), range.end.min(start + size));
        if from >= to || !group.entry(at)?.is_data() {
            return Ok(0);
        }
        if from == start && (to == start + size || to == head.state.size) {
            batch.add_hole(at);
            return Ok(size);
        }
        let plain = self.plain(cx, head, block)?;
        let (from, to) = ((from - start) as usize, ((to - start) as usize).min(plain.len()));
        if plain.get(from..to).is_some_and(|part| part.iter().any(|&byte| byte != 0)) {
            let mut plain = plain.to_vec();
            plain.get_mut(from..to).unwrap_or(&mut []).fill(0);
            batch.add(self, head, at, &plain)?;
        }
        Ok(0)
    }

    fn release_range(&self, cx: &Cx<'_>, head: &Head, first: u64, last: u64) {
        let mut next = first;
        while let Ok(Some(number)) = self.next_group(cx, head, next, last) {
            if self.group(cx, head, number).and_then(|group| self.release(cx, head, &group)).is_err() {
                break;
            }
            next = number + 1;
        }
    }
}

/// Returns the first and the last group of a non-empty range.
fn groups_of(head: &Head, range: &Range<u64>) -> (u64, u64) {
    let size = head.fixed.geometry.block();
    (place_of(range.start / size).0, place_of((range.end - 1) / size).0)
}
