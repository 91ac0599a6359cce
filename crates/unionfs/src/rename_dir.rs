//! rename of directories. Their contents are never copied.

use crate::branch::{BranchId, Lower, same_stack};
use crate::lookup::{Hit, Probe};
use crate::node::{Core, UnionVnode, lock_entries};
use crate::op::Op;
use crate::rename::Rename;
use crate::retry::Step;
use crate::work::entries;
use std::sync::Arc;
use vnode::{Errno, Name, Result};

/// The mark that was added to a directory so that its contents remain the same at another place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Marked {
    Nothing,
    Opaque,
    Redirect,
}

impl Core {
    /// Returns the path of a directory on the branches right of the leftmost. The caller holds the
    /// tree lock.
    pub(crate) fn right_path(&self, dir: &Arc<UnionVnode>) -> Result<Vec<u8>> {
        let mut names = Vec::new();
        let mut next = dir.clone();
        let base = loop {
            if let Some(path) = &*next.dir()?.redirect.lock() {
                break path.to_vec();
            }
            let Some(place) = next.place() else { break Vec::new() };
            names.push(place.name);
            next = place.parent;
        };
        let path = names.iter().rev().fold(base, |mut path, name| {
            path.push(b'/');
            path.extend(name.as_bytes());
            path
        });
        Ok(path)
    }

    /// Whether `dir` is the directory `top` or below it. The caller holds the tree lock.
    pub(crate) fn is_below(&self, dir: &Arc<UnionVnode>, top: &UnionVnode) -> bool {
        let mut next = Some(dir.clone());
        while let Some(dir) = next {
            if std::ptr::eq(&raw const *dir, top) {
                return true;
            }
            next = dir.place().map(|place| place.parent);
        }
        false
    }

    /// Marks a directory so that it still merges the same parts once it is renamed to `name` in the
    /// directory with this stack. `part`: its part on the branch of the rename. At the present
    /// place the mark has no effect. The caller holds the tree lock.
    pub(crate) fn mark_for_move(
        &self,
        op: &Op<'_>,
        dir: &Arc<UnionVnode>,
        part: &Lower,
        stack: &[Lower],
        name: Name<'_>,
    ) -> Result<Marked> {
        let merges = dir.stack()?.len() > 1;
        if merges && dir.dir()?.redirect.lock().is_none() {
            if op.set.is_drained(part.branch) {
                // The other parts could not be found once this one has left the branch.
                return Err(Errno::XDEV);
            }
            let path = self.right_path(dir)?;
            self.preserving_times(op, part, || self.write_redirect(op, part, &path))?;
            *dir.dir()?.redirect.lock() = Some(path.into());
            return Ok(Marked::Redirect);
        }
        if !merges
            && self.shows_through(op, stack, part.branch, name)?
            && self.preserving_times(op, part, || self.make_opaque(op, part))?
        {
            return Ok(Marked::Opaque);
        }
        Ok(Marked::Nothing)
    }

    /// Undoes [`Self::mark_for_move`].
    pub(crate) fn unmark(&self, op: &Op<'_>, dir: &UnionVnode, part: &Lower, marked: Marked) {
        let undone = self.preserving_times(op, part, || {
            match marked {
                Marked::Nothing => {}
                Marked::Opaque => self.undo_opaque(op, part),
                Marked::Redirect => self.undo_redirect(op, part),
            }
            Ok(())
        });
        if let Err(errno) = undone {
            tracing::warn!(%errno, "could not remove a mark that has no effect");
        } else if let (Marked::Redirect, Some(dir)) = (marked, &dir.dir) {
            let old = dir.redirect.lock().take();
            drop(old);
        }
    }
}

