//! What is known of the space that a file takes below.

use crate::format::{State, Version};
use crate::geometry::{PAGE, UNIT};
use std::collections::BTreeSet;

/// A file may take a quarter more than a fresh copy.
pub(crate) const BOUND: (u64, u64) = (5, 4);

/// Groups with punched blocks that are remembered.
const PUNCHED: usize = 1024;

/// More than any file has: the amount is not known.
pub(crate) const UNKNOWN: u64 = 1 << 62;

/// What is known of the space that a file takes below.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// Bytes of versions that were superseded since all groups were last looked at.
    pub(crate) dead: u64,
    /// Bytes that a fresh copy would take.
    pub(crate) fresh: Option<u64>,
    /// Groups with blocks that were punched: what that frees is given back once it is durable.
    pub(crate) punched: BTreeSet<u64>,
    /// After a failure: so many bytes more must be dead before the next try.
    pub(crate) retry_above: u64,
    pub(crate) sweep: Option<Sweep>,
}

/// A walk over all groups that has begun.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// Groups below this number were looked at.
    pub(crate) next: u64,
    pub(crate) visited: u64,
    /// Bytes that a fresh copy of the groups below `next` would take.
    pub(crate) fresh: u64,
    /// What was dead when it began.
    pub(crate) dead: u64,
    /// Not everything is durable: only what no version lies in is given back, and `kept` says how much is left in use.
    pub(crate) light: bool,
    pub(crate) kept: u64,
    /// So much more than it should be may be left without an fsync.
    pub(crate) slack: u64,
    /// Groups whose blocks were moved since the last fsync, and how often.
    pub(crate) moved: Vec<(u64, u8)>,
    pub(crate) moved_bytes: u64,
}

impl Space {
    /// Of a file that exists: if the session before did not end properly, all of it must be looked at.
    pub(crate) fn of(state: &State) -> Self {
        Self { dead: if state.counted { state.dead } else { UNKNOWN }, ..Self::default() }
    }

    /// Of a file without a block.
    pub(crate) fn fresh() -> Self {
        Self { fresh: Some(PAGE), ..Self::default() }
    }

    /// A group changed.
    pub(crate) fn note(&mut self, number: u64, before: u64, after: u64) {
        self.fresh = self.fresh.and_then(|fresh| (fresh + after).checked_sub(before));
        if let Some(sweep) = self.sweep.as_mut().filter(|sweep| number < sweep.next) {
            sweep.fresh = (sweep.fresh + after).saturating_sub(before);
        }
    }

    /// A version was superseded.
    pub(crate) fn supersede(&mut self, version: &Version) {
        self.dead = self.dead.saturating_add(u64::from(version.units()) * UNIT);
    }

    /// Groups went that were not looked at.
    pub(crate) fn forget(&mut self) {
        self.fresh = None;
        self.sweep = None;
    }

    /// Blocks of a group were punched.
    pub(crate) fn punch(&mut self, number: u64) {
        if self.punched.len() < PUNCHED {
            self.punched.insert(number);
        }
    }
}

/// Are so many bytes more than that multiple of a fresh copy?
pub(crate) fn exceeds(bytes: u64, fresh: u64, (over, under): (u64, u64)) -> bool {
    u128::from(bytes) * u128::from(under) > u128::from(fresh) * u128::from(over)
}
