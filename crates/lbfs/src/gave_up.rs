use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Callers whose last operation waited until the deadline while no replica was up.
///
/// If a LOOKUP of a name that it knows fails, the kernel sends another one in the same system call, and so it does with a READ
/// ahead. These must not wait for a deadline of their own.
#[derive(Debug, Default)]
pub(crate) struct GaveUp(Mutex<HashMap<u32, Instant>>);

/// The kernel asks again at once.
const AT_ONCE: Duration = Duration::from_millis(100);
/// No more callers than these are remembered.
const MOST_CALLERS: usize = 1024;

impl GaveUp {
    pub(crate) fn note(&self, caller: u32) {
        let mut all = self.0.lock();
        if all.len() >= MOST_CALLERS {
            all.retain(|_, at| at.elapsed() < AT_ONCE);
        }
        if caller != 0 && all.len() < MOST_CALLERS {
            all.insert(caller, Instant::now());
        }
    }

    /// Answers true once: a program that tries again after that waits again.
    pub(crate) fn has_just(&self, caller: u32) -> bool {
        self.0.lock().remove(&caller).is_some_and(|at| at.elapsed() < AT_ONCE)
    }
}
