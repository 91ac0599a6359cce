//! The lock on a directory's entries: see "Locks" in docs/design/unionfs.md.
//!
//! A writer holds it across lower operations, which may block for long: on a frozen file system
//! they wait for the thaw. Readers do not wait that long. After a timeout they look up without the
//! lock, and accept the result only if a second lookup agrees and no writer began or ended
//! meanwhile. A writer changes what a name leads to in one lower operation. A lookup that runs at
//! the same time may combine the states before and after it, but then the second lookup returns the
//! state after it, and disagrees.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use vnode::{Cx, Result};

/// How long a reader waits for a writer.
const TIMEOUT: Duration = Duration::from_millis(20);
/// As [`TIMEOUT`], on a thread that serves other callers.
const SHORT_TIMEOUT: Duration = Duration::from_micros(200);

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
        let soon = self.lock.try_read_for(if cx.may_block { TIMEOUT } else { SHORT_TIMEOUT });
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
