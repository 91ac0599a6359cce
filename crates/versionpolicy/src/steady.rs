//! The time of decisions when the host's clock jumps.

use crate::verdict::NANOS;
use core::time::Duration;

/// How much faster than the uptime the clock may run, in nanoseconds: it is adjusted in small
/// steps.
const STEP: i128 = 60 * NANOS;

/// How long a clock that jumped forward must stay there until it is believed.
const BELIEVED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// A clock for decisions about ages, which are irreversible: if the host's clock jumps forward for
/// a moment, no version seems older than it is.
///
/// It follows the host's clock, but a jump forward only after a day. Until then it advances with
/// the uptime. A jump backward is followed at once: versions seem younger then, and are kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct SteadyClock {
    last: Option<Reading>,
    /// The uptime when the host's clock went ahead.
    ahead_since: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    at: i128,
    uptime: Duration,
}

impl SteadyClock {
    /// Returns the time for decisions, in nanoseconds since the epoch. `clock` is what the host's
    /// clock says, and `uptime` the time since the host was started, suspended times included. The
    /// first reading of the clock is believed.
    pub fn now(&mut self, clock: i128, uptime: Duration) -> i128 {
        let at = self.believed(clock, uptime);
        self.last = Some(Reading { at, uptime });
        at
    }

    fn believed(&mut self, clock: i128, uptime: Duration) -> i128 {
        let Some(last) = self.last else { return clock };
        let passed = i128::try_from(uptime.saturating_sub(last.uptime).as_nanos()).unwrap_or(i128::MAX);
        let expected = last.at.saturating_add(passed);
        if clock <= expected.saturating_add(STEP) {
            self.ahead_since = None;
            return clock;
        }
        let since = *self.ahead_since.get_or_insert(uptime);
        if uptime.saturating_sub(since) < BELIEVED_AFTER {
            return expected;
        }
        self.ahead_since = None;
        clock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i128 = 86_400 * NANOS;

    fn hours(hours: u64) -> Duration {
        Duration::from_secs(hours * 3600)
    }

    fn at(hours: u64) -> i128 {
        20_000 * DAY + i128::from(hours) * 3600 * NANOS
    }

    #[test]
    fn a_momentary_jump_forward_has_no_effect() {
        let mut clock = SteadyClock::default();
        assert_eq!(clock.now(at(0), hours(5)), at(0));
        assert_eq!(clock.now(at(1) + 365 * DAY, hours(6)), at(1));
        assert_eq!(clock.now(at(24) + 365 * DAY, hours(29)), at(24));
        // Back: it follows the clock again, and a later jump has to stay for a day again.
        assert_eq!(clock.now(at(25), hours(30)), at(25));
        assert_eq!(clock.now(at(26) + DAY, hours(31)), at(26));
        assert_eq!(clock.now(at(49) + DAY, hours(54)), at(49));
        assert_eq!(clock.now(at(50) + DAY, hours(55)), at(50) + DAY);
    }

    #[test]
    fn a_jump_backward_is_followed_and_the_return_is_too() {
        let mut clock = SteadyClock::default();
        clock.now(at(0), hours(0));
        assert_eq!(clock.now(at(1) - 9000 * DAY, hours(1)), at(1) - 9000 * DAY);
        assert_eq!(clock.now(at(2), hours(2)), at(2) - 9000 * DAY);
        assert_eq!(clock.now(at(26), hours(26)), at(26));
    }

    #[test]
    fn small_steps_and_a_clock_that_stands_still_are_followed() {
        let mut clock = SteadyClock::default();
        clock.now(at(0), hours(0));
        assert_eq!(clock.now(at(0) + 30 * NANOS, hours(0)), at(0) + 30 * NANOS);
        assert_eq!(clock.now(at(0) + 30 * NANOS, hours(3)), at(0) + 30 * NANOS);
        assert_eq!(clock.now(i128::MIN, Duration::ZERO), i128::MIN);
        assert_eq!(clock.now(i128::MAX, Duration::ZERO), i128::MIN);
    }
}
