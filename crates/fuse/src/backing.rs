//! Backing files: host files registered with the kernel for passthrough.

use crate::{Errno, Session, sys};
use core::sync::atomic::Ordering;
use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, MutexGuard, PoisonError};

/// A registered backing file, named by [`crate::abi::OpenOut::backing_id`] together with
/// [`crate::abi::FOPEN_PASSTHROUGH`].
///
/// # Lifetime
/// Dropping it removes the registration. It must live until the kernel has processed the reply to
/// the open that names it. A handler cannot observe that, so keep it until the RELEASE of that
/// open.
///
/// All opens of one node that overlap in time must name the *same* registration. The kernel refuses
/// another one with `EIO`, even of the same file, and even if the file was registered anew while
/// older opens live. So keep one registration per node, share it among the node's opens, and drop
/// it after the last RELEASE.
///
/// Each open of the node reopens the registered file with its own flags and with the credentials
/// *of the thread that registered it*. `O_PATH` descriptors are sufficient, and one registration
/// serves every open mode.
#[derive(Debug)]
pub struct BackingId {
    session: std::sync::Weak<Session>,
    id: i32,
}

impl BackingId {
    /// Returns the number for [`crate::abi::OpenOut::backing_id`].
    #[must_use]
    pub const fn id(&self) -> i32 {
        self.id
    }

    /// Whether the file was registered in this session.
    #[must_use]
    pub fn is_of(&self, session: &Arc<Session>) -> bool {
        std::ptr::eq(self.session.as_ptr(), Arc::as_ptr(session))
    }
}

impl Drop for BackingId {
    fn drop(&mut self) {
        let Some(session) = self.session.upgrade() else { return };
        if session.backings().remove(&self.id) {
            // Fails only if the connection is closed, and the registration with it.
            let _gone = sys::backing_close(session.device.as_fd(), self.id);
            session.counters.backing_closes.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Session {
    fn backings(&self) -> MutexGuard<'_, HashSet<i32>> {
        self.backings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes all remaining registrations, after the connection was closed.
    ///
    /// The kernel itself releases the host files only with the last reference to the device. A ring
    /// drops its reference some time after the process has ended, and a removed file would occupy
    /// its space until then.
    pub(crate) fn close_backings(&self) {
        for id in std::mem::take(&mut *self.backings()) {
            if let Err(error) = sys::backing_close(self.device.as_fd(), id) {
                tracing::debug!(%error, "a backing file stays registered until the device is closed");
            }
        }
    }

    /// Registers `file`, a regular file that may be opened with `O_PATH`, as a backing file.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN` in the initial user namespace or if
    /// [`crate::flags::PASSTHROUGH`] was not agreed, `ELOOP` if the file's own file system is
    /// stacked too deep, `EOPNOTSUPP` if it is not a regular file, `ENOTTY` before Linux 6.9.
    pub fn backing_open(self: &Arc<Self>, file: BorrowedFd<'_>) -> Result<BackingId, Errno> {
        let id = sys::backing_open(self.device.as_fd(), file)?;
        self.counters.backing_opens.fetch_add(1, Ordering::Relaxed);
        self.backings().insert(id);
        Ok(BackingId { session: Arc::downgrade(self), id })
    }
}