impl Rename<'_> {
    /// Renames a directory. Returns false if the operation has to be retried.
    pub(crate) fn rename_directory(&self, op: &Op<'_>) -> Result<bool> {
        let tree = self.core.tree.lock();
        if self.core.is_below(self.to, self.source) {
            return Err(Errno::INVAL);
        }
        let target = self.directory_target(op, self.bound(op)?)?;
        if !self.core.ensure_part(op, self.source, target)? || !self.core.ensure_part(op, self.to, target)? {
            return Ok(false);
        }
        let mut dirs: Vec<(&UnionVnode, Option<Name<'_>>)> =
            vec![(self.from, Some(self.name)), (self.to, Some(self.new_name))];
        dirs.extend(self.dest.map(|dest| (&**dest, None)));
        let locked = lock_entries(op, &dirs)?;
        let done = match self.replacing(op, || self.rename_directory_locked(op, target)) {
            Err(e) if op.set.retry_left(target, e) => false,
            other => other?,
        };
        drop(locked);
        drop(tree);
        if done {
            self.from.touch(op, target);
            self.to.touch(op, target);
        }
        Ok(done)
    }

    /// Returns the branch for the rename: the directory's own if it lies on one branch only, which
    /// is read-write, and would be visible there under the new name. Else the leftmost.
    fn directory_target(&self, op: &Op<'_>, bound: usize) -> Result<BranchId> {
        let stack = self.source.stack()?;
        match &*stack {
            [only] if op.set.position(only.branch) <= bound && self.core.can_take(op, &[self.to], only.branch)? => {
                Ok(only.branch)
            }
            _ => op.set.leftmost(),
        }
    }

    fn rename_directory_locked(&self, op: &Op<'_>, target: BranchId) -> Result<bool> {
        let (from_stack, to_stack) = (self.from.parts(op, self.name)?, self.to.parts(op, self.new_name)?);
        let here = self.core.probe(op, &from_stack, self.name)?;
        let there = self.core.probe(op, &to_stack, self.new_name)?;
        if self.source.stack()?.len() > 1 && !op.set.is_leftmost(target) {
            // It has got another part since the branch was chosen.
            return Ok(false);
        }
        let parts = (self.from.part(target)?, self.to.part(target)?, self.source.part(target)?);
        let (Some(old), Some(new), Some(part)) = parts else { return Ok(false) };
        if !is_same_dir(&here, self.source)?
            || !self.dest_unchanged(&there)?
            || there.bound(op.set) < op.set.position(target)
        {
            return Ok(false);
        }
        let marked = self.core.mark_for_move(op, self.source, &part, &to_stack, self.new_name)?;
        let moved = match self.clear_dest(op, &to_stack, &new) {
            Ok(covered) => self.move_covered(op, &from_stack, &old, &new).map(|moved| (moved, covered)),
            Err(e) => Err(e),
        };
        match moved {
            Ok((true, covered)) => {
                self.directory_moved(op, &to_stack, &new, &there, covered)?;
                Ok(true)
            }
            // Also before a retry, which may choose another branch.
            failed => {
                self.core.unmark(op, self.source, &part, marked);
                failed.map(|_| false)
            }
        }
    }

    /// Empties the lower directory that is to be replaced. Nothing in it is visible, but it may
    /// hold marks and whiteouts. A whiteout beside it is created first and ends its stack, so that
    /// nothing becomes visible. Returns whether that whiteout was created.
    fn clear_dest(&self, op: &Op<'_>, to_stack: &[Lower], new: &Lower) -> Result<bool> {
        let Some(dest) = self.dest else { return Ok(false) };
        if !self.core.appears_empty(op, &dest.stack()?)? {
            return Err(Errno::NOTEMPTY);
        }
        let Some(part) = dest.part(new.branch)? else { return Ok(false) };
        if entries(op, &part.vnode)?.is_empty() {
            return Ok(false);
        }
        self.core.keep_number(op, dest)?;
        let cover = match self.core.cover(op, to_stack, new, self.new_name)? {
            Step::Done(cover) => cover,
            Step::Need(_) | Step::Retry => return Err(Errno::ROFS),
        };
        match self.core.strip(op, &part) {
            Ok(_) => {
                dest.set_stack([part].into())?;
                Ok(cover.is_new())
            }
            Err((e, stripped)) => {
                if stripped {
                    dest.set_stack([part].into())?;
                } else {
                    self.core.uncover(op, new, self.new_name, &cover);
                }
                Err(e)
            }
        }
    }

    /// Updates vnodes and cleans up after the move. Does not change the view.
    fn directory_moved(
        &self,
        op: &Op<'_>,
        to_stack: &[Lower],
        new: &Lower,
        there: &Probe,
        covered: bool,
    ) -> Result<()> {
        if covered || there.whiteout == Some(new.branch) {
            self.core.tidy_whiteout(op, new, self.new_name);
        }
        self.source.set_place(Some(self.to.place_of(self.new_name)?));
        self.note_rename();
        self.from.count_subdir(-1);
        if let Some(dest) = self.dest {
            let inside = dest.stack()?;
            if let Some(part) = inside.iter().find(|part| part.branch == new.branch) {
                self.core.part_removed(op, part);
            }
            dest.mark_removed();
            if self.core.removes_parts()
                && let Err(errno) = self.core.remove_right(op, to_stack, self.new_name, &inside)
            {
                tracing::info!(%errno, "could not remove the parts that a replaced directory merged: they remain hidden");
            }
        } else {
            self.to.count_subdir(1);
        }
        Ok(())
    }
}

/// Whether the probe found that directory.
pub(crate) fn is_same_dir(probe: &Probe, dir: &UnionVnode) -> Result<bool> {
    match &probe.hit {
        Hit::Dir { stack, .. } => Ok(dir.dir.is_some() && same_stack(stack, &dir.stack()?)),
        Hit::Leaf { .. } | Hit::None => Ok(false),
    }
}
