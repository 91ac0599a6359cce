use core::time::Duration;
use std::sync::atomic::{AtomicU64, Ordering};

/// What was counted of one replica.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    /// Calls made.
    pub(crate) requests: AtomicU64,
    /// Calls that failed because of the replica, or of the object on it.
    pub(crate) failures: AtomicU64,
    /// Those of them that were not answered in time.
    pub(crate) timeouts: AtomicU64,
    /// Smoothed time of a look-up, an opening or the like, in nanoseconds; 0: none yet.
    latency: AtomicU64,
    /// When it was last asked, on a clock that counts calls.
    pub(crate) last_used: AtomicU64,
}

impl Stats {
    /// A call took so long. Each new value counts for an eighth.
    pub(crate) fn took(&self, time: Duration) {
        let new = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1);
        let old = self.latency.load(Ordering::Relaxed);
        // Two at the same time: one of them is lost, which harms nothing.
        self.latency.store(if old == 0 { new } else { old - old / 8 + new / 8 }.max(1), Ordering::Relaxed);
    }

    /// Smoothed time of a call in nanoseconds; 0: not known.
    pub(crate) fn latency(&self) -> u64 {
        self.latency.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latency_follows_slowly() {
        let stats = Stats::default();
        stats.took(Duration::from_micros(800));
        assert_eq!(stats.latency(), 800_000);
        stats.took(Duration::from_micros(1600));
        assert_eq!(stats.latency(), 900_000);
        for _ in 0..100 {
            stats.took(Duration::ZERO);
        }
        assert!((1..1000).contains(&stats.latency()));
    }
}
