//! What is believed of each replica.
//!
//! *up* is used. A failure makes a replica *suspect*: it is probed at once, and asked only where no other is up. A probe that
//! fails makes it *down*: it is asked nothing but probes, at growing intervals. A probe that succeeds makes it up again, with a
//! small share of new files that grows to the full one.

use crate::rng::{Rng, fraction, mix};
use core::time::Duration;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// How long after a failure the first probe is sent.
const FIRST_PROBE: Duration = Duration::from_millis(100);
/// How long after the first failed probe the next one is sent; doubled each time.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
/// The longest time between probes while no replica is up.
const URGENT: Duration = Duration::from_secs(1);
/// The share of a replica that has just come back.
const FIRST_SHARE: f64 = 0.05;

/// A set of replicas, a bit for each.
pub(crate) type Set = u64;

/// The set of one.
pub(crate) const fn only(replica: usize) -> Set {
    1 << replica
}

/// What is believed of a replica.
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
    /// Probes that failed in a row.
    missed: u32,
    /// When the next probe is to be sent.
    due: Option<Instant>,
    /// When the probe was sent that has not been answered yet.
    asked: Option<Instant>,
    /// When it came back, until it has its full share.
    back: Option<Instant>,
}

/// What is believed of all replicas.
#[derive(Debug)]
pub(crate) struct Board {
    times: Times,
    healths: Mutex<Vec<Health>>,
    /// Somebody waits for a replica to come back.
    came_back: Condvar,
    up: AtomicU64,
    ramping: AtomicU64,
    rng: Rng,
    bell: Arc<Bell>,
}

/// How long things take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// How long an answer is waited for.
    pub(crate) timeout: Duration,
    /// The longest time between two probes.
    pub(crate) probe: Duration,
    /// How long it takes to get the full share back.
    pub(crate) ramp: Duration,
}

/// Wakes who sends the probes.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    state: Mutex<Rung>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct Rung {
    rung: bool,
    closed: bool,
}

impl Bell {
    fn ring(&self) {
        self.state.lock().rung = true;
        self.changed.notify_all();
    }

    /// There will be no more probes.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    /// Waits until then, or until something has changed. False: there will be no more probes.
    pub(crate) fn wait(&self, until: Option<Instant>) -> bool {
        let mut state = self.state.lock();
        while !state.rung && !state.closed {
            match until {
                Some(until) => {
                    if self.changed.wait_until(&mut state, until).timed_out() {
                        break;
                    }
                }
                None => self.changed.wait(&mut state),
            }
        }
        state.rung = false;
        !state.closed
    }
}

impl Board {
    /// All are up, with their full share.
    pub(crate) fn new(count: usize, times: Times, now: Instant) -> Self {
        let health = Health { condition: Condition::Up, since: now, missed: 0, due: None, asked: None, back: None };
        Self {
            times,
            healths: Mutex::new(vec![health; count]),
            came_back: Condvar::new(),
            up: AtomicU64::new((0..count).map(only).sum()),
            ramping: AtomicU64::new(0),
            rng: Rng::new(),
            bell: Arc::default(),
        }
    }

    /// See [`Bell`].
    pub(crate) fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// The replicas that are up.
    pub(crate) fn up(&self) -> Set {
        self.up.load(Ordering::Acquire)
    }

    /// The replicas that are suspect.
    pub(crate) fn suspects(&self) -> Set {
        let healths = self.healths.lock();
        (0..).zip(&*healths).filter(|(_, health)| health.condition == Condition::Suspect).map(|(i, _)| only(i)).sum()
    }

    /// Those of a set that may be given a new file: one that came back not long ago only gets some, by chance; or, where `key` is
    /// given, always the same ones.
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
                health.back = None;
                self.ramping.fetch_and(!only(i), Ordering::AcqRel);
            }
            let draw = key.map_or_else(|| self.rng.fraction(), |key| fraction(mix(key ^ mix(i as u64 + 1))));
            if draw >= share {
                admitted &= !only(i);
            }
        }
        admitted
    }

    /// A call failed because of the replica. Answers whether that is news.
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
            asked: None,
            back: None,
        };
        self.ramping.fetch_and(!only(replica), Ordering::AcqRel);
        if self.up.fetch_and(!only(replica), Ordering::AcqRel) == only(replica) {
            // It was the last: the others are needed, however long they were to be left alone.
            for health in healths.iter_mut() {
                health.due = health.due.map(|due| due.min(now + self.jittered(URGENT)));
            }
        }
        drop(healths);
        self.bell.ring();
        true
    }

    /// The replicas that are to be probed now. Probes that were not answered in time count as failed.
    pub(crate) fn take_due(&self, now: Instant) -> Vec<usize> {
        let mut healths = self.healths.lock();
        let mut due = Vec::new();
        for (i, health) in healths.iter_mut().enumerate() {
            if health.asked.is_some_and(|asked| now >= asked + self.times.timeout) {
                self.miss(health, now);
            } else if health.due.is_some_and(|at| at <= now) {
                (health.due, health.asked) = (None, Some(now));
                due.push(i);
            }
        }
        due
    }

    /// When [`Self::take_due`] has something to do again.
    pub(crate) fn next(&self) -> Option<Instant> {
        let healths = self.healths.lock();
        healths.iter().filter_map(|health| health.due.or(health.asked.map(|asked| asked + self.times.timeout))).min()
    }

    /// A probe was answered, perhaps late. True: the replica is back.
    pub(crate) fn probed(&self, replica: usize, good: bool, now: Instant) -> bool {
        let mut healths = self.healths.lock();
        let Some(health) = healths.get_mut(replica).filter(|health| health.condition != Condition::Up) else {
            return false;
        };
        if !good {
            if health.asked.is_some() {
                self.miss(health, now);
            }
            drop(healths);
            self.bell.ring();
            return false;
        }
        let back = (self.times.ramp > Duration::ZERO).then_some(now);
        *health = Health { condition: Condition::Up, since: now, missed: 0, due: None, asked: None, back };
        if back.is_some() {
            self.ramping.fetch_or(only(replica), Ordering::AcqRel);
        }
        self.up.fetch_or(only(replica), Ordering::AcqRel);
        drop(healths);
        self.came_back.notify_all();
        true
    }

    /// Waits until some replica is up. False: none is, up to then.
    pub(crate) fn wait_for_any(&self, until: Instant) -> bool {
        let mut healths = self.healths.lock();
        while self.up() == 0 {
            if self.came_back.wait_until(&mut healths, until).timed_out() {
                return self.up() != 0;
            }
        }
        true
    }

    /// What is believed of a replica, since when, and its share of new files.
    pub(crate) fn describe(&self, replica: usize, now: Instant) -> (Condition, Duration, f64) {
        let healths = self.healths.lock();
        healths.get(replica).map_or((Condition::Down, Duration::ZERO, 0.0), |health| {
            let share = if health.condition == Condition::Up { health.share(now, self.times.ramp) } else { 0.0 };
            (health.condition, now.saturating_duration_since(health.since), share)
        })
    }

    /// A probe failed.
    fn miss(&self, health: &mut Health, now: Instant) {
        if health.condition != Condition::Down {
            health.since = now;
        }
        health.condition = Condition::Down;
        let backoff = FIRST_BACKOFF.saturating_mul(1 << health.missed.min(16));
        let longest = if self.up() == 0 { URGENT } else { self.times.probe };
        health.missed = health.missed.saturating_add(1);
        (health.asked, health.due) = (None, Some(now + self.jittered(backoff.min(longest))));
    }

    /// Between half as long and as long.
    fn jittered(&self, time: Duration) -> Duration {
        time.mul_f64(0.5 + self.rng.fraction() / 2.0)
    }
}

