//! Limits on repeated log messages.

use crate::branch::{BranchId, Lower};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// The lower objects that were already warned about.
#[derive(Debug, Default)]
pub(crate) struct WarnedOnce(Mutex<HashSet<(BranchId, u64)>>);

impl WarnedOnce {
    /// Maximum number of such warnings.
    const MOST: usize = 1000;

    /// Whether this object was not warned about yet.
    pub(crate) fn is_new(&self, dir: &Lower) -> bool {
        let mut seen = self.0.lock();
        seen.len() < Self::MOST && seen.insert((dir.branch, dir.vnode.id()))
    }
}

/// When a refused reserved name was last logged.
#[derive(Debug, Default)]
pub(crate) struct RateLimit(Mutex<Option<Instant>>);

impl RateLimit {
    /// Minimum time between two messages: a tool that unpacks an image layer may try hundreds of
    /// names.
    const SILENCE: Duration = Duration::from_secs(60);

    /// Whether a message may be logged now. Notes that it is.
    pub(crate) fn is_due(&self) -> bool {
        let mut last = self.0.lock();
        let due = last.is_none_or(|at| at.elapsed() >= Self::SILENCE);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}
