//! Removing a directory's part from a branch, and the whiteouts in it, while the directory remains
//! as it is: docs/design/unionfs.md, "Moving files between branches".

use crate::branch::{BranchId, Lower};
use crate::copydata::remove_other_xattrs;
use crate::listing::EntryChange;
use crate::lookup::Hit;
use crate::mover::{Mover, Obstacle, Outcome};
use crate::node::{Core, UnionVnode, lock_entries};
use crate::op::Op;
use crate::opaque_redirect::{Onward, Redirect, Walk, components};
use crate::options::Copyup;
use crate::rename_dir::Marked;
use crate::whiteout::{Listed, classify, long_digest};
use crate::work::entries;
use std::sync::Arc;
use vnode::{Errno, Name, Result};

impl Core {
    /// Removes the part of a directory on a branch, which holds nothing but marks. Another part
    /// takes over its attributes, its opaque mark and the directory's number. The outer `Ok` with
    /// an obstacle: the part remains.
    pub(crate) fn leave_directory(
        &self,
        op: &Op<'_>,
        mover: &mut Mover<UnionVnode>,
        dir: &Arc<UnionVnode>,
        branches: &[BranchId],
    ) -> Result<Outcome> {
        let from = mover.from;
        let Some(place) = dir.place() else { return Ok(Ok(())) };
        let Some(part) = dir.part(from)? else { return Ok(Ok(())) };
        let Some((above, lower_name)) = self.container(op, dir, from)? else { return Ok(Err(Obstacle::Redirect)) };
        let name = Name::new(&lower_name)?;
        if entries(op, &part.vnode)?.iter().any(|(name, _)| !matches!(classify(name), Listed::Mark)) {
            // What is left in it was reported.
            return Ok(Ok(()));
        }
        let found = (std::slice::from_ref(&above), name);
        if matches!(self.onward(op, &part, found, &mut Walk::new())?, Onward::Redirected(_)) {
            return Ok(Err(Obstacle::Redirect));
        }
        let opaque = self.is_opaque(op, &part)? || self.has_whiteout(op, &above, name)?;
        if opaque && op.set.has_redirects_up_to(from) && !op.set.is_leftmost(from) {
            return Ok(Err(Obstacle::BesideRedirect));
        }
        if !self.has_heir(op, dir, from, opaque)? {
            let mut made = false;
            // The heir takes over the attributes, and so must be the leftmost part.
            let bound = dir.stack()?.iter().find(|part| part.branch != from).map(|part| part.branch);
            let suits = |to: BranchId| {
                bound.is_none_or(|bound| op.set.is_left(to, bound)) && (!opaque || op.set.is_left(to, from))
            };
            for &to in branches.iter().filter(|&&to| suits(to)) {
                if dir.can_lie_on(op, to)? && self.ensure_part(op, dir, to)? {
                    made = true;
                    break;
                }
            }
            if !made {
                return Ok(Err(if opaque { Obstacle::Hides } else { Obstacle::NoBranch }));
            }
        }
        let _job = self.jobs.start(op, dir.id)?;
        let _moving = self.write_gate.start_move(op, dir.id)?;
        let _locked = lock_entries(op, &[(&place.parent, Some(place.name()?)), (dir, None)])?;
        if !dir.place().is_some_and(|now| now.is(&place)) || dir.is_gone() || !self.has_heir(op, dir, from, opaque)? {
            return Err(Errno::AGAIN);
        }
        self.leave_locked(op, mover, dir, (&above, name, &part), opaque)
    }

