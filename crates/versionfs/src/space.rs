//! The space of the history: it keeps to its bound, and yields when the file system below is
//! nearly full, the oldest versions first (docs/versioning-policies.md, "Space").
//!
//! A walk over all stores adds up what the versions take, and remembers those that go first: as
//! many as fit in memory. A *pass* discards some of them. A thread of the mount makes passes ahead
//! of time. An operation that meets a full disk makes one itself and is tried again: before it
//! begins, it holds no lock.

use crate::cleaner::Cleaned;
use crate::core::Core;
use crate::floor;
use crate::set::Set;
use crate::walk::{self, Found, Position};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use parking_lot::{Condvar, Mutex};
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Instant;
use versionpolicy::{FREE_FRACTION, Rank, VolumeLimit, ranks};
use versionset::{Letter, StoreName, parse};
use vnode::{Cx, Errno, Result, StatFs};

/// How often an operation on a full disk is tried again; each time more is discarded for it.
const TRIES: u32 = 4;

/// What is discarded for an operation at least, at the first time.
const FIRST: u64 = 1 << 20;
const FIRST_INODES: u64 = 16;

/// The part of the history that goes at least when an operation needs room: a pass takes time.
const SHARE: u64 = 16;

/// Passes for a few small versions take at most this fraction of the time.
const PAUSE: u32 = 10;

/// What an index or directory takes, in bytes.
const SMALL_FILE: u64 = 4096;

/// Programs that the layer does not see writing take a quarter of the free space between two looks
/// at most if they write so many bytes per second.
const SPEED: u64 = 2 << 30;

/// Bytes beside the reserve that may be filled unseen.
const AMPLE: u64 = 1 << 30;

/// How often free space is looked at.
const OFTEN: Duration = Duration::from_millis(20);
const SELDOM: Duration = Duration::from_secs(60);

/// After this time versions may have outlived what protected them.
const SETTLED: Duration = Duration::from_secs(600);

/// Versions that a walk remembers: some 10 MB.
const REMEMBERED: usize = 1 << 16;

/// How long they are those that go first.
const FRESH: Duration = Duration::from_secs(600);

thread_local! {
    /// Whether a user's data, not a version, had no room in the operation of this thread.
    static DATA: Cell<bool> = const { Cell::new(false) };
}

/// Passes on the result of storing a user's data: for that, protected versions stay.
pub(crate) fn of_data<T>(result: Result<T>) -> Result<T> {
    if matches!(result, Err(Errno::NOSPC)) {
        DATA.set(true);
    }
    result
}

/// The state of the space of a mount.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// Held by a pass.
    next: Mutex<Next>,
    state: Mutex<State>,
    changed: Condvar,
    /// Whether the next operation makes a pass first.
    is_urgent: AtomicBool,
    /// Whether nothing that may go was left when an operation needed room last.
    is_exhausted: AtomicBool,
    /// Open files that are written without the layer.
    unseen: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    /// What the versions take, as far as is known, without what has grown. `None`: nothing is.
    total: Option<Counts>,
    /// What versions have taken since, in bytes.
    grown: u64,
    /// What the versions take that never go for lack of room, in bytes.
    kept: u64,
    /// What versions took that were made while little was free.
    debt: Counts,
    /// Passes that ended.
    passes: u64,
    /// The total from which on the bound is looked at.
    next: u64,
    max: u64,
    reserve: u64,
    /// Free space in bytes at the last look, without what has grown since.
    free: u64,
    is_scarce: bool,
    /// Until when, and up to which total, nothing more can go.
    settled: Option<(Instant, u64)>,
    /// When the next pass may begin for a few small versions.
    rested: Option<Instant>,
    stops: bool,
}

/// The versions that go next.
#[derive(Debug, Default)]
struct Next {
    /// The first one is the last element.
    versions: Vec<Expendable>,
    /// Whether these are all that may go.
    is_all: bool,
    walked: Option<Instant>,
}

