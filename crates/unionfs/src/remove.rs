//! unlink, and hiding of names: docs/design/unionfs.md, "Operations".

use crate::branch::{BranchId, Lower, is_dir};
use crate::filter::Need;
use crate::listing::EntryChange;
use crate::lookup::Hit;
use crate::metacopy::leftmost_branch;
use crate::node::{Core, UnionVnode};
use crate::op::Op;
use crate::options::Delete;
use crate::retry::Step;
use crate::times::restore_times;
use crate::whiteout::reserved;
use vnode::{Attr, Entry, Errno, Name, Result};

/// A whiteout beside an entry that is about to be removed, so that nothing to the right becomes
/// visible.
pub(crate) struct Cover {
    /// The lower directory's attributes before this operation created the whiteout; `None` if it
    /// created none.
    made: Option<Attr>,
}

impl Cover {
    /// No whiteout was needed, or it existed.
    pub(crate) const NONE: Self = Self { made: None };

    /// Whether this operation created the whiteout.
    pub(crate) fn is_new(&self) -> bool {
        self.made.is_some()
    }
}

/// A removed name.
pub(crate) struct Removed {
    /// The branch that was changed.
    pub(crate) branch: BranchId,
}

impl UnionVnode {
    /// Removes the name of a file, or a whiteout or mark of a user.
    pub(crate) fn unlink_name(&self, op: &Op<'_>, name: Name<'_>) -> Result<()> {
        self.dir()?;
        op.set.require_writable()?;
        if reserved(name.as_bytes()) {
            return match self.core.user_mark(op, name) {
                Some(mark) => self.remove_mark(op, name, mark),
                None => Err(Errno::NOENT),
            };
        }
        let branch = self.until_done(op, || {
            let _locked = self.lock_entry(op, name)?;
            let step = self.unlink_once(op, name)?;
            if matches!(step, Step::Done(_)) {
                self.entry_changed(name, EntryChange::Gone);
            }
            Ok(step)
        })?;
        self.core.refill_reserves(op);
        self.touch(op, branch);
        Ok(())
    }

    fn unlink_once(&self, op: &Op<'_>, name: Name<'_>) -> Result<Step<BranchId>> {
        let core = &self.core;
        let stack = self.parts_for(op, &self.stack()?, name, Need::Nothing)?;
        let mut shows = None;
        if let Some(first) = core.direct_leftmost(op, &stack) {
            let beyond = core.shows_through(op, &stack, first.branch, name)?;
            if !beyond {
                // The vnode need not forget the name: files of the leftmost branch are never copied
                // up.
                return first.vnode.unlink(op, name).map(|()| Step::Done(first.branch));
            }
            shows = Some((first.branch, beyond));
        }
        let (branch, entry) = match core.probe(op, &stack, name)?.hit {
            Hit::None => return Err(Errno::NOENT),
            Hit::Dir { .. } => return Err(Errno::ISDIR),
            Hit::Leaf { branch, entry } => (branch, entry),
        };
        let lower = Lower { vnode: entry.vnode.clone(), branch };
        // On a branch that is not written, the file is only hidden, which frees no space. A
        // metacopy there would apply to the next file of the name.
        let leftmost = leftmost_branch(&entry.vnode, branch);
        let removable = op.set.writable(branch) && op.set.writable(leftmost);
        let hider = if removable { None } else { Some(core.hiding_branch(op, self, leftmost)?) };
        let remove = || {
            let begun = core.begin_use(op, (self, name), (&lower, &entry.attr), hider)?;
            Ok((core.remove_leaf(op, self, &stack, name, (branch, hider), shows)?, begun))
        };
        let (removed, _begun) = if hider.is_none() { core.with_reserve(op, remove)? } else { remove()? };
        let removed = match removed {
            Step::Done(removed) => removed,
            Step::Need(branch) => return Ok(Step::Need(branch)),
            Step::Retry => return Ok(Step::Retry),
        };
        core.drop_metacopy(op, self, name, &lower.vnode);
        self.forget_leaf(op, name, branch, entry, hider);
        Ok(Step::Done(removed.branch))
    }

