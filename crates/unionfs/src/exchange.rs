//! `RENAME_EXCHANGE`. Both objects get a copy or part on one branch, and directories the marks that
//! a rename needs. One lower exchange then changes the view.

use crate::branch::{BranchId, Lower};
use crate::node::{UnionVnode, lock_entries};
use crate::op::Op;
use crate::rename::Rename;
use crate::rename_dir::{Marked, is_same_dir};
use std::sync::Arc;
use vnode::{Errno, Name, RenameFlags, Result};

/// One of the two objects, and its destination.
struct Side<'a> {
    vnode: &'a Arc<UnionVnode>,
    /// Its present directory and name.
    dir: &'a Arc<UnionVnode>,
    name: Name<'a>,
    /// Present directory and name of the other object.
    other: &'a Arc<UnionVnode>,
    other_name: Name<'a>,
}

impl Rename<'_> {
    /// Exchanges the two objects. Returns false if the operation has to be retried.
    pub(crate) fn exchange(&self, op: &Op<'_>) -> Result<bool> {
        let dest = self.dest.ok_or(Errno::NOENT)?;
        let _tree = self.core.tree.lock();
        if self.core.is_below(self.to, self.source) || self.core.is_below(self.from, dest) {
            return Err(Errno::INVAL);
        }
        let sides = [
            Side { vnode: self.source, dir: self.from, name: self.name, other: self.to, other_name: self.new_name },
            Side { vnode: dest, dir: self.to, name: self.new_name, other: self.from, other_name: self.name },
        ];
        let target = self.exchange_target(op, dest)?;
        if !self.bring_all(op, &sides, target)? {
            return Ok(false);
        }
        let locked = lock_entries(op, &[(self.from, Some(self.name)), (self.to, Some(self.new_name))])?;
        let done = self.exchange_locked(op, &sides, target)?;
        drop(locked);
        if done {
            self.from.touch(op, target);
            self.to.touch(op, target);
        }
        Ok(done)
    }

    /// Returns the branch for the exchange: the one on which both objects lie, if they lie nowhere
    /// else. For two files, it is the branch of the one further left, so that at most one has to
    /// move: an open file may be unable to. Both directories must have a part on the branch, or be
    /// able to get one. Else it is the leftmost branch.
    fn exchange_target(&self, op: &Op<'_>, dest: &UnionVnode) -> Result<BranchId> {
        let (source, other) = (self.source.branch(), dest.branch());
        let branch = if op.set.is_left(other, source) { other } else { source };
        let alone = |vnode: &UnionVnode| -> Result<bool> { Ok(vnode.dir.is_none() || vnode.stack()?.len() == 1) };
        let files = self.source.dir.is_none() && dest.dir.is_none();
        let same = source == other && alone(self.source)? && alone(dest)?;
        let there = (same || files) && self.core.can_take(op, &[self.from, self.to], branch)?;
        if there { Ok(branch) } else { op.set.leftmost() }
    }

    /// Brings both objects to the branch. Returns false if the operation has to be retried.
    fn bring_all(&self, op: &Op<'_>, sides: &[Side<'_>; 2], target: BranchId) -> Result<bool> {
        // Copying a file can be abandoned for a change of the set of branches. No other copy may
        // exist by then.
        let mut op = *op;
        for side in sides.iter().filter(|side| side.vnode.dir.is_none()) {
            self.core.copy_up(&op, side.vnode, Some(target), None)?;
            op = op.without_restart_flag();
        }
        for side in sides {
            let dir = if side.vnode.dir.is_some() { side.vnode } else { side.dir };
            if !self.core.ensure_part(&op, dir, target)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn exchange_locked(&self, op: &Op<'_>, sides: &[Side<'_>; 2], target: BranchId) -> Result<bool> {
        let (Some(old), Some(new)) = (self.from.part(target)?, self.to.part(target)?) else { return Ok(false) };
        for side in sides {
            if !self.is_ready(op, side, target)? {
                return Ok(false);
            }
        }
        let mut marks: Vec<(&Arc<UnionVnode>, Lower, Marked)> = Vec::new();
        let exchanged = self.mark_sides(op, sides, target, &mut marks).and_then(|()| {
            let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
            old.vnode.rename(op, self.name, &new.vnode, self.new_name, flags)
        });
        if let Err(e) = exchanged {
            for (vnode, part, marked) in marks {
                self.core.unmark(op, vnode, &part, marked);
            }
            return if op.set.retry_left(target, e) { Ok(false) } else { Err(e) };
        }
        self.note_rename();
        for side in sides {
            side.vnode.set_place(Some(side.other.place_of(side.other_name)?));
            if side.vnode.dir.is_some() {
                side.dir.count_subdir(-1);
                side.other.count_subdir(1);
            }
        }
        Ok(true)
    }

    /// Whether the name still leads to that object, on the branch of the exchange. Links a file
    /// there if it was copied up under another of its names.
    fn is_ready(&self, op: &Op<'_>, side: &Side<'_>, target: BranchId) -> Result<bool> {
        let stack = side.dir.parts(op, side.name)?;
        if side.vnode.branch() != target {
            return Ok(false);
        }
        if side.vnode.dir.is_some() {
            return is_same_dir(&self.core.probe(op, &stack, side.name)?, side.vnode);
        }
        let Some((shown, entry)) = self.leaf_at(op, &stack, side.name, side.vnode)? else { return Ok(false) };
        self.core.link_copied_name(op, side.vnode, side.dir, side.name, (shown, &entry))
    }

    fn mark_sides<'s>(
        &self,
        op: &Op<'_>,
        sides: &'s [Side<'_>; 2],
        target: BranchId,
        marks: &mut Vec<(&'s Arc<UnionVnode>, Lower, Marked)>,
    ) -> Result<()> {
        for side in sides.iter().filter(|side| side.vnode.dir.is_some()) {
            let part = side.vnode.part(target)?.ok_or(Errno::AGAIN)?;
            let marked = self.core.mark_for_move(
                op,
                side.vnode,
                &part,
                &side.other.parts(op, side.other_name)?,
                side.other_name,
            )?;
            marks.push((side.vnode, part, marked));
        }
        Ok(())
    }
}
