//! Notifications from the server to the kernel.

use crate::abi::{
    self, NotifyDeleteOut, NotifyInvalEntryOut, NotifyInvalInodeOut, NotifyPollWakeupOut, NotifyPruneOut,
    NotifyRetrieveOut, NotifyStoreOut, OutHeader,
};
use crate::{Errno, Session};
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use zerocopy::{FromBytes as _, IntoBytes as _};

/// Ids of retrievals start here, out of the range of the kernel's request ids.
static NEXT_RETRIEVAL: AtomicU64 = AtomicU64::new(1 << 62);

/// Id of the empty retrieve that only provokes a reply: see [`Notifier::kick`].
pub(crate) const KICK: u64 = 1 << 61;

/// Notifies the kernel of out-of-band changes. Cheap to clone; created by [`Session::notifier`].
///
/// # Never from a handler
/// Most notifications take locks that the kernel holds while it waits for a handler, which would
/// deadlock:
///
/// * entries ([`Notifier::inval_entry`], [`Notifier::expire_entry`], [`Notifier::delete`]): the
///   parent's lock, held during LOOKUP, READDIR, CREATE, UNLINK, RENAME, ... in that directory;
/// * data ([`Notifier::inval_inode`] with an offset of 0 or more, [`Notifier::store`],
///   [`Notifier::retrieve`]): page locks, held during READ and WRITE of that file.
///
/// Send these from a thread that serves no requests, and without holding a lock that a handler may
/// wait for. Safe anywhere: [`Notifier::inval_attributes`], [`Notifier::poll_wakeup`].
///
/// # Errors
/// All methods return `ENOENT` if the kernel does not know the node or name (nothing to do),
/// `EINVAL` if it does not know the notification, `ENOTCONN` or `ENODEV` after the connection was
/// closed.
#[derive(Clone, Debug)]
pub struct Notifier {
    session: Arc<Session>,
}

impl Notifier {
    pub(crate) const fn new(session: Arc<Session>) -> Self {
        Self { session }
    }

    /// Invalidates a name: the kernel looks it up before its next use. Unmounts everything below
    /// it; prefer [`Notifier::expire_entry`] for directories.
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn inval_entry(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        self.entry(parent, name, 0)
    }

    /// Expires a cached name: the kernel looks it up before its next use, and keeps mounts below it
    /// if the lookup returns the same node. Since Linux 6.1, with
    /// [`crate::flags::HAS_EXPIRE_ONLY`].
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn expire_entry(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        self.entry(parent, name, abi::EXPIRE_ONLY)
    }

    fn entry(&self, parent: u64, name: &[u8], flags: u32) -> Result<(), Errno> {
        self.send_locking(&entry_message(parent, name, flags)?)
    }

