//! Statistics on the space that a file occupies.

use crate::format::{State, Version};
use crate::geometry::{PAGE, UNIT};
use std::collections::BTreeSet;

/// A file may occupy a quarter more than a fresh copy.
pub(crate) const BOUND: (u64, u64) = (5, 4);

/// Maximum number of remembered groups with punched blocks.
const PUNCHED: usize = 1024;

/// A value larger than any file: the amount is unknown.
pub(crate) const UNKNOWN: u64 = 1 << 62;

/// Statistics on the space that a file occupies.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// Bytes of versions superseded since the last complete scan.
    pub(crate) dead: u64,
    /// Bytes that a fresh copy would occupy, if known.
    pub(crate) fresh: Option<u64>,
    /// Groups with punched blocks, whose space is released once the punch is durable.
    pub(crate) punched: BTreeSet<u64>,
    /// The dead bytes at the time of a failure: the next attempt requires enough dead bytes beyond
    /// these.
    pub(crate) retry_above: u64,
    pub(crate) sweep: Option<Sweep>,
}

/// A scan of all groups in progress.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// Groups below this number were scanned.
    pub(crate) next: u64,
    pub(crate) visited: u64,
    /// Bytes that a fresh copy of the groups below `next` would occupy.
    pub(crate) fresh: u64,
    /// Dead bytes at the start of the scan.
    pub(crate) dead: u64,
    /// Set if not everything is durable: only space that no version occupies is released, and
    /// `kept` counts what remains in use.
    pub(crate) light: bool,
    pub(crate) kept: u64,
    /// Excess in bytes that is accepted without an fsync.
    pub(crate) slack: u64,
    /// Groups whose blocks were relocated since the last fsync, and how often.
    pub(crate) moved: Vec<(u64, u8)>,
    pub(crate) moved_bytes: u64,
}

impl Space {
    /// Returns the statistics of an existing file. If the last session did not end properly, the
    /// file must be scanned.
    pub(crate) fn of(state: &State) -> Self {
        Self { dead: if state.counted { state.dead } else { UNKNOWN }, ..Self::default() }
    }

    /// Returns the statistics of a file without blocks.
    pub(crate) fn fresh() -> Self {
        Self { fresh: Some(PAGE), ..Self::default() }
    }

    /// Records a change of a group's size in a fresh copy.
    pub(crate) fn note(&mut self, number: u64, before: u64, after: u64) {
        self.fresh = self.fresh.and_then(|fresh| (fresh + after).checked_sub(before));
        if let Some(sweep) = self.sweep.as_mut().filter(|sweep| number < sweep.next) {
            sweep.fresh = (sweep.fresh + after).saturating_sub(before);
        }
    }

    /// Records that a version was superseded.
    pub(crate) fn supersede(&mut self, version: &Version) {
        self.dead = self.dead.saturating_add(u64::from(version.units()) * UNIT);
    }

    /// Discards the statistics after groups were removed without being scanned.
    pub(crate) fn forget(&mut self) {
        self.fresh = None;
        self.sweep = None;
    }

    /// Records that blocks of a group were punched.
    pub(crate) fn punch(&mut self, number: u64) {
        if self.punched.len() < PUNCHED {
            self.punched.insert(number);
        }
    }
}

/// Whether `bytes` exceeds `fresh` times the given fraction.
pub(crate) fn exceeds(bytes: u64, fresh: u64, (over, under): (u64, u64)) -> bool {
    u128::from(bytes) * u128::from(under) > u128::from(fresh) * u128::from(over)
}
