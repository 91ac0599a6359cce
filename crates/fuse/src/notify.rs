use crate::abi::{
    self, NotifyDeleteOut, NotifyInvalEntryOut, NotifyInvalInodeOut, NotifyPollWakeupOut, NotifyPruneOut,
    NotifyRetrieveOut, NotifyStoreOut, OutHeader,
};
use crate::{Errno, Session};
use core::sync::atomic::{AtomicU64, Ordering};
use std::io::IoSlice;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Numbers of retrievals start here, where the kernel's own never come.
static NEXT_RETRIEVAL: AtomicU64 = AtomicU64::new(1 << 62);

/// The number of retrievals that are made for their answer's sake only.
pub(crate) const KICK: u64 = 1 << 61;

/// Tells the kernel what changed behind its back. Cheap to clone; made by [`Session::notifier`].
///
/// # Never from a handler
/// Most notifications take locks that the kernel holds while it waits for a handler, and then both wait for ever:
///
/// * entries ([`Notifier::inval_entry`], [`Notifier::expire_entry`], [`Notifier::delete`]): the parent's lock, held
///   during LOOKUP, READDIR, CREATE, UNLINK, RENAME, ... in that directory;
/// * data ([`Notifier::inval_inode`] with an offset of 0 or more, [`Notifier::store`], [`Notifier::retrieve`]): pages,
///   held during READ and WRITE of that file.
///
/// So send them from a thread that serves no requests, without holding a lock that a handler may wait for. Safe anywhere:
/// [`Notifier::inval_attributes`], [`Notifier::inc_epoch`], [`Notifier::poll_wakeup`].
///
/// # Errors
/// All answer `ENOENT` where the kernel does not know the node or name (nothing is to be done then), `EINVAL` where it
/// does not know the notification, `ENOTCONN` or `ENODEV` after the end of the connection.
#[derive(Clone, Debug)]
pub struct Notifier {
    session: Arc<Session>,
}

impl Notifier {
    pub(crate) const fn new(session: Arc<Session>) -> Self {
        Self { session }
    }

    /// The name is looked up anew before its next use. Detaches what is mounted under it: prefer
    /// [`Notifier::expire_entry`] for directories.
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn inval_entry(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        self.entry(parent, name, 0)
    }

    /// What the kernel remembers of the name has run out: it is looked up anew before its next use, and nothing is
    /// detached if that gives the same node. Since Linux 6.1, with [`crate::flags::HAS_EXPIRE_ONLY`].
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn expire_entry(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        self.entry(parent, name, abi::EXPIRE_ONLY)
    }

    fn entry(&self, parent: u64, name: &[u8], flags: u32) -> Result<(), Errno> {
        let namelen = length(name)?;
        let out = NotifyInvalEntryOut { parent, namelen, flags };
        self.send(abi::NOTIFY_INVAL_ENTRY, &[out.as_bytes(), name, b"\0"])
    }

    /// Attributes and ACLs of the node are fetched anew, and the cached data of `len` bytes at `off` is dropped (`len` of
    /// 0 or less: all from there).
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn inval_inode(&self, node: u64, off: u64, len: i64) -> Result<(), Errno> {
        let off = i64::try_from(off).map_err(|_| Errno::INVAL)?;
        self.send(abi::NOTIFY_INVAL_INODE, &[NotifyInvalInodeOut { ino: node, off, len }.as_bytes()])
    }

    /// Attributes and ACLs of the node are fetched anew; its cached data stays.
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn inval_attributes(&self, node: u64) -> Result<(), Errno> {
        self.send(abi::NOTIFY_INVAL_INODE, &[NotifyInvalInodeOut { ino: node, off: -1, len: 0 }.as_bytes()])
    }

    /// The entry was removed, as by unlink(2) or rmdir(2): watchers hear of it.
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn delete(&self, parent: u64, child: u64, name: &[u8]) -> Result<(), Errno> {
        let out = NotifyDeleteOut { parent, child, namelen: length(name)?, padding: 0 };
        self.send(abi::NOTIFY_DELETE, &[out.as_bytes(), name, b"\0"])
    }

