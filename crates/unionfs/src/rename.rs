//! rename: docs/design/unionfs.md, "Operations". Files here, directories in `rename_dir`, exchanges
//! in `exchange`.

use crate::branch::{BranchId, Lower, is_dir};
use crate::listing::EntryChange;
use crate::lookup::{Hit, Probe};
use crate::node::{Core, UnionVnode, lock_entries, same_layer};
use crate::op::Op;
use crate::options::Delete;
use crate::remove::Cover;
use crate::retry::{Retries, Step};
use crate::whiteout::reserved;
use std::sync::Arc;
use vnode::{Entry, Errno, Name, RenameFlags, Result, Vnode};

/// A rename under way.
pub(crate) struct Rename<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(crate) from: &'a Arc<UnionVnode>,
    pub(crate) name: Name<'a>,
    pub(crate) to: &'a Arc<UnionVnode>,
    pub(crate) new_name: Name<'a>,
    /// The object to be renamed.
    pub(crate) source: &'a Arc<UnionVnode>,
    /// The object that has the new name so far.
    pub(crate) dest: Option<&'a Arc<UnionVnode>>,
    /// Whether to leave a character device 0:0 at the old name (`RENAME_WHITEOUT`).
    pub(crate) whiteout: bool,
}

/// The result of [`UnionVnode::rename_on_leftmost`].
enum Shortcut {
    Done,
    /// The general path is needed.
    No,
}

/// Checks that the name can be renamed with these flags.
fn check_flags(name: Name<'_>, flags: RenameFlags) -> Result<()> {
    if reserved(name.as_bytes()) {
        return Err(Errno::NOENT);
    }
    if flags.exchange && (flags.no_replace || flags.whiteout) { Err(Errno::INVAL) } else { Ok(()) }
}

impl UnionVnode {
    /// Renames or exchanges entries. Retries after races.
    pub(crate) fn rename_entry(
        &self,
        op: &Op<'_>,
        name: Name<'_>,
        new_dir: &Arc<dyn Vnode>,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let (from, to) = (self.arc()?, same_layer(&self.core, new_dir)?.arc()?);
        from.dir()?;
        to.revalidate(op)?;
        to.check_new_name(op, new_name)?;
        check_flags(name, flags)?;
        if !flags.exchange && matches!(from.rename_on_leftmost(op, name, &to, new_name, flags)?, Shortcut::Done) {
            return Ok(());
        }
        let mut retries = Retries::new();
        loop {
            let (source, _) = from.find(op, name)?.ok_or(Errno::NOENT)?;
            let dest = to.find(op, new_name)?.map(|(vnode, _)| vnode);
            for file in [Some(&source), dest.as_ref().filter(|_| flags.exchange)].into_iter().flatten() {
                self.core.copy_up_metacopied(op, file)?;
            }
            let rename = Rename {
                core: &self.core,
                from: &from,
                name,
                to: &to,
                new_name,
                source: &source,
                dest: dest.as_ref(),
                whiteout: flags.whiteout,
            };
            if !rename.check(flags)? {
                return Ok(());
            }
            let done = if flags.exchange {
                rename.exchange(op)?
            } else if source.dir.is_some() {
                rename.rename_directory(op)?
            } else {
                rename.rename_file(op)?
            };
            if done {
                return Ok(());
            }
            op.check()?;
            retries.count()?;
        }
    }

