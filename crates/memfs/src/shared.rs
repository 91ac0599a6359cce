use crate::data::PAGE;
use crate::faults::{End, Faults, Op};
use crate::tree::Tree;
use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vnode::{Errno, Result, StatFs};

/// Properties of a memory file system.
#[derive(Clone, Copy, Debug)]
pub struct MemOptions {
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Whether files can share data (`FICLONE`).
    pub reflink: bool,
    /// Whether unnamed files can be created.
    pub tmpfile: bool,
    /// Whether a crash loses data that was not made durable. Names and attributes are never lost.
    pub lose_data: bool,
    /// Total space in bytes.
    pub space: u64,
    /// A quota, in bytes: beyond it allocations fail with `EDQUOT`.
    pub quota: u64,
    /// Pages, of 4 KiB, that each object takes beside its data.
    pub object_pages: u64,
    /// Whether to report that operations may hang.
    pub may_hang: bool,
    /// Whether to report that results depend on the caller. They do not, but the layer above must
    /// assume so.
    pub varies_by_caller: bool,
    /// The generation of all objects.
    pub generation: u32,
    /// Whether open files have a host file, as on a file system of the host. It is a device that
    /// discards everything; a test that plays the kernel writes to the file itself.
    pub backing: bool,
    /// Whether each file system has a fingerprint of its own, and times later than those of the
    /// file systems created before it.
    pub identified: bool,
}

impl Default for MemOptions {
    fn default() -> Self {
        Self {
            uid: 0,
            gid: 0,
            reflink: false,
            tmpfile: true,
            lose_data: false,
            space: 1 << 30,
            quota: u64::MAX,
            object_pages: 0,
            may_hang: false,
            varies_by_caller: false,
            generation: 0,
            backing: false,
            identified: false,
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "the layer above needs some descriptor")]
fn open_null() -> Option<File> {
    File::options().read(true).write(true).open("/dev/null").ok()
}

/// An operation under way, with the tree locked.
pub(crate) struct Running<'a> {
    tree: MutexGuard<'a, Tree>,
    // Dropped after the lock is released.
    _end: End<'a>,
}

impl Deref for Running<'_> {
    type Target = Tree;

    fn deref(&self) -> &Tree {
        &self.tree
    }
}

impl DerefMut for Running<'_> {
    fn deref_mut(&mut self) -> &mut Tree {
        &mut self.tree
    }
}

/// State shared by all vnodes.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) tree: Arc<Mutex<Tree>>,
    pub(crate) faults: Faults,
    pub(crate) options: MemOptions,
    pub(crate) read_only: AtomicBool,
    pub(crate) space: AtomicU64,
    fsid: u64,
    /// See [`MemOptions::backing`].
    pub(crate) backing: Option<File>,
}

impl Shared {
    pub(crate) fn new(tree: Arc<Mutex<Tree>>, options: MemOptions, faults: Faults) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            tree,
            faults,
            options,
            read_only: AtomicBool::new(false),
            space: AtomicU64::new(options.space),
            fsid: NEXT.fetch_add(1, Ordering::Relaxed),
            backing: if options.backing { open_null() } else { None },
        }
    }

    pub(crate) fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an operation that changes nothing.
    pub(crate) fn begin(&self, op: Op) -> Result<Running<'_>> {
        self.faults.inject(op)?;
        Ok(Running { tree: self.tree(), _end: End(&self.faults) })
    }

    /// Begins an operation that changes something.
    pub(crate) fn begin_change(&self, op: Op) -> Result<Running<'_>> {
        self.faults.inject(op)?;
        let end = End(&self.faults);
        self.require_read_write()?;
        Ok(Running { tree: self.tree(), _end: end })
    }

    /// Fails with `EROFS` if the file system is read-only.
    pub(crate) fn require_read_write(&self) -> Result<()> {
        if self.read_only.load(Ordering::Relaxed) { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// Returns the number of pages that the file system has room for.
    pub(crate) fn capacity(&self) -> u64 {
        self.space.load(Ordering::Relaxed) / PAGE
    }

    /// Returns how many of `wanted` pages can be allocated, at least if they are not enough, and
    /// the error if they are not.
    pub(crate) fn room(&self, tree: &mut Tree, wanted: u64) -> (u64, Errno) {
        let (capacity, quota) = (self.capacity(), self.options.quota / PAGE);
        let errno = if quota < capacity { Errno::DQUOT } else { Errno::NOSPC };
        (tree.free_pages(capacity.min(quota), wanted), errno)
    }

    /// Allocates pages.
    ///
    /// # Errors
    /// `ENOSPC` or `EDQUOT` if there are not enough.
    pub(crate) fn allocate(&self, tree: &mut Tree, pages: u64) -> Result<()> {
        let (free, errno) = self.room(tree, pages);
        if pages > free {
            return Err(errno);
        }
        tree.allocates(pages);
        Ok(())
    }

    pub(crate) fn stat_fs(&self, tree: &Tree) -> StatFs {
        let free = self.capacity().saturating_sub(tree.allocated());
        StatFs {
            frsize: PAGE,
            bsize: PAGE,
            blocks: self.capacity(),
            bfree: free,
            bavail: free,
            files: 1 << 32,
            ffree: (1 << 32) - tree.inodes.len() as u64,
            namemax: 255,
            fsid: self.fsid,
        }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }
}
