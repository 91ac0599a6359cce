//! The health of each replica.
//!
//! A replica is *up*, *suspect* or *down*. A failure makes a replica suspect: it is probed soon,
//! and used only if no replica is up. A failed probe makes it down: it receives only probes, with
//! exponential back-off. A successful probe makes it up again. Its share of new files is small at
//! first and grows to the full one.

use crate::rng::{Rng, fraction, mix};
use core::time::Duration;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Delay of the first probe after a failure.
const FIRST_PROBE: Duration = Duration::from_millis(100);
/// Delay after the first failed probe; doubled after each further one.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
/// Maximum time between probes while no replica is up.
const URGENT: Duration = Duration::from_secs(1);
/// Share of new files of a replica that has just recovered.
const FIRST_SHARE: f64 = 0.05;

/// A set of replicas, as a bit mask.
pub(crate) type Set = u64;

/// Returns the set with a single replica.
pub(crate) const fn only(replica: usize) -> Set {
    1 << replica
}

/// Condition of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Up,
    Suspect,
    Down,
}

impl Condition {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Suspect => "suspect",
            Self::Down => "down",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Health {
    condition: Condition,
    since: Instant,
    /// Number of consecutive failed probes.
    missed: u32,
    /// Time of the next probe.
    due: Option<Instant>,
    /// Time of the pending probe.
    sent: Option<Instant>,
    /// Time of its recovery; `None` once it has its full share.
    recovered_at: Option<Instant>,
}

/// The health of all replicas.
#[derive(Debug)]
pub(crate) struct ReplicaHealth {
    times: Times,
    healths: Mutex<Vec<Health>>,
    /// Signalled when a replica recovers.
    recovered: Condvar,
    up: AtomicU64,
    ramping: AtomicU64,
    rng: Rng,
    probe_signal: Arc<ProbeSignal>,
}

/// The time parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Time limit for the reply to a probe.
    pub(crate) timeout: Duration,
    /// Maximum time between two probes.
    pub(crate) probe: Duration,
    /// Time until a recovered replica has its full share.
    pub(crate) ramp: Duration,
}

/// Wakes the prober thread.
#[derive(Debug, Default)]
pub(crate) struct ProbeSignal {
    state: Mutex<SignalState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct SignalState {
    raised: bool,
    closed: bool,
}

impl ProbeSignal {
    fn raise(&self) {
        self.state.lock().raised = true;
        self.changed.notify_all();
    }

    /// Stops the prober thread.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    /// Waits for the signal, until `until` at most. Returns false if the thread must stop.
    pub(crate) fn wait(&self, until: Option<Instant>) -> bool {
        let mut state = self.state.lock();
        while !state.raised && !state.closed {
            match until {
                Some(until) => {
                    if self.changed.wait_until(&mut state, until).timed_out() {
                        break;
                    }
                }
                None => self.changed.wait(&mut state),
            }
        }
        state.raised = false;
        !state.closed
    }
}

impl ReplicaHealth {
    /// Returns the state in which all replicas are up and have their full share.
    pub(crate) fn new(count: usize, times: Times, now: Instant) -> Self {
        let health =
            Health { condition: Condition::Up, since: now, missed: 0, due: None, sent: None, recovered_at: None };
        Self {
            times,
            healths: Mutex::new(vec![health; count]),
            recovered: Condvar::new(),
            up: AtomicU64::new((0..count).map(only).sum()),
            ramping: AtomicU64::new(0),
            rng: Rng::new(),
            probe_signal: Arc::default(),
        }
    }

    /// See [`ProbeSignal`].
    pub(crate) fn probe_signal(&self) -> &Arc<ProbeSignal> {
        &self.probe_signal
    }

    /// Returns the replicas that are up.
    pub(crate) fn up(&self) -> Set {
        self.up.load(Ordering::Acquire)
    }

    /// Returns the replicas that are suspect.
    pub(crate) fn suspects(&self) -> Set {
        let healths = self.healths.lock();
        (0..).zip(&*healths).filter(|(_, health)| health.condition == Condition::Suspect).map(|(i, _)| only(i)).sum()
    }