    /// Expires names, given with their directories: see [`Notifier::expire_entry`]. The calling
    /// thread wakes up once, not for each of them. Those that the kernel does not know count as
    /// sent.
    ///
    /// # Errors
    /// See [`Notifier`]; the last one, after all others were sent. `ENOENT` if the kernel knows
    /// none of them.
    pub fn expire_entries<'a>(&self, names: impl Iterator<Item = (u64, &'a [u8])>) -> Result<(), Errno> {
        let mut messages = Vec::new();
        for (parent, name) in names {
            messages.extend(entry_message(parent, name, abi::EXPIRE_ONLY)?);
        }
        self.send_locking(&messages)
    }

    /// Invalidates attributes, ACLs and all cached data of nodes: see [`Notifier::inval_inode`].
    ///
    /// # Errors
    /// See [`Notifier::expire_entries`].
    pub fn inval_inodes(&self, nodes: &[u64]) -> Result<(), Errno> {
        let mut messages = Vec::new();
        for &node in nodes {
            let out = NotifyInvalInodeOut { ino: node, off: 0, len: 0 };
            messages.extend(message(abi::NOTIFY_INVAL_INODE, &[out.as_bytes()])?);
        }
        self.send_locking(&messages)
    }

    /// Invalidates attributes and ACLs of the node, and drops its cached data: `len` bytes at
    /// `off`, or everything from `off` on if `len` is 0 or less.
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn inval_inode(&self, node: u64, off: u64, len: i64) -> Result<(), Errno> {
        let off = i64::try_from(off).map_err(|_| Errno::INVAL)?;
        let out = NotifyInvalInodeOut { ino: node, off, len };
        self.send_locking(&message(abi::NOTIFY_INVAL_INODE, &[out.as_bytes()])?)
    }

    /// Invalidates attributes and ACLs of the node, and keeps its cached data.
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn inval_attributes(&self, node: u64) -> Result<(), Errno> {
        self.send(abi::NOTIFY_INVAL_INODE, &[NotifyInvalInodeOut { ino: node, off: -1, len: 0 }.as_bytes()])
    }

    /// Reports that the entry was removed, as by unlink(2) or rmdir(2): inotify watchers are
    /// notified.
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn delete(&self, parent: u64, child: u64, name: &[u8]) -> Result<(), Errno> {
        let out = NotifyDeleteOut { parent, child, namelen: length(name)?, padding: 0 };
        self.send_locking(&message(abi::NOTIFY_DELETE, &[out.as_bytes(), name, b"\0"])?)
    }

    /// Stores data in the node's page cache.
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn store(&self, node: u64, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let out = NotifyStoreOut { nodeid: node, offset, size: length(data)?, padding: 0 };
        self.send_locking(&message(abi::NOTIFY_STORE, &[out.as_bytes(), data])?)
    }

    /// Requests data from the node's page cache. [`crate::Filesystem::notify_reply`] receives it
    /// under the id that this returns.
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn retrieve(&self, node: u64, offset: u64, size: u32) -> Result<u64, Errno> {
        // Even, because the lowest bit marks interrupts.
        let unique = NEXT_RETRIEVAL.fetch_add(2, Ordering::Relaxed);
        let out = NotifyRetrieveOut { notify_unique: unique, nodeid: node, offset, size, padding: 0 };
        self.send_locking(&message(abi::NOTIFY_RETRIEVE, &[out.as_bytes()])?).map(|()| unique)
    }

    /// Makes the kernel send an empty NOTIFY_REPLY with id [`KICK`] to the queue of the current
    /// CPU. `file` is a regular file that the kernel knows. Takes no lock that a handler could hold
    /// up, because the range is empty. Not counted: the reply is not, either.
    pub(crate) fn kick(&self, file: u64) -> Result<(), Errno> {
        let out = NotifyRetrieveOut { notify_unique: KICK, nodeid: file, offset: 0, size: 0, padding: 0 };
        self.write(&message(abi::NOTIFY_RETRIEVE, &[out.as_bytes()])?)
    }

    /// Makes the kernel deliver again all requests that were read from the device and not replied
    /// to. Only with [`crate::flags::HAS_RESEND`]; does not cover requests of the ring.
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn resend(&self) -> Result<(), Errno> {
        self.send(abi::NOTIFY_RESEND, &[])
    }

    /// Evicts those of the nodes that are not in use. Since Linux 6.18 (7.45).
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn prune(&self, nodes: &[u64]) -> Result<(), Errno> {
        let count = u32::try_from(nodes.len()).map_err(|_| Errno::INVAL)?;
        self.send(abi::NOTIFY_PRUNE, &[NotifyPruneOut { count, padding: 0, spare: 0 }.as_bytes(), nodes.as_bytes()])
    }

    /// Lets the callers send notifications themselves from now on: one that waits for a lock delays
    /// no other. For a process that is about to end: after a kill, such a caller could keep it from
    /// ending (see `notice_thread`).
    pub fn send_directly(&self) {
        self.session.notices.close();
    }

    /// Wakes the pollers of an open file. `kh` is the number from its POLL request.
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn poll_wakeup(&self, kh: u64) -> Result<(), Errno> {
        self.send(abi::NOTIFY_POLL, &[NotifyPollWakeupOut { kh }.as_bytes()])
    }

    /// Sends notifications for which the kernel takes locks: see [`crate::notice_thread`].
    fn send_locking(&self, messages: &[u8]) -> Result<(), Errno> {
        let sent = self.session.notices.send(messages);
        self.count(sent.unwrap_or_else(|| write_each(self.session.device.as_fd(), messages)))
    }

    fn send(&self, code: i32, parts: &[&[u8]]) -> Result<(), Errno> {
        self.count(self.write(&message(code, parts)?).map(|()| 1))
    }

    fn write(&self, message: &[u8]) -> Result<(), Errno> {
        rustix::io::write(&*self.session.device, message).map(drop)
    }

    fn count(&self, sent: Result<u64, Errno>) -> Result<(), Errno> {
        sent.map(|count| {
            self.session.counters.notifications.fetch_add(count, Ordering::Relaxed);
        })
    }
}

