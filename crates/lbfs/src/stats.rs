use core::time::Duration;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of one replica.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    /// Number of calls.
    pub(crate) requests: AtomicU64,
    /// Number of calls that failed because of the replica or of the object on it.
    pub(crate) failures: AtomicU64,
    /// Number of failures by timeout.
    pub(crate) timeouts: AtomicU64,
    /// Smoothed latency of calls other than reads, in nanoseconds; 0 if unknown.
    latency: AtomicU64,
    /// Logical time of the last call.
    pub(crate) last_used: AtomicU64,
}

impl Stats {
    /// Adds a latency sample to the moving average, with a weight of one eighth.
    pub(crate) fn record_latency(&self, time: Duration) {
        let new = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1);
        let old = self.latency.load(Ordering::Relaxed);
        // Of two concurrent updates, one may be lost, which is harmless.
        self.latency.store(if old == 0 { new } else { old - old / 8 + new / 8 }.max(1), Ordering::Relaxed);
    }

    /// Returns the smoothed latency in nanoseconds; 0 if unknown.
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
        stats.record_latency(Duration::from_micros(800));
        assert_eq!(stats.latency(), 800_000);
        stats.record_latency(Duration::from_micros(1600));
        assert_eq!(stats.latency(), 900_000);
        for _ in 0..100 {
            stats.record_latency(Duration::ZERO);
        }
        assert!((1..1000).contains(&stats.latency()));
    }
}
