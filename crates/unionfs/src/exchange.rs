//! `RENAME_EXCHANGE`: both are brought to one branch and marked as for a move, then one lower exchange.

use crate::node::{Lower, UnionVnode};
use crate::rename::Rename;
use crate::rename_dir::{Marked, is_dir_still};
use crate::rmdir::lock_names;
use std::sync::Arc;
use vnode::{Cx, Errno, Name, RenameFlags, Result};

/// One of the two, and where it goes.
struct Side<'a> {
    vnode: &'a Arc<UnionVnode>,
    /// The directory and name where it is.
    dir: &'a Arc<UnionVnode>,
    name: Name<'a>,
    /// Those of the other.
    other: &'a Arc<UnionVnode>,
    other_name: Name<'a>,
}

impl Rename<'_> {
    pub(crate) fn exchange(&self, cx: &Cx<'_>) -> Result<bool> {
        let dest = self.dest.ok_or(Errno::NOENT)?;
        let _tree = self.core.tree.lock();
        if self.core.is_below(self.to, self.source) || self.core.is_below(self.from, dest) {
            return Err(Errno::INVAL);
        }
        let sides = [
            Side { vnode: self.source, dir: self.from, name: self.name, other: self.to, other_name: self.new_name },
            Side { vnode: dest, dir: self.to, name: self.new_name, other: self.from, other_name: self.name },
        ];
        let target = self.exchange_target(dest)?;
        for side in &sides {
            if !self.bring(cx, side, target)? {
                return Ok(false);
            }
        }
        let names = lock_names(&[self.from, self.to])?;
        let done = self.exchange_locked(cx, &sides, target)?;
        drop(names);
        if done {
            self.from.touch(cx, target);
            self.to.touch(cx, target);
        }
        Ok(done)
    }

    /// The branch on which both lie already, and nowhere else. Of two files, that of the left one if both directories can have
    /// a part there: a file that is open may not be able to move. Else the leftmost.
    fn exchange_target(&self, dest: &UnionVnode) -> Result<u16> {
        let branch = self.source.branch().min(dest.branch());
        let alone = |vnode: &UnionVnode| -> Result<bool> { Ok(vnode.dir.is_none() || vnode.stack()?.len() == 1) };
        let files = self.source.dir.is_none() && dest.dir.is_none();
        let same = self.source.branch() == dest.branch() && alone(self.source)? && alone(dest)?;
        let there = (same || files) && self.core.fits(&[self.from, self.to], branch)?;
        Ok(if there { branch } else { 0 })
    }

    fn bring(&self, cx: &Cx<'_>, side: &Side<'_>, target: u16) -> Result<bool> {
        if side.vnode.dir.is_some() {
            return self.core.ensure_part(cx, side.vnode, target);
        }
        self.core.copy_up(cx, side.vnode, Some(target), None)?;
        self.core.ensure_part(cx, side.dir, target)
    }

    fn exchange_locked(&self, cx: &Cx<'_>, sides: &[Side<'_>; 2], target: u16) -> Result<bool> {
        let (Some(old), Some(new)) = (self.from.part(target)?, self.to.part(target)?) else { return Ok(false) };
        for side in sides {
            if !self.is_ready(cx, side, target)? {
                return Ok(false);
            }
        }
        let mut marks: Vec<(&Arc<UnionVnode>, Lower, Marked)> = Vec::new();
        let exchanged = self.mark_sides(cx, sides, target, &mut marks).and_then(|()| {
            let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
            old.vnode.rename(cx, self.name, &new.vnode, self.new_name, flags)
        });
        if let Err(e) = exchanged {
            for (vnode, part, marked) in marks {
                self.core.unmark(cx, vnode, &part, marked);
            }
            return if self.core.go_left(target, e) { Ok(false) } else { Err(e) };
        }
        self.moved();
        for side in sides {
            side.vnode.set_place(Some(side.other.place_of(side.other_name)?));
            if side.vnode.dir.is_some() {
                side.dir.count_subdir(-1);
                side.other.count_subdir(1);
            }
        }
        Ok(true)
    }

    /// Does the name still lead to that object, on the branch of the exchange? A further name of a file is brought there.
    fn is_ready(&self, cx: &Cx<'_>, side: &Side<'_>, target: u16) -> Result<bool> {
        let stack = side.dir.stack()?;
        if side.vnode.branch() != target {
            return Ok(false);
        }
        if side.vnode.dir.is_some() {
            return is_dir_still(&self.core.probe(cx, &stack, side.name)?, side.vnode);
        }
        let Some((shown, entry)) = self.leaf_at(cx, &stack, side.name, side.vnode)? else { return Ok(false) };
        self.core.name_on(cx, side.vnode, side.dir, side.name, (shown, &entry))
    }

    fn mark_sides<'s>(
        &self,
        cx: &Cx<'_>,
        sides: &'s [Side<'_>; 2],
        target: u16,
        marks: &mut Vec<(&'s Arc<UnionVnode>, Lower, Marked)>,
    ) -> Result<()> {
        for side in sides.iter().filter(|side| side.vnode.dir.is_some()) {
            let part = side.vnode.part(target)?.ok_or(Errno::AGAIN)?;
            let marked = self.core.mark_for_move(cx, side.vnode, &part, &side.other.stack()?, side.other_name)?;
            marks.push((side.vnode, part, marked));
        }
        Ok(())
    }
}
