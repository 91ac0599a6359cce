//! The lock on a directory's entries: see "Locks" in docs/design/unionfs.md.
//!
//! A writer holds it across lower operations, and these may not return for a long time: on a frozen
//! file system they wait for the thaw. Readers do not wait with it. After a timeout they look up
//! without the lock, and believe the result only if a second lookup agrees and no writer began or
//! ended meanwhile. A writer changes the object that a name leads to only once, so a result from
//! between two of its steps does not repeat.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use vnode::{Cx, Result};

/// How long a reader waits for a writer.
const PATIENCE: Duration = Duration::from_millis(20);
/// As [`PATIENCE`], on a thread that serves other callers.
const SHORT: Duration = Duration::from_micros(200);

/// The lock on the entries of a directory.
#[derive(Debug, Default)]
pub(crate) struct EntryLock {
    lock: RwLock<()>,
    /// Counts both the beginnings and the ends of writers.
    transitions: AtomicU64,
    /// A reader's wait for the current writer timed out.
    stuck: AtomicBool,
}

/// The exclusive right to change entries.
pub(crate) struct Writer<'a> {
    owner: &'a EntryLock,
    _lock: RwLockWriteGuard<'a, ()>,
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.owner.stuck.store(false, Ordering::Release);
        self.owner.transitions.fetch_add(1, Ordering::AcqRel);
    }
}

impl EntryLock {
    /// Locks the entries exclusively.
    pub(crate) fn write(&self) -> Writer<'_> {
        let lock = self.lock.write();
        self.transitions.fetch_add(1, Ordering::AcqRel);
        Writer { owner: self, _lock: lock }
    }

    /// Locks the entries shared. `None` if a writer is stuck.
    ///
    /// # Errors
    ///
    /// `MAY_BLOCK` if the caller must not wait.
    pub(crate) fn read(&self, cx: &Cx<'_>) -> Result<Option<RwLockReadGuard<'_, ()>>> {
        let at_once = self.lock.try_read();
        if at_once.is_some() || self.stuck.load(Ordering::Acquire) {
            return Ok(at_once);
        }
        let soon = self.lock.try_read_for(if cx.may_block { PATIENCE } else { SHORT });
        if soon.is_none() {
            cx.require_blocking()?;
            self.stuck.store(true, Ordering::Release);
        }
        Ok(soon)
    }

    /// Returns a counter that changes when a writer begins or ends.
    pub(crate) fn transitions(&self) -> u64 {
        self.transitions.load(Ordering::Acquire)
    }
}
