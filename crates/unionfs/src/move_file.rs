//! Moving one file to another branch: docs/design/unionfs.md, "Moving files between branches".
//!
//! To the left, a file is copied up, after which its original is hidden and can be removed. To the
//! right, the copy is published where the original hides it; removing the original then shows it.

use crate::branch::{BranchId, Lower};
use crate::copyup::{Built, Copying};
use crate::file::UnionFile;
use crate::in_use::as_union_file;
use crate::listing::EntryChange;
use crate::mover::{Mover, Obstacle, Outcome};
use crate::node::{Core, Place, UnionVnode};
use crate::op::Op;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vnode::{Attr, Errno, Kind, Name, OpenFlags, Result, Vnode};

/// A name on the branch that files are moved from.
pub(crate) struct Named<'a> {
    pub(crate) dir: &'a Arc<UnionVnode>,
    pub(crate) name: Name<'a>,
    /// The lower object on that branch.
    pub(crate) lower: &'a Lower,
    pub(crate) attr: &'a Attr,
}

impl Core {
    /// Moves a file, which `named` leads to, to one of these branches; `Err` in the inner result if
    /// that is not possible at present.
    pub(crate) fn move_file(
        &self,
        op: &Op<'_>,
        mover: &mut Mover<UnionVnode>,
        vnode: &Arc<UnionVnode>,
        named: &Named<'_>,
        branches: &[BranchId],
    ) -> Result<Outcome> {
        self.copy_up_metacopied(op, vnode)?;
        if vnode.branch() != named.lower.branch {
            return self.drop_name(op, mover, vnode, named);
        }
        if !self.is_movable(op, vnode, named.lower)? {
            return Ok(Err(Obstacle::InUse));
        }
        if op.set.has_redirects_up_to(named.lower.branch) {
            // A redirect can lead to what the file hides, or end at the file.
            let stack = named.dir.stack()?;
            let instances = self.instances(op, &stack, named.name, named.lower.branch)?;
            if !instances.is_empty() {
                return Ok(Err(Obstacle::BesideRedirect));
            }
        }
        let several = self.has_several_names(op, vnode, named)?;
        let mut obstacle = Obstacle::Hides;
        for &to in branches {
            let left = op.set.is_left(to, named.lower.branch);
            if !left && several {
                obstacle = Obstacle::SeveralNames;
                continue;
            }
            if !named.dir.can_lie_on(op, to)? {
                continue;
            }
            let moved = match left {
                true => self.copy_up(op, vnode, Some(to), None).map(|()| true),
                false => self.move_right(op, mover, vnode, named, to),
            };
            match moved {
                Ok(true) if left => return self.drop_name(op, mover, vnode, named),
                Ok(true) => return Ok(Ok(())),
                Ok(false) => {}
                Err(Errno::NOSPC | Errno::DQUOT) => obstacle = Obstacle::NoSpace,
                Err(Errno::BUSY) => return Ok(Err(Obstacle::InUse)),
                Err(e) => return Err(e),
            }
        }
        Ok(Err(obstacle))
    }

    /// Whether a file has other names than this one. Removes its index entry if it has lost them.
    fn has_several_names(&self, op: &Op<'_>, vnode: &Arc<UnionVnode>, named: &Named<'_>) -> Result<bool> {
        let &Named { dir, name, lower, attr } = named;
        let Some(branch) = self.links.branch(vnode.id) else { return Ok(attr.nlink > 1) };
        // This name and the index entry.
        if branch != lower.branch || attr.nlink != 2 {
            return Ok(true);
        }
        let _job = self.jobs.start(op, vnode.id)?;
        // No link is created meanwhile, and the name is not removed.
        let _moving = self.write_gate.start_move(op, vnode.id)?;
        let _locked = dir.lock_entry(op, name)?;
        let part = dir.part(lower.branch)?.ok_or(Errno::AGAIN)?;
        let found = part.vnode.lookup(op, name)?.filter(|found| found.vnode.id() == lower.vnode.id());
        let now = found.ok_or(Errno::AGAIN)?.attr;
        let all_used = self.identity.names(vnode.id).is_none_or(|names| names.used >= names.first);
        if now.nlink != 2 || !all_used || !self.has_left(op, vnode.id, lower)? {
            return Ok(true);
        }
        self.drop_names(op, vnode.id);
        self.remove_from_index(op, vnode.id);
        Ok(false)
    }

