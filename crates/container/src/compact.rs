//! Gives dead space back to the lower file system: punches it, and moves blocks together where too little of it is whole pages.
//!
//! A moved block is a new version of it with the same bytes. It is written like any other, so that the old place stays as it is
//! until the new one is durable: at no time is there less than what [`Container::write`] leaves.

use crate::batch::Batch;
use crate::container::Container;
use crate::geometry::{PAGE, place_of};
use crate::group::Group;
use crate::head::Head;
use crate::scratch::with_buffer;
use crate::usage::{BOUND, Sweep, UNKNOWN, exceeds};
use std::sync::Arc;
use vnode::{Cx, Errno, Result};

/// Dead space that is never looked for, in bytes; one block, if that is more.
const SLACK: u64 = 64 << 10;

/// The index is read when more than this part of what the file takes below was superseded.
const PART: u64 = 24;

/// Blocks of a group are moved together if it takes this much more than a fresh copy. Tighter than [`BOUND`], so that the dead
/// bytes that are not looked for yet fit in between: `19/16 * (1 + 1/(24 * 0.8)) < 5/4`.
const LOOSE: (u64, u64) = (19, 16);

/// Groups that one step looks at: a few milliseconds.
const STEP_GROUPS: usize = 64;

/// Bytes that one step moves, or one group.
pub(crate) const STEP_BYTES: u64 = 4 << 20;

/// Bytes that are moved before an fsync lets their old places go: so much more space is needed meanwhile.
const SETTLE_BYTES: u64 = 32 << 20;

/// How often a group is moved in one sweep: the first time may only make room for the second.
const TRIES: u8 = 3;

impl Container {
    /// Might [`Container::give_back`] find something to do? Costs nothing.
    #[must_use]
    pub fn has_dead_space(&self) -> bool {
        let inner = self.inner.read();
        inner.head.as_ref().is_some_and(|head| {
            let dead = head.space.dead.saturating_sub(head.space.retry_above);
            head.session.is_some() && (head.space.sweep.is_some() || dead > slack(head))
        })
    }

    /// Gives dead space back, one bounded step of it; true: there is more to do. To be called until it answers false after each
    /// [`Container::sync`], and before [`Container::close`]: then the file takes at most a quarter more below than a fresh copy, and
    /// a constant. Most calls find nothing to do: all of the work is a small multiple of what was overwritten before.
    ///
    /// Reading, writing and all else may go on between two steps.
    ///
    /// # Errors
    /// Those of the lower file, `ENOSPC` among them: the file is whole, and the next try is when more has been overwritten. After
    /// `EINTR` the next call goes on.
    pub fn give_back(&self, cx: &Cx<'_>) -> Result<bool> {
        self.give_back_beyond(cx, None)
    }

    /// As [`Container::give_back`], but looks for every dead byte, whether or not there are enough of them.
    ///
    /// # Errors
    /// As [`Container::give_back`].
    pub fn compact(&self, cx: &Cx<'_>) -> Result<bool> {
        self.give_back_beyond(cx, Some(0))
    }

    /// `limit`: so many dead bytes may stay; `None`: as many as are not worth the work.
    fn give_back_beyond(&self, cx: &Cx<'_>, limit: Option<u64>) -> Result<bool> {
        cx.require_blocking()?;
        let mut inner = self.inner.write();
        if limit.is_some() && inner.head.is_some() {
            self.head_for_change(cx, &mut inner)?;
        }
        let Some(head) = &mut inner.head else { return Ok(false) };
        let answer = self.sweep(cx, head, limit);
        if answer.is_err_and(|errno| errno != Errno::INTR) {
            head.space.sweep = None;
            head.space.retry_above = head.space.dead;
        }
        answer
    }

