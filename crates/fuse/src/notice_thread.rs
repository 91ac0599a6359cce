//! The thread that sends notifications for which the kernel takes locks.
//!
//! The kernel may hold such a lock while it waits for this server. If the server is killed then, a
//! thread that waits for the lock keeps the connection alive with the device that it writes to, and
//! nobody replies any more. With a descriptor of its own, in a table of its own (see
//! [`crate::mount_user`]), it doesn't keep those from which the requests were read: the kernel ends
//! their requests when they are closed, releases the lock, and the thread ends. That covers neither
//! requests of the ring nor those that nobody has read yet, which end only with the connection.

use crate::notify::write_each;
use crate::{Errno, Session, device, mount_user};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Notifications, and where to report their result.
struct Notice {
    messages: Vec<u8>,
    result: SyncSender<Result<u64, Errno>>,
}

/// The thread. `None`: it has not started, can't be started, or has ended.
#[derive(Debug, Default)]
pub(crate) struct NoticeThread(Mutex<Option<Sender<Notice>>>);

impl NoticeThread {
    /// Starts the thread. To be called before the mount opens files: see [`mount_user::Spawner`].
    pub(crate) fn start(&self, session: &Session) {
        *self.lock() = start(session);
    }

    /// Sends notifications and returns what [`write_each`] does. `None`: there is no thread.
    pub(crate) fn send(&self, messages: &[u8]) -> Option<Result<u64, Errno>> {
        let notices = self.lock().clone()?;
        let (result, sent) = sync_channel(1);
        notices.send(Notice { messages: messages.to_vec(), result }).ok()?;
        drop(notices);
        sent.recv().ok()
    }

    /// Ends the thread once it has sent what it was given.
    pub(crate) fn close(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Sender<Notice>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn start(session: &Session) -> Option<Sender<Notice>> {
    let device = device::clone_of(session)
        .inspect_err(|error| tracing::debug!(%error, "no device descriptor for notifications alone"))
        .ok()?;
    let (notices, received) = channel();
    // SAFETY: the closure gets its descriptor from `spawn`; the channel has none.
    let started =
        unsafe { mount_user::spawn("fuse-notice".to_owned(), Some(device), move |device| serve(device, &received)) };
    started.ok().map(|()| notices)
}

fn serve(device: Option<OwnedFd>, notices: &Receiver<Notice>) {
    let Some(device) = device else { return };
    while let Ok(notice) = notices.recv() {
        let _received = notice.result.send(write_each(device.as_fd(), &notice.messages));
    }
}