    /// Renames a file with one lower operation if both names concern only the leftmost branch.
    fn rename_on_leftmost(
        &self,
        op: &Op<'_>,
        name: Name<'_>,
        to: &Self,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<Shortcut> {
        let locked = lock_entries(op, &[(self, Some(name)), (to, Some(new_name))])?;
        let (here, there) = (self.parts(op, name)?, to.parts(op, new_name)?);
        let core = &self.core;
        let Some(old) = core.only_leftmost(op, &here, name)? else { return Ok(Shortcut::No) };
        let Some(new) = core.only_leftmost(op, &there, new_name)? else { return Ok(Shortcut::No) };
        if there.len() > 1 && core.has_whiteout(op, new, new_name)? {
            return Ok(Shortcut::No);
        }
        let source = old.vnode.lookup(op, name)?.ok_or(Errno::NOENT)?;
        if is_dir(&source.vnode) {
            return Ok(Shortcut::No);
        }
        old.vnode.rename(op, name, &new.vnode, new_name, flags)?;
        self.entry_changed(name, EntryChange::Unknown);
        to.entry_changed(new_name, EntryChange::Unknown);
        drop(locked);
        // Update the name of a live vnode. It only matters after an out-of-band change.
        if let Some(vnode) = core.table.get(op.set.natural_number(old.branch, source.vnode.id())?) {
            vnode.set_place(Some(to.place_of(new_name)?));
        }
        Ok(Shortcut::Done)
    }
}

impl Rename<'_> {
    /// Checks whether the rename is allowed. Returns false if there is nothing to do.
    fn check(&self, flags: RenameFlags) -> Result<bool> {
        let Some(dest) = self.dest else {
            return if flags.exchange { Err(Errno::NOENT) } else { Ok(true) };
        };
        if flags.no_replace {
            return Err(Errno::EXIST);
        }
        if Arc::ptr_eq(self.source, dest) {
            return Ok(false);
        }
        match (self.source.dir.is_some(), dest.dir.is_some()) {
            (true, false) if !flags.exchange => Err(Errno::NOTDIR),
            (false, true) if !flags.exchange => Err(Errno::ISDIR),
            _ => Ok(true),
        }
    }

    /// Returns the branch on which a file is renamed: its own, if it would be visible there under
    /// the new name. Else the leftmost suitable branch that has a part of the new directory, or the
    /// nearest suitable one to the left.
    fn target(&self, op: &Op<'_>, bound: usize) -> Result<BranchId> {
        let own = self.source.branch();
        let dirs: [&UnionVnode; 2] = [self.from, self.to];
        if op.set.position(own) <= bound && self.core.can_take(op, &dirs, own)? {
            return Ok(own);
        }
        let bound = bound.min(op.set.position(own));
        let stack = self.to.stack()?;
        for part in stack.iter().filter(|part| op.set.position(part.branch) <= bound) {
            if self.core.can_take(op, &dirs, part.branch)? {
                return Ok(part.branch);
            }
        }
        self.core.branch_for(op, &dirs, bound)
    }

    /// Runs the last step of a rename, which copies nothing. If it replaces an object, it frees
    /// space and may use the reserve.
    pub(crate) fn replacing(&self, op: &Op<'_>, rename: impl FnMut() -> Result<bool>) -> Result<bool> {
        let mut rename = rename;
        if self.dest.is_none_or(|dest| !op.set.writable(dest.branch())) {
            return rename();
        }
        let done = self.core.with_reserve(op, rename)?;
        self.core.refill_reserves(op);
        Ok(done)
    }

    /// Returns the position of the rightmost branch for the rename: further right the new name
    /// would not be visible. A device left at the old name is a new object that inherits the
    /// directory's group, so such a rename uses no branch right of that directory's target branch.
    pub(crate) fn bound(&self, op: &Op<'_>) -> Result<usize> {
        let bound = self.to.probe(op, &self.to.stack()?, self.new_name)?.bound(op.set);
        if self.whiteout { Ok(bound.min(op.set.position(self.from.target(op)?))) } else { Ok(bound) }
    }

    fn rename_file(&self, op: &Op<'_>) -> Result<bool> {
        let target = self.target(op, self.bound(op)?)?;
        self.core.copy_up(op, self.source, Some(target), None)?;
        if !self.core.ensure_part(op, self.from, target)? || !self.core.ensure_part(op, self.to, target)? {
            return Ok(false);
        }
        let locked = lock_entries(op, &[(self.from, Some(self.name)), (self.to, Some(self.new_name))])?;
        let done = self.replacing(op, || self.rename_file_locked(op, target))?;
        drop(locked);
        if done {
            self.from.touch(op, target);
            self.to.touch(op, target);
        }
        Ok(done)
    }