impl Next {
    /// Takes out the versions that must go so that no more than `left` of `total` remains. Returns
    /// whether these are enough.
    fn choose(&mut self, unit: Unit, total: u64, left: Left) -> (Vec<Expendable>, bool) {
        let (mut chosen, mut freed) = (Vec::new(), 0);
        while let Some(first) = self.versions.pop_if(|first| total.saturating_sub(freed) > left.of(first.rank)) {
            freed += first.weight(unit);
            chosen.push(first);
        }
        let Some(last) = chosen.pop() else { return (chosen, !self.versions.is_empty()) };
        let (rank, limit) = (last.rank, left.of(last.rank));
        let is_enough = !self.versions.is_empty() || total.saturating_sub(freed) <= limit;
        // A large version may make older ones stay that would not be enough without it.
        let mut needed = vec![last];
        for version in chosen.into_iter().rev() {
            let without = freed - version.weight(unit);
            if version.rank == rank && total.saturating_sub(without) <= limit {
                freed = without;
                self.versions.push(version);
            } else {
                needed.push(version);
            }
        }
        needed.reverse();
        (needed, is_enough)
    }
}

impl Expendable {
    fn weight(&self, unit: Unit) -> u64 {
        if unit == Unit::Bytes { self.bytes } else { 1 }
    }
}

/// A version that may go. Their order is that in which they do.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Expendable {
    rank: Rank,
    died: i128,
    number: u64,
    stem: Arc<[u8]>,
    /// The directory with the store, from the root.
    position: Arc<Position>,
    is_links: bool,
    /// What goes with it.
    bytes: u64,
}

/// Bytes and inodes.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    bytes: u64,
    inodes: u64,
}

impl Counts {
    fn of(self, unit: Unit) -> u64 {
        if unit == Unit::Bytes { self.bytes } else { self.inodes }
    }
}

/// What is scarce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Bytes,
    Inodes,
}

/// Who needs room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Nobody waits for it.
    Ahead,
    /// The data of a program: on a native file system, it would have none either.
    Data(u32),
    /// A version, after so many passes.
    Version(u32),
}

/// What the file system below has, in one unit.
#[derive(Clone, Copy, Debug)]
struct Room {
    unit: Unit,
    /// The bound of all versions together.
    max: u64,
    free: u64,
    /// What shall be free.
    reserve: u64,
}

impl Room {
    /// `None` if there is no bound to keep.
    fn of(stat: &StatFs, limit: VolumeLimit) -> Option<Self> {
        let size = stat.blocks.saturating_mul(stat.frsize);
        let (max, reserve) = (limit.bytes(size), limit.reserve(size));
        if max.is_none() && reserve.is_none() {
            return None;
        }
        let reserve = reserve.unwrap_or(0);
        let free = stat.bavail.saturating_mul(stat.frsize);
        let bytes = Self { unit: Unit::Bytes, max: max.unwrap_or(u64::MAX), free, reserve };
        // The same part of them.
        let max = max.map(|max| u128::from(stat.files) * u128::from(max) / u128::from(size.max(1)));
        let max = max.and_then(|max| u64::try_from(max).ok()).unwrap_or(u64::MAX);
        let inodes = Self { unit: Unit::Inodes, max, free: stat.ffree, reserve: stat.files / FREE_FRACTION };
        // Some file systems do not count inodes.
        let lacks_inodes = reserve > 0 && stat.files > 0 && inodes.is_scarce() && !bytes.is_scarce();
        Some(if lacks_inodes { inodes } else { bytes })
    }

    fn is_scarce(&self) -> bool {
        self.free < self.reserve
    }

    /// What must go so that twice the reserve is free: programs go on writing during a pass.
    fn shortage(&self) -> u64 {
        if self.is_scarce() { 2 * self.reserve - self.free } else { 0 }
    }
}

