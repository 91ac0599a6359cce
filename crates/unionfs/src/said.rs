//! What was said in the log, so that it is not said again each time.

use crate::branch::{BranchId, Lower};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// The directories with bad marks that were warned of.
#[derive(Debug, Default)]
pub(crate) struct Complaints(Mutex<HashSet<(BranchId, u64)>>);

impl Complaints {
    /// After so many warnings nobody reads more.
    const MOST: usize = 1000;

    /// Is it the first complaint of this directory?
    pub(crate) fn is_new(&self, dir: &Lower) -> bool {
        let mut seen = self.0.lock();
        seen.len() < Self::MOST && seen.insert((dir.branch, dir.vnode.id()))
    }
}

/// When it was last said that a reserved name can't be made.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<Option<Instant>>);

impl Refusals {
    /// A tool that unpacks a layer tries hundreds.
    const SILENCE: Duration = Duration::from_secs(60);

    pub(crate) fn is_due(&self) -> bool {
        let mut last = self.0.lock();
        let due = last.is_none_or(|at| at.elapsed() >= Self::SILENCE);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}
