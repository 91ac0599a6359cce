use core::fmt;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
/// Maximum number of users with separate limits; further users share one.
const MAX_USERS: usize = 4096;
const OTHERS: u32 = u32::MAX;

/// Limits the warnings per user with token buckets: `rate` per minute, and a burst of the same
/// size.
#[derive(Debug)]
pub(crate) struct RateLimit {
    rate: u32,
    users: Mutex<HashMap<u32, Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    /// Remaining tokens.
    left: f64,
    at: Instant,
    suppressed: u64,
}

/// Number of warnings about the user that were suppressed since the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Suppressed(pub(crate) u64);

impl fmt::Display for Suppressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, " ({} more of this user were not logged)", self.0) }
    }
}

impl RateLimit {
    /// Returns a limit of `rate` warnings per minute; 0 means no limit.
    pub(crate) fn new(rate: u32) -> Self {
        Self { rate, users: Mutex::default() }
    }

    /// Returns the number of suppressed warnings if a warning about this user is permitted now,
    /// else `None`.
    pub(crate) fn admit(&self, uid: u32) -> Option<Suppressed> {
        self.admit_at(uid, Instant::now())
    }

    fn admit_at(&self, uid: u32, now: Instant) -> Option<Suppressed> {
        if self.rate == 0 {
            return Some(Suppressed(0));
        }
        let full = f64::from(self.rate);
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let uid = if users.len() < MAX_USERS || users.contains_key(&uid) { uid } else { OTHERS };
        let bucket = users.entry(uid).or_insert(Bucket { left: full, at: now, suppressed: 0 });
        let minutes = now.saturating_duration_since(bucket.at).as_secs_f64() / MINUTE.as_secs_f64();
        bucket.left = (bucket.left + minutes * full).min(full);
        bucket.at = now;
        if bucket.left < 1.0 {
            bucket.suppressed += 1;
            return None;
        }
        bucket.left -= 1.0;
        Some(Suppressed(core::mem::take(&mut bucket.suppressed)))
    }
}

impl Drop for RateLimit {
    /// Logs the number of warnings that are still suppressed.
    fn drop(&mut self) {
        let users = core::mem::take(self.users.get_mut().unwrap_or_else(PoisonError::into_inner));
        for (uid, bucket) in users.into_iter().filter(|(_, bucket)| bucket.suppressed > 0) {
            tracing::warn!(target: "snoopfs", "uid={uid}: {} more warnings were not logged", bucket.suppressed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_and_rates_are_limited_per_user() {
        let limit = RateLimit::new(3);
        let start = Instant::now();
        let admitted = |uid, after| limit.admit_at(uid, start + Duration::from_secs(after));
        assert!((0..3).all(|_| admitted(7, 0) == Some(Suppressed(0))));
        assert!((0..5).all(|_| admitted(7, 1).is_none()));
        // Other users have separate limits.
        assert_eq!(admitted(8, 1), Some(Suppressed(0)));
        assert_eq!(admitted(7, 22), Some(Suppressed(5)));
        assert_eq!(admitted(7, 23), None);
        assert_eq!((0..9).filter(|_| admitted(7, 1000).is_some()).count(), 3);
    }

    #[test]
    fn zero_disables_the_limit_and_memory_is_bounded() {
        let limit = RateLimit::new(0);
        assert!((0..1000).all(|_| limit.admit(7).is_some()));
        let limit = RateLimit::new(1);
        let admitted = (0..100_000).filter(|&uid| limit.admit(uid).is_some()).count();
        assert_eq!(admitted, MAX_USERS + 1);
        assert!(limit.users.lock().unwrap().len() <= MAX_USERS + 1);
    }
}