    /// Returns the members of `set` that may be assigned a new file. A recently recovered replica
    /// is admitted at random, according to its share; with `key`, the result is deterministic per
    /// key.
    pub(crate) fn admitted(&self, set: Set, key: Option<u64>, now: impl FnOnce() -> Instant) -> Set {
        let ramping = self.ramping.load(Ordering::Acquire) & set;
        if ramping == 0 {
            return set;
        }
        let (now, mut admitted) = (now(), set);
        let mut healths = self.healths.lock();
        for (i, health) in healths.iter_mut().enumerate().filter(|(i, _)| ramping & only(*i) != 0) {
            let share = health.share(now, self.times.ramp);
            if share >= 1.0 {
                health.recovered_at = None;
                self.ramping.fetch_and(!only(i), Ordering::AcqRel);
            }
            let draw = key.map_or_else(|| self.rng.fraction(), |key| fraction(mix(key ^ mix(i as u64 + 1))));
            if draw >= share {
                admitted &= !only(i);
            }
        }
        admitted
    }

    /// Records a failure of the replica. Returns whether it was up before.
    pub(crate) fn failed(&self, replica: usize, now: Instant) -> bool {
        let mut healths = self.healths.lock();
        let Some(health) = healths.get_mut(replica).filter(|health| health.condition == Condition::Up) else {
            return false;
        };
        *health = Health {
            condition: Condition::Suspect,
            since: now,
            missed: 0,
            due: Some(now + FIRST_PROBE.mul_f64(0.5 + self.rng.fraction())),
            sent: None,
            recovered_at: None,
        };
        self.ramping.fetch_and(!only(replica), Ordering::AcqRel);
        if self.up.fetch_and(!only(replica), Ordering::AcqRel) == only(replica) {
            // No replica is up any more, so probe the others soon.
            for health in healths.iter_mut() {
                health.due = health.due.map(|due| due.min(now + self.jittered(URGENT)));
            }
        }
        drop(healths);
        self.probe_signal.raise();
        true
    }

    /// Returns the replicas to probe now. Probes without a reply in time count as failed.
    pub(crate) fn take_due(&self, now: Instant) -> Vec<usize> {
        let mut healths = self.healths.lock();
        let mut due = Vec::new();
        for (i, health) in healths.iter_mut().enumerate() {
            if health.sent.is_some_and(|sent| now >= sent + self.times.timeout) {
                self.miss(health, now);
            } else if health.due.is_some_and(|at| at <= now) {
                (health.due, health.sent) = (None, Some(now));
                due.push(i);
            }
        }
        due
    }

    /// Returns the time at which to call [`Self::take_due`] again.
    pub(crate) fn next(&self) -> Option<Instant> {
        let healths = self.healths.lock();
        healths.iter().filter_map(|health| health.due.or(health.sent.map(|sent| sent + self.times.timeout))).min()
    }

    /// Records the result of a probe, which may be late. Returns true if the replica has recovered.
    pub(crate) fn probed(&self, replica: usize, good: bool, now: Instant) -> bool {
        let mut healths = self.healths.lock();
        let Some(health) = healths.get_mut(replica).filter(|health| health.condition != Condition::Up) else {
            return false;
        };
        if !good {
            if health.sent.is_some() {
                self.miss(health, now);
            }
            drop(healths);
            self.probe_signal.raise();
            return false;
        }
        let recovered_at = (self.times.ramp > Duration::ZERO).then_some(now);
        *health = Health { condition: Condition::Up, since: now, missed: 0, due: None, sent: None, recovered_at };
        if recovered_at.is_some() {
            self.ramping.fetch_or(only(replica), Ordering::AcqRel);
        }
        self.up.fetch_or(only(replica), Ordering::AcqRel);
        drop(healths);
        self.recovered.notify_all();
        true
    }

    /// Waits until a replica is up, or until the given time. Returns whether one is up.
    pub(crate) fn wait_for_any(&self, until: Instant) -> bool {
        let mut healths = self.healths.lock();
        while self.up() == 0 {
            if self.recovered.wait_until(&mut healths, until).timed_out() {
                return self.up() != 0;
            }
        }
        true
    }

    /// Returns the condition of a replica, the time in that condition, and its share of new files.
    pub(crate) fn describe(&self, replica: usize, now: Instant) -> (Condition, Duration, f64) {
        let healths = self.healths.lock();
        healths.get(replica).map_or((Condition::Down, Duration::ZERO, 0.0), |health| {
            let share = if health.condition == Condition::Up { health.share(now, self.times.ramp) } else { 0.0 };
            (health.condition, now.saturating_duration_since(health.since), share)
        })
    }

    /// Records a failed probe.
    fn miss(&self, health: &mut Health, now: Instant) {
        if health.condition != Condition::Down {
            health.since = now;
        }
        health.condition = Condition::Down;
        let backoff = FIRST_BACKOFF.saturating_mul(1 << health.missed.min(16));
        let longest = if self.up() == 0 { URGENT } else { self.times.probe };
        health.missed = health.missed.saturating_add(1);
        (health.sent, health.due) = (None, Some(now + self.jittered(backoff.min(longest))));
    }

