//! The lock on a directory's entries: see "Locks" in docs/design/unionfs.md.
//!
//! A writer holds it across lower operations, and one of these may not return: a frozen file system
//! makes it wait until the thaw. Readers do not wait with it. After a moment they look without the
//! lock, and believe what they see only if no writer began or ended meanwhile, and if a second look
//! sees the same: the steps of one writer change what a name shows once, so a look that fell between
//! two of them is not repeated.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use vnode::{Cx, Result};

/// How long a reader waits for a writer.
const PATIENCE: Duration = Duration::from_millis(20);
/// The same on a thread that serves others.
const SHORT: Duration = Duration::from_micros(200);

/// The lock on the entries of a directory.
#[derive(Debug, Default)]
pub(crate) struct Names {
    lock: RwLock<()>,
    /// Writers that have begun, and those that have ended.
    sections: AtomicU64,
    /// A reader has lost its patience with the present writer.
    stuck: AtomicBool,
}

/// The right to change entries.
pub(crate) struct Writer<'a> {
    names: &'a Names,
    _lock: RwLockWriteGuard<'a, ()>,
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.names.stuck.store(false, Ordering::Release);
        self.names.sections.fetch_add(1, Ordering::AcqRel);
    }
}

impl Names {
    /// Waits until nobody else uses the entries.
    pub(crate) fn write(&self) -> Writer<'_> {
        let lock = self.lock.write();
        self.sections.fetch_add(1, Ordering::AcqRel);
        Writer { names: self, _lock: lock }
    }

    /// Keeps writers away, unless one of them is stuck: then `None`.
    ///
    /// # Errors
    /// `MAY_BLOCK` where the caller must not wait.
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

    /// Changes when a writer begins or ends.
    pub(crate) fn sections(&self) -> u64 {
        self.sections.load(Ordering::Acquire)
    }
}
