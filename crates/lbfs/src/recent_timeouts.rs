use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Callers whose last operation waited until the deadline while no replica was up.
///
/// If a LOOKUP for revalidation fails, the kernel sends another one in the same system call. It
/// also repeats a failed readahead as a READ. The repeated request must not wait for a second
/// deadline.
#[derive(Debug, Default)]
pub(crate) struct RecentTimeouts(Mutex<HashMap<u32, Instant>>);

/// Maximum time between a timeout and the kernel's repeated request.
const REPEAT_WINDOW: Duration = Duration::from_millis(100);
/// Maximum number of recorded callers.
const MAX_CALLERS: usize = 1024;

impl RecentTimeouts {
    pub(crate) fn note(&self, caller: u32) {
        let mut all = self.0.lock();
        if all.len() >= MAX_CALLERS {
            all.retain(|_, at| at.elapsed() < REPEAT_WINDOW);
        }
        if caller != 0 && all.len() < MAX_CALLERS {
            all.insert(caller, Instant::now());
        }
    }

    /// Whether the caller has just timed out. Returns true only once per timeout, so that a retry
    /// by the program waits again.
    pub(crate) fn take_recent(&self, caller: u32) -> bool {
        self.0.lock().remove(&caller).is_some_and(|at| at.elapsed() < REPEAT_WINDOW)
    }
}