    /// Whether no program uses the file on its branch without the union.
    ///
    /// The kernel may have the host file of an open file since before files began to move, and a
    /// mapping made through it remains after that file was closed.
    fn is_movable(&self, op: &Op<'_>, vnode: &UnionVnode, lower: &Lower) -> Result<bool> {
        if self.write_gate.is_host_file_held(vnode.id) {
            return Ok(false);
        }
        let files = self.open_files.all();
        let all = files.iter().filter_map(as_union_file);
        let own: Vec<&UnionFile> = all.filter(|file| std::ptr::eq(&raw const **file.vnode(), vnode)).collect();
        if own.iter().any(|file| file.may_be_handed_out()) {
            return Ok(false);
        }
        if vnode.kind != Kind::Regular || !op.set.branch(lower.branch)?.handed_out.load(Ordering::Acquire) {
            return Ok(true);
        }
        let file = lower.vnode.open(&self.server(op), OpenFlags::RDONLY)?;
        Ok(file.backing().is_none_or(|host| self.is_unused(host.file, !own.is_empty())))
    }

    /// Moves a file with one name to a branch right of its own. Returns false if it would not be
    /// visible there.
    fn move_right(
        &self,
        op: &Op<'_>,
        mover: &mut Mover<UnionVnode>,
        vnode: &Arc<UnionVnode>,
        named: &Named<'_>,
        to: BranchId,
    ) -> Result<bool> {
        let _job = self.jobs.start(op, vnode.id)?;
        let _moving = self.write_gate.start_move(op, vnode.id)?;
        let from = vnode.leaf();
        let attr = from.vnode.getattr(op)?;
        if !from.is(named.lower)
            || attr.nlink != 1
            || !self.is_free_right(op, &named.dir.stack()?, named.name, (from.branch, to), vnode.id)?
        {
            return Ok(false);
        }
        let place = named.dir.place_of(named.name)?;
        let copying = Copying { vnode, from: &from, attr, place: Some(&place), to };
        let built = self.build(op, &copying, None)?;
        let published = match self.ensure_part(op, named.dir, to) {
            Ok(true) => self.publish_right(op, mover, &copying, &place, &built),
            Ok(false) => Ok(false),
            Err(e) => Err(e),
        };
        if !matches!(published, Ok(true)) {
            self.discard(op, &built);
            self.identity.unalias(&self.server(op), op.set.branch(to)?.tag, built.entry.vnode.id());
        }
        published
    }

    /// Publishes the copy behind the original, and removes the original.
    fn publish_right(
        &self,
        op: &Op<'_>,
        mover: &mut Mover<UnionVnode>,
        copying: &Copying<'_>,
        place: &Place,
        built: &Built,
    ) -> Result<bool> {
        let &Copying { vnode, from, to, .. } = copying;
        let (dir, name, server) = (&place.parent, place.name()?, self.server(op));
        let _locked = dir.lock_entry(op, name)?;
        let copy = Lower { vnode: built.entry.vnode.clone(), branch: to };
        let (Some(old), Some(new)) = (dir.part(from.branch)?, dir.part(to)?) else { return Ok(false) };
        if !self.is_still_at(op, vnode, from, place)? {
            return Ok(false);
        }
        if !self.is_free_right(op, &dir.stack()?, name, (from.branch, to), vnode.id)? {
            return Ok(false);
        }
        self.drop_leftover(op, &new, name, vnode.id)?;
        let attr = copy.vnode.getattr(op)?;
        self.identity.append(&server, self.alias_record(op, &copy, &attr, (vnode.id, vnode.generation()))?)?;
        self.publish_name(op, place, &copy, built)?;
        dir.entry_is_elsewhere(name);
        let removed = self.make_durable(op, mover, dir, &copy).and_then(|()| {
            // Attributes are read without the entry lock: they must not be those of a file that has
            // lost its name.
            vnode.set_leaf(copy.clone());
            self.preserving_times(op, &old, || {
                // A whiteout beside the original would hide the copy.
                self.remove_whiteout(op, &old, name)?;
                old.vnode.unlink(&server, name)
            })
        });
        if let Err(e) = removed {
            // The step that fails may have taken effect.
            if old.vnode.lookup(op, name)?.is_some() {
                vnode.set_leaf(from.clone());
                self.preserving_times(op, &new, || new.vnode.unlink(&server, name))?;
                return Err(e);
            }
            vnode.set_leaf(copy);
        }
        if matches!(self.has_whiteout(op, &new, name), Ok(true)) {
            self.preserving_times(op, &new, || {
                self.tidy_whiteout(op, &new, name);
                Ok(())
            })?;
        }
        self.identity.unalias(&server, op.set.branch(from.branch)?.tag, from.vnode.id());
        dir.entry_changed(name, EntryChange::Unknown);
        Ok(true)
    }

