//! Scheduling class of a queue thread: `SCHED_IDLE` while some CPU is idle, `SCHED_OTHER`
//! otherwise.
//!
//! A queue thread still runs at the moment it hands over a reply. The scheduler therefore sees a
//! busy CPU and wakes the caller, which slept on that CPU, on an idle one. The caller's next
//! request then enters the other CPU's queue, and the caller migrates back and forth with every
//! request. A migration costs as much as a request (18 us with haltpoll in a virtual machine,
//! measured with Postmark). A CPU that runs only `SCHED_IDLE` threads counts as idle
//! (`sched_idle_cpu` in kernel/sched/fair.c), and the caller stays. So the thread runs as
//! `SCHED_IDLE` while some CPU is idle, which is when callers migrate. When all CPUs are busy no
//! caller migrates, and a `SCHED_IDLE` thread would starve, so the thread runs as `SCHED_OTHER`.
//!
//! The number of runnable threads is sampled from /proc/loadavg, once per millisecond of work. A
//! `SCHED_IDLE` thread that starves notices it when it runs next, some milliseconds later. That is
//! the cost of a wrong guess, and the back-off between guesses grows as they fail.

use crate::sys::{self, Scheduling};
use core::time::Duration;
use rustix::fs::{Mode, OFlags};
use rustix::io::pread;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// Minimum time between two samples of the system's load.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(1);
/// Net samples required before switching: short-lived runnable threads are everywhere.
const NET_SAMPLES: u32 = 8;
/// Two samples further apart than this suggest that the thread starved: the second one counts for
/// half of `NET_SAMPLES`.
const STARVED_GAP: Duration = Duration::from_millis(3);
/// Back-off after the thread returned to `SCHED_OTHER`: initial and maximum.
const MIN_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(2);
/// Time as `SCHED_IDLE` after which the back-off starts from `MIN_BACKOFF` again.
const BACKOFF_RESET: Duration = Duration::from_millis(500);

/// Controls the scheduling class of the calling thread.
pub(super) struct SchedIdle {
    policy: Policy,
    start: Instant,
    loadavg: OwnedFd,
}

impl SchedIdle {
    /// Returns the controller for the calling thread. `None` where the thread is not `SCHED_OTHER`,
    /// or could not leave `SCHED_IDLE` again.
    pub(super) fn new() -> Option<Self> {
        if sys::scheduling() != Scheduling::Normal || !can_leave_sched_idle() {
            return None;
        }
        let cpus = std::thread::available_parallelism().ok()?;
        let cpus = u32::try_from(cpus.get()).ok()?.min(u32::from(super::possible_cpus()));
        let loadavg = rustix::fs::open("/proc/loadavg", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        Some(Self { policy: Policy::new(cpus), start: Instant::now(), loadavg })
    }

    /// Whether some CPU was idle lately, apart from the one that serves and is served here.
    pub(super) const fn sees_idle_cpu(&self) -> bool {
        self.policy.idle_class
    }

    /// Samples the load and switches the class if needed. Called for each request, before its reply
    /// is handed over. Returns false if it must not be called any more: another party changed the
    /// thread's class, or the class cannot be set. `migrated`: the thread runs on another CPU than
    /// the program that it serves.
    pub(super) fn update(&mut self, migrated: bool) -> bool {
        let loadavg = &self.loadavg;
        let others = || Some(runnable(loadavg)?.saturating_sub(u32::from(migrated)));
        let Some(idle_class) = self.policy.step(self.start.elapsed(), others) else { return true };
        let before = if idle_class { Scheduling::Normal } else { Scheduling::Idle };
        if sys::scheduling() != before {
            return false;
        }
        let changed = sys::set_sched_idle(idle_class);
        if let Err(error) = &changed {
            tracing::debug!(idle_class, %error, "a queue thread cannot change its scheduling class");
        }
        changed.is_ok()
    }
}

/// Whether a thread of this process can leave `SCHED_IDLE` again (sched(7)). A scratch thread tries
/// it, because the result depends on `RLIMIT_NICE`, on the nice value, and on `CAP_SYS_NICE`, which
/// appears in a user namespace but has no effect there.
pub(crate) fn can_leave_sched_idle() -> bool {
    let try_it = || sys::set_sched_idle(true).and_then(|()| sys::set_sched_idle(false)).is_ok();
    let thread = std::thread::Builder::new().name("fuse-try".to_owned()).spawn(try_it);
    thread.is_ok_and(|thread| thread.join().unwrap_or(false))
}

/// Returns the number of runnable threads on all CPUs, the calling thread included.
fn runnable(loadavg: &OwnedFd) -> Option<u32> {
    let mut text = [0; 128];
    let len = pread(loadavg, &mut text, 0).ok()?;
    parse(text.get(..len)?)
}

/// Parses the number of runnable threads from `0.20 0.18 0.12 1/80 11206`.
fn parse(loadavg: &[u8]) -> Option<u32> {
    let counts = loadavg.split(|&b| b == b' ').nth(3)?;
    let runnable = counts.split(|&b| b == b'/').next()?;
    std::str::from_utf8(runnable).ok()?.parse().ok()
}

/// Decides the scheduling class from samples, without system calls.
struct Policy {
    cpus: u32,
    idle_class: bool,
    /// When the class changed last.
    since: Duration,
    last: Duration,
    backoff: Duration,
    /// Samples for a change minus samples against it.
    net_samples: u32,
}

impl Policy {
    fn new(cpus: u32) -> Self {
        Self {
            cpus,
            idle_class: false,
            since: Duration::ZERO,
            last: Duration::ZERO,
            backoff: Duration::ZERO,
            net_samples: 0,
        }
    }

