//! Truncating and growing.

use crate::container::Container;
use crate::geometry::{GROUP_BLOCKS, first_of, place_of};
use crate::group::Group;
use crate::head::Head;
use vnode::{Cx, Errno, Result};

impl Container {
    /// Shrinks or grows the file, like truncate(2); the added range is a hole.
    ///
    /// # Errors
    /// `EFBIG`, and errors of changing the lower file.
    pub fn truncate(&self, cx: &Cx<'_>, size: u64) -> Result<()> {
        cx.require_blocking()?;
        let mut inner = self.inner.write();
        let old = inner.head.as_ref().map_or(0, |head| head.state.size);
        if size == old && !(size == 0 && inner.head.is_some()) {
            return Ok(());
        }
        if size == 0 {
            // Remove everything at once, including the file's id.
            self.set_lower_size(cx, 0)?;
            inner.head = None;
            self.cache.clear();
            return Ok(());
        }
        let head = self.head_for_change(cx, &mut inner)?;
        if size > head.fixed.geometry.max_size() {
            return Err(Errno::FBIG);
        }
        if size > old {
            self.clear_tail(cx, head)?;
            return self.set_size(cx, head, size);
        }
        self.cache.forget_plain(size / head.fixed.geometry.block()..);
        head.tail_is_clear = false;
        self.set_size(cx, head, size)?;
        // Only to release space: it happens in any case before the file grows.
        let _best_effort =
            if (old - 1) / head.fixed.geometry.group_bytes() > (size - 1) / head.fixed.geometry.group_bytes() {
                self.clear_tail(cx, head)
            } else {
                self.count_truncated(cx, head)
            };
        Ok(())
    }

    /// Counts the space that a truncation within the last group made dead.
    fn count_truncated(&self, cx: &Cx<'_>, head: &mut Head) -> Result<()> {
        let (number, _) = place_of((head.state.size - 1) / head.fixed.geometry.block());
        let group = self.group(cx, head, number)?;
        let mut cut = false;
        for at in 0..GROUP_BLOCKS {
            if bytes_from(head, &group, at) == 0
                && let Ok(Some((_, newest))) = group.entry(at)?.newest()
            {
                head.space.supersede(newest);
                cut |= !newest.is_hole();
            }
        }
        if cut {
            head.space.forget();
        }
        Ok(())
    }

    /// Clears everything beyond the size, in a file that was truncated, or that a kill or an error
    /// left with blocks beyond the recorded size. The size is made durable before anything is
    /// removed, and the removal before the file grows.
    pub(crate) fn clear_tail(&self, cx: &Cx<'_>, head: &mut Head) -> Result<()> {
        if head.tail_is_clear {
            return Ok(());
        }
        let geometry = head.fixed.geometry;
        let tail = head.state.size.saturating_sub(1) / geometry.block();
        let (number, _) = place_of(tail);
        let end = geometry.group_start(number + 1);
        let too_long = self.vnode.getattr(cx)?.size > end;
        let group = self.group(cx, head, number)?;
        let stale = (0..GROUP_BLOCKS).any(|at| is_stale(head, &group, at));
        if too_long || stale {
            self.make_durable(cx, head, true)?;
            self.cut_group(cx, head, number)?;
            if too_long {
                self.cache.forget_groups(number + 1..);
                head.unsynced = true;
                head.space.forget();
                self.set_lower_size(cx, end)?;
            }
            self.make_durable(cx, head, true)?;
        }
        head.tail_is_clear = true;
        Ok(())
    }

    /// Removes a group's content beyond the size.
    fn cut_group(&self, cx: &Cx<'_>, head: &mut Head, number: u64) -> Result<()> {
        let group = self.group(cx, head, number)?;
        self.with_batch(cx, head, number, |this, head, batch| {
            for at in (0..GROUP_BLOCKS).filter(|&at| is_stale(head, &group, at)) {
                let plain = this.plain(cx, head, first_of(number) + at as u64);
                // A block entirely beyond the size need not be readable.
                match plain {
                    Err(errno) if bytes_from(head, &group, at) > 0 => return Err(errno),
                    Err(_) => batch.add_hole(at),
                    Ok(plain) => batch.add(this, head, at, &plain)?,
                }
            }
            Ok(())
        })
    }
}

/// Returns the number of bytes of the file in this block and after it.
fn bytes_from(head: &Head, group: &Group, at: usize) -> u64 {
    let start = (first_of(group.number) + at as u64).saturating_mul(head.fixed.geometry.block());
    head.state.size.saturating_sub(start)
}

/// Whether this block may contain data beyond the size.
pub(crate) fn is_stale(head: &Head, group: &Group, at: usize) -> bool {
    let bytes = bytes_from(head, group, at);
    group.entry(at).is_ok_and(|entry| match entry.newest() {
        Ok(_) => entry.needed(head).any(|version| u64::from(version.plain) > bytes),
        Err(_) => bytes == 0,
    })
}
