//! Full quotas: a user who has used up a quota gets room from their own history. A version counts
//! against the quota of the file's owner.
//!
//! Nobody tells what a quota leaves: `statfs` does not know of it. So a pass discards in growing
//! steps, only for an operation that fails, and only versions of that owner.

use super::account::PAUSE;
use super::attempt::Attempt;
use super::next::Next;
use super::room::{Left, Need, SHARE, Unit, first};
use super::{FRESH, Made};
use crate::cleaner::Cleaned;
use crate::core::Core;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::collections::HashMap;
use std::time::Instant;
use vnode::{Cx, Result};

/// How many owners are remembered beside the present one.
const OWNERS: usize = 1 << 10;

/// The part of an owner's history, as it was when their quota was first full, that minimums protect
/// from data.
const PROTECTED: u64 = 4;

/// How long nothing can go at least if no versions are made.
const SECOND: Duration = Duration::from_secs(1);

/// What is known of the owners whose quota was full.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    /// The owner whose versions are remembered, those that go first, and what all take, in bytes.
    owner: Option<u32>,
    next: Next,
    total: u64,
    owners: HashMap<u32, Owner>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Owner {
    /// What their versions took at most when their quota was full, in bytes.
    most: u64,
    /// When nothing could go for data, and for a version.
    exhausted: [Option<Exhausted>; 2],
}

/// When nothing could go.
#[derive(Clone, Copy, Debug)]
struct Exhausted {
    /// How long that is so if no versions are made, and if some are: a pass takes time.
    until: Instant,
    at_least: Instant,
    /// [`super::Space::made`] at that time.
    made: u64,
}

impl Exhausted {
    fn holds(self, now: Instant, made: u64) -> bool {
        now < if made == self.made { self.until } else { self.at_least }
    }
}

impl Owner {
    /// Returns what of `total` bytes remains.
    fn left(self, total: u64, need: Need, wants: u64) -> Left {
        let needed = first(Unit::Bytes, need).max(wants);
        let all = total.saturating_sub(needed.max(total / SHARE));
        let protected = match need {
            Need::Version(_) => total.saturating_sub(needed),
            Need::Ahead | Need::Data(_) => all.max(self.most / PROTECTED),
        };
        Left { all, protected }
    }
}

impl Core {
    /// Discards versions of an owner whose quota is full. `wants`: what the version takes.
    pub(super) fn make_room_for(&self, owner: u32, need: Need, wants: u64) -> Result<Made> {
        let (begun, cx) = (Instant::now(), self.own_cx());
        let mut quotas = self.space.quotas.lock();
        let quotas = &mut *quotas;
        let kind = usize::from(matches!(need, Need::Version(_)));
        let known = quotas.owners.get(&owner).copied().unwrap_or_default();
        let made = self.space.made.load(Ordering::Relaxed);
        if known.exhausted[kind].is_some_and(|exhausted| exhausted.holds(begun, made)) {
            return Ok(Made::Nothing);
        }
        let is_fresh = quotas.next.walked.is_some_and(|walked| walked.elapsed() <= FRESH);
        let mut is_new = quotas.owner != Some(owner) || !is_fresh;
        if is_new {
            quotas.look(self, &cx, owner)?;
        }
        let mut cleaned = Cleaned::default();
        // A version may be in use, or gone.
        while cleaned.discarded == 0 {
            let of_owner = quotas.owners.get(&owner).copied().unwrap_or_default();
            let left = of_owner.left(quotas.total, need, wants);
            let (chosen, _) = quotas.next.choose(Unit::Bytes, quotas.total, left);
            if chosen.is_empty() && is_new {
                break;
            }
            if chosen.is_empty() {
                // The list lacks versions that were made since the walk.
                quotas.look(self, &cx, owner)?;
                is_new = true;
            }
            for version in chosen {
                // There may be no room for the record of it, either.
                let discard = || self.discard_expendable(&cx, &mut quotas.next, &version, &mut cleaned);
                Attempt::run(true, true, discard);
            }
        }
        quotas.total = quotas.total.saturating_sub(cleaned.freed);
        self.end_pass(&cx, &mut quotas.next, cleaned.discarded, &|| false);
        if cleaned.discarded > 0 {
            return Ok(Made::Room);
        }
        let now = Instant::now();
        let at_least = now + (now - begun);
        if let Some(owner) = quotas.owners.get_mut(&owner) {
            owner.exhausted[kind] =
                Some(Exhausted { until: now + ((now - begun) * PAUSE).max(SECOND), at_least, made });
        }
        Ok(Made::Nothing)
    }
}

impl Quotas {
    /// Looks at all versions of an owner.
    fn look(&mut self, core: &Core, cx: &Cx<'_>, owner: u32) -> Result<()> {
        self.owner = None;
        let Some((total, _)) = core.walk_of(cx, Some(owner), &mut self.next, &|| core.space.stops())? else {
            return Ok(());
        };
        (self.owner, self.total) = (Some(owner), total.bytes);
        if self.owners.len() >= OWNERS && !self.owners.contains_key(&owner) {
            self.owners.clear();
        }
        let known = self.owners.entry(owner).or_default();
        known.most = known.most.max(total.bytes);
        Ok(())
    }
}
