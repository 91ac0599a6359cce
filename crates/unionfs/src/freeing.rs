//! Removing from a full branch: docs/design/unionfs.md, "Full branches". And making what is only a name.

use crate::branch::BranchId;
use crate::node::Core;
use crate::op::Op;
use crate::spare::{Unnamed, is_full};
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vnode::{Errno, Kind, Name, Result, Vnode};

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
