//! Removals on a full branch: docs/design/unionfs.md, "Full branches". Also the creation of empty
//! files of which only the name matters.

use crate::branch::BranchId;
use crate::node::Core;
use crate::op::Op;
use crate::reserve::{Unnamed, is_full};
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vnode::{Errno, Kind, Name, Result, Vnode};

impl Core {
    /// Creates the reserve of a branch, for removals when it is full.
    pub(crate) fn prepare_reserve(&self, op: &Op<'_>, id: BranchId) {
        let Ok(branch) = op.set.branch(id) else { return };
        if let Err(errno) = branch.reserve.prepare(op, &branch.root) {
            tracing::debug!(%errno, branch = %op.set.path_of(id), "could not create the reserve for removals on a full branch");
        }
    }

    /// Runs `remove`, an operation that frees space. If that fails because a branch is full,
    /// releases the reserves, runs it once more, and fills the reserves again. A failing `remove`
    /// must change nothing.
    pub(crate) fn with_reserve<T>(&self, op: &Op<'_>, mut remove: impl FnMut() -> Result<T>) -> Result<T> {
        match remove() {
            Err(errno) if is_full(errno) => {}
            other => return other,
        }
        let cx = self.server_cx();
        // Other removals that find the branch full wait here until the reserve is filled again.
        let reserves: Vec<_> =
            op.set.writables().map(|member| (&member.state, member.state.reserve.blocks.lock())).collect();
        for (branch, reserve) in &reserves {
            branch.reserve.release_blocks(&cx, reserve);
        }
        let done = remove();
        for (branch, reserve) in &reserves {
            branch.reserve.fill(&cx, &branch.root, reserve);
        }
        done
    }

    /// Fills the reserves that are not full, after a removal.
    pub(crate) fn refill_reserves(&self, op: &Op<'_>) {
        let written = op.set.writables().map(|member| &member.state);
        for branch in written.filter(|branch| branch.reserve.short.load(Ordering::Acquire)) {
            let reserve: MutexGuard<'_, Option<Unnamed>> = branch.reserve.blocks.lock();
            branch.reserve.fill(&self.server_cx(), &branch.root, &reserve);
        }
    }

    /// Creates a whiteout or mark on a branch without free inodes, as a hard link to the blank.
    pub(crate) fn link_blank(&self, op: &Op<'_>, dir: &Arc<dyn Vnode>, branch: BranchId, name: Name<'_>) -> Result<()> {
        let branch = op.set.branch(branch)?;
        let mut blank = branch.reserve.blank.lock();
        let linked = match &*blank {
            Some(blank) => dir.link(op, name, &blank.vnode),
            None => Err(Errno::NOENT),
        };
        match linked {
            // The blank has the maximum number of links, or its last name was removed.
            Err(Errno::MLINK | Errno::NOENT | Errno::STALE) => {
                let fresh = Unnamed::make(op, &branch.root, 0o444)?;
                dir.link(op, name, &fresh.vnode)?;
                *blank = Some(fresh);
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// Creates an empty file of which only the name matters.
    pub(crate) fn create_empty(
        &self,
        op: &Op<'_>,
        dir: &Arc<dyn Vnode>,
        branch: BranchId,
        name: Name<'_>,
    ) -> Result<()> {
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
