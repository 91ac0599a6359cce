//! The known differences between replicas.

use crate::identity::PathKey;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Maximum number of recorded files.
const MAX_KNOWN: usize = 100_000;
/// Maximum number of log lines per [`WINDOW`].
const MAX_LINES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);

/// The known differences, with a rate limit for their log lines.
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
    suppressed: u64,
}

impl Lines {
    /// Returns the number of lines suppressed since the last one if a line may be logged now, else
    /// `None`.
    fn allow(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= WINDOW) {
            (self.since, self.written) = (Some(now), 0);
        }
        if self.written >= MAX_LINES {
            self.suppressed += 1;
            return None;
        }
        self.written += 1;
        Some(core::mem::take(&mut self.suppressed))
    }
}

impl Differences {
    /// Number of files that are known to differ.
    pub(crate) fn count(&self) -> usize {
        self.known.lock().len()
    }

    /// Number of comparisons.
    pub(crate) fn compared(&self) -> u64 {
        self.compared.load(Ordering::Relaxed)
    }

    /// Counts a comparison.
    pub(crate) fn count_compared(&self) {
        self.compared.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether this lookup is sampled for a comparison: one in `every` is.
    pub(crate) fn is_sampled(&self, every: u32) -> bool {
        every != 0 && self.lookups.fetch_add(1, Ordering::Relaxed).is_multiple_of(every.into())
    }

    /// Records that a file differs. Logs it once.
    pub(crate) fn found(&self, path: PathKey, what: impl FnOnce() -> String) {
        {
            let mut known = self.known.lock();
            if known.len() >= MAX_KNOWN || !known.insert(path) {
                return;
            }
        }
        let Some(suppressed) = self.lines.lock().allow(Instant::now()) else { return };
        let what = what();
        match suppressed {
            0 => tracing::warn!("{what}"),
            more => tracing::warn!("{what} ({more} more were not logged)"),
        }
    }

    /// Records that a file does not differ (any more).
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
    fn log_lines_are_rate_limited() {
        let mut lines = Lines::default();
        let now = Instant::now();
        let allowed = (0..100).filter(|_| lines.allow(now).is_some()).count();
        assert_eq!(allowed, 10);
        assert_eq!(lines.allow(now + WINDOW), Some(90));
    }

    #[test]
    fn a_difference_is_logged_once_and_removed_when_resolved() {
        let differences = Differences::default();
        let mut logged = 0;
        let (a, b) = (PathKey::root().child(b"a"), PathKey::root().child(b"b"));
        for path in [a, a, b, a] {
            differences.found(path, || {
                logged += 1;
                String::new()
            });
        }
        assert_eq!((logged, differences.count()), (2, 2));
        differences.not_found(a);
        assert_eq!(differences.count(), 1);
    }

    #[test]
    fn one_in_n_lookups_is_sampled() {
        let differences = Differences::default();
        assert_eq!((0..640).filter(|_| differences.is_sampled(64)).count(), 10);
        assert!(!differences.is_sampled(0));
    }
}
