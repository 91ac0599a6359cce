//! The space of the history: it keeps to its bound, and yields when the file system below is
//! nearly full, the oldest versions first (docs/versioning-policies.md, "Space"). A full quota is
//! that of one user, whose history then yields (`quota.rs`).
//!
//! A walk over all stores adds up what the versions take, and remembers those that go first: as
//! many as fit in memory. A *pass* discards some of them. A thread of the mount makes passes ahead
//! of time. An operation that meets a full disk makes one itself and is tried again: before it
//! begins, it holds no lock.

mod account;
mod attempt;
mod next;
mod quota;
mod room;

pub(crate) use account::Space;
pub(crate) use attempt::{belongs_to, is_last_try, is_partial, loses_version, of_data, once, wants};

use crate::cleaner::Cleaned;
use crate::core::Core;
use attempt::{Attempt, is_under_way};
use core::sync::atomic::Ordering;
use core::time::Duration;
use next::Next;
use room::{Need, Rooms, left};
use std::sync::Arc;
use std::time::Instant;
use versionpolicy::VolumeLimit;
use vnode::{Cx, Errno, Result};

/// Discarded versions that the log mentions: on a full disk, each operation may need some.
const MANY: u64 = 100;

/// How often an operation on a full disk is tried again; each time more is discarded for it.
const TRIES: u32 = 4;

/// How long after a walk the versions that it remembered are those that go first.
const FRESH: Duration = Duration::from_secs(600);

/// What a pass made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// There is more room than before.
    Room,
    /// Nothing more can go.
    Nothing,
    /// Nothing: it is not the disk that is full.
    Other,
}

/// Keeps the bounds of a mount until [`Space::stop`].
pub(crate) fn keep(core: &Arc<Core>) {
    // Of this thread only.
    if let Err(errno) = rustix::process::nice(10) {
        tracing::debug!(%errno, "can't lower the priority of the thread that keeps the bound");
    }
    loop {
        core.make_room_ahead(&|| core.space.stops());
        if !core.space.wait() {
            return;
        }
    }
}

impl Core {
    /// Runs an operation that may make a version. If the disk or a quota is full, discards old
    /// versions and runs it again. The caller holds no lock.
    ///
    /// # Errors
    /// Those of `run`; `ENOSPC` and `EDQUOT` only if nothing more may go. `MAY_BLOCK`.
    pub(crate) fn with_room<T>(&self, cx: &Cx<'_>, run: impl Fn() -> Result<T>) -> Result<T> {
        if is_under_way() {
            return run();
        }
        if self.space.is_urgent.load(Ordering::Relaxed) {
            cx.require_blocking()?;
            if self.space.is_urgent.swap(false, Ordering::Relaxed) {
                self.make_room_ahead(&|| false);
            }
        }
        let (mut tries, mut is_last, mut loses) = (0, !self.policies.yields(), false);
        loop {
            let seen = self.space.discards.load(Ordering::Relaxed);
            let (result, attempt) = Attempt::run(is_last, loses, &run);
            let is_quota = match &result {
                Err(Errno::NOSPC) => false,
                Err(Errno::DQUOT) => true,
                _ => return result,
            };
            if is_last || attempt.is_partial {
                return result;
            }
            cx.require_blocking()?;
            let need = if attempt.lacked_data { Need::Data(tries) } else { Need::Version(tries) };
            let has_room = if is_quota {
                self.make_room_for(attempt.owner.unwrap_or(cx.uid), need, attempt.wants)
            } else {
                self.make_room(need, (seen, attempt.wants), &mut Cleaned::default(), &|| false)
            };
            let made = has_room.unwrap_or_else(|errno| {
                tracing::warn!(%errno, "can't discard old versions for an operation that lacks space");
                Made::Nothing
            });
            if made != Made::Room && attempt.lacked_data {
                return result;
            }
            tries += 1;
            // The last time: without the version, where that is possible.
            is_last = made != Made::Room || tries == TRIES;
            loses = is_last && made != Made::Other;
        }
    }

    /// Discards what must go by the last look at the free space.
    fn make_room_ahead(&self, stops: &dyn Fn() -> bool) {
        let made = self.rooms().and_then(|rooms| match rooms {
            Some((rooms, _)) if self.space.looked(&rooms) => {
                self.make_room(Need::Ahead, (u64::MAX, 0), &mut Cleaned::default(), stops).map(drop)
            }
            _ => Ok(()),
        });
        if let Err(errno) = made {
            tracing::warn!(%errno, "can't keep the bound of the history");
            self.space.failed();
        }
        self.write_late();
    }