    /// Takes a sample at time `now`. Returns the new class if it changes: `SCHED_IDLE` (true) or
    /// `SCHED_OTHER` (false).
    fn step(&mut self, now: Duration, runnable: impl FnOnce() -> Option<u32>) -> Option<bool> {
        let gap = now.saturating_sub(self.last);
        if gap < SAMPLE_INTERVAL {
            return None;
        }
        self.last = now;
        // Without a sample, assume that all CPUs are busy: the safe choice.
        let crowded = runnable().is_none_or(|runnable| runnable >= self.cpus);
        let long = now.saturating_sub(self.since);
        if self.idle_class != crowded {
            self.net_samples = self.net_samples.saturating_sub(1);
            if self.idle_class && long >= BACKOFF_RESET {
                self.backoff = Duration::ZERO;
            }
            return None;
        }
        self.net_samples += if self.idle_class && gap >= STARVED_GAP { NET_SAMPLES / 2 } else { 1 };
        if self.net_samples < NET_SAMPLES || (!self.idle_class && long < self.backoff) {
            return None;
        }
        if self.idle_class {
            self.backoff = (self.backoff * 2).clamp(MIN_BACKOFF, MAX_BACKOFF);
        }
        (self.idle_class, self.since, self.net_samples) = (!self.idle_class, now, 0);
        Some(self.idle_class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes samples of `runnable`, a millisecond apart, until the class changes. Returns how many
    /// it took.
    fn until_changed(policy: &mut Policy, now: &mut Duration, runnable: u32) -> Option<(u32, bool)> {
        (1..=10_000).find_map(|n| {
            *now += SAMPLE_INTERVAL;
            policy.step(*now, || Some(runnable)).map(|idle_class| (n, idle_class))
        })
    }

    #[test]
    fn loadavg_is_parsed() {
        assert_eq!(parse(b"0.20 0.18 0.12 1/80 11206\n"), Some(1));
        assert_eq!(parse(b"0.20 0.18 0.12 317/1280 11206\n"), Some(317));
        for bad in [&b""[..], b"0.20", b"a b c d", b"1 2 3 /4", b"\xff \xff \xff \xff/"] {
            assert_eq!(parse(bad), None);
        }
        let file = rustix::fs::open("/proc/loadavg", OFlags::RDONLY, Mode::empty()).unwrap();
        assert!(runnable(&file).is_some_and(|n| n >= 1));
    }

    #[test]
    fn sched_idle_while_a_cpu_is_idle() {
        let (mut policy, mut now) = (Policy::new(2), Duration::ZERO);
        assert_eq!(until_changed(&mut policy, &mut now, 1), Some((NET_SAMPLES, true)));
        assert_eq!(until_changed(&mut policy, &mut now, 2), Some((NET_SAMPLES, false)));
        assert_eq!(until_changed(&mut policy, &mut now, 2), None);
    }

    #[test]
    fn a_thread_that_starved_twice_leaves_sched_idle() {
        let (mut policy, mut now) = (Policy::new(2), Duration::ZERO);
        until_changed(&mut policy, &mut now, 1);
        assert_eq!(policy.step(now + STARVED_GAP, || Some(3)), None);
        assert_eq!(policy.step(now + STARVED_GAP * 2, || Some(3)), Some(false));
    }

    #[test]
    fn backoff_grows_and_resets_after_a_good_period() {
        let (mut policy, mut now) = (Policy::new(2), Duration::ZERO);
        let mut backoffs = Vec::new();
        for _ in 0..8 {
            let before = now;
            assert_eq!(until_changed(&mut policy, &mut now, 1).map(|(_, idle_class)| idle_class), Some(true));
            backoffs.push(now - before);
            assert_eq!(until_changed(&mut policy, &mut now, 2), Some((NET_SAMPLES, false)));
        }
        assert_eq!(backoffs[1], MIN_BACKOFF);
        assert!(backoffs[1..].windows(2).all(|pair| pair[1] > pair[0] || pair[1] >= MAX_BACKOFF), "{backoffs:?}");
        assert!(backoffs.iter().all(|&backoff| backoff <= MAX_BACKOFF));
        until_changed(&mut policy, &mut now, 1);
        for _ in 0..=BACKOFF_RESET.as_millis() {
            now += SAMPLE_INTERVAL;
            assert_eq!(policy.step(now, || Some(1)), None);
        }
        until_changed(&mut policy, &mut now, 2);
        let before = now;
        until_changed(&mut policy, &mut now, 1);
        assert_eq!(now - before, MIN_BACKOFF);
    }

    #[test]
    fn one_cpu_or_unknown_load_means_sched_other() {
        let (mut policy, mut now) = (Policy::new(1), Duration::ZERO);
        assert_eq!(until_changed(&mut policy, &mut now, 1), None);
        let mut policy = Policy::new(8);
        assert!((0..100).all(|n| policy.step(SAMPLE_INTERVAL * n, || None).is_none()));
    }
}
