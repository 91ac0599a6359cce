//! The lock on a directory's entries: see "Locks" in docs/design/unionfs.md.
//!
//! A writer holds it across lower operations, which may block for long: on a frozen file system
//! they wait for the thaw. Readers do not wait that long. After a timeout they look up without the
//! lock, and accept the result only if a second lookup agrees and no writer began or ended
//! meanwhile. A writer changes what a name leads to in one lower operation. A lookup that runs at
//! the same time may combine the states before and after it, but then the second lookup returns the
//! state after it, and disagrees.
//!
//! Such a result may be out of date by the time it is used. So no vnode becomes valid by it: see
//! [`Certainty::Uncertain`]. Operations that change objects act on what they find, and wait for
//! the lock as long as it takes. They would need it next anyway. So do all lookups while objects
//! move between branches.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use vnode::{Cx, Result};

/// How long a reader waits for a writer.
const TIMEOUT: Duration = Duration::from_millis(20);
/// As [`TIMEOUT`], on a thread that serves other callers.
const SHORT_TIMEOUT: Duration = Duration::from_micros(200);

/// How often a waiting writer looks whether its caller was interrupted.
const TICK: Duration = Duration::from_millis(50);

/// Whether a name was looked up under the lock on the entries of its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Certainty {
    /// Yes: the name leads to the object that was found, for as long as the lock is held.
    Certain,
    /// No: it may lead to something else by now. A vnode that gets such a lower object remains
    /// invalid, so that the next operation looks it up again.
    Uncertain,
}

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

/// Waits until `attempt`, which takes a tick at most, returns a lock.
fn wait<T>(cx: &Cx<'_>, attempt: impl Fn() -> Option<T>) -> Result<T> {
    loop {
        if let Some(lock) = attempt() {
            return Ok(lock);
        }
        cx.check()?;
    }
}

impl EntryLock {
    /// Locks the entries exclusively.
    ///
    /// # Errors
    ///
    /// `EINTR` if the caller is interrupted while it waits: the writer may be waiting for a branch
    /// that hangs.
    pub(crate) fn write(&self, cx: &Cx<'_>) -> Result<Writer<'_>> {
        let lock = wait(cx, || self.lock.try_write_for(TICK))?;
        self.transitions.fetch_add(1, Ordering::AcqRel);
        Ok(Writer { owner: self, _lock: lock })
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

    /// Locks the entries shared, however long that takes.
    ///
    /// # Errors
    ///
    /// `MAY_BLOCK` if the caller must not wait, `EINTR` if it is interrupted.
    pub(crate) fn read_surely(&self, cx: &Cx<'_>) -> Result<RwLockReadGuard<'_, ()>> {
        if let Some(lock) = self.read(cx)? {
            return Ok(lock);
        }
        cx.require_blocking()?;
        wait(cx, || self.lock.try_read_for(TICK))
    }

    /// Returns a counter that changes when a writer begins or ends.
    pub(crate) fn transitions(&self) -> u64 {
        self.transitions.load(Ordering::Acquire)
    }
}
