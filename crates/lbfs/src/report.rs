//! The command `lbfs.replicas`: the state of the replicas as JSON.

use crate::node::Core;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use vnode::{Command, CommandAccess};

/// The layer's command.
pub(crate) const REPLICAS: Command = Command {
    name: "lbfs.replicas",
    help: "Returns the state of the replicas as JSON: for each, its state and the time in it, its share of the files, requests, \
           failures, timeouts, stuck threads and latency; also the number of files that differ. Works on any file or directory.",
    access: CommandAccess::Anyone,
};

#[derive(Serialize)]
struct All<'a> {
    policy: &'a str,
    /// Number of files that are known to differ.
    diverging: usize,
    /// Number of comparisons.
    compared: u64,
    replicas: Vec<One<'a>>,
}

#[derive(Serialize)]
struct One<'a> {
    name: &'a str,
    state: &'a str,
    seconds_in_state: f64,
    /// Its share of new files relative to its full share: 0 to 1.
    share: f64,
    isolated: bool,
    requests: u64,
    failures: u64,
    timeouts: u64,
    stuck_threads: usize,
    latency_us: f64,
}

/// Returns the reply to [`REPLICAS`].
pub(crate) fn text(fs: &Core) -> String {
    let now = Instant::now();
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let replicas = fs.replicas.iter().enumerate().map(|(i, replica)| {
        let (condition, since, share) = fs.health.describe(i, now);
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
