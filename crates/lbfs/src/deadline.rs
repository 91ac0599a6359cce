use core::time::Duration;
use std::time::Instant;

/// The deadline of an operation, shared by all of its steps. The clock starts with the first step
/// that may wait.
#[derive(Debug)]
pub(crate) struct Deadline {
    timeout: Duration,
    at: Option<Instant>,
}

/// Minimum time for each replica, as a fraction of the timeout. A shorter wait could not
/// distinguish a hanging replica from one that has just recovered, or that performs the last of
/// several steps.
const LEAST_SHARE: u32 = 4;

impl Deadline {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { timeout, at: None }
    }

    /// Returns the deadline. Starts the clock if necessary.
    pub(crate) fn at(&mut self) -> Instant {
        *self.at.get_or_insert_with(|| Instant::now() + self.timeout)
    }

    /// Returns the time to wait for one replica: half of the remaining time if another replica can
    /// be tried, else all of it, but at least a quarter of the timeout. An operation can therefore
    /// only exceed the timeout if it meets four hanging replicas, or a replica that recovers at the
    /// last moment.
    pub(crate) fn share(&mut self, is_last: bool) -> Duration {
        let left = self.at().saturating_duration_since(Instant::now());
        let share = if is_last { left } else { left / 2 };
        share.max(self.timeout / LEAST_SHARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(100);

    fn ending_in(left: Duration) -> Deadline {
        Deadline { timeout: TIMEOUT, at: Some(Instant::now() + left) }
    }

    fn near(share: Duration, seconds: u64) -> bool {
        share <= Duration::from_secs(seconds) && share + Duration::from_secs(5) > Duration::from_secs(seconds)
    }

    #[test]
    fn a_replica_gets_half_of_the_remaining_time_and_the_last_one_all() {
        assert!(near(ending_in(TIMEOUT).share(false), 50));
        assert!(near(ending_in(TIMEOUT).share(true), 100));
        assert!(near(ending_in(TIMEOUT / 2).share(true), 50));
    }

    #[test]
    fn a_replica_gets_at_least_a_quarter_of_the_timeout() {
        for left in [Duration::ZERO, TIMEOUT / 100, TIMEOUT / 5] {
            assert_eq!(ending_in(left).share(true), TIMEOUT / 4);
            assert_eq!(ending_in(left).share(false), TIMEOUT / 4);
        }
    }
}
