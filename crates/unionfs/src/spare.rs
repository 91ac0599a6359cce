//! What lets files be removed from a full branch: docs/design/unionfs.md, "Full branches".

use crate::identity::mix;
use crate::log::write_all;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vnode::{Cx, Entry, Errno, OpenFile, OpenFlags, Result, SetAttr, Vnode};

/// Room for a whiteout in a directory that must grow for it, and for the records of the identity log.
const RESERVE: u64 = 64 << 10;
/// A reserve takes at most this share of a file system.
const SHARE: u64 = 256;
/// Less than this is of no use.
const LEAST: u64 = 4 << 10;
/// `FALLOC_FL_KEEP_SIZE` is not given: the reserve has the size of what it allocates, so that truncating it frees that.
const ALLOCATE: u32 = 0;

/// A file without a name. It lives as long as it is open: a killed server leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Unnamed {
    pub(crate) vnode: Arc<dyn Vnode>,
    file: Arc<dyn OpenFile>,
}

impl Unnamed {
    pub(crate) fn make(cx: &Cx<'_>, root: &Arc<dyn Vnode>, mode: u32) -> Result<Self> {
        let (Entry { vnode, .. }, file) = root.tmpfile(cx, mode, OpenFlags::RDWR)?;
        Ok(Self { vnode, file })
    }
}

/// What a union keeps on a read-write branch for the time when that is full.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    /// An empty whiteout: where no inode is left, new whiteouts are hard links to it.
    pub(crate) blank: Mutex<Option<Unnamed>>,
    /// Allocated blocks.
    pub(crate) reserve: Mutex<Option<Unnamed>>,
    /// The reserve was spent, and could not be filled again.
    pub(crate) short: AtomicBool,
}

impl Spare {
    /// Lets both files go.
    pub(crate) fn release(&self) {
        let old = (self.blank.lock().take(), self.reserve.lock().take());
        drop(old);
        self.short.store(false, Ordering::Release);
    }

    /// Makes what can be had.
    pub(crate) fn prepare(&self, cx: &Cx<'_>, root: &Arc<dyn Vnode>) -> Result<()> {
        let blank = Unnamed::make(cx, root, 0o444)?;
        *self.blank.lock() = Some(blank);
        let reserve = Unnamed::make(cx, root, 0o600)?;
        let mut kept = self.reserve.lock();
        *kept = Some(reserve);
        self.fill(cx, root, &kept);
        Ok(())
    }

    /// Allocates the reserve's blocks, or fewer of them where these are not to be had.
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
                    tracing::debug!(%errno, "no space can be reserved for removing files from a full branch");
                    self.short.store(false, Ordering::Release);
                    return;
                }
            }
        }
        self.short.store(size < most, Ordering::Release);
    }

    /// Gives the reserve's blocks back to the file system.
    pub(crate) fn spend(&self, cx: &Cx<'_>, reserve: &Option<Unnamed>) {
        let Some(reserve) = reserve else { return };
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        if let Err(errno) = reserve.vnode.setattr(cx, &set, Some(&*reserve.file)) {
            tracing::debug!(%errno, "the space reserved for removing files could not be released");
        }
        self.short.store(true, Ordering::Release);
    }
}

/// Allocates the first `size` bytes of a file; writes them where the file system can't allocate.
fn allocate(cx: &Cx<'_>, file: &dyn OpenFile, size: u64) -> Result<()> {
    match file.fallocate(cx, ALLOCATE, 0, size) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
            // Nothing that a file system could compress.
            let bytes: Vec<u8> = (0..size / 8).flat_map(|n| mix(n).to_le_bytes()).collect();
            write_all(file, cx, &bytes, 0)
        }
        other => other,
    }
}

/// Is there no room left, or none for this user?
pub(crate) fn is_full(errno: Errno) -> bool {
    matches!(errno, Errno::NOSPC | Errno::DQUOT)
}
