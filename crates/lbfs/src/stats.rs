//! What was counted, and how it is told.

use crate::layer::Shared;
use core::time::Duration;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use vnode::{Command, Who};

/// The layer's command.
pub(crate) const REPLICAS: Command = Command {
    name: "lbfs.replicas",
    help: "Answers as JSON how the replicas are: the state of each and since when, its share of the files, requests, \
           failures, missed deadlines, stuck threads, time of a call; how many files differ. On any file or directory.",
    who: Who::Anyone,
};

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

#[derive(Serialize)]
struct All<'a> {
    policy: &'a str,
    /// Files that differ between replicas, as far as was noticed.
    diverging: usize,
    /// Objects that were compared.
    compared: u64,
    replicas: Vec<One<'a>>,
}

#[derive(Serialize)]
struct One<'a> {
    name: &'a str,
    state: &'a str,
    seconds_in_state: f64,
    /// Its part of the files that it would get if it had never been away: 0 to 1.
    share: f64,
    isolated: bool,
    requests: u64,
    failures: u64,
    timeouts: u64,
    stuck_threads: usize,
    latency_us: f64,
}

/// The answer to [`REPLICAS`].
pub(crate) fn text(fs: &Shared) -> String {
    let now = Instant::now();
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let replicas = fs.replicas.iter().enumerate().map(|(i, replica)| {
        let (condition, since, share) = fs.board.describe(i, now);
        let opened = replica.opened();
        let pool = opened.as_ref().and_then(|opened| opened.pool.as_ref());
        One {
            name: &replica.name,
            state: condition.name(),
            seconds_in_state: since.as_secs_f64(),
            share,
            isolated: opened.is_none() || pool.is_some(),
            requests: load(&replica.stats.requests),
            failures: load(&replica.stats.failures),
            timeouts: load(&replica.stats.timeouts),
            stuck_threads: pool.map_or(0, |pool| pool.stuck()) + replica.probes.stuck(),
            latency_us: replica.stats.latency() as f64 / 1000.0,
        }
    });
    let all = All {
        policy: fs.options.policy.name(),
        diverging: fs.differences.count(),
        compared: fs.differences.compared(),
        replicas: replicas.collect(),
    };
    serde_json::to_string(&all).unwrap_or_default()
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
