//! Returns dead space to the lower file system: punches holes, and relocates blocks where the dead
//! space covers too few whole pages.
//!
//! A relocated block is a new version with the same bytes. It is written like any other, so the old
//! place stays intact until the new one is durable, and the guarantees of [`Container::write`] hold
//! at all times.

use crate::batch::Batch;
use crate::container::Container;
use crate::geometry::{PAGE, place_of};
use crate::group::Group;
use crate::head::Head;
use crate::scratch::with_buffer;
use crate::usage::{BOUND, Sweep, UNKNOWN, exceeds};
use std::sync::Arc;
use vnode::{Cx, Errno, Result};

/// Dead space that is never reclaimed, in bytes; one block, if that is larger.
const SLACK: u64 = 64 << 10;

/// The index is scanned when more than 1/24 of the space occupied by the file was superseded.
const SCAN_FRACTION: u64 = 24;

/// Blocks of a group are relocated if the group occupies this much more than a fresh copy. Tighter
/// than [`BOUND`], to leave room for dead bytes that are not scanned for yet: `19/16 * (1 + 1/(24 *
/// 0.8)) < 5/4`.
const RELOCATE_BOUND: (u64, u64) = (19, 16);

/// Maximum number of groups that one step scans: a few milliseconds.
const STEP_GROUPS: usize = 64;

/// Maximum number of bytes relocated in one step, and in one batch of a group.
pub(crate) const STEP_BYTES: u64 = 4 << 20;

/// Number of bytes relocated before an fsync releases their old places. This is the additional
/// space needed meanwhile.
const SYNC_BYTES: u64 = 32 << 20;

/// Maximum number of times a group is relocated in one sweep: the first relocation may only free
/// space for the second.
const MAX_TRIES: u8 = 3;

impl Container {
    /// Whether [`Container::reclaim`] may have work to do. Does no I/O.
    #[must_use]
    pub fn has_dead_space(&self) -> bool {
        let inner = self.inner.read();
        inner.head.as_ref().is_some_and(|head| {
            let dead = head.space.dead.saturating_sub(head.space.retry_above);
            head.session.is_some() && (head.space.sweep.is_some() || dead > slack(head))
        })
    }

    /// Reclaims dead space in one bounded step; returns true if more work is left. Callers repeat
    /// it until it returns false, after each [`Container::sync`] and before [`Container::close`].
    /// The file then occupies at most a quarter more than a fresh copy, plus a constant. Most calls
    /// find nothing to do: the total work is a small multiple of the data overwritten before.
    ///
    /// Other operations may run between two steps.
    ///
    /// # Errors
    /// Errors of the lower file, including `ENOSPC`: the file stays consistent, and reclaiming is
    /// retried when more data was overwritten. After `EINTR` the next call continues.
    pub fn reclaim(&self, cx: &Cx<'_>) -> Result<bool> {
        self.reclaim_beyond(cx, None)
    }

    /// Like [`Container::reclaim`], but reclaims all dead space, however little.
    ///
    /// # Errors
    /// Same as [`Container::reclaim`].
    pub fn compact(&self, cx: &Cx<'_>) -> Result<bool> {
        self.reclaim_beyond(cx, Some(0))
    }

    /// Reclaims dead space beyond `limit` bytes; with `None`, beyond the amount that is not worth
    /// the work.
    fn reclaim_beyond(&self, cx: &Cx<'_>, limit: Option<u64>) -> Result<bool> {
        cx.require_blocking()?;
        let mut inner = self.inner.write();
        if limit.is_some() && inner.head.is_some() {
            self.head_for_change(cx, &mut inner)?;
        }
        let Some(head) = &mut inner.head else { return Ok(false) };
        let result = self.sweep(cx, head, limit);
        if result.is_err_and(|errno| errno != Errno::INTR) {
            head.space.sweep = None;
            head.space.retry_above = head.space.dead;
        }
        result
    }

    fn sweep(&self, cx: &Cx<'_>, head: &mut Head, limit: Option<u64>) -> Result<bool> {
        let known = head.space.sweep.take();
        let mut sweep = match known {
            Some(sweep) => sweep,
            None if limit.is_some() || self.wants_sweep(cx, head)? => {
                self.clear_tail(cx, head)?;
                Self::new_sweep(head, limit.unwrap_or_else(|| slack(head)))
            }
            None => return Ok(false),
        };
        let result = self.sweep_step(cx, head, &mut sweep);
        if result != Ok(false) {
            head.space.sweep = Some(sweep);
        }
        result
    }

    fn new_sweep(head: &Head, slack: u64) -> Sweep {
        let (dead, light) = (head.space.dead, head.unsynced);
        Sweep { next: 0, visited: 0, fresh: 0, dead, light, slack, kept: 0, moved: Vec::new(), moved_bytes: 0 }
    }

    /// Whether there may be enough dead space to scan all groups.
    fn wants_sweep(&self, cx: &Cx<'_>, head: &Head) -> Result<bool> {
        let slack = slack(head);
        let dead = head.space.dead.saturating_sub(head.space.retry_above);
        let known = dead < UNKNOWN;
        if head.session.is_none() || (known && dead <= slack) {
            return Ok(false);
        }
        let taken = self.vnode.getattr(cx)?.blocks.saturating_mul(512);
        if taken <= slack {
            return Ok(false);
        }
        let small = known && dead <= slack + taken / SCAN_FRACTION;
        let within = |fresh: u64| !exceeds(taken.saturating_sub(slack), fresh, BOUND);
        Ok(!small && !head.space.fresh.is_some_and(within))
    }