    /// Updates the vnode and the link count after a name of a file on `branch` was removed, or
    /// hidden by the branch `hider`.
    pub(crate) fn forget_leaf(
        &self,
        op: &Op<'_>,
        name: Name<'_>,
        branch: BranchId,
        entry: Entry,
        hider: Option<BranchId>,
    ) {
        let lower = Lower { vnode: entry.vnode, branch };
        if let Ok(number) = self.core.number_of(op, &lower, &entry.attr)
            && let Some(vnode) = self.core.table.get(number)
        {
            vnode.forget_name(self, name.as_bytes());
        }
        self.core.note_name_removed(op, &lower, &entry.attr, hider);
    }
}

impl Core {
    /// Removes a file's name from the view with one lower operation. Undoes all steps before it if
    /// it fails. `shows`: a branch and the result of [`Self::shows_through`] for it, if that is
    /// known.
    pub(crate) fn remove_leaf(
        &self,
        op: &Op<'_>,
        dir: &UnionVnode,
        stack: &[Lower],
        name: Name<'_>,
        (branch, hider): (BranchId, Option<BranchId>),
        shows: Option<(BranchId, bool)>,
    ) -> Result<Step<Removed>> {
        let mut shows = shows.filter(|(of, _)| *of == branch).map(|(_, shows)| shows);
        let Some(part) = stack.iter().find(|part| part.branch == branch) else { return Err(Errno::STALE) };
        if self.options.delete == Delete::All {
            self.unlink_right(op, stack, name, branch, None)?;
            shows = None;
        }
        if let Some(hider) = hider {
            return self.hide(op, dir, name, hider);
        }
        let shows = shows.map_or_else(|| self.shows_through(op, stack, branch, name), Ok)?;
        let cover = match if shows { self.cover_shown(op, part, name)? } else { Step::Done(Cover::NONE) } {
            Step::Done(cover) => cover,
            Step::Need(_) | Step::Retry => return Ok(Step::Retry),
        };
        match part.vnode.unlink(op, name) {
            Ok(()) => Ok(Step::Done(Removed { branch })),
            Err(e) => {
                self.uncover(op, part, name, &cover);
                if op.set.retry_left(branch, e) { Ok(Step::Retry) } else { Err(e) }
            }
        }
    }

    /// Covers the entry in `part`: creates a whiteout beside it if anything to the right would
    /// become visible without the entry.
    pub(crate) fn cover(&self, op: &Op<'_>, stack: &[Lower], part: &Lower, name: Name<'_>) -> Result<Step<Cover>> {
        match self.shows_through(op, stack, part.branch, name)? {
            true => self.cover_shown(op, part, name),
            false => Ok(Step::Done(Cover::NONE)),
        }
    }

    /// Covers the entry in `part`: something to the right would become visible without it.
    fn cover_shown(&self, op: &Op<'_>, part: &Lower, name: Name<'_>) -> Result<Step<Cover>> {
        let before = part.vnode.getattr(op)?;
        match self.create_whiteout(op, part, name) {
            Ok(made) => Ok(Step::Done(Cover { made: made.then_some(before) })),
            Err(e) if op.set.retry_left(part.branch, e) => Ok(Step::Retry),
            Err(e) => Err(e),
        }
    }

    /// Undoes [`Self::cover`].
    pub(crate) fn uncover(&self, op: &Op<'_>, part: &Lower, name: Name<'_>, cover: &Cover) {
        if let Some(before) = &cover.made {
            self.tidy_whiteout(op, part, name);
            restore_times(&self.server(op), &part.vnode, before);
            self.times_moved(part.branch, &part.vnode);
        }
    }

