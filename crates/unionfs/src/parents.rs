//! Creation of a directory's part on a branch, and the branches that allow it. A part is created
//! only when an entry is to be created in it. It gets the attributes of the directory's leftmost
//! part, and no entries.
//!
//! A directory never gets a part to the right of its leftmost one, and its parts lie in parts of
//! the parent. So it can get a part on a branch only if the directory and each ancestor, up to the
//! nearest one that has a part there, have their leftmost parts further right:
//! [`UnionVnode::can_lie_on`].

use crate::branch::{BranchId, Lower};
use crate::listing::EntryChange;
use crate::node::{Core, Place, UnionVnode};
use crate::op::Op;
use std::sync::Arc;
use vnode::{Attr, Errno, RenameFlags, Result, Vnode};

impl UnionVnode {
    /// Whether this directory has a part on a branch, or can get one. `ENOENT` if it was removed.
    ///
    /// No lock is held, so the result may be out of date: another operation may give an ancestor a
    /// part further left. [`Core::ensure_part`] detects that.
    pub(crate) fn can_lie_on(&self, op: &Op<'_>, branch: BranchId) -> Result<bool> {
        let mut place: Option<Place> = None;
        loop {
            let dir = place.as_ref().map_or(self, |place| &*place.parent);
            let stack = dir.stack()?;
            if stack.iter().any(|part| part.branch == branch) {
                return Ok(true);
            }
            if stack.first().is_none_or(|leftmost| op.set.is_left(leftmost.branch, branch)) {
                return Ok(false);
            }
            place = Some(dir.place().ok_or(Errno::NOENT)?);
        }
    }

    /// Returns the target branch of new objects in this directory: that of its leftmost part, from
    /// which they inherit group and ACLs. If that is not writable, it is the nearest branch to the
    /// left that can take a copy of that part.
    pub(crate) fn target(&self, op: &Op<'_>) -> Result<BranchId> {
        let leftmost = self.stack()?.first().ok_or(Errno::NOENT)?.branch;
        self.core.branch_for(op, &[self], op.set.position(leftmost))
    }
}

impl Core {
    /// Returns the nearest read-write branch, from the position `bound` to the left, on which each
    /// of these directories has a part or can get one.
    ///
    /// Every operation that may have to create a part chooses its branch here. The leftmost branch
    /// is always possible ([`UnionVnode::can_lie_on`]).
    pub(crate) fn branch_for(&self, op: &Op<'_>, dirs: &[&UnionVnode], bound: usize) -> Result<BranchId> {
        for member in op.set.order.iter().take(bound.saturating_add(1)).rev() {
            if self.can_take(op, dirs, member.id)? {
                return Ok(member.id);
            }
        }
        Err(Errno::ROFS)
    }

    /// Whether the branch can be written, and each of these directories has a part there or can get
    /// one.
    pub(crate) fn can_take(&self, op: &Op<'_>, dirs: &[&UnionVnode], branch: BranchId) -> Result<bool> {
        if !op.set.writable(branch) {
            return Ok(false);
        }
        for dir in dirs {
            if !dir.can_lie_on(op, branch)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Ensures that `dir` and its ancestors have parts on `branch`. Returns false if `dir` can't
    /// have one there after all, because a directory changed or the branch is read-only: the caller
    /// has to choose a branch again.
    #[must_use = "the branch may have to be chosen again"]
    pub(crate) fn ensure_part(&self, op: &Op<'_>, dir: &Arc<UnionVnode>, branch: BranchId) -> Result<bool> {
        let mut missing = Vec::new();
        let mut next = dir.clone();
        while next.part(branch)?.is_none() {
            let parent = next.place().ok_or(Errno::NOENT)?.parent;
            missing.push(next);
            next = parent;
        }
        while let Some(dir) = missing.pop() {
            match self.copy_directory(op, &dir, branch) {
                Ok(true) => {}
                Err(e) if op.set.retry_left(branch, e) => return Ok(false),
                other => return other,
            }
        }
        Ok(true)
    }

    /// Creates a part of a directory whose parent has one on that branch. Returns false if this is
    /// no longer possible.
    fn copy_directory(&self, op: &Op<'_>, dir: &Arc<UnionVnode>, branch: BranchId) -> Result<bool> {
        let _job = self.jobs.start(op, dir.id)?;
        // The attributes must not change after they were copied.
        let _moving = self.write_gate.start_move(op, dir.id)?;
        loop {
            let place = dir.place().ok_or(Errno::NOENT)?;
            let _locked = place.parent.dir()?.entry_lock.write();
            if !dir.place().is_some_and(|now| now.is(&place)) {
                continue;
            }
            if dir.is_gone() {
                return Err(Errno::NOENT);
            }
            let stack = dir.stack()?;
            if stack.iter().any(|part| part.branch == branch) {
                return Ok(true);
            }
            let Some(original) = stack.first().filter(|first| op.set.is_left(branch, first.branch)) else {
                return Ok(false);
            };
            let Some(parent) = place.parent.part(branch)? else { return Ok(false) };
            let copy = self.publish_directory(op, &parent, &place, original)?;
            let parts = std::iter::once(Lower { vnode: copy, branch }).chain(stack.iter().cloned());
            dir.set_stack(parts.collect())?;
            // The view has not changed, but the times of the parent's part have.
            place.parent.entry_changed(place.name()?, EntryChange::Unknown);
            return Ok(true);
        }
    }

    /// Builds the copy aside and renames it into place.
    fn publish_directory(
        &self,
        op: &Op<'_>,
        parent: &Lower,
        place: &Place,
        original: &Lower,
    ) -> Result<Arc<dyn Vnode>> {
        let server = self.server(op);
        let attr: Attr = original.vnode.getattr(op)?;
        let (work, name, made) = self.begin_work(op, parent.branch, |work, name| work.mkdir(&server, name, 0o700))?;
        let copy = made.vnode;
        let published = self.copy_attributes(op, &original.vnode, &attr, &copy).and_then(|()| {
            self.preserving_times(op, &parent.vnode, || {
                let flags = RenameFlags { no_replace: true, ..RenameFlags::default() };
                work.rename(&server, name.name()?, &parent.vnode, place.name()?, flags)
            })
        });
        if let Err(e) = published {
            if let Err(errno) = work.rmdir(&server, name.name()?) {
                tracing::warn!(%errno, "could not remove an unfinished directory from the work directory");
            }
            return Err(e);
        }
        Ok(copy)
    }
}
