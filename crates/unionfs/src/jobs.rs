//! Who is copying what up.

use parking_lot::{Condvar, Mutex};
use std::collections::HashSet;
use std::time::Duration;
use vnode::{Cx, Result};

/// The objects that are being copied up. Two callers who want the same copy wait for each other here; a reader never comes here.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    running: Mutex<HashSet<u64>>,
    ended: Condvar,
}

/// The right to copy one object up.
pub(crate) struct Job<'a> {
    jobs: &'a Jobs,
    id: u64,
}

impl Jobs {
    /// Waits until nobody else copies the object of that number up.
    ///
    /// # Errors
    /// `EINTR`, and `MAY_BLOCK` where waiting is not allowed.
    pub(crate) fn start(&self, cx: &Cx<'_>, id: u64) -> Result<Job<'_>> {
        let mut running = self.running.lock();
        while !running.insert(id) {
            cx.require_blocking()?;
            cx.check()?;
            // Woken at the end of a job; looks by itself for the caller's signal.
            self.ended.wait_for(&mut running, Duration::from_millis(20));
        }
        Ok(Job { jobs: self, id })
    }

    /// Is the object of that number being copied up?
    pub(crate) fn is_running(&self, id: u64) -> bool {
        self.running.lock().contains(&id)
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        self.jobs.running.lock().remove(&self.id);
        self.jobs.ended.notify_all();
    }
}
