//! The gate that all changes go through, so that the set of branches never changes in the midst of one.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vnode::{Cx, Result};

/// How long a change waits before it looks for its caller's signal again.
const NAP: Duration = Duration::from_millis(20);

/// Changes go through it side by side; who is to change the set of branches closes it.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    lock: RwLock<()>,
    /// Somebody waits to close it.
    wanted: AtomicBool,
}

/// A closed gate.
pub(crate) struct Closed<'a>(#[expect(dead_code, reason = "held")] RwLockWriteGuard<'a, ()>);

impl Gate {
    /// Lets a change begin, once the gate is open.
    ///
    /// # Errors
    /// `EINTR`, and `MAY_BLOCK` where waiting is not allowed.
    pub(crate) fn enter(&self, cx: &Cx<'_>) -> Result<RwLockReadGuard<'_, ()>> {
        loop {
            if !self.is_wanted()
                && let Some(entered) = self.lock.try_read()
            {
                return Ok(entered);
            }
            cx.require_blocking()?;
            cx.check()?;
            // The lock lets nobody in before the one who wants to close the gate.
            if let Some(entered) = self.lock.try_read_for(NAP) {
                return Ok(entered);
            }
        }
    }

    /// Waits for the changes under way, and lets no other begin. `None` if they take longer than `patience`.
    pub(crate) fn close(&self, patience: Duration) -> Option<Closed<'_>> {
        let until = Instant::now() + patience;
        self.wanted.store(true, Ordering::Release);
        let lock = self.lock.try_write_until(until);
        self.wanted.store(false, Ordering::Release);
        lock.map(Closed)
    }

    /// Does somebody wait for the changes under way? What is long and has changed nothing yet should begin anew then.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// What becomes true when somebody waits for the changes under way.
    pub(crate) fn wanted(&self) -> &AtomicBool {
        &self.wanted
    }
}
