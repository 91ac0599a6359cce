//! What the versions of a mount take, counted as they are made, discarded and converted.

use super::next::Next;
use super::quota::Quotas;
use super::room::{Counts, Need, Rooms, SHARE};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use parking_lot::{Condvar, Mutex};
use std::time::Instant;
use vnode::StatFs;

/// Passes for a few small versions take at most this fraction of the time.
pub(super) const PAUSE: u32 = 10;

/// Programs that the layer does not see writing take a quarter of the free space between two looks
/// at most if they write so many bytes per second.
const SPEED: u64 = 2 << 30;

/// Bytes beside the reserve that may be filled unseen.
const AMPLE: u64 = 1 << 30;

/// The shortest and the longest time between two looks at the free space.
const OFTEN: Duration = Duration::from_millis(20);
const SELDOM: Duration = Duration::from_secs(60);

/// After this time versions may have outlived what protected them.
const SETTLED: Duration = Duration::from_secs(600);

/// The state of the space of a mount.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// Held by a pass.
    pub(super) next: Mutex<Next>,
    pub(super) state: Mutex<State>,
    /// Held by a pass for a quota.
    pub(super) quotas: Mutex<Quotas>,
    pub(super) changed: Condvar,
    /// Whether the next operation makes a pass first.
    pub(super) is_urgent: AtomicBool,
    /// Versions that were made, or parts of them.
    pub(super) made: AtomicU64,
    /// Versions that were discarded.
    pub(super) discards: AtomicU64,
    /// Open files that are written without the layer.
    pub(super) unseen: AtomicUsize,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// What the versions took at the last walk, less what was discarded since. `None`: not known.
    pub(super) total: Option<Counts>,
    /// What versions have taken since.
    pub(super) grown: Counts,
    /// What the versions take that never go for lack of room, in bytes.
    pub(super) kept: u64,
    /// What versions took that were made while little was free.
    pub(super) debt: Counts,
    /// The total from which on the bound is looked at, and until when.
    pub(super) next: u64,
    pub(super) next_until: Option<Instant>,
    pub(super) max: u64,
    pub(super) reserve: u64,
    /// Free space in bytes at the last look, without what versions have taken since.
    pub(super) free: u64,
    pub(super) is_scarce: bool,
    /// Until when, and up to which total, nothing more can go.
    pub(super) settled: Option<(Instant, u64)>,
    /// Until when nothing can go for a version either.
    pub(super) exhausted: Option<Instant>,
    /// When the next pass may begin for a few small versions.
    pub(super) rested: Option<Instant>,
    pub(super) looked: Option<Instant>,
    pub(super) stops: bool,
}

impl State {
    /// Returns what the versions take.
    pub(super) fn all(&self) -> Counts {
        let mut all = self.total.unwrap_or_default();
        all.add(self.grown.bytes, self.grown.inodes);
        all
    }

    /// Whether the history is known to exceed its bound, and was not found to be protected.
    pub(super) fn exceeds(&self) -> bool {
        self.total.is_some() && self.all().bytes > self.next
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settled.is_some_and(|(until, total)| Instant::now() < until && self.all().bytes <= total.max(self.max))
    }

    /// Whether a pass for this would discard nothing.
    pub(super) fn is_futile(&self, need: Need) -> bool {
        match need {
            Need::Ahead => false,
            Need::Data(_) => self.is_settled(),
            Need::Version(_) => self.exhausted.is_some_and(|until| Instant::now() < until),
        }
    }

    pub(super) fn rests(&self) -> bool {
        self.rested.is_some_and(|rested| Instant::now() < rested)
    }
}

impl Space {
    /// Notes that a version, or a part of one, takes `bytes` and so many inodes.
    pub(crate) fn grew(&self, bytes: u64, inodes: u64) {
        self.made.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.grown.add(bytes, inodes);
        if state.is_scarce {
            state.debt.add(bytes, inodes);
        }
        self.wake(&mut state);
    }

    /// Notes that a version took `bytes` of the free space.
    pub(crate) fn took(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.free = state.free.saturating_sub(bytes);
        self.wake(&mut state);
    }

    /// Wakes the thread if there may be something to do.
    pub(super) fn wake(&self, state: &mut State) {
        if state.exceeds() || state.is_scarce || state.total.is_none() || state.free < state.reserve {
            let is_far = state.exceeds() && state.all().bytes - state.all().bytes / 32 > state.next;
            if (is_far || state.free < state.reserve / 4) && !state.rests() {
                self.is_urgent.store(true, Ordering::Relaxed);
            }
            self.changed.notify_one();
        }
    }

    /// Notes that a version of `bytes` was taken back.
    pub(crate) fn took_back(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.grown.take(bytes, 1);
        state.debt.take(bytes, 1);
    }

    /// Notes that a version takes `after` bytes and no longer `before`.
    pub(crate) fn converted(&self, before: u64, after: u64) {
        let mut state = self.state.lock();
        state.grown.add(after, 0);
        state.shrink(before, 0);
    }

    /// Notes that a version of `bytes` was discarded.
    pub(crate) fn shrank(&self, bytes: u64, inodes: u64) {
        self.discards.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.shrink(bytes, inodes);
        state.free = state.free.saturating_add(bytes);
    }

    /// Forgets what the versions take, and which go first.
    pub(crate) fn forget(&self) {
        self.next.lock().walked = None;
        let mut state = self.state.lock();
        (state.next, state.settled, state.exhausted) = (state.max, None, None);
        self.changed.notify_one();
    }