impl Health {
    fn share(&self, now: Instant, ramp: Duration) -> f64 {
        let Some(back) = self.back else { return 1.0 };
        let passed = now.saturating_duration_since(back).as_secs_f64();
        (passed / ramp.as_secs_f64()).clamp(FIRST_SHARE, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Times =
        Times { timeout: Duration::from_secs(2), probe: Duration::from_secs(8), ramp: Duration::from_secs(30) };
    const STEP: Duration = Duration::from_millis(10);

    /// The time, after `now`, of the next probe, which is taken.
    fn next_probe(board: &Board, now: &mut Instant) -> Duration {
        let begin = *now;
        loop {
            if !board.take_due(*now).is_empty() {
                return *now - begin;
            }
            *now += STEP;
            assert!(*now - begin < Duration::from_secs(60));
        }
    }

    #[test]
    fn a_failure_is_followed_by_probes_at_growing_intervals() {
        let mut now = Instant::now();
        let board = Board::new(2, TIMES, now);
        assert_eq!((board.up(), board.next()), (0b11, None));
        assert!(board.failed(0, now) && !board.failed(0, now));
        assert_eq!((board.up(), board.suspects()), (0b10, 0b01));
        assert!(next_probe(&board, &mut now) <= FIRST_PROBE * 2);
        let mut longest = Duration::ZERO;
        for nth in 0..8u32 {
            board.probed(0, false, now);
            assert_eq!(board.describe(0, now).0, Condition::Down);
            let waited = next_probe(&board, &mut now);
            let full = (FIRST_BACKOFF * 2u32.pow(nth)).min(TIMES.probe);
            assert!(waited + STEP >= full / 2 && waited <= full + STEP, "{nth}: {waited:?} of {full:?}");
            longest = longest.max(waited);
        }
        assert!(longest > TIMES.probe / 2);
        assert!(board.probed(0, true, now));
        assert_eq!((board.up(), board.next()), (0b11, None));
    }

    #[test]
    fn probes_without_an_answer_fail_and_may_still_succeed_late() {
        let mut now = Instant::now();
        let board = Board::new(2, TIMES, now);
        board.failed(1, now);
        next_probe(&board, &mut now);
        now += TIMES.timeout;
        assert!(board.take_due(now).is_empty());
        assert_eq!(board.describe(1, now).0, Condition::Down);
        assert!(board.probed(1, true, now));
        assert_eq!(board.up(), 0b11);
    }

    #[test]
    fn where_none_is_up_probes_are_frequent() {
        let mut now = Instant::now();
        let board = Board::new(2, TIMES, now);
        board.failed(0, now);
        for _ in 0..6 {
            next_probe(&board, &mut now);
            board.probed(0, false, now);
        }
        assert!(board.next().unwrap() > now + URGENT);
        board.failed(1, now);
        assert!(board.next().unwrap() <= now + URGENT);
        for _ in 0..20 {
            assert!(next_probe(&board, &mut now) <= URGENT + STEP);
            board.probed(0, false, now);
            board.probed(1, false, now);
        }
        assert!(!board.wait_for_any(Instant::now() + STEP));
    }

    #[test]
    fn who_came_back_gets_its_share_little_by_little() {
        let mut now = Instant::now();
        let board = Board::new(2, TIMES, now);
        board.failed(0, now);
        board.probed(0, true, now);
        let share = |now: Instant, keyed: bool| {
            let admitted = |i: u64| board.admitted(0b11, keyed.then(|| mix(i)), || now) & 1 != 0;
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
        assert_eq!(board.ramping.load(Ordering::Acquire), 0);
    }
}