/// What remains of the history, in one unit.
#[derive(Clone, Copy, Debug)]
struct Left {
    /// Versions that no minimum protects go until so much remains of all together.
    all: u64,
    /// Versions that a minimum protects go until so much remains. [`u64::MAX`]: they stay.
    protected: u64,
}

impl Left {
    fn of(self, rank: Rank) -> u64 {
        if rank == Rank::Loose { self.all } else { self.protected }
    }
}

/// Returns what of `total` remains.
fn left(total: u64, limit: VolumeLimit, room: Room, debt: u64, need: Need) -> Left {
    const ALL: u64 = u64::MAX;
    let max = room.max;
    // Some more, or the next version would exceed it again.
    let bound = if total > max { max - max / 10 } else { ALL };
    let first = if room.unit == Unit::Bytes { FIRST } else { FIRST_INODES };
    let needed = match need {
        Need::Ahead => 0,
        Need::Data(tries) | Need::Version(tries) => (first << (4 * tries)).max(total / SHARE),
    };
    let wanted = needed.max(room.shortage());
    let without = |bytes: u64| if bytes == 0 { ALL } else { total.saturating_sub(bytes) };
    let mut protected = if limit.hard { bound } else { ALL };
    if wanted > 0 {
        // What exceeds the bound only because a minimum protects it.
        protected = protected.min(without(wanted).max(max));
    }
    if room.is_scarce() {
        // Where space is scarce, the history does not grow.
        protected = protected.min(without(debt));
    }
    if matches!(need, Need::Version(_)) {
        protected = protected.min(without(needed));
    }
    Left { all: bound.min(without(wanted)), protected }
}

impl State {
    /// Returns what the versions take, in bytes.
    fn bytes(&self) -> u64 {
        self.total.unwrap_or_default().bytes.saturating_add(self.grown)
    }

    /// Whether the history is known to exceed its bound, and was not found to be protected.
    fn exceeds(&self) -> bool {
        self.total.is_some() && self.bytes() > self.next
    }

    fn is_settled(&self) -> bool {
        self.settled.is_some_and(|(until, total)| Instant::now() < until && self.bytes() <= total.max(self.max))
    }
}

impl Space {
    /// Notes that a version, or a part of one, takes `bytes`.
    pub(crate) fn grew(&self, bytes: u64, inodes: u64) {
        self.is_exhausted.store(false, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.grown = state.grown.saturating_add(bytes);
        if state.is_scarce {
            state.debt.bytes = state.debt.bytes.saturating_add(bytes);
            state.debt.inodes += inodes;
        }
        state.free = state.free.saturating_sub(bytes);
        let is_due = state.exceeds() || state.is_scarce || state.total.is_none() || state.free < state.reserve;
        if !is_due {
            return;
        }
        let is_much =
            (state.exceeds() && state.bytes() - state.bytes() / 32 > state.next) || state.free < state.reserve / 4;
        if is_much && state.rested.is_none_or(|rested| Instant::now() >= rested) {
            self.is_urgent.store(true, Ordering::Relaxed);
        }
        self.changed.notify_one();
    }

    /// Notes that a version of `bytes` was taken back.
    pub(crate) fn took_back(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.grown = state.grown.saturating_sub(bytes);
        state.debt.bytes = state.debt.bytes.saturating_sub(bytes);
        state.debt.inodes = state.debt.inodes.saturating_sub(1);
    }

    /// Whether no version that may go is left on a full disk.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.is_exhausted.load(Ordering::Relaxed)
    }

    /// Whether the layer must see all writes. Programs that it does not see can't wait for room,
    /// and might fill the file system before the thread looks.
    pub(crate) fn is_short(&self) -> bool {
        let state = self.state.lock();
        let has_versions = state.total.is_none_or(|total| total.inodes > 0);
        state.reserve > 0 && state.free < state.reserve.saturating_add(AMPLE) && has_versions
    }