    /// Scans some groups, or releases the old places of relocated blocks. Returns false when the
    /// sweep is finished.
    fn sweep_step(&self, cx: &Cx<'_>, head: &mut Head, sweep: &mut Sweep) -> Result<bool> {
        if sweep.moved_bytes >= SYNC_BYTES {
            return self.release_relocated(cx, head, sweep).map(|()| true);
        }
        let last = place_of(head.state.size.saturating_sub(1) / head.fixed.geometry.block()).0;
        let before = sweep.moved_bytes;
        for _ in 0..STEP_GROUPS {
            cx.check()?;
            let Some(number) = self.next_group(cx, head, sweep.next, last)? else {
                return self.end_pass(cx, head, sweep);
            };
            self.check_pace(cx, sweep)?;
            self.visit(cx, head, sweep, (number, 0))?;
            sweep.next = number + 1;
            if sweep.moved_bytes - before >= STEP_BYTES {
                break;
            }
        }
        Ok(true)
    }

    /// Gives up on a huge, sparse file if the lower file system can't report where its data is:
    /// scanning would take too long.
    fn check_pace(&self, cx: &Cx<'_>, sweep: &mut Sweep) -> Result<()> {
        sweep.visited += 1;
        let due = sweep.visited.is_multiple_of(4096);
        if due && self.vnode.getattr(cx)?.blocks / (PAGE / 512) < sweep.visited {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(())
    }

    /// Punches the dead space of a group, and relocates its blocks if that is not enough. `tries`:
    /// how often they were relocated in this sweep.
    fn visit(&self, cx: &Cx<'_>, head: &mut Head, sweep: &mut Sweep, (number, tries): (u64, u8)) -> Result<()> {
        let mut group = match self.cache.peek(number) {
            Some(group) => group,
            None => Arc::new(Group::load(cx, &*self.file, &head.fixed, number)?),
        };
        if !sweep.light && group.entries.iter().any(|entry| entry.is_kept_in_doubt(head)) {
            group = self.resolve_doubt(cx, head, number)?;
        }
        self.release(cx, head, &group)?;
        let (fresh, kept) = (group.fresh(), group.kept(head));
        if tries == 0 {
            sweep.fresh += fresh;
            sweep.kept += kept;
        }
        if sweep.light || tries >= MAX_TRIES || !exceeds(kept, fresh, RELOCATE_BOUND) {
            return Ok(());
        }
        let moved = self.relocate_blocks(cx, head, &group)?;
        if moved > 0 {
            sweep.moved_bytes += moved;
            sweep.moved.push((number, tries + 1));
        }
        Ok(())
    }

    /// Verifies the versions that an earlier session left in doubt, and assigns numbers of this
    /// session to the intact ones, so that the versions before them can be freed. Everything is
    /// durable.
    fn resolve_doubt(&self, cx: &Cx<'_>, head: &mut Head, number: u64) -> Result<Arc<Group>> {
        let group = self.checked_group(cx, head, number)?;
        with_buffer(|buffer| {
            let mut batch = Batch::new(number, buffer);
            let mut units = Vec::new();
            for (at, entry) in group.entries.iter().enumerate() {
                if let Ok(Some((_, newest))) = entry.newest()
                    && entry.checked
                    && newest.seq <= head.state.durable
                    && !newest.is_hole()
                {
                    batch.add_in_place(at, *newest);
                    units.push(newest.unit);
                }
            }
            if units.is_empty() { Ok(()) } else { self.renumber(cx, head, &batch, &units) }
        })?;
        self.group(cx, head, number)
    }

    /// Makes the relocated blocks durable, and punches their old places.
    fn release_relocated(&self, cx: &Cx<'_>, head: &mut Head, sweep: &mut Sweep) -> Result<()> {
        self.make_durable(cx, head, true)?;
        sweep.moved_bytes = 0;
        for moved in std::mem::take(&mut sweep.moved) {
            self.visit(cx, head, sweep, moved)?;
        }
        Ok(())
    }

    /// Finishes a pass over all groups. Returns false if nothing is left to do.
    fn end_pass(&self, cx: &Cx<'_>, head: &mut Head, sweep: &mut Sweep) -> Result<bool> {
        if !sweep.moved.is_empty() {
            return self.release_relocated(cx, head, sweep).map(|()| true);
        }
        if sweep.light && exceeds(sweep.kept.saturating_sub(sweep.slack), sweep.fresh, RELOCATE_BOUND) {
            self.make_durable(cx, head, true)?;
            *sweep = Sweep { dead: sweep.dead, light: false, ..Self::new_sweep(head, sweep.slack) };
            return Ok(true);
        }
        let space = &mut head.space;
        space.fresh = Some(sweep.fresh);
        space.dead = space.dead.saturating_sub(sweep.dead);
        space.retry_above = 0;
        Ok(false)
    }
}

fn slack(head: &Head) -> u64 {
    SLACK.max(u64::from(head.fixed.geometry.max_encoded()))
}
