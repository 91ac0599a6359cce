//! Creation of a directory's part on a branch, and the branches that allow it. A part is created
//! only when an entry is to be created in it. It gets the attributes of the directory's leftmost
//! part, and no entries.
//!
//! The parts of a directory lie in parts of the parent. So it can get a part left of its leftmost
//! one if each ancestor, up to the nearest one that has a part on that branch, also has its
//! leftmost part further right. It can get a part *right* of its leftmost one, in a union that
//! spreads directories, if a lookup would find that part: [`UnionVnode::can_lie_on`].

use crate::branch::{BranchId, Lower, is_dir};
use crate::copydata::gives_same_access;
use crate::listing::EntryChange;
use crate::node::{Core, Place, UnionVnode, lock_entries};
use crate::op::Op;
use crate::opaque_redirect::{Onward, Walk};
use crate::options::Copyup;
use std::sync::Arc;
use vnode::{Attr, Errno, Name, RenameFlags, Result, Vnode};

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
            let next = dir.place();
            if stack.first().is_none_or(|leftmost| op.set.is_left(leftmost.branch, branch)) {
                // It has a place: the root has a part on every branch.
                let Some(place) = next.as_ref().filter(|_| self.core.spreads(op)) else { return Ok(false) };
                if !self.core.shows_part(op, &place.parent.stack()?, place.name()?, branch)? {
                    return Ok(false);
                }
            }
            place = Some(next.ok_or(Errno::NOENT)?);
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
    /// Whether directories may get parts right of their leftmost one.
    pub(crate) fn spreads(&self, op: &Op<'_>) -> bool {
        op.moves || op.set.moving || self.options.create.spreads()
    }

    /// Whether a lookup of the directory `name` in `stack` would find a new part on `branch`, right
    /// of its leftmost one: nothing of that name is there, and no whiteout, opaque mark, redirect
    /// or file left of it ends the search before.
    ///
    /// The result remains true while the entries of the parent are locked: marks are only added to
    /// a directory when it is renamed or replaced, under that lock.
    fn shows_part(&self, op: &Op<'_>, stack: &[Lower], name: Name<'_>, branch: BranchId) -> Result<bool> {
        let mut walk = Walk::new();
        // A redirect can lead to the directory's path. Then it must already show the directory's
        // parts there, or it would begin to show them.
        let mut reached = op.set.order.iter().take_while(|member| member.id != branch);
        let last = reached.by_ref().filter(|member| op.set.has_redirects(member.id)).last().map(|member| member.id);
        let mut seen = last.is_none();
        for part in stack {
            let beyond = last.is_some_and(|last| op.set.is_left(last, part.branch));
            seen |= beyond && part.branch != branch && part.vnode.lookup(op, name)?.is_some_and(|e| is_dir(&e.vnode));
        }
        if !seen {
            return Ok(false);
        }
        for part in stack.iter().filter(|part| !op.set.is_left(branch, part.branch)) {
            let entry = part.vnode.lookup(op, name)?;
            if part.branch == branch && entry.is_some() {
                return Ok(false);
            }
            if let Some(entry) = entry {
                let found = Lower { vnode: entry.vnode, branch: part.branch };
                let ends = !is_dir(&found.vnode)
                    || matches!(
                        self.onward(op, &found, (stack, name), &mut walk)?,
                        Onward::Opaque | Onward::Redirected(_)
                    )
                    || self.is_opaque(op, &found)?;
                if ends {
                    return Ok(false);
                }
            }
            if self.has_whiteout(op, part, name)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Gives a part of `dir` the owner, mode and ACLs of its leftmost part, from which new entries
    /// inherit. Users do not see the change. The caller holds the entry lock of `dir`.
    pub(crate) fn refresh_part(&self, op: &Op<'_>, dir: &UnionVnode, part: &Lower) -> Result<()> {
        let leftmost = dir.leaf();
        let server = self.server(op);
        if part.branch == leftmost.branch || gives_same_access(&server, &leftmost.vnode, &part.vnode)? {
            return Ok(());
        }
        let attr = leftmost.vnode.getattr(op)?;
        self.copy_attributes_as(op, Copyup::Preserve, &leftmost.vnode, &attr, &part.vnode)
    }

    /// Returns the nearest read-write branch, from the position `bound` to the left, on which each
    /// of these directories has a part or can get one.
    ///
    /// Every operation that may have to create a part chooses its branch here. The leftmost branch
    /// is always possible ([`UnionVnode::can_lie_on`]).
    pub(crate) fn branch_for(&self, op: &Op<'_>, dirs: &[&UnionVnode], bound: usize) -> Result<BranchId> {
        let candidates = || op.set.writables_from(bound).map(|member| member.id);
        let kept = candidates().filter(|&branch| !op.set.is_drained(branch));
        for branch in kept.chain(candidates().filter(|&branch| op.set.is_drained(branch))) {
            if self.can_take(op, dirs, branch)? {
                return Ok(branch);
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
            let _locked = lock_entries(op, &[(&place.parent, Some(place.name()?)), (dir, None)])?;
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
            let original = stack.first().ok_or(Errno::IO)?;
            let Some(parent) = place.parent.part(branch)? else { return Ok(false) };
            let right = op.set.is_left(original.branch, branch);
            if right && !(self.spreads(op) && self.shows_part(op, &place.parent.stack()?, place.name()?, branch)?) {
                return Ok(false);
            }
            let at = stack.iter().take_while(|part| op.set.is_left(part.branch, branch)).count();
            let copy =
                self.publish_directory(op, &parent, &place, original, (right && at == stack.len()).then_some(dir))?;
            let mut parts = stack.to_vec();
            parts.insert(at, Lower { vnode: copy, branch });
            dir.set_stack(parts.into())?;
            // The view has not changed, but the times of the parent's part have.
            place.parent.entry_changed(place.name()?, EntryChange::Unknown);
            if let (0, Some(upcalls)) = (at, self.upcalls()) {
                // Its attributes are those of the new part, with another change time.
                upcalls.attributes_changed(self.shown(dir.id));
            }
            return Ok(true);
        }
    }

    /// Builds the copy aside and renames it into place. `last`: the directory, if the copy becomes
    /// its rightmost part, by which it is numbered. It keeps its number then.
    fn publish_directory(
        &self,
        op: &Op<'_>,
        parent: &Lower,
        place: &Place,
        original: &Lower,
        last: Option<&UnionVnode>,
    ) -> Result<Arc<dyn Vnode>> {
        let server = self.server(op);
        let attr: Attr = original.vnode.getattr(op)?;
        let (work, name, made) = self.begin_work(op, parent.branch, |work, name| work.mkdir(&server, name, 0o700))?;
        let copy = made.vnode;
        // The attributes of a part right of the leftmost are not shown, but inherited.
        let right = op.set.is_left(original.branch, parent.branch);
        let copyup = if right || op.moves { Copyup::Preserve } else { self.options.copyup };
        let copied = self.copy_attributes_as(op, copyup, &original.vnode, &attr, &copy);
        let numbered = copied.and_then(|()| match last {
            Some(dir) => self.number_part(op, dir, &Lower { vnode: copy.clone(), branch: parent.branch }),
            None => Ok(()),
        });
        let published = numbered.and_then(|()| {
            self.preserving_times(op, parent, || {
                let flags = RenameFlags { no_replace: true, ..RenameFlags::default() };
                work.rename(&server, name.name()?, &parent.vnode, place.name()?, flags)
            })
        });
        if let Err(e) = published {
            if let Err(errno) = work.rmdir(&server, name.name()?) {
                tracing::warn!(%errno, "could not remove an unfinished directory from the work directory");
            }
            if last.is_some() {
                self.part_removed(op, &Lower { vnode: copy, branch: parent.branch });
            }
            return Err(e);
        }
        Ok(copy)
    }
}