    /// Returns the lower directory that contains a directory's part on a branch, and its name
    /// there. A redirect can have led to the part. `None` if it is not found.
    fn container(&self, op: &Op<'_>, dir: &UnionVnode, from: BranchId) -> Result<Option<(Lower, Box<[u8]>)>> {
        let (Some(part), Some(place)) = (dir.part(from)?, dir.place()) else { return Ok(None) };
        let holds = |above: &Lower, name: Name<'_>| -> Result<bool> {
            Ok(above.vnode.lookup(op, name)?.is_some_and(|found| found.vnode.id() == part.vnode.id()))
        };
        if let Some(above) = place.parent.part(from)?
            && holds(&above, place.name()?)?
        {
            return Ok(Some((above, place.name()?.as_bytes().into())));
        }
        let Some(path) = dir.dir()?.redirect.lock().clone() else { return Ok(None) };
        let mut above = Lower { vnode: op.set.branch(from)?.root.clone(), branch: from };
        let mut names = components(&path).peekable();
        while let Some(name) = names.next() {
            let name = name?;
            if names.peek().is_none() {
                return Ok(holds(&above, name)?.then(|| (above, name.as_bytes().into())));
            }
            let Some(next) = above.vnode.lookup(op, name)? else { break };
            above = Lower { vnode: next.vnode, branch: from };
        }
        Ok(None)
    }

    /// Whether another part of the directory can take over what its part on `from` provides.
    fn has_heir(&self, op: &Op<'_>, dir: &UnionVnode, from: BranchId, opaque: bool) -> Result<bool> {
        let stack = dir.stack()?;
        let heir = stack.iter().find(|part| part.branch != from);
        let leads = stack.first().is_some_and(|first| first.branch == from);
        Ok(match heir {
            None => false,
            Some(heir) if leads => op.set.writable(heir.branch),
            Some(_) if opaque => {
                let left = stack.iter().rev().find(|part| op.set.is_left(part.branch, from));
                left.is_some_and(|left| op.set.writable(left.branch))
            }
            Some(_) => true,
        })
    }

    fn leave_locked(
        &self,
        op: &Op<'_>,
        mover: &mut Mover<UnionVnode>,
        dir: &Arc<UnionVnode>,
        (above, name, part): (&Lower, Name<'_>, &Lower),
        opaque: bool,
    ) -> Result<Outcome> {
        let place = dir.place().ok_or(Errno::NOENT)?;
        if entries(op, &part.vnode)?.iter().any(|(name, _)| !matches!(classify(name), Listed::Mark)) {
            return Ok(Ok(()));
        }
        let stack = dir.stack()?;
        let rest: Vec<Lower> = stack.iter().filter(|other| other.branch != part.branch).cloned().collect();
        let (Some(first), Some(last)) = (rest.first().cloned(), rest.last().cloned()) else {
            return Err(Errno::AGAIN);
        };
        if stack.first().is_some_and(|was| was.branch == part.branch) {
            if opaque {
                return Ok(Err(Obstacle::Hides));
            }
            self.mirror_attributes(op, part, &first)?;
        }
        if stack.last().is_some_and(|was| was.branch == part.branch) {
            let attr = last.vnode.getattr(op)?;
            if self.number_of(op, &last, &attr)? != dir.id {
                self.number_part(op, dir, &last)?;
            }
        }
        // Without the part, the redirect of the one before it leads nowhere. It must not lead to a
        // directory that gets this path later.
        let ends_redirect = stack.last().is_some_and(|was| was.branch == part.branch)
            && op.set.writable(last.branch)
            && matches!(self.redirect_of(op, &last)?, Redirect::Valid(_));
        if opaque || ends_redirect {
            self.close(op, &last)?;
        }
        self.make_name_durable(op, mover, dir, first.branch)?;
        self.make_name_durable(op, mover, dir, last.branch)?;
        // Before the part is removed: attributes are read without the entry lock.
        dir.set_stack(rest.into())?;
        let removed = self.preserving_times(op, above, || {
            let removed = self.remove_part(op, above, name, part);
            removed.map_err(|(e, _)| e)
        });
        if let Err(e) = removed
            && above.vnode.lookup(op, name)?.is_some()
        {
            dir.set_stack(stack)?;
            return Ok(Err(Obstacle::Failed(e)));
        }
        if opaque {
            self.preserving_times(op, above, || self.remove_whiteout(op, above, name))?;
        }
        if ends_redirect {
            self.unmark(op, dir, &last, Marked::Redirect);
        }
        place.parent.entry_changed(name, EntryChange::Unknown);
        Ok(Ok(()))
    }

    /// Marks the last part of a directory opaque, and removes its whiteouts: they hide nothing any
    /// more, whatever the branches to the right get.
    fn close(&self, op: &Op<'_>, last: &Lower) -> Result<()> {
        self.preserving_times(op, last, || {
            self.make_opaque(op, last)?;
            for (name, _) in entries(op, &last.vnode)? {
                if !matches!(classify(&name), Listed::Whiteout(_) | Listed::LongWhiteout(_)) {
                    continue;
                }
                if let Err(errno) = self.unlink_whiteout(op, last, Name::new(&name)?) {
                    let (name, branch) = (name.escape_ascii(), op.set.path_of(last.branch));
                    tracing::warn!(%name, %errno, %branch, "could not remove a whiteout that hides nothing any more");
                }
            }
            Ok(())
        })
    }

    /// Gives one part of a directory all attributes of another one.
    pub(crate) fn mirror_attributes(&self, op: &Op<'_>, from: &Lower, to: &Lower) -> Result<()> {
        let attr = from.vnode.getattr(op)?;
        remove_other_xattrs(&self.server(op), &from.vnode, &to.vnode)?;
        self.copy_attributes_as(op, Copyup::Preserve, &from.vnode, &attr, &to.vnode)
    }

    /// Moves a whiteout from a branch to another one, or removes it if it has no effect. `lower`:
    /// its name on the branch.
    pub(crate) fn move_whiteout(
        &self,
        op: &Op<'_>,
        mover: &mut Mover<UnionVnode>,
        dir: &Arc<UnionVnode>,
        lower: Name<'_>,
        branches: &[BranchId],
    ) -> Result<Outcome> {
        let from = mover.from;
        let Some(part) = dir.part(from)? else { return Ok(Ok(())) };
        let hidden = match classify(lower.as_bytes()) {
            Listed::Whiteout(name) => Some(Box::from(name)),
            Listed::LongWhiteout(digest) => self.long_name(op, dir, from, digest)?,
            Listed::Plain | Listed::Mark => return Ok(Ok(())),
        };
        let remove = || self.preserving_times(op, &part, || self.unlink_whiteout(op, &part, lower));
        let changed = hidden.as_deref().map(Name::new).transpose()?;
        let locked = lock_entries(op, &[(dir, changed)])?;
        let Some(hidden) = hidden else { return remove().map(Ok) };
        let name = Name::new(&hidden)?;
        if part.vnode.lookup(op, name)?.is_some() {
            // It belongs to the entry beside it, which has not left the branch.
            return Ok(Ok(()));
        }
        let stack = dir.stack()?;
        let instances = self.instances(op, &stack, name, from)?;
        let probe = self.probe(op, &stack, name)?;
        let place = match (&probe.hit, instances.first()) {
            (_, None) | (Hit::Leaf { .. }, _) => None,
            (Hit::None, _) if probe.whiteout != Some(from) => None,
            (Hit::None, Some(first)) => {
                let possible = |&to: &BranchId| -> Result<bool> {
                    Ok(op.set.is_left(to, first.branch) && dir.can_lie_on(op, to)?)
                };
                let mut place = None;
                for to in branches {
                    if place.is_none() && possible(to)? {
                        place = Some(*to);
                    }
                }
                let Some(to) = place else { return Ok(Err(Obstacle::Hides)) };
                let Some(there) = dir.part(to)? else {
                    drop(locked);
                    let _ = self.ensure_part(op, dir, to)?;
                    return Err(Errno::AGAIN);
                };
                self.preserving_times(op, &there, || self.create_whiteout(op, &there, name).map(drop))?;
                Some(to)
            }
            (Hit::Dir { stack: found, .. }, Some(_)) => {
                // It ends the directory's stack.
                let last = found.last().ok_or(Errno::IO)?;
                if probe.whiteout == Some(from) {
                    if !op.set.writable(last.branch) {
                        return Ok(Err(Obstacle::Hides));
                    }
                    self.close(op, last)?;
                    last.vnode.fsync(&self.server(op), false)?;
                }
                None
            }
        };
        dir.entry_is_elsewhere(name);
        if let Some(to) = place {
            self.make_name_durable(op, mover, dir, to)?;
        }
        remove()?;
        dir.entry_changed(name, EntryChange::Unknown);
        Ok(Ok(()))
    }

    /// Returns the name with this digest that a directory's parts right of a branch have, if any.
    fn long_name(&self, op: &Op<'_>, dir: &UnionVnode, from: BranchId, digest: &[u8]) -> Result<Option<Box<[u8]>>> {
        for part in dir.stack()?.iter().filter(|part| !op.set.is_left(part.branch, from)) {
            for (name, _) in entries(op, &part.vnode)? {
                if matches!(classify(&name), Listed::Plain)
                    && crate::whiteout::is_long(&name)
                    && long_digest(&name) == digest
                {
                    return Ok(Some(name));
                }
            }
        }
        Ok(None)
    }

    /// Whether a branch's root holds nothing but the union's own records.
    pub(crate) fn is_drained(&self, op: &Op<'_>, root: &Lower) -> Result<bool> {
        let own = |name: &[u8]| matches!(classify(name), Listed::Mark);
        Ok(entries(op, &root.vnode)?.iter().all(|(name, _)| own(name)) && !self.links.any_on(root.branch))
    }
}