    /// Notes that a file is written without the layer from now on.
    pub(crate) fn begins_unseen(&self) {
        if self.unseen.fetch_add(1, Ordering::Relaxed) == 0 {
            self.changed.notify_one();
        }
    }

    /// Notes that such a file was closed.
    pub(crate) fn ends_unseen(&self) {
        if self.unseen.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.changed.notify_one();
        }
    }

    /// Notes that a version takes `after` bytes and no longer `before`.
    pub(crate) fn converted(&self, before: u64, after: u64) {
        let mut state = self.state.lock();
        let all = state.bytes().saturating_add(after).saturating_sub(before);
        if let Some(total) = &mut state.total {
            total.bytes = total.bytes.min(all);
        }
        state.grown = all - state.total.map_or(0, |total| total.bytes);
    }

    /// Counts as free what the history gives up for data: what exceeds its bound.
    pub(crate) fn with_expendable(&self, stat: StatFs) -> StatFs {
        let state = self.state.lock();
        if state.total.is_none() || state.reserve == 0 || stat.frsize == 0 {
            return stat;
        }
        let blocks = state.bytes().saturating_sub(state.kept).saturating_sub(state.max) / stat.frsize;
        let add = |free: u64| free.saturating_add(blocks).min(stat.blocks);
        StatFs { bfree: add(stat.bfree), bavail: add(stat.bavail), ..stat }
    }

    /// Notes that a version was discarded.
    fn shrank(&self, bytes: u64) {
        let mut state = self.state.lock();
        if let Some(total) = &mut state.total {
            total.bytes = total.bytes.saturating_sub(bytes);
            total.inodes = total.inodes.saturating_sub(1);
        }
        state.free = state.free.saturating_add(bytes);
    }

    /// Notes what a walk found. Before it, the history had `grown`.
    fn walked(&self, total: Counts, kept: u64, grown: u64) {
        let mut state = self.state.lock();
        (state.total, state.kept) = (Some(total), kept);
        state.grown = state.grown.saturating_sub(grown);
    }

    /// Returns what the versions take.
    fn total(&self, unit: Unit) -> u64 {
        let state = self.state.lock();
        Counts { bytes: state.bytes(), ..state.total.unwrap_or_default() }.of(unit)
    }

    /// Notes the end of a pass that began at `begun`. `is_settled`: nothing more may go.
    fn passed(&self, debt: Counts, begun: Instant, is_settled: bool) {
        let mut state = self.state.lock();
        state.debt.bytes = state.debt.bytes.saturating_sub(debt.bytes);
        state.debt.inodes = state.debt.inodes.saturating_sub(debt.inodes);
        let total = state.bytes();
        // What a minimum protects remains. It is looked at again after the history has grown.
        state.next = state.max.max(total.saturating_add(state.max / SHARE));
        state.passes += 1;
        let now = Instant::now();
        state.rested = Some(now + (now - begun) * PAUSE);
        state.settled = is_settled.then(|| (now + SETTLED, total));
        self.is_urgent.store(false, Ordering::Relaxed);
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.state.lock().stops = true;
        self.changed.notify_one();
    }

    fn stops(&self) -> bool {
        self.state.lock().stops
    }

    /// Waits until free space is to be looked at. Returns false at the end.
    fn wait(&self) -> bool {
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
    fn looked(&self, room: Room) -> bool {
        let now = Instant::now();
        let mut state = self.state.lock();
        if room.unit == Unit::Bytes {
            (state.free, state.reserve, state.max) = (room.free, room.reserve, room.max);
            state.next = state.next.max(room.max);
        }
        let was_scarce = core::mem::replace(&mut state.is_scarce, room.is_scarce());
        if !was_scarce {
            (state.settled, state.debt) = (None, Counts::default());
        }
        // A pass for each small file that is removed would take all the time.
        let debt = state.debt.of(room.unit);
        let is_much = debt > room.reserve / SHARE || state.rested.is_none_or(|rested| now >= rested);
        let gives = state.is_scarce && (!state.is_settled() || (debt > 0 && is_much));
        let is_unknown = state.total.is_none() && state.grown > 0;
        gives || state.exceeds() || is_unknown
    }
}