    /// Writes the records that had no room, as far as they have some now.
    pub(crate) fn write_late(&self) {
        let cx = self.own_cx();
        for set in self.sets.late() {
            if let Err(errno) = set.lock(self, &cx).and_then(|mut locked| locked.write_late(&cx)) {
                tracing::debug!(%errno, "can't write the index {} yet", set.stem.escape_ascii());
            }
        }
        self.write_lost(&cx);
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
    fn rooms(&self) -> Result<Option<(Rooms, VolumeLimit)>> {
        let limit = self.policies.volume();
        let stat = self.root().statfs(&self.own_cx())?;
        Ok(Rooms::of(&stat, limit).map(|rooms| (rooms, limit)))
    }

    /// Applies the bounds after a walk that may have changed much.
    pub(crate) fn bound_volume(&self, cleaned: &mut Cleaned, stops: &dyn Fn() -> bool) -> Result<()> {
        self.space.forget();
        self.make_room(Need::Ahead, (u64::MAX, 0), cleaned, stops).map(drop)
    }

    /// Discards what must go. There is more room than before also if more than `seen` versions were
    /// discarded meanwhile. `wants`: what the version takes.
    fn make_room(
        &self,
        need: Need,
        (seen, wants): (u64, u64),
        cleaned: &mut Cleaned,
        stops: &dyn Fn() -> bool,
    ) -> Result<Made> {
        let mut next = self.space.next.lock();
        if self.space.discards.load(Ordering::Relaxed) > seen {
            return Ok(Made::Room);
        }
        let Some((rooms, limit)) = self.rooms()? else { return Ok(Made::Other) };
        self.space.looked(&rooms);
        let is_short = rooms.is_scarce() || rooms.bytes.free < wants.saturating_add(rooms.bytes.reserve);
        if need != Need::Ahead && !is_short {
            return Ok(Made::Other);
        }
        let (room, begun, cx) = (rooms.scarce(), Instant::now(), self.own_cx());
        if self.space.state.lock().is_futile(need) {
            return Ok(Made::Nothing);
        }
        let before = (cleaned.discarded, cleaned.failed);
        let mut is_new = next.walked.is_none_or(|walked| walked.elapsed() > FRESH);
        if is_new {
            self.walk(&cx, &mut next, stops)?;
        }
        let (debt, all) = {
            let state = self.space.state.lock();
            (state.debt, state.all())
        };
        if matches!(need, Need::Version(_)) && wants > rooms.bytes.free.saturating_add(all.bytes) {
            // It does not fit whatever goes.
            return Ok(Made::Nothing);
        }
        let mut target = None;
        let is_enough = loop {
            let total = self.space.state.lock().all().of(room.unit);
            let left = *target.get_or_insert_with(|| left(total, limit, room, debt.of(room.unit), need));
            let (chosen, is_enough) = next.choose(room.unit, total, left);
            if !is_enough && !is_new {
                // Since the walk, versions may have been made that go before the last of these.
                self.walk(&cx, &mut next, stops)?;
                (is_new, target) = (true, None);
                continue;
            }
            let so_far = cleaned.discarded;
            for version in chosen {
                if stops() {
                    break;
                }
                self.discard_expendable(&cx, &mut next, &version, cleaned);
            }
            if is_enough || next.is_all || cleaned.discarded == so_far || stops() {
                break is_enough;
            }
            self.walk(&cx, &mut next, stops)?;
        };
        let count = cleaned.discarded - before.0;
        self.end_pass(&cx, &mut next, count, stops);
        let is_settled = !is_enough && !stops() && cleaned.failed == before.1;
        self.space.passed(need, debt, begun, (is_settled, count == 0));
        Ok(if count > 0 { Made::Room } else { Made::Nothing })
    }

    /// Ends a pass that discarded so many versions.
    fn end_pass(&self, cx: &Cx<'_>, next: &mut Next, count: u64, stops: &dyn Fn() -> bool) {
        for set in core::mem::take(&mut next.unwritten) {
            if let Err(errno) = set.lock(self, cx).and_then(|mut locked| locked.write_late(cx)) {
                tracing::debug!(%errno, "can't write the index {} yet", set.stem.escape_ascii());
            }
        }
        self.write_late();
        if count > 0
            && let Err(errno) = self.blocks.collect(cx, stops)
        {
            tracing::debug!(%errno, "can't give back the space of content-addressed versions yet");
        }
        match count {
            0 => {}
            1..MANY => tracing::debug!("discarded {count} old versions for lack of room"),
            _ => tracing::info!("discarded {count} old versions for lack of room"),
        }
    }
}