    /// Returns the branch that hides what the branches from `branch` on show: the nearest one, from
    /// `branch` to the left, that is written and can have a whiteout in this directory.
    pub(crate) fn hiding_branch(&self, op: &Op<'_>, dir: &UnionVnode, branch: BranchId) -> Result<BranchId> {
        self.branch_for(op, &[dir], op.set.position(branch))
    }

    /// Hides an entry by a whiteout on the branch `target`.
    pub(crate) fn hide(
        &self,
        op: &Op<'_>,
        dir: &UnionVnode,
        name: Name<'_>,
        target: BranchId,
    ) -> Result<Step<Removed>> {
        let Some(part) = dir.part(target)? else { return Ok(Step::Need(target)) };
        match self.create_whiteout(op, &part, name) {
            Ok(_) => Ok(Step::Done(Removed { branch: part.branch })),
            Err(e) if op.set.retry_left(part.branch, e) => Ok(Step::Retry),
            Err(e) => Err(e),
        }
    }

    /// For `delete=all`: unlinks the instances of a name right of `branch` that would become
    /// visible, beginning with the rightmost. The view does not change, because the visible
    /// instance hides them.
    ///
    /// The caller has to hide those that can't be unlinked, or may not: a redirect on a branch left
    /// of an instance can lead to this name, and the instance then ends the renamed directory.
    /// Directories further right would appear in it without the instance.
    ///
    /// `replaced`: the branch of the instance that was visible before the operation; the others
    /// were hidden already. Returns the branches on which an instance was unlinked.
    pub(crate) fn unlink_right(
        &self,
        op: &Op<'_>,
        stack: &[Lower],
        name: Name<'_>,
        branch: BranchId,
        replaced: Option<BranchId>,
    ) -> Result<Vec<BranchId>> {
        let instances = self.instances(op, stack, name, branch)?;
        let mut removed = Vec::new();
        // Directories right of the instance would appear without it.
        let mut ends_dir = false;
        for part in instances.iter().rev() {
            let (writable, redirected) = (op.set.writable(part.branch), op.set.has_redirects_left_of(part.branch));
            if !writable && !redirected {
                continue;
            }
            let Some(entry) = part.vnode.lookup(op, name)? else { continue };
            if is_dir(&entry.vnode) {
                ends_dir = true;
                continue;
            }
            if !writable || (ends_dir && redirected) {
                // It stays, and ends the directory also for instances left of it.
                ends_dir = false;
                continue;
            }
            if let Err(errno) = part.vnode.unlink(op, name) {
                tracing::info!(%name, %errno, "could not remove an entry from this branch: a whiteout hides it");
                continue;
            }
            removed.push(part.branch);
            let lower = Lower { vnode: entry.vnode, branch: part.branch };
            if replaced == Some(part.branch) {
                self.note_name_removed(op, &lower, &entry.attr, None);
            } else {
                self.hidden_name_removed(op, &lower, &entry.attr);
            }
        }
        Ok(removed)
    }

    /// Returns the parts right of `branch` that have an instance of this name: each would become
    /// visible if those left of it were removed.
    pub(crate) fn instances(
        &self,
        op: &Op<'_>,
        stack: &[Lower],
        name: Name<'_>,
        branch: BranchId,
    ) -> Result<Vec<Lower>> {
        let mut found = Vec::new();
        let last = stack.last().map(|part| part.branch);
        for part in stack.iter().filter(|part| op.set.is_left(branch, part.branch)) {
            if part.vnode.lookup(op, name)?.is_some() {
                found.push(part.clone());
            }
            if Some(part.branch) != last && self.has_whiteout(op, part, name)? {
                break;
            }
        }
        Ok(found)
    }
}

impl UnionVnode {
    /// Notes that this directory was removed.
    pub(crate) fn mark_removed(&self) {
        self.set_gone();
        self.set_place(None);
        self.entries_changed();
    }
}
