//! Copy-up jobs: one copy-up of an object at a time.

use parking_lot::{Condvar, Mutex};
use std::collections::HashSet;
use std::time::Duration;
use vnode::{Cx, Result};

/// The objects that are being copied up. Two callers that need the same copy wait for each other
/// here. Readers never wait here.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    running: Mutex<HashSet<u64>>,
    ended: Condvar,
}

/// The exclusive right to copy one object up.
pub(crate) struct Job<'a> {
    jobs: &'a Jobs,
    id: u64,
}

impl Jobs {
    /// Waits until no other caller copies this object up.
    ///
    /// # Errors
    ///
    /// `EINTR`; `MAY_BLOCK` if the caller must not wait.
    pub(crate) fn start(&self, cx: &Cx<'_>, id: u64) -> Result<Job<'_>> {
        let mut running = self.running.lock();
        while !running.insert(id) {
            cx.require_blocking()?;
            cx.check()?;
            // Woken at the end of a job. The timeout is for noticing signals of the caller.
            self.ended.wait_for(&mut running, Duration::from_millis(20));
        }
        Ok(Job { jobs: self, id })
    }

    /// Whether the object with this number is being copied up.
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
