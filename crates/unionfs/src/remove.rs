//! Removing names of what is not a directory, and hiding: docs/unionfs.md, "Operations".

use crate::branch::{Core, is_dir};
use crate::copyup::put_times_back;
use crate::listing::Fate;
use crate::lookup::Hit;
use crate::node::{Lower, UnionVnode};
use crate::options::Delete;
use crate::retry::Step;
use crate::whiteout::reserved;
use std::sync::atomic::Ordering;
use vnode::{Attr, Cx, Entry, Errno, Name, Result};

/// A whiteout beside an entry that is about to go.
pub(crate) struct Cover {
    /// The directory's attributes before, if the whiteout was made now.
    made: Option<Attr>,
}

impl Cover {
    /// None was needed, or it was there.
    pub(crate) const NONE: Self = Self { made: None };

    /// Was it made now?
    pub(crate) fn is_new(&self) -> bool {
        self.made.is_some()
    }
}

/// A name went.
pub(crate) struct Removed {
    /// The branch that was changed.
    pub(crate) branch: u16,
    /// The lower name is still there, hidden.
    pub(crate) stays: bool,
}

impl UnionVnode {
    pub(crate) fn unlink_name(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        self.dir()?;
        self.core.require_writable()?;
        if reserved(name.as_bytes()) {
            return match self.core.user_mark(cx, name) {
                Some(mark) => self.remove_mark(cx, name, mark),
                None => Err(Errno::NOENT),
            };
        }
        let branch = self.until_done(cx, || {
            let _names = self.dir()?.names.write();
            let step = self.unlink_once(cx, name)?;
            if matches!(step, Step::Done(_)) {
                self.entry_changed(name, Fate::Gone);
            }
            Ok(step)
        })?;
        self.core.refill_spare();
        self.touch(cx, branch);
        Ok(())
    }

    fn unlink_once(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Step<u16>> {
        let core = &self.core;
        let stack = self.stack()?;
        if let Some(part) = core.only_leftmost(cx, &stack, name)? {
            // No bookkeeping: files of the leftmost branch never need their name again.
            return part.vnode.unlink(cx, name).map(|()| Step::Done(part.branch));
        }
        let (branch, entry) = match core.probe(cx, &stack, name)?.hit {
            Hit::None => return Err(Errno::NOENT),
            Hit::Dir { .. } => return Err(Errno::ISDIR),
            Hit::Leaf { branch, entry } => (branch, entry),
        };
        let lower = Lower { vnode: entry.vnode.clone(), branch };
        let remove = || {
            core.going_to_use(cx, self, name, &lower, &entry.attr)?;
            let removed = core.remove_leaf(cx, self, &stack, name, branch);
            if !matches!(removed, Ok(Step::Done(_))) {
                core.kept_name(cx, &lower, &entry.attr);
            }
            removed
        };
        // Hiding what lies on a branch that can't be changed frees nothing.
        let removed = if core.writable(branch) { core.freeing(remove) } else { remove() };
        let removed = match removed? {
            Step::Done(removed) => removed,
            Step::Need(branch) => return Ok(Step::Need(branch)),
            Step::Again => return Ok(Step::Again),
        };
        self.forget_leaf(cx, name, branch, entry, removed.stays);
        Ok(Step::Done(removed.branch))
    }

    /// Bookkeeping after a name of a file on `branch` went.
    pub(crate) fn forget_leaf(&self, cx: &Cx<'_>, name: Name<'_>, branch: u16, entry: Entry, stays: bool) {
        let lower = Lower { vnode: entry.vnode, branch };
        if let Ok(number) = self.core.number_of(&lower, &entry.attr)
            && let Some(vnode) = self.core.table.get(number)
        {
            vnode.lost_name(self, name.as_bytes());
        }
        self.core.note_name_went(cx, &lower, &entry.attr, stays);
    }
}

impl Core {
    /// Makes a file's name go from the view: the moment is one lower operation, whatever fails before it is undone.
    pub(crate) fn remove_leaf(
        &self,
        cx: &Cx<'_>,
        dir: &UnionVnode,
        stack: &[Lower],
        name: Name<'_>,
        branch: u16,
    ) -> Result<Step<Removed>> {
        let Some(part) = stack.iter().find(|part| part.branch == branch) else { return Err(Errno::STALE) };
        if self.options.delete == Delete::All {
            self.unlink_right(cx, stack, name, branch, None)?;
        }
        if !self.writable(branch) {
            return self.hide(cx, dir, stack, name, branch);
        }
        let cover = match self.cover(cx, stack, part, name)? {
            Step::Done(cover) => cover,
            Step::Need(_) | Step::Again => return Ok(Step::Again),
        };
        match part.vnode.unlink(cx, name) {
            Ok(()) => Ok(Step::Done(Removed { branch, stays: false })),
            Err(e) => {
                self.uncover(cx, part, name, &cover);
                if self.go_left(branch, e) { Ok(Step::Again) } else { Err(e) }
            }
        }
    }

