//! Creation of objects.

use crate::branch::{BranchId, Lower, Stack};
use crate::file::UnionFile;
use crate::listing::EntryChange;
use crate::lookup::{Hit, Probe};
use crate::node::{UnionVnode, same_layer};
use crate::op::Op;
use crate::options::Order;
use crate::placement::Choice;
use crate::retry::Retries;
use crate::whiteout::reserved;
use std::sync::Arc;
use vnode::{Attr, Entry, Errno, Kind, Name, OpenFile, OpenFlags, Result, Vnode};

/// The place of a new object.
struct Slot {
    branch: BranchId,
    /// Whether that branch has a whiteout of the name, to be removed once the entry exists.
    whiteout: bool,
}

/// A new object.
struct Made<T> {
    vnode: Arc<UnionVnode>,
    /// Attributes; a directory's are those of the lower directory.
    attr: Attr,
    branch: BranchId,
    /// The object's number of moves while it lay on that branch.
    moves: u16,
    rest: T,
}

impl UnionVnode {
    /// Fails for names that users can't create.
    pub(crate) fn check_new_name(&self, op: &Op<'_>, name: Name<'_>) -> Result<()> {
        self.dir()?;
        op.set.require_writable()?;
        if reserved(name.as_bytes()) { Err(self.refuse_name(name)) } else { Ok(()) }
    }