    fn sweep(&self, cx: &Cx<'_>, head: &mut Head, limit: Option<u64>) -> Result<bool> {
        let known = head.space.sweep.take();
        let mut sweep = match known {
            Some(sweep) => sweep,
            None if limit.is_some() || self.wants_sweep(cx, head)? => {
                self.tidy(cx, head)?;
                Self::new_sweep(head, limit.unwrap_or_else(|| slack(head)))
            }
            None => return Ok(false),
        };
        let answer = self.sweep_step(cx, head, &mut sweep);
        if answer != Ok(false) {
            head.space.sweep = Some(sweep);
        }
        answer
    }

    fn new_sweep(head: &Head, slack: u64) -> Sweep {
        let (dead, light) = (head.space.dead, head.unsynced);
        Sweep { next: 0, visited: 0, fresh: 0, dead, light, slack, kept: 0, moved: Vec::new(), moved_bytes: 0 }
    }

    /// Is there enough dead space, perhaps, for all groups to be looked at?
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
        let small = known && dead <= slack + taken / PART;
        let within = |fresh: u64| !exceeds(taken.saturating_sub(slack), fresh, BOUND);
        Ok(!small && !head.space.fresh.is_some_and(within))
    }

    /// Looks at some groups, or lets go what was moved; false: all is done.
    fn sweep_step(&self, cx: &Cx<'_>, head: &mut Head, sweep: &mut Sweep) -> Result<bool> {
        if sweep.moved_bytes >= SETTLE_BYTES {
            return self.settle(cx, head, sweep).map(|()| true);
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

    /// Where the lower file system can't say where there is data, a file of a huge size and little data must not take for ever.
    fn check_pace(&self, cx: &Cx<'_>, sweep: &mut Sweep) -> Result<()> {
        sweep.visited += 1;
        let due = sweep.visited.is_multiple_of(4096);
        if due && self.vnode.getattr(cx)?.blocks / (PAGE / 512) < sweep.visited {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(())
    }

    /// Gives back what is dead in a group, and moves its blocks together if that is not enough. `tries`: how often they were.
    fn visit(&self, cx: &Cx<'_>, head: &mut Head, sweep: &mut Sweep, (number, tries): (u64, u8)) -> Result<()> {
        let mut group = match self.cache.peek(number) {
            Some(group) => group,
            None => Arc::new(Group::load(cx, &*self.file, &head.fixed, number)?),
        };
        if !sweep.light && group.entries.iter().any(|entry| entry.is_kept_in_doubt(head)) {
            group = self.end_doubt(cx, head, number)?;
        }
        self.release(cx, head, &group)?;
        let (fresh, kept) = (group.fresh(), group.kept(head));
        if tries == 0 {
            sweep.fresh += fresh;
            sweep.kept += kept;
        }
        if sweep.light || tries >= TRIES || !exceeds(kept, fresh, LOOSE) {
            return Ok(());
        }
        let moved = self.move_blocks(cx, head, &group)?;
        if moved > 0 {
            sweep.moved_bytes += moved;
            sweep.moved.push((number, tries + 1));
        }
        Ok(())
    }

    /// Finds out which versions that an earlier session left in doubt are right, and gives them numbers of this session: so the
    /// versions before them go. Everything is durable.
    fn end_doubt(&self, cx: &Cx<'_>, head: &mut Head, number: u64) -> Result<Arc<Group>> {
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

    /// Makes durable what was moved, and gives back where it was.
    fn settle(&self, cx: &Cx<'_>, head: &mut Head, sweep: &mut Sweep) -> Result<()> {
        self.make_durable(cx, head, true)?;
        sweep.moved_bytes = 0;
        for moved in std::mem::take(&mut sweep.moved) {
            self.visit(cx, head, sweep, moved)?;
        }
        Ok(())
    }

    /// All groups were looked at; false: nothing is left to do.
    fn end_pass(&self, cx: &Cx<'_>, head: &mut Head, sweep: &mut Sweep) -> Result<bool> {
        if !sweep.moved.is_empty() {
            return self.settle(cx, head, sweep).map(|()| true);
        }
        if sweep.light && exceeds(sweep.kept.saturating_sub(sweep.slack), sweep.fresh, LOOSE) {
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
