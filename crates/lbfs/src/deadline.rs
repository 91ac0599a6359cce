use core::time::Duration;
use std::time::Instant;

/// The time by which an operation must be answered: one deadline for all of its steps. The clock starts with the first step
/// that may wait.
#[derive(Debug)]
pub(crate) struct Deadline {
    timeout: Duration,
    at: Option<Instant>,
}

/// The part of the timeout that a replica always gets, however little is left: a shorter wait could not tell one that hangs
/// from one that has just come back, or that answers the last of several steps.
const LEAST_SHARE: u32 = 4;

impl Deadline {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { timeout, at: None }
    }

    /// When it is. Starts the clock.
    pub(crate) fn at(&mut self) -> Instant {
        *self.at.get_or_insert_with(|| Instant::now() + self.timeout)
    }

    /// How long to wait for one replica: half of the time left if another one can be asked after it, else all of it, but at
    /// least a quarter of the timeout. So only an operation that meets four replicas that hang, or a replica that comes back at
    /// the last moment, takes longer than the timeout.
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
    fn a_replica_gets_half_of_the_time_left_and_the_last_one_all_of_it() {
        assert!(near(ending_in(TIMEOUT).share(false), 50));
        assert!(near(ending_in(TIMEOUT).share(true), 100));
        assert!(near(ending_in(TIMEOUT / 2).share(true), 50));
    }

    #[test]
    fn a_replica_that_comes_back_just_before_the_deadline_has_time_to_answer() {
        for left in [Duration::ZERO, TIMEOUT / 100, TIMEOUT / 5] {
            assert_eq!(ending_in(left).share(true), TIMEOUT / 4);
            assert_eq!(ending_in(left).share(false), TIMEOUT / 4);
        }
    }
}
