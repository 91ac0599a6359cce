use crate::{Errno, Session, sys};
use core::sync::atomic::Ordering;
use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, MutexGuard, PoisonError};

/// The registration of a backing file: what [`crate::abi::OpenOut::backing_id`] names together with
/// [`crate::abi::FOPEN_PASSTHROUGH`].
///
/// # Life time
/// Dropping it takes the registration back. It must live until the kernel has seen the reply to the open that names it,
/// which a handler can't know; so keep it until the RELEASE of that open. All opens of one node that are open at the same
/// time must name the *same* registration: another one, even of the same file, is refused by the kernel with `EIO`, and so
/// is the same file registered anew while opens with the old one live. So one registration per node, shared by its opens,
/// dropped after the last RELEASE.
///
/// Each open of the node reopens the registered file with its own flags and with the credentials *of the thread that
/// registered it*. `O_PATH` descriptors will do, and one registration serves every mode of opening.
#[derive(Debug)]
pub struct BackingId {
    session: std::sync::Weak<Session>,
    id: i32,
}

impl BackingId {
    /// The number for [`crate::abi::OpenOut::backing_id`].
    #[must_use]
    pub const fn id(&self) -> i32 {
        self.id
    }

    /// Was it registered in this session?
    #[must_use]
    pub fn is_of(&self, session: &Arc<Session>) -> bool {
        std::ptr::eq(self.session.as_ptr(), Arc::as_ptr(session))
    }
}

impl Drop for BackingId {
    fn drop(&mut self) {
        let Some(session) = self.session.upgrade() else { return };
        if session.backings().remove(&self.id) {
            // Fails only if the connection is gone, and the registration with it.
            let _gone = sys::backing_close(session.device.as_fd(), self.id);
            session.counters.backing_closes.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Session {
    fn backings(&self) -> MutexGuard<'_, HashSet<i32>> {
        self.backings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection is gone: takes back what somebody still keeps registered.
    ///
    /// The kernel would let go of the host files only with the last reference to the device. That
    /// of a ring goes some time after the process has ended, and a removed file would keep its
    /// space that long.
    pub(crate) fn close_backings(&self) {
        for id in std::mem::take(&mut *self.backings()) {
            if let Err(error) = sys::backing_close(self.device.as_fd(), id) {
                tracing::debug!(%error, "a backing file stays until the device is closed");
            }
        }
    }

    /// Registers `file`, a regular file that may be opened with `O_PATH`, as a backing file.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN` in the initial user namespace or if [`crate::flags::PASSTHROUGH`] was not agreed,
    /// `ELOOP` if the file lies on a file system that is stacked too deep, `EOPNOTSUPP` if it is not a regular file,
    /// `ENOTTY` before Linux 6.9.
    pub fn backing_open(self: &Arc<Self>, file: BorrowedFd<'_>) -> Result<BackingId, Errno> {
        let id = sys::backing_open(self.device.as_fd(), file)?;
        self.counters.backing_opens.fetch_add(1, Ordering::Relaxed);
        self.backings().insert(id);
        Ok(BackingId { session: Arc::downgrade(self), id })
    }
}