    fn rename_file_locked(&self, op: &Op<'_>, target: BranchId) -> Result<bool> {
        let (from_stack, to_stack) = (self.from.parts(op, self.name)?, self.to.parts(op, self.new_name)?);
        let Some(shown) = self.leaf_at(op, &from_stack, self.name, self.source)? else { return Ok(false) };
        let there = self.core.probe(op, &to_stack, self.new_name)?;
        let parts = (self.from.part(target)?, self.to.part(target)?);
        let (Some(old), Some(new)) = parts else { return Ok(false) };
        if !self.dest_unchanged(&there)?
            || there.bound(op.set) < op.set.position(target)
            || self.source.branch() != target
        {
            return Ok(false);
        }
        if !self.core.link_copied_name(op, self.source, self.from, self.name, (shown.0, &shown.1))? {
            return Ok(false);
        }
        if self.core.options.delete == Delete::All {
            self.core.unlink_right(op, &from_stack, self.name, target, None)?;
        }
        let replaced = match &there.hit {
            Hit::Leaf { branch, entry } => Some((Lower { vnode: entry.vnode.clone(), branch: *branch }, entry.attr)),
            Hit::None | Hit::Dir { .. } => None,
        };
        let begun = replaced.as_ref().map(|(lower, attr)| {
            let hider = (lower.branch != target).then_some(target);
            self.core.begin_use(op, (self.to, self.new_name), (lower, attr), hider)
        });
        let _begun = begun.transpose()?;
        if !self.move_covered(op, &from_stack, &old, &new)? {
            return Ok(false);
        }
        self.note_rename();
        self.clean_up(op, &to_stack, &new, there)?;
        Ok(true)
    }

    /// Covers the old name, then runs the lower rename, which changes the view. A device left at
    /// the old name is an entry, and needs no whiteout beside it.
    pub(crate) fn move_covered(&self, op: &Op<'_>, from_stack: &[Lower], old: &Lower, new: &Lower) -> Result<bool> {
        let cover = if self.whiteout {
            Cover::NONE
        } else {
            match self.core.cover(op, from_stack, old, self.name)? {
                Step::Done(cover) => cover,
                Step::Need(_) | Step::Retry => return Ok(false),
            }
        };
        let flags = RenameFlags { whiteout: self.whiteout, ..RenameFlags::default() };
        match old.vnode.rename(op, self.name, &new.vnode, self.new_name, flags) {
            Ok(()) => Ok(true),
            Err(e) => {
                self.core.uncover(op, old, self.name, &cover);
                if op.set.retry_left(old.branch, e) { Ok(false) } else { Err(e) }
            }
        }
    }

    /// Cleans up what the rename has hidden at the new name. Does not change the view.
    fn clean_up(&self, op: &Op<'_>, to_stack: &[Lower], new: &Lower, there: Probe) -> Result<()> {
        if there.whiteout == Some(new.branch) {
            self.core.tidy_whiteout(op, new, self.new_name);
        }
        let mut removed = Vec::new();
        if self.core.options.delete == Delete::All {
            let replaced = there.branch();
            removed = self.core.unlink_right(op, to_stack, self.new_name, new.branch, replaced).unwrap_or_default();
        }
        if let Hit::Leaf { branch, entry } = there.hit {
            self.core.drop_metacopy(op, self.to, self.new_name, &entry.vnode);
            if removed.contains(&branch) {
                if let Some(dest) = self.dest {
                    dest.forget_name(self.to, self.new_name.as_bytes());
                }
            } else {
                let hider = (branch != new.branch).then_some(new.branch);
                self.to.forget_leaf(op, self.new_name, branch, entry, hider);
            }
        }
        // Last, because the steps above may forget this place.
        self.source.set_place(Some(self.to.place_of(self.new_name)?));
        Ok(())
    }

    /// Notes the changes of both directories.
    pub(crate) fn note_rename(&self) {
        self.from.entry_changed(self.name, EntryChange::Unknown);
        self.to.entry_changed(self.new_name, EntryChange::Unknown);
    }

    /// Returns the visible instance of a name, if it still leads to that file.
    pub(crate) fn leaf_at(
        &self,
        op: &Op<'_>,
        stack: &[Lower],
        name: Name<'_>,
        vnode: &UnionVnode,
    ) -> Result<Option<(BranchId, Entry)>> {
        let Hit::Leaf { branch, entry } = self.core.probe(op, stack, name)?.hit else { return Ok(None) };
        let (lower, _) = self.core.follow_index(op, branch, entry.clone())?;
        // Compare the objects, not the numbers: a number may be of the hashed range.
        Ok(vnode.leaf().is(&lower).then_some((branch, entry)))
    }

    /// Whether the new name still leads to the same object.
    pub(crate) fn dest_unchanged(&self, there: &Probe) -> Result<bool> {
        Ok(match (&there.hit, self.dest) {
            (Hit::None, None) => true,
            (Hit::Leaf { .. }, Some(dest)) => dest.dir.is_none(),
            (Hit::Dir { stack, .. }, Some(dest)) => {
                dest.dir.is_some() && crate::branch::same_stack(stack, &dest.stack()?)
            }
            _ => false,
        })
    }
}