    /// Returns a random time between half of `time` and `time`.
    fn jittered(&self, time: Duration) -> Duration {
        time.mul_f64(0.5 + self.rng.fraction() / 2.0)
    }
}

impl Health {
    fn share(&self, now: Instant, ramp: Duration) -> f64 {
        let Some(recovered_at) = self.recovered_at else { return 1.0 };
        let passed = now.saturating_duration_since(recovered_at).as_secs_f64();
        (passed / ramp.as_secs_f64()).clamp(FIRST_SHARE, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Times =
        Times { timeout: Duration::from_secs(2), probe: Duration::from_secs(8), ramp: Duration::from_secs(30) };
    const STEP: Duration = Duration::from_millis(10);

    /// Advances `now` to the next probe, takes it, and returns the time that passed.
    fn next_probe(health: &ReplicaHealth, now: &mut Instant) -> Duration {
        let begin = *now;
        loop {
            if !health.take_due(*now).is_empty() {
                return *now - begin;
            }
            *now += STEP;
            assert!(*now - begin < Duration::from_secs(60));
        }
    }

    #[test]
    fn a_failure_is_followed_by_probes_at_growing_intervals() {
        let mut now = Instant::now();
        let health = ReplicaHealth::new(2, TIMES, now);
        assert_eq!((health.up(), health.next()), (0b11, None));
        assert!(health.failed(0, now) && !health.failed(0, now));
        assert_eq!((health.up(), health.suspects()), (0b10, 0b01));
        assert!(next_probe(&health, &mut now) <= FIRST_PROBE * 2);
        let mut longest = Duration::ZERO;
        for nth in 0..8u32 {
            health.probed(0, false, now);
            assert_eq!(health.describe(0, now).0, Condition::Down);
            let waited = next_probe(&health, &mut now);
            let full = (FIRST_BACKOFF * 2u32.pow(nth)).min(TIMES.probe);
            assert!(waited + STEP >= full / 2 && waited <= full + STEP, "{nth}: {waited:?} of {full:?}");
            longest = longest.max(waited);
        }
        assert!(longest > TIMES.probe / 2);
        assert!(health.probed(0, true, now));
        assert_eq!((health.up(), health.next()), (0b11, None));
    }

    #[test]
    fn probes_without_a_reply_fail_but_a_late_reply_counts() {
        let mut now = Instant::now();
        let health = ReplicaHealth::new(2, TIMES, now);
        health.failed(1, now);
        next_probe(&health, &mut now);
        now += TIMES.timeout;
        assert!(health.take_due(now).is_empty());
        assert_eq!(health.describe(1, now).0, Condition::Down);
        assert!(health.probed(1, true, now));
        assert_eq!(health.up(), 0b11);
    }

    #[test]
    fn probes_are_frequent_while_no_replica_is_up() {
        let mut now = Instant::now();
        let health = ReplicaHealth::new(2, TIMES, now);
        health.failed(0, now);
        for _ in 0..6 {
            next_probe(&health, &mut now);
            health.probed(0, false, now);
        }
        assert!(health.next().unwrap() > now + URGENT);
        health.failed(1, now);
        assert!(health.next().unwrap() <= now + URGENT);
        for _ in 0..20 {
            assert!(next_probe(&health, &mut now) <= URGENT + STEP);
            health.probed(0, false, now);
            health.probed(1, false, now);
        }
        assert!(!health.wait_for_any(Instant::now() + STEP));
    }

    #[test]
    fn the_share_of_a_recovered_replica_grows() {
        let mut now = Instant::now();
        let health = ReplicaHealth::new(2, TIMES, now);
        health.failed(0, now);
        health.probed(0, true, now);
        let share = |now: Instant, keyed: bool| {
            let admitted = |i: u64| health.admitted(0b11, keyed.then(|| mix(i)), || now) & 1 != 0;
            (0..4000).filter(|i| admitted(*i)).count() as f64 / 4000.0
        };
        for keyed in [false, true] {
            assert!((0.02..0.09).contains(&share(now, keyed)));
        }
        now += TIMES.ramp / 2;
        for keyed in [false, true] {
            assert!((0.45..0.55).contains(&share(now, keyed)));
        }
        now += TIMES.ramp / 2;
        assert!(share(now, true) >= 1.0);
        assert_eq!(health.ramping.load(Ordering::Acquire), 0);
    }
}