/// Keeps the bounds of a mount until [`Space::stop`].
pub(crate) fn keep(core: &Arc<Core>) {
    loop {
        let is_due = match core.room() {
            Ok(Some((room, _))) => core.space.looked(room),
            Ok(None) => false,
            Err(errno) => {
                tracing::debug!(%errno, "can't find out what the file system below has free");
                false
            }
        };
        if is_due && let Err(errno) = core.make_room(Need::Ahead, None, &mut Cleaned::default(), &|| core.space.stops())
        {
            tracing::warn!(%errno, "can't discard old versions");
        }
        if !core.space.wait() {
            return;
        }
    }
}

impl Core {
    /// Runs an operation that may make a version. If the disk is full, discards old versions and
    /// runs it again. The caller holds no lock.
    ///
    /// # Errors
    /// Those of `run`; `ENOSPC` only if nothing more may go. `MAY_BLOCK`.
    pub(crate) fn with_room<T>(&self, cx: &Cx<'_>, run: impl Fn() -> Result<T>) -> Result<T> {
        let never = || false;
        if self.space.is_urgent.load(Ordering::Relaxed) {
            cx.require_blocking()?;
            if self.space.is_urgent.swap(false, Ordering::Relaxed)
                && let Err(errno) = self.make_room(Need::Ahead, None, &mut Cleaned::default(), &never)
            {
                tracing::warn!(%errno, "can't discard old versions");
            }
        }
        let mut tries = 0;
        loop {
            let seen = self.space.state.lock().passes;
            DATA.set(false);
            let result = run();
            if !matches!(result, Err(Errno::NOSPC)) || tries == TRIES || self.policies.volume().free.is_none() {
                return result;
            }
            cx.require_blocking()?;
            let need = if DATA.take() { Need::Data(tries) } else { Need::Version(tries) };
            let has_room = self.make_room(need, Some(seen), &mut Cleaned::default(), &never)?;
            tries = match need {
                Need::Data(_) if !has_room => return result,
                // The last time: without the version, where that is possible.
                _ if !has_room => TRIES,
                _ => tries + 1,
            };
        }
    }

