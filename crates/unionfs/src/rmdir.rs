//! rmdir: docs/design/unionfs.md, "Operations".

use crate::branch::{BranchId, Lower, Stack, same_stack};
use crate::listing::EntryChange;
use crate::lookup::Hit;
use crate::node::{Core, UnionVnode, lock_entries};
use crate::op::Op;
use crate::opaque_redirect::is_redirect;
use crate::options::Delete;
use crate::remove::Removed;
use crate::retry::Step;
use crate::times::restore_times;
use crate::whiteout::{Listed, classify, reserved};
use crate::work::entries;
use std::sync::Arc;
use vnode::{Errno, Kind, Name, Result};

/// Maximum number of marks and whiteouts to remove on a thread that serves other callers.
const NONBLOCKING_ENTRIES: usize = 256;

impl UnionVnode {
    /// Removes a directory in which nothing is visible.
    pub(crate) fn remove_dir(&self, op: &Op<'_>, name: Name<'_>) -> Result<()> {
        self.dir()?;
        op.set.require_writable()?;
        if reserved(name.as_bytes()) {
            return Err(Errno::NOENT);
        }
        let branch = self.until_done(op, || {
            let (victim, _) = self.find(op, name)?.ok_or(Errno::NOENT)?;
            if victim.dir.is_none() {
                return Err(Errno::NOTDIR);
            }
            let _locked = lock_entries(op, &[(self, Some(name)), (&victim, None)])?;
            let step = self.remove_dir_once(op, name, &victim)?;
            if matches!(step, Step::Done(_)) {
                victim.mark_removed();
                self.entry_changed(name, EntryChange::Gone);
                self.count_subdir(-1);
            }
            Ok(step)
        })?;
        self.core.refill_reserves(op);
        self.touch(op, branch);
        Ok(())
    }

    fn remove_dir_once(&self, op: &Op<'_>, name: Name<'_>, victim: &Arc<UnionVnode>) -> Result<Step<BranchId>> {
        let stack = self.parts(op, name)?;
        if let Some(branch) = self.remove_dir_on_leftmost(op, &stack, name, victim)? {
            return Ok(Step::Done(branch));
        }
        let Hit::Dir { stack: now, .. } = self.core.probe(op, &stack, name)?.hit else { return Ok(Step::Retry) };
        let inside = victim.stack()?;
        if !victim.is_at(self, name.as_bytes()) || !same_stack(&now, &inside) {
            return Ok(Step::Retry);
        }
        if !self.core.appears_empty(op, &inside)? {
            return Err(Errno::NOTEMPTY);
        }
        match self.core.remove_empty(op, self, name, victim)? {
            Step::Done(removed) => Ok(Step::Done(removed.branch)),
            Step::Need(branch) => Ok(Step::Need(branch)),
            Step::Retry => Ok(Step::Retry),
        }
    }
}

