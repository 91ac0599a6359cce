//! The gate that excludes changes of objects from changes of the set of branches.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vnode::{Cx, Result};

/// How long a change waits between two checks for signals of its caller.
const SIGNAL_CHECK: Duration = Duration::from_millis(20);

/// Shared by changes of objects, exclusive for a change of the set of branches.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    lock: RwLock<()>,
    /// A change of the set waits to close the gate.
    wanted: AtomicBool,
}

/// A closed gate, which opens when this is dropped.
pub(crate) struct Closed<'a>(#[expect(dead_code, reason = "held")] RwLockWriteGuard<'a, ()>);

impl Gate {
    /// Enters the gate, after waiting until it is open.
    ///
    /// # Errors
    ///
    /// `EINTR`; `MAY_BLOCK` if the caller must not wait.
    pub(crate) fn enter(&self, cx: &Cx<'_>) -> Result<RwLockReadGuard<'_, ()>> {
        loop {
            if !self.is_wanted()
                && let Some(entered) = self.lock.try_read()
            {
                return Ok(entered);
            }
            cx.require_blocking()?;
            cx.check()?;
            // The lock prefers a waiting writer, so this does not overtake the closing of the gate.
            if let Some(entered) = self.lock.try_read_for(SIGNAL_CHECK) {
                return Ok(entered);
            }
        }
    }

    /// Closes the gate: waits for the changes under way, and lets no new one begin. `None` if that
    /// takes longer than `timeout`.
    pub(crate) fn close(&self, timeout: Duration) -> Option<Closed<'_>> {
        let until = Instant::now() + timeout;
        self.wanted.store(true, Ordering::Release);
        let lock = self.lock.try_write_until(until);
        self.wanted.store(false, Ordering::Release);
        lock.map(Closed)
    }

    /// Whether a change of the set waits for the changes under way. Long operations that have
    /// changed nothing yet should restart then.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// Returns the flag that is true while a change of the set waits for the changes under way.
    pub(crate) fn wanted(&self) -> &AtomicBool {
        &self.wanted
    }
}