    /// Makes a whiteout beside the entry in `part`, if something to the right would show without the entry.
    pub(crate) fn cover(&self, cx: &Cx<'_>, stack: &[Lower], part: &Lower, name: Name<'_>) -> Result<Step<Cover>> {
        if !self.shows_through(cx, stack, part.branch, name)? {
            return Ok(Step::Done(Cover::NONE));
        }
        let before = part.vnode.getattr(cx)?;
        match self.make_whiteout(cx, part, name) {
            Ok(made) => Ok(Step::Done(Cover { made: made.then_some(before) })),
            Err(e) if self.go_left(part.branch, e) => Ok(Step::Again),
            Err(e) => Err(e),
        }
    }

    /// Takes back what [`Self::cover`] made.
    pub(crate) fn uncover(&self, cx: &Cx<'_>, part: &Lower, name: Name<'_>, cover: &Cover) {
        if let Some(before) = &cover.made {
            self.tidy_whiteout(cx, part, name);
            put_times_back(&self.server(cx), &part.vnode, before);
        }
    }

    /// Hides an entry of a branch that can't be changed, by a whiteout in the nearest branch to its left that can.
    pub(crate) fn hide(
        &self,
        cx: &Cx<'_>,
        dir: &UnionVnode,
        stack: &[Lower],
        name: Name<'_>,
        branch: u16,
    ) -> Result<Step<Removed>> {
        let target = self.branch_for(&[dir], branch.checked_sub(1).ok_or(Errno::ROFS)?)?;
        let Some(part) = stack.iter().find(|part| part.branch == target) else { return Ok(Step::Need(target)) };
        match self.make_whiteout(cx, part, name) {
            Ok(_) => Ok(Step::Done(Removed { branch: part.branch, stays: true })),
            Err(e) if self.go_left(part.branch, e) => Ok(Step::Again),
            Err(e) => Err(e),
        }
    }

    /// `delete=all`: unlinks the instances right of `branch` that would show, from the right. What can't be unlinked is left,
    /// to be hidden. They are all behind the one that shows, so the view stays. `replaced`: the branch of the instance that
    /// showed until now; the others have long been hidden. Answers the branches where one went.
    pub(crate) fn unlink_right(
        &self,
        cx: &Cx<'_>,
        stack: &[Lower],
        name: Name<'_>,
        branch: u16,
        replaced: Option<u16>,
    ) -> Result<Vec<u16>> {
        let instances = self.instances(cx, stack, name, branch)?;
        let mut removed = Vec::new();
        for part in instances.iter().rev().filter(|part| self.writable(part.branch)) {
            let Some(entry) = part.vnode.lookup(cx, name)?.filter(|entry| !is_dir(&entry.vnode)) else { continue };
            if let Err(errno) = part.vnode.unlink(cx, name) {
                tracing::info!(%name, %errno, "an instance that can't be removed is hidden");
                continue;
            }
            removed.push(part.branch);
            let lower = Lower { vnode: entry.vnode, branch: part.branch };
            if replaced == Some(part.branch) {
                self.note_name_went(cx, &lower, &entry.attr, false);
            } else {
                self.hidden_name_went(cx, &lower, &entry.attr);
            }
        }
        Ok(removed)
    }

    /// The directories right of `branch` whose entries of that name would show one after the other.
    pub(crate) fn instances(&self, cx: &Cx<'_>, stack: &[Lower], name: Name<'_>, branch: u16) -> Result<Vec<Lower>> {
        let mut found = Vec::new();
        let last = stack.last().map_or(0, |part| part.branch);
        for part in stack.iter().filter(|part| part.branch > branch) {
            if part.vnode.lookup(cx, name)?.is_some() {
                found.push(part.clone());
            }
            if part.branch < last && self.has_whiteout(cx, part, name)? {
                break;
            }
        }
        Ok(found)
    }
}

impl UnionVnode {
    /// Marks a directory as removed.
    pub(crate) fn mark_removed(&self) {
        self.gone.store(true, Ordering::Release);
        self.set_place(None);
        self.entries_changed();
    }
}