    /// Counts as free what the history gives up for data: what exceeds its bound.
    pub(crate) fn with_expendable(&self, stat: StatFs) -> StatFs {
        let state = self.state.lock();
        if state.total.is_none() || state.reserve == 0 || stat.frsize == 0 {
            return stat;
        }
        let blocks = state.all().bytes.saturating_sub(state.kept.max(state.max)) / stat.frsize;
        let add = |free: u64| free.saturating_add(blocks).min(stat.blocks);
        StatFs { bfree: add(stat.bfree), bavail: add(stat.bavail), ..stat }
    }

    /// Whether the layer must see all writes. Programs that it does not see can't wait for room,
    /// and might fill the file system before the thread looks.
    pub(crate) fn is_short(&self) -> bool {
        let state = self.state.lock();
        let has_versions = state.total.is_none() || state.all().bytes > 0;
        state.reserve > 0 && state.free < state.reserve.saturating_add(AMPLE) && has_versions
    }

    /// Whether the file system may be full.
    pub(crate) fn is_tight(&self) -> bool {
        let state = self.state.lock();
        state.looked.is_none() || state.free < state.reserve.saturating_add(AMPLE)
    }

    /// Notes that a file is written without the layer from now on.
    pub(crate) fn begins_unseen(&self) {
        if self.unseen.fetch_add(1, Ordering::Relaxed) == 0 {
            let state = self.state.lock();
            if state.looked.is_none_or(|looked| looked.elapsed() > OFTEN) {
                self.changed.notify_one();
            }
        }
    }

    /// Notes that such a file was closed.
    pub(crate) fn ends_unseen(&self) {
        self.unseen.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notes what a walk found. Before it, the history had `grown`.
    pub(super) fn walked(&self, total: Counts, kept: u64, grown: Counts) {
        let mut state = self.state.lock();
        (state.total, state.kept) = (Some(total), kept);
        state.grown.take(grown.bytes, grown.inodes);
    }

    /// Notes the end of a pass for `need` that began at `begun`. `is_settled`: nothing more may go.
    pub(super) fn passed(&self, need: Need, debt: Counts, begun: Instant, (is_settled, is_futile): (bool, bool)) {
        let mut state = self.state.lock();
        state.debt.take(debt.bytes, debt.inodes);
        let total = state.all().bytes;
        let now = Instant::now();
        // What a minimum protects remains. It is looked at again after the history has grown.
        state.next = state.max.max(total.saturating_add(state.max / SHARE));
        state.next_until = Some(now + SETTLED);
        let rest = (now - begun) * PAUSE;
        state.rested = Some(now + rest);
        state.settled = is_settled.then(|| (now + SETTLED, total));
        let is_exhausted = is_futile && matches!(need, Need::Version(_));
        state.exhausted = is_exhausted.then(|| now + rest.max(Duration::from_secs(1)));
        self.is_urgent.store(false, Ordering::Relaxed);
    }

    /// Notes that a pass failed: the next one nobody waits for is not soon.
    pub(super) fn failed(&self) {
        self.state.lock().rested = Some(Instant::now() + SETTLED);
        self.is_urgent.store(false, Ordering::Relaxed);
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.state.lock().stops = true;
        self.changed.notify_one();
    }

    pub(super) fn stops(&self) -> bool {
        self.state.lock().stops
    }

    /// Waits until free space is to be looked at. Returns false at the end.
    pub(super) fn wait(&self) -> bool {
        let mut state = self.state.lock();
        if state.stops {
            return false;
        }
        let time = if self.unseen.load(Ordering::Relaxed) > 0 {
            let ample = state.free.saturating_sub(state.reserve);
            Duration::from_millis(ample / (4 * SPEED / 1000)).clamp(OFTEN, SELDOM)
        } else {
            SELDOM
        };
        self.changed.wait_for(&mut state, time);
        !state.stops
    }

    /// Notes what is free. Returns whether a pass is due that nobody waits for.
    pub(super) fn looked(&self, rooms: &Rooms) -> bool {
        let (now, bytes) = (Instant::now(), rooms.bytes);
        let mut state = self.state.lock();
        (state.free, state.reserve, state.max) = (bytes.free, bytes.reserve, bytes.max);
        state.looked = Some(now);
        state.next = state.next.max(bytes.max);
        if state.next_until.is_some_and(|until| now >= until) {
            (state.next, state.next_until) = (bytes.max, None);
        }
        let was_scarce = core::mem::replace(&mut state.is_scarce, rooms.is_scarce());
        if !was_scarce {
            (state.settled, state.debt) = (None, Counts::default());
        }
        // A pass for each small file that is removed would take all the time.
        let room = rooms.scarce();
        let debt = state.debt.of(room.unit);
        let is_much = debt > room.reserve / SHARE || !state.rests();
        let gives = state.is_scarce && (!state.is_settled() || (debt > 0 && is_much));
        // What is used bounds the history, too.
        let may_exceed = rooms.size.saturating_sub(bytes.free) > bytes.max;
        let is_unknown = state.total.is_none() && state.grown.inodes > 0 && may_exceed && !state.rests();
        gives || state.exceeds() || is_unknown
    }
}

impl State {
    pub(super) fn shrink(&mut self, bytes: u64, inodes: u64) {
        let of_grown = self.grown;
        self.grown.take(bytes, inodes);
        let rest = (bytes.saturating_sub(of_grown.bytes), inodes.saturating_sub(of_grown.inodes));
        if let Some(total) = &mut self.total {
            total.take(rest.0, rest.1);
        }
    }
}