    /// Fails with `ENOENT` if this was removed: a removed directory takes no entries, a removed
    /// file no names.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.is_gone() { Err(Errno::NOENT) } else { Ok(()) }
    }

    /// Returns the place for a new entry. `EEXIST` if the name is taken.
    fn slot(&self, op: &Op<'_>, stack: &Stack, name: Name<'_>, choice: &mut Choice) -> Result<Slot> {
        if let [only] = &**stack
            && op.set.writable(only.branch)
            && (self.core.options.create.order == Order::Inherit || self.placed(op, usize::MAX, choice)? == only.branch)
        {
            // The directory merges no other part, so the lower file system checks whether the name
            // is free.
            return Ok(Slot { branch: only.branch, whiteout: false });
        }
        let (whiteout, bound) = match self.recent_negative(op, name) {
            Some(whiteout) => (whiteout, whiteout.map_or(usize::MAX, |branch| op.set.position(branch))),
            None => {
                let probe = self.probe(op, stack, name)?;
                if !matches!(probe.hit, Hit::None) {
                    return Err(Errno::EXIST);
                }
                (probe.whiteout, probe.bound(op.set))
            }
        };
        let branch = self.placed(op, bound, choice)?;
        Ok(Slot { branch, whiteout: whiteout == Some(branch) })
    }

    /// Creates an entry with `make`, which is called with the lower directory for it.
    fn create_entry<T>(
        &self,
        op: &Op<'_>,
        name: Name<'_>,
        make: &mut dyn FnMut(&Lower) -> Result<(Entry, T)>,
    ) -> Result<Made<T>> {
        self.check_new_name(op, name)?;
        let this = self.arc()?;
        let mut choice = Choice::default();
        let mut retries = Retries::new();
        loop {
            let locked = self.lock_entry(op, name)?;
            self.check_alive()?;
            let stack = self.stack()?;
            let slot = self.slot(op, &stack, name, &mut choice)?;
            let Some(part) = stack.iter().find(|part| part.branch == slot.branch) else {
                drop(locked);
                self.give_part(op, &this, slot.branch, &mut choice)?;
                retries.count()?;
                continue;
            };
            if !self.refreshed(op, part, &mut choice)? {
                retries.count()?;
                continue;
            }
            match make(part) {
                Ok((entry, rest)) => {
                    self.finish_create(op, part, &slot, name, &entry);
                    // Not later: once the entry is unlocked, the object may move to another branch.
                    let made = self.made(op, name, slot.branch, entry, rest);
                    drop(locked);
                    self.touch(op, slot.branch);
                    return made;
                }
                Err(e) if op.set.retry_left(slot.branch, e) => retries.count()?,
                Err(e) if choice.skip(&self.core.options.create, slot.branch, e) => retries.count()?,
                Err(e) => return Err(e),
            }
        }
    }

    /// Returns the new object that `entry` on `branch` is.
    fn made<T>(&self, op: &Op<'_>, name: Name<'_>, branch: BranchId, entry: Entry, rest: T) -> Result<Made<T>> {
        let place = self.place_of(name)?;
        let (vnode, attr) = match entry.vnode.kind() {
            Kind::Directory => {
                let lower = Lower { vnode: entry.vnode, branch };
                (self.core.intern_dir(op, place, [lower].into(), None)?, entry.attr)
            }
            _ => self.core.present_leaf(op, place, branch, entry)?,
        };
        let moves = vnode.moves();
        Ok(Made { vnode, attr, branch, moves, rest })
    }

    /// Gives this directory a part on the branch for a new object. If none can be created there
    /// after all, the caller chooses again.
    fn give_part(&self, op: &Op<'_>, this: &Arc<Self>, branch: BranchId, choice: &mut Choice) -> Result<()> {
        match self.core.ensure_part(op, this, branch) {
            Err(e) if choice.skip(&self.core.options.create, branch, e) => Ok(()),
            Err(Errno::PERM | Errno::OPNOTSUPP) if op.set.is_left(self.branch(), branch) => {
                choice.refuse(branch);
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// Brings the attributes that a new object inherits from `part` up to date. Returns false if
    /// the branch can't store them, so that the caller has to choose again.
    fn refreshed(&self, op: &Op<'_>, part: &Lower, choice: &mut Choice) -> Result<bool> {
        match self.core.refresh_part(op, self, part) {
            Ok(()) => Ok(true),
            Err(Errno::PERM | Errno::OPNOTSUPP) => {
                choice.refuse(part.branch);
                Ok(false)
            }
            Err(e) if choice.skip(&self.core.options.create, part.branch, e) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Completes a creation after the entry became visible: updates counts, and removes the
    /// whiteout that the entry overrides.
    fn finish_create(&self, op: &Op<'_>, part: &Lower, slot: &Slot, name: Name<'_>, entry: &Entry) {
        self.entry_changed(name, EntryChange::Unknown);
        let directory = entry.vnode.kind() == Kind::Directory;
        if directory {
            self.count_subdir(1);
        }
        if !slot.whiteout {
            return;
        }
        if directory {
            // The whiteout beside the directory ends its stack. The opaque mark takes over, and
            // remains effective after a rename.
            let lower = Lower { vnode: entry.vnode.clone(), branch: part.branch };
            if let Err(errno) = self.core.make_opaque(op, &lower) {
                tracing::warn!(%name, %errno, "could not mark a new directory opaque: the whiteout beside it remains");
                return;
            }
        }
        self.core.tidy_whiteout(op, part, name);
    }

    /// Returns the union's entry for a new object.
    fn present(op: &Op<'_>, made: Made<()>) -> Result<Entry> {
        let Made { vnode, attr, .. } = made;
        let attr = if vnode.dir.is_some() { vnode.dir_attr(op, attr)? } else { attr };
        Ok(Entry { vnode, attr })
    }

    /// Creates and opens a regular file.
    pub(crate) fn create_file(
        &self,
        op: &Op<'_>,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, Arc<dyn OpenFile>)> {
        let made = self.create_entry(op, name, &mut |dir| dir.vnode.create(op, name, mode, flags))?;
        let Made { vnode, attr, branch, moves, rest: file } = made;
        let open = UnionFile::new(op, &vnode, flags, (branch, moves), file)?;
        Ok((Entry { vnode, attr }, open))
    }

    /// Creates a file of any kind that mknod(2) can create.
    pub(crate) fn create_node(&self, op: &Op<'_>, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry> {
        let made = self.create_entry(op, name, &mut |dir| Ok((dir.vnode.mknod(op, name, mode, rdev)?, ())))?;
        Self::present(op, made)
    }

    /// Creates a directory.
    pub(crate) fn create_dir(&self, op: &Op<'_>, name: Name<'_>, mode: u32) -> Result<Entry> {
        let made = self.create_entry(op, name, &mut |dir| Ok((dir.vnode.mkdir(op, name, mode)?, ())))?;
        Self::present(op, made)
    }

    /// Creates a symbolic link.
    pub(crate) fn create_symlink(&self, op: &Op<'_>, name: Name<'_>, target: &[u8]) -> Result<Entry> {
        let made = self.create_entry(op, name, &mut |dir| Ok((dir.vnode.symlink(op, name, target)?, ())))?;
        Self::present(op, made)
    }

    /// Creates and opens a file without a name (`O_TMPFILE`).
    pub(crate) fn create_tmpfile(
        &self,
        op: &Op<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, Arc<dyn OpenFile>)> {
        op.set.require_writable()?;
        let this = self.arc()?;
        let mut choice = Choice::default();
        let mut retries = Retries::new();
        loop {
            self.check_alive()?;
            let stack = self.stack()?;
            let branch = self.placed(op, usize::MAX, &mut choice)?;
            let Some(part) = stack.iter().find(|part| part.branch == branch) else {
                self.give_part(op, &this, branch, &mut choice)?;
                retries.count()?;
                continue;
            };
            let locked = self.dir()?.entry_lock.write(op)?;
            let refreshed = self.refreshed(op, part, &mut choice)?;
            drop(locked);
            if !refreshed {
                retries.count()?;
                continue;
            }
            match part.vnode.tmpfile(op, mode, flags) {
                Ok((entry, file)) => {
                    let lower = Lower { vnode: entry.vnode, branch };
                    let number = self.core.number_of(op, &lower, &entry.attr)?;
                    let vnode = self.core.intern_unnamed(op, number, &lower);
                    let attr = vnode.leaf_attr(entry.attr);
                    let open = UnionFile::new(op, &vnode, flags, (branch, vnode.moves()), file)?;
                    return Ok((Entry { vnode, attr }, open));
                }
                Err(e) if op.set.retry_left(branch, e) => retries.count()?,
                Err(e) if choice.skip(&self.core.options.create, branch, e) => retries.count()?,
                Err(e) => return Err(e),
            }
        }
    }

    /// Creates another name of the file `target`. The file is copied up if the name would not be
    /// visible on its own branch.
    pub(crate) fn link_to(&self, op: &Op<'_>, name: Name<'_>, target: &Arc<dyn Vnode>) -> Result<Entry> {
        let target = self.link_target(op, target)?;
        self.check_new_name(op, name)?;
        if target.dir.is_some() {
            return Err(Errno::PERM);
        }
        let this = self.arc()?;
        self.core.copy_up_metacopied(op, &target)?;
        let mut retries = Retries::new();
        loop {
            // A copy that was made without the new name would leave it to the original.
            let from = target.hold(op)?;
            let locked = self.lock_entry(op, name)?;
            self.check_alive()?;
            // A file whose last name was removed can't be linked, even if a copy of it could.
            target.check_alive()?;
            let stack = self.stack()?;
            let probe = self.probe(op, &stack, name)?;
            if !matches!(probe.hit, Hit::None) {
                return Err(Errno::EXIST);
            }
            let branch = self.link_branch(op, &stack, &probe, &target, from.branch)?;
            let part = stack.iter().find(|part| part.branch == branch);
            // A file that stays is linked from its own branch: possible on one file system.
            let (Some(part), true) = (part, branch == from.branch || target.stays()) else {
                drop((locked, from));
                // Copying can be abandoned for a change of the set of branches: the directory comes
                // later.
                if !target.stays() {
                    self.core.copy_up(op, &target, Some(branch), None)?;
                }
                let _ = self.core.ensure_part(op, &this, branch)?;
                retries.count()?;
                continue;
            };
            let made = part.vnode.link(op, name, from.vnode());
            match made {
                Ok(entry) => {
                    if branch != from.branch {
                        self.core.moved_by_link(op, &target, (from.branch, branch), &entry)?;
                    }
                    let slot = Slot { branch, whiteout: probe.whiteout == Some(branch) };
                    self.finish_create(op, part, &slot, name, &entry);
                    drop((locked, from));
                    self.touch(op, branch);
                    return self.linked(name, target, entry.attr);
                }
                Err(Errno::XDEV) if branch != from.branch => return Err(Errno::BUSY),
                Err(e) if op.set.retry_left(branch, e) => retries.count()?,
                Err(e) => return Err(e),
            }
        }
    }

    /// Returns the file that is to be linked.
    fn link_target(&self, op: &Op<'_>, target: &Arc<dyn Vnode>) -> Result<Arc<Self>> {
        let target = same_layer(&self.core, target)?.arc()?;
        target.revalidate(op)?;
        // Since the set of branches changed, its name leads to another file: the caller repeats
        // the lookup.
        if target.is_detached() { Err(Errno::STALE) } else { Ok(target) }
    }

    /// Completes a link; `attr`: attributes of the lower file after it.
    fn linked(&self, name: Name<'_>, target: Arc<Self>, attr: Attr) -> Result<Entry> {
        if target.place().is_none() {
            self.core.write_gate.release_orphan(target.id);
        }
        target.set_place(Some(self.place_of(name)?));
        target.note_names(attr.nlink);
        let attr = target.leaf_attr(attr);
        Ok(Entry { vnode: target, attr })
    }

    /// Returns the branch for another name of a file on `from`: the file's own branch if the name
    /// would be visible there. Else a branch to the left to which the file can also be copied up
    /// under its known name.
    fn link_branch(
        &self,
        op: &Op<'_>,
        stack: &[Lower],
        probe: &Probe,
        file: &Self,
        from: BranchId,
    ) -> Result<BranchId> {
        if op.set.position(from) <= probe.bound(op.set) && self.core.can_take(op, &[self], from)? {
            return Ok(from);
        }
        let leftmost = stack.first().ok_or(Errno::NOENT)?.branch;
        let place = file.place();
        let dirs: Vec<&Self> = std::iter::once(self).chain(place.as_ref().map(|place| &*place.parent)).collect();
        self.core.branch_for(op, &dirs, op.set.position(leftmost).min(op.set.position(from)))
    }
}