    /// Puts data into the node's page cache.
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn store(&self, node: u64, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let out = NotifyStoreOut { nodeid: node, offset, size: length(data)?, padding: 0 };
        self.send(abi::NOTIFY_STORE, &[out.as_bytes(), data])
    }

    /// Asks for data of the node's page cache: [`crate::Filesystem::notify_reply`] gets it, with the number answered here.
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn retrieve(&self, node: u64, offset: u64, size: u32) -> Result<u64, Errno> {
        // Even, because the lowest bit marks interrupts.
        let unique = NEXT_RETRIEVAL.fetch_add(2, Ordering::Relaxed);
        let out = NotifyRetrieveOut { notify_unique: unique, nodeid: node, offset, size, padding: 0 };
        self.send(abi::NOTIFY_RETRIEVE, &[out.as_bytes()]).map(|()| unique)
    }

    /// Has the kernel send an empty NOTIFY_REPLY numbered [`KICK`] to the queue of the CPU that this runs on. `file` is a
    /// regular file that the kernel knows. Takes no lock that a handler could be waiting under: the range is empty.
    pub(crate) fn kick(&self, file: u64) -> Result<(), Errno> {
        let out = NotifyRetrieveOut { notify_unique: KICK, nodeid: file, offset: 0, size: 0, padding: 0 };
        self.send(abi::NOTIFY_RETRIEVE, &[out.as_bytes()])
    }

    /// Requests that were read from the device and not answered are delivered again. Only with
    /// [`crate::flags::HAS_RESEND`]; requests of the ring are not covered.
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn resend(&self) -> Result<(), Errno> {
        self.send(abi::NOTIFY_RESEND, &[])
    }

    /// All names are looked up anew before their next use. Since Linux 6.16 (7.44).
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn inc_epoch(&self) -> Result<(), Errno> {
        self.send(abi::NOTIFY_INC_EPOCH, &[])
    }

    /// The kernel forgets those of the nodes that nothing uses. Since Linux 6.18 (7.45).
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn prune(&self, nodes: &[u64]) -> Result<(), Errno> {
        let count = u32::try_from(nodes.len()).map_err(|_| Errno::INVAL)?;
        self.send(abi::NOTIFY_PRUNE, &[NotifyPruneOut { count, padding: 0, spare: 0 }.as_bytes(), nodes.as_bytes()])
    }

    /// Those who poll an open file are to ask again. `kh` came with POLL.
    ///
    /// # Errors
    /// See [`Notifier`].
    pub fn poll_wakeup(&self, kh: u64) -> Result<(), Errno> {
        self.send(abi::NOTIFY_POLL, &[NotifyPollWakeupOut { kh }.as_bytes()])
    }

    fn send(&self, code: i32, parts: &[&[u8]]) -> Result<(), Errno> {
        let len = size_of::<OutHeader>() + parts.iter().map(|p| p.len()).sum::<usize>();
        let header = OutHeader { len: u32::try_from(len).map_err(|_| Errno::INVAL)?, error: code, unique: 0 };
        let mut slices = [IoSlice::new(header.as_bytes()), IoSlice::new(&[]), IoSlice::new(&[]), IoSlice::new(&[])];
        for (slice, part) in slices.iter_mut().skip(1).zip(parts) {
            *slice = IoSlice::new(part);
        }
        rustix::io::writev(&*self.session.device, &slices)?;
        self.session.counters.notifications.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn length(bytes: &[u8]) -> Result<u32, Errno> {
    u32::try_from(bytes.len()).map_err(|_| Errno::INVAL)
}

impl Session {
    /// A way to tell the kernel what changed.
    #[must_use]
    pub fn notifier(self: &Arc<Self>) -> Notifier {
        Notifier::new(self.clone())
    }
}