    /// Whether a file on the branch `from` would be visible on `to`, further right, and would hide
    /// the same objects there. A copy of the file `number` that an interrupted move has left there
    /// does not count.
    fn is_free_right(
        &self,
        op: &Op<'_>,
        stack: &[Lower],
        name: Name<'_>,
        (from, to): (BranchId, BranchId),
        number: u64,
    ) -> Result<bool> {
        let between = |part: &&Lower| op.set.is_left(from, part.branch) && !op.set.is_left(to, part.branch);
        for part in stack.iter().filter(between) {
            if let Some(entry) = part.vnode.lookup(op, name)? {
                let found = Lower { vnode: entry.vnode, branch: part.branch };
                let leftover = part.branch == to
                    && found.vnode.kind() != Kind::Directory
                    && self.number_of(op, &found, &entry.attr)? == number;
                if !leftover {
                    return Ok(false);
                }
            }
            if part.branch != to && self.has_whiteout(op, part, name)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes the copy of the file `number` that an interrupted move has left at a name, if there
    /// is one. The original still hides it.
    fn drop_leftover(&self, op: &Op<'_>, part: &Lower, name: Name<'_>, number: u64) -> Result<()> {
        let Some(entry) = part.vnode.lookup(op, name)? else { return Ok(()) };
        let found = Lower { vnode: entry.vnode, branch: part.branch };
        if found.vnode.kind() == Kind::Directory || self.number_of(op, &found, &entry.attr)? != number {
            return Err(Errno::EXIST);
        }
        let server = self.server(op);
        self.preserving_times(op, part, || part.vnode.unlink(&server, name))?;
        self.identity.unalias(&server, op.set.branch(part.branch)?.tag, found.vnode.id());
        Ok(())
    }

    /// Removes the name of a file's original that the file's copy further left has replaced. If the
    /// copy has not got this name yet, links it first.
    pub(crate) fn drop_name(
        &self,
        op: &Op<'_>,
        mover: &mut Mover<UnionVnode>,
        vnode: &Arc<UnionVnode>,
        named: &Named<'_>,
    ) -> Result<Outcome> {
        let &Named { dir, name, lower, attr } = named;
        if op.set.has_redirects_up_to(lower.branch)
            && !self.instances(op, &dir.stack()?, name, lower.branch)?.is_empty()
        {
            return Ok(Err(Obstacle::BesideRedirect));
        }
        // The copy must not move on meanwhile.
        let _job = self.jobs.start(op, vnode.id)?;
        let home = vnode.branch();
        if !op.set.is_left(home, lower.branch) || !self.ensure_part(op, dir, home)? {
            return Ok(Err(Obstacle::Hides));
        }
        let _locked = dir.lock_entry(op, name)?;
        let (Some(old), Some(new)) = (dir.part(lower.branch)?, dir.part(home)?) else { return Err(Errno::AGAIN) };
        let stack = dir.stack()?;
        let probe = self.probe(op, &stack, name)?;
        let crate::lookup::Hit::Leaf { branch: shown, entry } = probe.hit else { return Ok(Err(Obstacle::Hidden)) };
        let now = Lower { vnode: entry.vnode.clone(), branch: shown };
        if self.number_of(op, &now, &entry.attr)? != vnode.id || vnode.branch() != home {
            return Ok(Err(Obstacle::Hidden));
        }
        if shown == lower.branch && !self.link_copied_name(op, vnode, dir, name, (shown, &entry))? {
            return Ok(Err(Obstacle::NoBranch));
        }
        let there = new.vnode.lookup(op, name)?.is_some_and(|found| found.vnode.id() == vnode.leaf().vnode.id());
        let same = old.vnode.lookup(op, name)?.is_some_and(|found| found.vnode.id() == lower.vnode.id());
        if !there || !same {
            return Ok(Err(Obstacle::Hidden));
        }
        dir.entry_is_elsewhere(name);
        self.make_durable(op, mover, dir, &vnode.leaf())?;
        self.preserving_times(op, &old, || old.vnode.unlink(&self.server(op), name))?;
        self.hidden_name_removed(op, lower, attr);
        dir.entry_changed(name, EntryChange::Unknown);
        Ok(Ok(()))
    }

    /// Makes a copy and its name durable, before the original is removed.
    pub(crate) fn make_durable(
        &self,
        op: &Op<'_>,
        mover: &mut Mover<UnionVnode>,
        dir: &Arc<UnionVnode>,
        copy: &Lower,
    ) -> Result<()> {
        let server = self.server(op);
        if copy.vnode.kind() == Kind::Regular {
            copy.vnode.fsync(&server, false)?;
        }
        self.make_name_durable(op, mover, dir, copy.branch)
    }

    /// Makes the names in a directory's part durable, and those of the directory and its ancestors.
    pub(crate) fn make_name_durable(
        &self,
        op: &Op<'_>,
        mover: &mut Mover<UnionVnode>,
        dir: &Arc<UnionVnode>,
        branch: BranchId,
    ) -> Result<()> {
        let server = self.server(op);
        let mut next = Some(dir.clone());
        while let Some(dir) = next {
            if let Some(part) = dir.part(branch)? {
                part.vnode.fsync(&server, false)?;
            }
            next = match mover.durable.insert((dir.id, branch)) {
                true => dir.place().map(|place| place.parent),
                false => None,
            };
        }
        Ok(())
    }
}