impl UnionVnode {
    /// Removes a directory with one lower rmdir if its name concerns only the leftmost branch; the
    /// lower file system checks that it is empty. Returns that branch if done.
    fn remove_dir_on_leftmost(
        &self,
        op: &Op<'_>,
        stack: &[Lower],
        name: Name<'_>,
        victim: &UnionVnode,
    ) -> Result<Option<BranchId>> {
        let alone = matches!(&*victim.stack()?, [only] if op.set.is_leftmost(only.branch))
            && victim.is_at(self, name.as_bytes());
        let Some(part) = self.core.only_leftmost(op, stack, name)?.filter(|_| alone) else { return Ok(None) };
        match part.vnode.rmdir(op, name) {
            Ok(()) => Ok(Some(part.branch)),
            // It may contain marks and whiteouts.
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl Core {
    /// Removes a directory in which nothing is visible. `dir`: its parent.
    fn remove_empty(
        &self,
        op: &Op<'_>,
        dir: &UnionVnode,
        name: Name<'_>,
        victim: &UnionVnode,
    ) -> Result<Step<Removed>> {
        let (stack, inside) = (dir.parts(op, name)?, victim.stack()?);
        let leftmost = inside.first().ok_or(Errno::IO)?;
        if !op.set.writable(leftmost.branch) {
            return self.hide(op, dir, name, self.hiding_branch(op, dir, leftmost.branch)?);
        }
        self.with_reserve(op, || self.remove_leftmost(op, &stack, name, victim, &inside))
    }

    fn remove_leftmost(
        &self,
        op: &Op<'_>,
        stack: &[Lower],
        name: Name<'_>,
        victim: &UnionVnode,
        inside: &Stack,
    ) -> Result<Step<Removed>> {
        let leftmost = inside.first().ok_or(Errno::IO)?;
        let part = stack.iter().find(|part| part.branch == leftmost.branch).ok_or(Errno::STALE)?;
        self.check_cleanup(op, inside)?;
        self.keep_number(op, victim)?;
        let cover = match self.cover(op, stack, part, name)? {
            Step::Done(cover) => cover,
            Step::Need(_) | Step::Retry => return Ok(Step::Retry),
        };
        if self.removes_parts() && cover.is_new() {
            self.remove_right(op, stack, name, inside)?;
        }
        match self.remove_part(op, part, name, leftmost) {
            Ok(()) => {}
            Err((e, stripped)) => {
                if stripped {
                    // The whiteout beside it now hides what the removed whiteouts hid.
                    victim.set_stack([leftmost.clone()].into())?;
                } else {
                    self.uncover(op, part, name, &cover);
                }
                return if op.set.retry_left(leftmost.branch, e) { Ok(Step::Retry) } else { Err(e) };
            }
        }
        if self.removes_parts() && cover.is_new() && !self.shows_through(op, stack, part.branch, name).unwrap_or(true) {
            self.tidy_whiteout(op, part, name);
        }
        Ok(Step::Done(Removed { branch: part.branch }))
    }

    /// Fails with `MAY_BLOCK` if there are too many entries to clean up on a thread that serves
    /// other callers.
    fn check_cleanup(&self, op: &Op<'_>, inside: &Stack) -> Result<()> {
        if op.may_block || inside.len() < 2 {
            return Ok(());
        }
        for part in inside.iter() {
            if entries(op, &part.vnode)?.len() > NONBLOCKING_ENTRIES {
                op.require_blocking()?;
            }
        }
        Ok(())
    }

    /// Whether removing a directory also removes its parts on the read-write branches to the right.
    /// A union that spreads directories has created these itself.
    pub(crate) fn removes_parts(&self) -> bool {
        self.options.delete == Delete::All || self.options.create.spreads()
    }

    /// If [`Self::removes_parts`]: removes the parts right of the leftmost one, which the whiteout
    /// beside that one already hides.
    pub(crate) fn remove_right(&self, op: &Op<'_>, stack: &[Lower], name: Name<'_>, inside: &Stack) -> Result<()> {
        for part in inside.iter().skip(1).rev().filter(|part| op.set.writable(part.branch)) {
            let Some(parent) = stack.iter().find(|p| p.branch == part.branch) else { continue };
            // After a redirect, the entry of this name is another directory.
            if parent.vnode.lookup(op, name)?.is_none_or(|found| found.vnode.id() != part.vnode.id()) {
                continue;
            }
            if let Err((errno, _)) = self.remove_part(op, parent, name, part) {
                tracing::info!(%name, %errno, "could not remove a directory from this branch: a whiteout hides it");
            }
        }
        Ok(())
    }

    /// Removes one lower directory, with its marks and whiteouts. The error says whether any of
    /// these were removed.
    pub(crate) fn remove_part(
        &self,
        op: &Op<'_>,
        parent: &Lower,
        name: Name<'_>,
        part: &Lower,
    ) -> std::result::Result<(), (Errno, bool)> {
        match parent.vnode.rmdir(op, name) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                let stripped = self.strip(op, part)?;
                parent.vnode.rmdir(op, name).map_err(|e| (e, stripped))?;
            }
            other => other.map_err(|e| (e, false))?,
        }
        self.part_removed(op, part);
        Ok(())
    }

    /// Removes all marks and whiteouts of a lower directory that has no other entries. A whiteout
    /// beside the directory already ends its stack. Returns whether there were any marks or
    /// whiteouts. The error says whether any were removed.
    pub(crate) fn strip(&self, op: &Op<'_>, dir: &Lower) -> std::result::Result<bool, (Errno, bool)> {
        let fresh = |e| (e, false);
        let mut found = entries(op, &dir.vnode).map_err(fresh)?;
        if found.iter().any(|(name, _)| classify(name) == Listed::Plain) {
            return Err((Errno::NOTEMPTY, false));
        }
        if found.len() > NONBLOCKING_ENTRIES {
            op.require_blocking().map_err(fresh)?;
        }
        // The redirect first: without it the directory merges nothing, and what the whiteouts hid
        // remains hidden.
        found.sort_by_key(|(name, _)| !is_redirect(name));
        let before = dir.vnode.getattr(op).map_err(fresh)?;
        let server = self.server(op);
        for (count, (name, kind)) in found.iter().enumerate() {
            let removed = Name::new(name).and_then(|name| match kind {
                Kind::Directory => dir.vnode.rmdir(&server, name),
                _ => dir.vnode.unlink(&server, name),
            });
            if let Err(e) = removed {
                restore_times(&server, &dir.vnode, &before);
                self.times_moved(dir.branch, &dir.vnode);
                return Err((e, count > 0));
            }
        }
        Ok(!found.is_empty())
    }
}
