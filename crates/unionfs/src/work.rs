//! The work directory. Files that need a name before they are renamed into place are built there.
//! It is emptied at mount.

use crate::branch::{BranchId, Lower};
use crate::node::Core;
use crate::op::Op;
use crate::ownfiles::Own;
use crate::ownnames::WORK;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vnode::{Cx, DirEntry, Errno, Kind, Name, Result, Vnode};

/// Maximum depth of a tree to remove: a union leaves no deeper one in a work directory.
pub(crate) const DEPTH: u32 = 64;

/// A name in a work directory.
pub(crate) struct WorkName(String);

impl WorkName {
    pub(crate) fn name(&self) -> Result<Name<'_>> {
        Name::new(self.0.as_bytes())
    }
}

impl Core {
    /// Calls `make` with a branch's work directory and an unused name, and returns both along with
    /// the result.
    pub(crate) fn begin_work<T>(
        &self,
        op: &Op<'_>,
        branch: BranchId,
        make: impl Fn(&Arc<dyn Vnode>, Name<'_>) -> Result<T>,
    ) -> Result<(Arc<dyn Vnode>, WorkName, T)> {
        self.in_own_dir(op, branch, Own::Work, |dir| {
            let name = WorkName(format!("c{}", self.work_number.fetch_add(1, Ordering::Relaxed)));
            let made = make(dir, name.name()?)?;
            Ok((dir.clone(), name, made))
        })
    }

    /// Removes the work directory of a branch if it is empty.
    pub(crate) fn drop_work(&self, op: &Op<'_>, branch: BranchId) {
        let Ok(state) = op.set.branch(branch) else { return };
        if state.own(Own::Work).forget() {
            let root = Lower { vnode: state.root.clone(), branch };
            let removed =
                Name::new(WORK).and_then(|name| self.preserving_times(op, &root, || state.root.rmdir(op, name)));
            if let Err(errno) = removed {
                tracing::debug!(%errno, branch = %op.set.path_of(branch), "could not remove the work directory");
            }
        }
    }
}

/// Removes leftovers of an interrupted union from its work directory.
pub(crate) fn clean_work(cx: &Cx<'_>, work: &Arc<dyn Vnode>) -> Result<()> {
    empty(cx, work, DEPTH)
}

/// Removes all entries of a directory recursively.
pub(crate) fn empty(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, depth: u32) -> Result<()> {
    empty_except(cx, dir, depth, b"")
}

/// Removes all entries of a directory recursively, except the one with this name.
pub(crate) fn empty_except(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, depth: u32, except: &[u8]) -> Result<()> {
    let depth = depth.checked_sub(1).ok_or(Errno::LOOP)?;
    for (name, kind) in entries(cx, dir)?.into_iter().filter(|(name, _)| **name != *except) {
        let name = Name::new(&name)?;
        if kind == Kind::Directory {
            if let Some(inner) = dir.lookup(cx, name)? {
                empty(cx, &inner.vnode, depth)?;
            }
            dir.rmdir(cx, name)?;
        } else {
            dir.unlink(cx, name)?;
        }
    }
    Ok(())
}

/// Returns the names in a lower directory, with their kinds.
pub(crate) fn entries(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Vec<(Box<[u8]>, Kind)>> {
    let mut names = Vec::new();
    let mut sink = |entry: &DirEntry<'_>| {
        names.push((entry.name.as_bytes().into(), entry.kind));
        true
    };
    dir.readdir(cx, 0, &mut sink)?;
    Ok(names)
}