    /// Describes the bounds: see the command `versionfs.space`.
    pub(crate) fn bounds(&self, cx: &Cx<'_>) -> Result<String> {
        let (limit, stat) = (self.policies.volume(), self.root().statfs(cx)?);
        let size = stat.blocks.saturating_mul(stat.frsize);
        let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "none".to_owned(), |bytes| bytes.to_string());
        let free = stat.bavail.saturating_mul(stat.frsize);
        Ok(format!("max {} reserve {} free {free}\n", bytes(limit.bytes(size)), bytes(limit.reserve(size))))
    }

    /// Returns what the file system below has. `None` if there is no bound to keep.
    fn room(&self) -> Result<Option<(Room, VolumeLimit)>> {
        let limit = self.policies.volume();
        let stat = self.root().statfs(&self.own_cx())?;
        Ok(Room::of(&stat, limit).map(|room| (room, limit)))
    }

    /// Applies the bounds after a walk that may have changed much.
    pub(crate) fn bound_volume(&self, cleaned: &mut Cleaned, stops: &dyn Fn() -> bool) -> Result<()> {
        self.space.next.lock().walked = None;
        self.make_room(Need::Ahead, None, cleaned, stops).map(drop)
    }

    /// Discards what must go. Returns whether there is more room than before. With `seen`, another
    /// pass that ended after so many may have made it.
    fn make_room(
        &self,
        need: Need,
        seen: Option<u64>,
        cleaned: &mut Cleaned,
        stops: &dyn Fn() -> bool,
    ) -> Result<bool> {
        let mut next = self.space.next.lock();
        {
            let state = self.space.state.lock();
            if seen.is_some_and(|seen| state.passes > seen) {
                return Ok(true);
            }
            if matches!(need, Need::Data(_)) && state.is_settled() {
                return Ok(false);
            }
        }
        let Some((room, limit)) = self.room()? else { return Ok(false) };
        self.space.looked(room);
        let (begun, cx, before) = (Instant::now(), self.own_cx(), cleaned.discarded);
        let debt = self.space.state.lock().debt;
        let mut freed = Counts::default();
        let mut is_new = next.walked.is_none_or(|walked| walked.elapsed() > FRESH);
        if is_new {
            self.walk(&cx, &mut next, stops)?;
        }
        loop {
            let total = self.space.total(room.unit);
            let left = left(total, limit, room, debt.of(room.unit), need);
            let (chosen, is_enough) = next.choose(room.unit, total, left);
            if !is_enough && !is_new {
                // Since the walk, versions may have been made that go before the last of these.
                self.walk(&cx, &mut next, stops)?;
                is_new = true;
                continue;
            }
            let so_far = cleaned.discarded;
            for version in chosen {
                if stops() {
                    break;
                }
                self.discard_expendable(&cx, &version, &mut freed, cleaned);
            }
            let has_all = is_new && (next.is_all || cleaned.discarded == so_far);
            if is_enough || has_all || stops() {
                break;
            }
            self.walk(&cx, &mut next, stops)?;
        }
        if let Err(errno) = self.blocks.collect(&cx, stops) {
            tracing::debug!(%errno, "can't give back the space of content-addressed versions yet");
        }
        let count = cleaned.discarded - before;
        if count > 0 {
            tracing::info!("discarded {count} old versions for lack of room");
        }
        self.space.passed(debt, begun, freed.of(room.unit) < room.shortage());
        if matches!(need, Need::Version(_)) {
            self.space.is_exhausted.store(count == 0, Ordering::Relaxed);
        }
        Ok(count > 0)
    }

    /// Discards a version unless somebody protects it since.
    fn discard_expendable(&self, cx: &Cx<'_>, version: &Expendable, freed: &mut Counts, cleaned: &mut Cleaned) {
        match self.try_discard(cx, version) {
            Ok(false) => {}
            Ok(true) => {
                freed.bytes += version.bytes;
                freed.inodes += 1;
                self.space.shrank(version.bytes);
                cleaned.discarded += 1;
                cleaned.freed += version.bytes;
            }
            Err(errno) => {
                let stem = version.stem.escape_ascii();
                tracing::debug!(%errno, "can't discard version {} of {stem}", version.number);
                cleaned.failed += 1;
            }
        }
    }

    /// Returns whether the version is gone.
    fn try_discard(&self, cx: &Cx<'_>, version: &Expendable) -> Result<bool> {
        let found = walk::store_at(cx, &self.root(), &version.position, version.is_links)?;
        let Some(found) = found else { return Ok(false) };
        let Some(set) = self.set_in(cx, &found, &version.stem)? else { return Ok(false) };
        let tags = crate::tags::times(self, cx)?;
        let info = {
            let locked = set.lock(self, cx)?;
            let Some(version) = locked.index().versions.get(&version.number) else { return Ok(false) };
            crate::retain::info(&set, version, version.size, &tags)
        };
        if info.pinned || info.tagged || info.landmark || !self.discard(cx, &set, version.number, false)? {
            return Ok(false);
        }
        self.report_discarded(cx, [&*set].into_iter(), None);
        self.drop_bare(cx, &set)?;
        Ok(true)
    }

    /// Adds up what all versions take, and remembers those that go first.
    fn walk(&self, cx: &Cx<'_>, next: &mut Next, stops: &dyn Fn() -> bool) -> Result<()> {
        let grown = self.space.state.lock().grown;
        let (mut heap, mut total, mut expendable) = (BinaryHeap::new(), Counts::default(), 0);
        *next = Next { is_all: true, ..Next::default() };
        let is_done = walk::stores(cx, &self.root(), &[], &mut |position, found| {
            let position = Arc::new(position.to_vec());
            self.each_set(cx, found, &mut |set| {
                self.weigh(cx, &set, &mut total, &mut |rank, died, number, bytes| {
                    expendable += bytes;
                    let (stem, position) = (Arc::clone(&set.stem), Arc::clone(&position));
                    heap.push(Expendable { rank, died, number, stem, position, is_links: found.is_links, bytes });
                    if heap.len() > REMEMBERED {
                        heap.pop();
                        next.is_all = false;
                    }
                })
            })?;
            Ok(!stops())
        })?;
        if is_done {
            next.versions = heap.into_sorted_vec();
            next.versions.reverse();
            next.walked = Some(Instant::now());
            self.space.walked(total, total.bytes.saturating_sub(expendable), grown);
        }
        Ok(())
    }

    /// Calls `visit` for each set of a store. What can't be read is passed over.
    fn each_set(&self, cx: &Cx<'_>, found: &Found, visit: &mut dyn FnMut(Arc<Set>) -> Result<()>) -> Result<()> {
        let mut stems = Vec::new();
        walk::list(cx, &found.store, &mut |entry| {
            if let StoreName::Index(stem) = parse(entry.name.as_bytes()) {
                stems.push(stem.to_vec());
            }
        })?;
        for stem in stems {
            let visited = self.set_in(cx, found, &stem).and_then(|set| set.map_or(Ok(()), &mut *visit));
            if let Err(errno) = visited {
                tracing::debug!(%errno, "can't read the versions of {}", stem.escape_ascii());
            }
        }
        Ok(())
    }

    /// Adds up what the versions of a set take with all that goes with them. Calls `add` for those
    /// that may go.
    fn weigh(
        &self,
        cx: &Cx<'_>,
        set: &Arc<Set>,
        total: &mut Counts,
        add: &mut dyn FnMut(Rank, i128, u64, u64),
    ) -> Result<()> {
        let (newest, infos, index) = {
            let locked = set.lock(self, cx)?;
            let Some(newest) = locked.index().newest().cloned() else { return Ok(()) };
            let mut infos = locked.infos(cx, &crate::tags::times(self, cx)?)?;
            for (info, version) in infos.iter_mut().zip(locked.index().versions.values()) {
                // The directory and its store.
                info.stored += if version.letter == Letter::Directory { 2 * SMALL_FILE } else { 0 };
            }
            (newest, infos, locked.index_len())
        };
        let head = set.content_head(self, cx)?;
        let policy = self.policy_of_version(cx, set, head.as_ref(), &newest);
        let ranks = ranks(&policy, &infos, self.policies.now(self.now()));
        for (info, (rank, died)) in infos.iter().zip(ranks) {
            // The index goes with the newest.
            let is_newest = info.number == newest.number;
            let bytes = info.stored + if is_newest { index.next_multiple_of(SMALL_FILE) } else { 0 };
            total.bytes = total.bytes.saturating_add(bytes);
            total.inodes += 1 + u64::from(is_newest);
            if let Some(rank) = rank {
                add(rank, died, info.number, bytes);
            }
        }
        Ok(())
    }

    /// Removes the index of a set without versions and without a head: it says nothing about any
    /// object.
    fn drop_bare(&self, cx: &Cx<'_>, set: &Set) -> Result<()> {
        let mut locked = set.lock(self, cx)?;
        if !locked.index().versions.is_empty() || !locked.has_index() || set.head(self, cx)?.is_some() {
            return Ok(());
        }
        for period in &locked.index().links {
            // Versions of the inode are the name's.
            if !self.set_of_link(&period.stem).lock(self, cx)?.index().versions.is_empty() {
                return Ok(());
            }
        }
        floor::raise(cx, &locked.store(cx)?, locked.index().next())?;
        locked.remove_index(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(versions: &[(Rank, i128, u64)]) -> Next {
        let expendable = |&(rank, died, bytes): &(Rank, i128, u64)| Expendable {
            rank,
            died,
            number: 1,
            stem: (*b"f").into(),
            position: Arc::default(),
            is_links: false,
            bytes,
        };
        let mut versions: Vec<_> = versions.iter().map(expendable).collect();
        versions.sort_unstable_by(|one, other| other.cmp(one));
        Next { versions, ..Next::default() }
    }

    fn chosen(versions: &[(Rank, i128, u64)], left: Left) -> Vec<i128> {
        let mut next = next(versions);
        let total = versions.iter().map(|version| version.2).sum();
        let (chosen, _) = next.choose(Unit::Bytes, total, left);
        let rest: Vec<_> = next.versions.iter().rev().map(|version| (version.rank, version.died)).collect();
        assert!(rest.is_sorted(), "{rest:?}");
        let mut died: Vec<_> = chosen.iter().map(|version| version.died).collect();
        died.sort_unstable();
        died
    }

    #[test]
    fn unprotected_versions_go_first_and_the_oldest_of_them() {
        let versions = [(Rank::Age, 1, 10), (Rank::Loose, 2, 10), (Rank::Loose, 3, 10), (Rank::Number, 0, 10)];
        let all = u64::MAX;
        assert_eq!(chosen(&versions, Left { all, protected: all }), []);
        assert_eq!(chosen(&versions, Left { all: 30, protected: all }), [2]);
        assert_eq!(chosen(&versions, Left { all: 0, protected: all }), [2, 3]);
        assert_eq!(chosen(&versions, Left { all: 0, protected: 15 }), [0, 2, 3]);
        assert_eq!(chosen(&versions, Left { all: 0, protected: 0 }), [0, 1, 2, 3]);
    }

    #[test]
    fn a_version_that_does_not_fit_displaces_no_others() {
        let versions = [(Rank::Age, 1, 10), (Rank::Age, 2, 10), (Rank::Age, 3, 70)];
        assert_eq!(chosen(&versions, Left { all: u64::MAX, protected: 30 }), [3]);
        assert_eq!(chosen(&versions, Left { all: u64::MAX, protected: 10 }), [1, 3]);
        assert_eq!(chosen(&versions, Left { all: u64::MAX, protected: 80 }), [1]);
    }

    #[test]
    fn protected_versions_give_way_in_steps() {
        const LIMIT: VolumeLimit =
            VolumeLimit { max: versionpolicy::VolumeMax::Percent(25), hard: false, free: Some(50) };
        let room = |free| Room { unit: Unit::Bytes, max: 250, free, reserve: 50 };
        let protected = |total, free, debt, need| left(total, LIMIT, room(free), debt, need).protected;
        // Enough is free.
        assert_eq!(protected(600, 100, 7, Need::Ahead), u64::MAX);
        // Beyond the bound they go until twice the reserve is free.
        assert_eq!(protected(600, 40, 0, Need::Ahead), 540);
        assert_eq!(protected(260, 40, 0, Need::Ahead), 250);
        // Below it, what is new displaces as much.
        assert_eq!(protected(200, 40, 0, Need::Ahead), 250);
        assert_eq!(protected(200, 40, 30, Need::Ahead), 170);
        // Data gets what is beyond the bound, a version what it needs.
        assert_eq!(protected(200, 100, 0, Need::Data(0)), 250);
        assert_eq!(protected(200, 100, 0, Need::Version(0)), 0);
        let hard = VolumeLimit { hard: true, ..LIMIT };
        assert_eq!(left(600, hard, room(100), 0, Need::Ahead).protected, 225);
        assert_eq!(left(600, LIMIT, room(100), 0, Need::Ahead).all, 225);
    }
}
