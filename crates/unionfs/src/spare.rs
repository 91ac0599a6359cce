//! What lets files be removed from a full branch: docs/unionfs.md, "Full branches".

use crate::branch::BranchId;
use crate::core::Core;
use crate::identity::mix;
use crate::log::write_all;
use crate::op::Op;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vnode::{Cx, Entry, Errno, Kind, Name, OpenFile, OpenFlags, Result, SetAttr, Vnode};

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
struct Unnamed {
    vnode: Arc<dyn Vnode>,
    file: Arc<dyn OpenFile>,
}

impl Unnamed {
    fn make(cx: &Cx<'_>, root: &Arc<dyn Vnode>, mode: u32) -> Result<Self> {
        let (Entry { vnode, .. }, file) = root.tmpfile(cx, mode, OpenFlags::RDWR)?;
        Ok(Self { vnode, file })
    }
}

/// What a union keeps on a read-write branch for the time when that is full.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    /// An empty whiteout: where no inode is left, new whiteouts are hard links to it.
    blank: Mutex<Option<Unnamed>>,
    /// Allocated blocks.
    reserve: Mutex<Option<Unnamed>>,
    /// The reserve was spent, and could not be filled again.
    short: AtomicBool,
}

impl Spare {
    /// Lets both files go.
    pub(crate) fn release(&self) {
        let old = (self.blank.lock().take(), self.reserve.lock().take());
        drop(old);
        self.short.store(false, Ordering::Release);
    }

    /// Makes what can be had.
    fn prepare(&self, cx: &Cx<'_>, root: &Arc<dyn Vnode>) -> Result<()> {
        let blank = Unnamed::make(cx, root, 0o444)?;
        *self.blank.lock() = Some(blank);
        let reserve = Unnamed::make(cx, root, 0o600)?;
        let mut kept = self.reserve.lock();
        *kept = Some(reserve);
        self.fill(cx, root, &kept);
        Ok(())
    }

    /// Allocates the reserve's blocks, or fewer of them where these are not to be had.
    fn fill(&self, cx: &Cx<'_>, root: &Arc<dyn Vnode>, reserve: &Option<Unnamed>) {
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
    fn spend(&self, cx: &Cx<'_>, reserve: &Option<Unnamed>) {
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
fn is_full(errno: Errno) -> bool {
    matches!(errno, Errno::NOSPC | Errno::DQUOT)
}

impl Core {
    /// Sets aside on a branch what removing files will need should it become full.
    pub(crate) fn prepare_spare(&self, op: &Op<'_>, index: BranchId) {
        let Ok(branch) = op.set.branch(index) else { return };
        if let Err(errno) = branch.spare.prepare(op, &branch.root) {
            tracing::debug!(%errno, branch = %op.set.path_of(index), "nothing is set aside for when the branch is full");
        }
    }

    /// Runs `remove`, an operation that frees space. If it finds a branch full, it runs once more with the space that was
    /// reserved for it; that is reserved again from what it frees. `remove` must leave everything as it was when it fails.
    pub(crate) fn freeing<T>(&self, op: &Op<'_>, mut remove: impl FnMut() -> Result<T>) -> Result<T> {
        match remove() {
            Err(errno) if is_full(errno) => {}
            other => return other,
        }
        let cx = self.own();
        // Whoever finds the branch full at the same time waits here until the reserve is filled again.
        let reserves: Vec<_> =
            op.set.writables().map(|member| (&member.state, member.state.spare.reserve.lock())).collect();
        for (branch, reserve) in &reserves {
            branch.spare.spend(&cx, reserve);
        }
        let done = remove();
        for (branch, reserve) in &reserves {
            branch.spare.fill(&cx, &branch.root, reserve);
        }
        done
    }

    /// Something was removed: fills the reserves that are not full.
    pub(crate) fn refill_spare(&self, op: &Op<'_>) {
        for branch in
            op.set.order.iter().map(|member| &member.state).filter(|branch| branch.spare.short.load(Ordering::Acquire))
        {
            let reserve: MutexGuard<'_, Option<Unnamed>> = branch.spare.reserve.lock();
            branch.spare.fill(&self.own(), &branch.root, &reserve);
        }
    }

    /// Makes a whiteout, or another mark that is only a name, on a branch that has no inode for it left: as a hard link.
    pub(crate) fn link_blank(&self, op: &Op<'_>, dir: &Arc<dyn Vnode>, branch: BranchId, name: Name<'_>) -> Result<()> {
        let branch = op.set.branch(branch)?;
        let mut blank = branch.spare.blank.lock();
        let linked = match &*blank {
            Some(blank) => dir.link(op, name, &blank.vnode),
            None => Err(Errno::NOENT),
        };
        match linked {
            // It has all the names that it can have, or the last of them is gone.
            Err(Errno::MLINK | Errno::NOENT | Errno::STALE) => {
                let fresh = Unnamed::make(op, &branch.root, 0o444)?;
                dir.link(op, name, &fresh.vnode)?;
                *blank = Some(fresh);
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// Makes an empty file whose name is all that matters.
    pub(crate) fn make_empty(&self, op: &Op<'_>, dir: &Arc<dyn Vnode>, branch: BranchId, name: Name<'_>) -> Result<()> {
        let op = &self.server(op);
        match dir.mknod(op, name, Kind::Regular.mode_bits() | 0o444, 0) {
            Err(errno) if is_full(errno) => match self.link_blank(op, dir, branch, name) {
                Err(Errno::EXIST) => Err(Errno::EXIST),
                linked => linked.map_err(|_| errno),
            },
            other => other.map(drop),
        }
    }
}