/// Writes notifications to the device, and returns how many of them concerned something that the
/// kernel knows.
///
/// # Errors
/// `ENOENT` if none did. Any other error is returned after the rest was written, unless there is no
/// connection any more.
pub(crate) fn write_each(device: BorrowedFd<'_>, mut messages: &[u8]) -> Result<u64, Errno> {
    let (mut known, mut failed) = (0, Errno::NOENT);
    while let Ok((header, _)) = OutHeader::read_from_prefix(messages) {
        let len = usize::try_from(header.len).unwrap_or(usize::MAX);
        let (message, rest) = messages.split_at_checked(len).ok_or(Errno::INVAL)?;
        match rustix::io::write(device, message) {
            Ok(_) => known += 1,
            Err(Errno::NOENT) => {}
            Err(error @ (Errno::NOTCONN | Errno::NODEV)) => return Err(error),
            Err(error) => failed = error,
        }
        messages = rest;
    }
    if failed != Errno::NOENT || known == 0 { Err(failed) } else { Ok(known) }
}

fn entry_message(parent: u64, name: &[u8], flags: u32) -> Result<Vec<u8>, Errno> {
    let out = NotifyInvalEntryOut { parent, namelen: length(name)?, flags };
    message(abi::NOTIFY_INVAL_ENTRY, &[out.as_bytes(), name, b"\0"])
}

/// Returns a notification as the device takes it.
fn message(code: i32, parts: &[&[u8]]) -> Result<Vec<u8>, Errno> {
    let len = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
    let header = OutHeader { len: u32::try_from(len).map_err(|_| Errno::INVAL)?, error: code, unique: 0 };
    Ok([&[header.as_bytes()], parts].concat().concat())
}

fn length(bytes: &[u8]) -> Result<u32, Errno> {
    u32::try_from(bytes.len()).map_err(|_| Errno::INVAL)
}

/// Whether the kernel expires missing names that it has cached. Linux 6.19 to 7.1 answer `ENOENT`,
/// and trust such a name until its lifetime ends.
#[must_use]
pub fn expires_missing_names() -> bool {
    let release = rustix::system::uname();
    !ignores_missing_names(&release.release().to_string_lossy())
}

fn ignores_missing_names(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    ((6, 19)..(7, 2)).contains(&version)
}

impl Session {
    /// Returns a handle for sending notifications.
    #[must_use]
    pub fn notifier(self: &Arc<Self>) -> Notifier {
        Notifier::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_ignore_missing_names() {
        for release in ["6.19.0", "6.19-rc1", "7.0.3-amd64", "7.1.0+deb14"] {
            assert!(ignores_missing_names(release), "{release}");
        }
        for release in ["6.1.0-41-amd64", "6.18.44", "7.2.0-rc1", "10.0", "", "strange"] {
            assert!(!ignores_missing_names(release), "{release}");
        }
    }

    #[test]
    fn every_message_is_written() {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::DIRECT).unwrap();
        let messages = [entry_message(1, b"a", 0).unwrap(), entry_message(2, b"name", 0).unwrap()];
        assert_eq!(write_each(write.as_fd(), &messages.concat()), Ok(2));
        for message in &messages {
            let mut buffer = [0; 256];
            let len = rustix::io::read(&read, &mut buffer).unwrap();
            assert_eq!(buffer.get(..len), Some(&**message));
        }
        assert_eq!(write_each(write.as_fd(), &[]), Err(Errno::NOENT));
        drop(read);
        assert_eq!(write_each(write.as_fd(), &messages.concat()), Err(Errno::PIPE));
    }
}
