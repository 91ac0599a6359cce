//! The differences between replicas that were found so far.

use crate::identity::PathKey;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How many differing files are remembered.
const MAX_KNOWN: usize = 100_000;
/// How many lines are logged in a [`WINDOW`].
const MAX_LINES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);

/// The differences found so far.
#[derive(Debug, Default)]
pub(crate) struct Differences {
    known: Mutex<HashSet<PathKey>>,
    lookups: AtomicU64,
    compared: AtomicU64,
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl Lines {
    /// May a line be logged? How many were not, since the last one that was?
    fn allow(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= WINDOW) {
            (self.since, self.written) = (Some(now), 0);
        }
        if self.written >= MAX_LINES {
            self.left_out += 1;
            return None;
        }
        self.written += 1;
        Some(core::mem::take(&mut self.left_out))
    }
}

impl Differences {
    /// Files that are known to differ.
    pub(crate) fn count(&self) -> usize {
        self.known.lock().len()
    }

    /// Objects that were compared.
    pub(crate) fn compared(&self) -> u64 {
        self.compared.load(Ordering::Relaxed)
    }

    /// Another object was compared.
    pub(crate) fn count_compared(&self) {
        self.compared.fetch_add(1, Ordering::Relaxed);
    }

    /// Is this look-up one of those that are compared, one of `every`?
    pub(crate) fn is_drawn(&self, every: u32) -> bool {
        every != 0 && self.lookups.fetch_add(1, Ordering::Relaxed).is_multiple_of(every.into())
    }

    /// A file differs: says so, once.
    pub(crate) fn found(&self, path: PathKey, what: impl FnOnce() -> String) {
        {
            let mut known = self.known.lock();
            if known.len() >= MAX_KNOWN || !known.insert(path) {
                return;
            }
        }
        let Some(left_out) = self.lines.lock().allow(Instant::now()) else { return };
        let what = what();
        match left_out {
            0 => tracing::warn!("{what}"),
            more => tracing::warn!("{what} ({more} more were not logged)"),
        }
    }

    /// A file does not differ, or no more.
    pub(crate) fn not_found(&self, path: PathKey) {
        let mut known = self.known.lock();
        if !known.is_empty() {
            known.remove(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_lines_is_cut() {
        let mut lines = Lines::default();
        let now = Instant::now();
        let allowed = (0..100).filter(|_| lines.allow(now).is_some()).count();
        assert_eq!(allowed, 10);
        assert_eq!(lines.allow(now + WINDOW), Some(90));
    }

    #[test]
    fn a_difference_is_told_once_and_forgotten_when_it_is_gone() {
        let differences = Differences::default();
        let mut told = 0;
        let (a, b) = (PathKey::root().child(b"a"), PathKey::root().child(b"b"));
        for path in [a, a, b, a] {
            differences.found(path, || {
                told += 1;
                String::new()
            });
        }
        assert_eq!((told, differences.count()), (2, 2));
        differences.not_found(a);
        assert_eq!(differences.count(), 1);
    }

    #[test]
    fn one_of_n_is_drawn() {
        let differences = Differences::default();
        assert_eq!((0..640).filter(|_| differences.is_drawn(64)).count(), 10);
        assert!(!differences.is_drawn(0));
    }
}
