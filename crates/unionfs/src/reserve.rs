//! The files that a union sets aside on a branch for when that is full: docs/design/unionfs.md,
//! "Full branches".

use crate::inode_number::mix;
use crate::log::write_all;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vnode::{Cx, Entry, Errno, OpenFile, OpenFlags, Result, SetAttr, Vnode};

/// Bytes reserved: room for a block of a directory that has to grow for a whiteout, and for records
/// of the identity log.
const RESERVE: u64 = 64 << 10;
/// The reserve takes at most 1/256 of the file system.
const SHARE: u64 = 256;
/// The smallest useful reserve, in bytes.
const LEAST: u64 = 4 << 10;
/// Flags for fallocate(2): without `FALLOC_FL_KEEP_SIZE`, so that truncating the reserve frees its
/// blocks.
const ALLOCATE: u32 = 0;

/// An open file without a name. It vanishes when closed, also if the server is killed.
#[derive(Debug)]
pub(crate) struct Unnamed {
    pub(crate) vnode: Arc<dyn Vnode>,
    file: Arc<dyn OpenFile>,
}

impl Unnamed {
    /// Creates a file without a name on the branch with this root.
    pub(crate) fn make(cx: &Cx<'_>, root: &Arc<dyn Vnode>, mode: u32) -> Result<Self> {
        let (Entry { vnode, .. }, file) = root.tmpfile(cx, mode, OpenFlags::RDWR)?;
        Ok(Self { vnode, file })
    }
}

/// Files set aside on a read-write branch for when that is full.
#[derive(Debug, Default)]
pub(crate) struct Reserve {
    /// The blank, an empty whiteout. If no inode is left, new whiteouts are hard links to it.
    pub(crate) blank: Mutex<Option<Unnamed>>,
    /// The reserve of allocated blocks.
    pub(crate) blocks: Mutex<Option<Unnamed>>,
    /// Whether the reserve is smaller than it should be: it was released, and could not be filled
    /// again.
    pub(crate) short: AtomicBool,
}

impl Reserve {
    /// Closes both files.
    pub(crate) fn release(&self) {
        let old = (self.blank.lock().take(), self.blocks.lock().take());
        drop(old);
        self.short.store(false, Ordering::Release);
    }

    /// Creates both files, with as many blocks as available.
    pub(crate) fn prepare(&self, cx: &Cx<'_>, root: &Arc<dyn Vnode>) -> Result<()> {
        let blank = Unnamed::make(cx, root, 0o444)?;
        *self.blank.lock() = Some(blank);
        let reserve = Unnamed::make(cx, root, 0o600)?;
        let mut kept = self.blocks.lock();
        *kept = Some(reserve);
        self.fill(cx, root, &kept);
        Ok(())
    }

    /// Allocates the reserve's blocks, or fewer if the file system has no more.
    pub(crate) fn fill(&self, cx: &Cx<'_>, root: &Arc<dyn Vnode>, reserve: &Option<Unnamed>) {
        let Some(reserve) = reserve else { return };
        let total = root.statfs(cx).map_or(0, |fs| fs.blocks.saturating_mul(fs.frsize));
        let most = (total / SHARE).min(RESERVE);
        let mut size = most;
        while size >= LEAST {
            match allocate(cx, &*reserve.file, size) {
                Err(Errno::NOSPC | Errno::DQUOT) => size /= 2,
                Ok(()) => break,
                Err(errno) => {
                    tracing::debug!(%errno, "could not reserve space for removals on a full branch");
                    self.short.store(false, Ordering::Release);
                    return;
                }
            }
        }
        self.short.store(size < most, Ordering::Release);
    }

    /// Releases the reserve's blocks.
    pub(crate) fn release_blocks(&self, cx: &Cx<'_>, reserve: &Option<Unnamed>) {
        let Some(reserve) = reserve else { return };
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        if let Err(errno) = reserve.vnode.setattr(cx, &set, Some(&*reserve.file)) {
            tracing::debug!(%errno, "could not release the space reserved for removals");
        }
        self.short.store(true, Ordering::Release);
    }
}

/// Allocates the first `size` bytes of a file. Writes them if the file system does not support
/// fallocate(2).
fn allocate(cx: &Cx<'_>, file: &dyn OpenFile, size: u64) -> Result<()> {
    match file.fallocate(cx, ALLOCATE, 0, size) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
            // Pseudo-random bytes: a file system that compresses would allocate fewer blocks.
            let bytes: Vec<u8> = (0..size / 8).flat_map(|n| mix(n).to_le_bytes()).collect();
            write_all(file, cx, &bytes, 0)
        }
        other => other,
    }
}

/// Whether the error means that the file system, or the user's quota, is full.
pub(crate) fn is_full(errno: Errno) -> bool {
    matches!(errno, Errno::NOSPC | Errno::DQUOT)
}
