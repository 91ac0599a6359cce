use core::fmt;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
/// Users that are counted one by one; the others share what one may have.
const MOST_USERS: usize = 4096;
const OTHERS: u32 = u32::MAX;

/// How many warnings there may be about a user: so many in a minute, and as many at once.
#[derive(Debug)]
pub(crate) struct Limit {
    rate: u32,
    users: Mutex<HashMap<u32, Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    /// Warnings that may be given now.
    left: f64,
    at: Instant,
    unsaid: u64,
}

/// How many warnings about the same user were not given since the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unsaid(pub(crate) u64);

impl fmt::Display for Unsaid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, " ({} more of this user were not logged)", self.0) }
    }
}

impl Limit {
    /// `rate` in a minute; 0: no limit.
    pub(crate) fn new(rate: u32) -> Self {
        Self { rate, users: Mutex::default() }
    }

    /// May there be a warning about this user now?
    pub(crate) fn admit(&self, uid: u32) -> Option<Unsaid> {
        self.admit_at(uid, Instant::now())
    }

    fn admit_at(&self, uid: u32, now: Instant) -> Option<Unsaid> {
        if self.rate == 0 {
            return Some(Unsaid(0));
        }
        let full = f64::from(self.rate);
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let uid = if users.len() < MOST_USERS || users.contains_key(&uid) { uid } else { OTHERS };
        let bucket = users.entry(uid).or_insert(Bucket { left: full, at: now, unsaid: 0 });
        let minutes = now.saturating_duration_since(bucket.at).as_secs_f64() / MINUTE.as_secs_f64();
        bucket.left = (bucket.left + minutes * full).min(full);
        bucket.at = now;
        if bucket.left < 1.0 {
            bucket.unsaid += 1;
            return None;
        }
        bucket.left -= 1.0;
        Some(Unsaid(core::mem::take(&mut bucket.unsaid)))
    }
}

impl Drop for Limit {
    /// At the end, what was never said.
    fn drop(&mut self) {
        let users = core::mem::take(self.users.get_mut().unwrap_or_else(PoisonError::into_inner));
        for (uid, bucket) in users.into_iter().filter(|(_, bucket)| bucket.unsaid > 0) {
            tracing::warn!(target: "snoopfs", "uid={uid}: {} more warnings were not logged", bucket.unsaid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_at_once_and_in_a_minute() {
        let limit = Limit::new(3);
        let start = Instant::now();
        let admitted = |uid, after| limit.admit_at(uid, start + Duration::from_secs(after));
        assert!((0..3).all(|_| admitted(7, 0) == Some(Unsaid(0))));
        assert!((0..5).all(|_| admitted(7, 1).is_none()));
        // Another user is not concerned.
        assert_eq!(admitted(8, 1), Some(Unsaid(0)));
        assert_eq!(admitted(7, 22), Some(Unsaid(5)));
        assert_eq!(admitted(7, 23), None);
        assert_eq!((0..9).filter(|_| admitted(7, 1000).is_some()).count(), 3);
    }

    #[test]
    fn zero_is_no_limit_and_users_do_not_use_up_memory() {
        let limit = Limit::new(0);
        assert!((0..1000).all(|_| limit.admit(7).is_some()));
        let limit = Limit::new(1);
        let said = (0..100_000).filter(|&uid| limit.admit(uid).is_some()).count();
        assert_eq!(said, MOST_USERS + 1);
        assert!(limit.users.lock().unwrap().len() <= MOST_USERS + 1);
    }
}
