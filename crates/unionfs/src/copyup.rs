//! Copy-up of files: docs/design/unionfs.md, "Copy-up".

use crate::branch::{BranchId, Lower};
use crate::listing::EntryChange;
use crate::metacopy::as_metacopy;
use crate::node::{Core, Place, UnionVnode};
use crate::op::Op;
use crate::retry::Retries;
use crate::times::preserving_times;
use std::sync::Arc;
use vnode::{Attr, Cx, Entry, Errno, Kind, Name, OpenFile, OpenFlags, RenameFlags, Result, SetAttr, SetTime, Vnode};

/// A change that is applied to the copy before the copy is published, so that both take effect in
/// one step.
pub(crate) struct Change {
    /// A truncation, and other attributes that change with it.
    set: SetAttr,
    /// Flags for opening the copy too.
    open: Option<OpenFlags>,
    /// The result; `None` if no copy has been made.
    pub(crate) done: Option<Changed>,
}

/// The copy after the change.
pub(crate) struct Changed {
    /// The copy's lower vnode. By the time its maker sees this, the file may have moved on.
    pub(crate) copy: Arc<dyn Vnode>,
    pub(crate) attr: Attr,
    pub(crate) file: Option<Arc<dyn OpenFile>>,
}

impl Change {
    /// Returns the change for a setattr that includes a size.
    pub(crate) fn truncate(set: &SetAttr) -> Self {
        // Only the data that the truncation leaves is copied. Truncating the copy may therefore not
        // change its size, nor its mtime, which is set explicitly instead.
        Self { set: SetAttr { mtime: set.mtime.or(Some(SetTime::Now)), ..*set }, open: None, done: None }
    }

    /// Returns the change for an open with `O_TRUNC`.
    pub(crate) fn open(flags: OpenFlags) -> Self {
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        Self { open: Some(flags.without_trunc()), ..Self::truncate(&set) }
    }

    /// Returns how many bytes of the original's data the change leaves, and have to be copied.
    pub(crate) fn remaining_size(change: Option<&Self>, size: u64) -> u64 {
        change.and_then(|change| change.set.size).map_or(size, |kept| kept.min(size))
    }

    fn apply(&mut self, cx: &Cx<'_>, built: &Built) -> Result<()> {
        let attr = built.entry.vnode.setattr(cx, &self.set, built.open.as_deref())?;
        let file = self.open.map(|flags| built.entry.vnode.open(cx, flags)).transpose()?;
        self.done = Some(Changed { copy: built.entry.vnode.clone(), attr, file });
        Ok(())
    }
}

/// A copy-up under way.
pub(crate) struct Copying<'a> {
    pub(crate) vnode: &'a Arc<UnionVnode>,
    /// The original.
    pub(crate) from: &'a Lower,
    pub(crate) attr: Attr,
    /// The place where the union last found the original; `None` if it has no known name.
    pub(crate) place: Option<&'a Place>,
    pub(crate) to: BranchId,
}

/// A copy that is not visible in the union yet: an unnamed file, or one in the work directory.
pub(crate) struct Built {
    pub(crate) entry: Entry,
    /// The work directory and the copy's name there; `None` for an unnamed file.
    pub(crate) work: Option<(Arc<dyn Vnode>, crate::work::WorkName)>,
    pub(crate) open: Option<Arc<dyn OpenFile>>,
}

/// Fails with `MAY_BLOCK` if data must be copied and the thread must not block: the copy is made
/// durable, which takes long.
fn require_blocking_to_copy(cx: &Cx<'_>, from: &Lower, change: Option<&Change>) -> Result<()> {
    if cx.may_block || from.vnode.kind() != Kind::Regular {
        return Ok(());
    }
    let size = from.vnode.getattr(cx)?.size;
    if Change::remaining_size(change, size) > 0 { cx.require_blocking() } else { Ok(()) }
}

impl Core {
    /// Copies a file up to the branch `to`, or further left if the file's directory can't have a
    /// part on `to`. Without `to`, copies it up to the branch that [`Self::copy_target`] chooses,
    /// unless its own branch can be written. Does nothing if the file already lies on `to` or
    /// further left.
    ///
    /// No lock that readers need is held while data are copied.
    pub(crate) fn copy_up(
        &self,
        op: &Op<'_>,
        vnode: &Arc<UnionVnode>,
        to: Option<BranchId>,
        mut change: Option<&mut Change>,
    ) -> Result<()> {
        op.set.require_writable()?;
        let _job = self.jobs.start(op, vnode.id)?;
        let from = vnode.leaf();
        // A file of a removed branch is not copied.
        op.set.branch(from.branch)?;
        let movable = op.set.writable(from.branch);
        if to.map_or(movable, |to| !op.set.is_left(to, from.branch)) {
            return Ok(());
        }
        if self.write_gate.is_host_file_held(vnode.id) {
            // The kernel may write to the host file directly: such writes would be lost.
            return Err(Errno::BUSY);
        }
        let _moving = if movable { Some(self.write_gate.start_move(op, vnode.id)?) } else { None };
        let mut retries = Retries::new();
        loop {
            let place = vnode.place();
            let target = self.copy_target(op, to, place.as_ref(), &from)?;
            if place.is_some() {
                require_blocking_to_copy(op, &from, change.as_deref())?;
            }
            let copying =
                Copying { vnode, from: &from, attr: from.vnode.getattr(op)?, place: place.as_ref(), to: target };
            match self.copy(op, &copying, change.as_deref_mut()) {
                Err(Errno::AGAIN) => {
                    op.check_restart()?;
                    op.check()?;
                }
                Err(e) if op.set.retry_left(target, e) => {}
                other => return other,
            }
            retries.count()?;
        }
    }

    /// Returns the branch for the copy of the file `from`. With `to`, that is the first suitable
    /// branch from `to` to the left. Without `to`, it is the leftmost read-write branch left of the
    /// file, and not right of its metacopy, that has a part of the file's directory. If there is
    /// none, it is the first suitable one of these branches from right to left. A branch is
    /// suitable if it is read-write and the directory has a part there or can get one.
    pub(crate) fn copy_target(
        &self,
        op: &Op<'_>,
        to: Option<BranchId>,
        place: Option<&Place>,
        from: &Lower,
    ) -> Result<BranchId> {
        let left = match as_metacopy(&from.vnode) {
            Some(meta) => op.set.position(meta.home),
            None => op.set.position(from.branch).checked_sub(1).ok_or(Errno::ROFS)?,
        };
        let bound = to.map_or(left, |to| op.set.position(to));
        let Some(place) = place else { return self.branch_for(op, &[], bound) };
        if to.is_none() {
            let stack = place.parent.stack()?;
            let takes = |part: &&Lower| op.set.position(part.branch) <= left && op.set.writable(part.branch);
            if let Some(part) = stack.iter().filter(takes).find(|part| !op.set.is_drained(part.branch)) {
                return Ok(part.branch);
            }
        }
        self.branch_for(op, &[&place.parent], bound)
    }

    /// Builds the copy and publishes it. `EAGAIN` if the file was renamed meanwhile, if its
    /// directory can't have a part on the branch after all, or to let a change of the set of
    /// branches proceed: users can see no trace of the copy then. Therefore the directory gets its
    /// part afterwards.
    fn copy(&self, op: &Op<'_>, copying: &Copying<'_>, change: Option<&mut Change>) -> Result<()> {
        let built = self.build(op, copying, change)?;
        let published = self.ensure_place(op, copying).and_then(|()| self.publish(op, copying, &built));
        if published.is_err() {
            self.discard(op, &built);
            // The file system may reuse the discarded copy's inode number for another file.
            self.identity.unalias(&self.server(op), op.set.branch(copying.to)?.tag, built.entry.vnode.id());
        }
        published
    }

    /// Ensures that the file's directory has a part on the branch of the copy.
    fn ensure_place(&self, op: &Op<'_>, copying: &Copying<'_>) -> Result<()> {
        match copying.place {
            Some(place) if !self.ensure_part(op, &place.parent, copying.to)? => Err(Errno::AGAIN),
            _ => Ok(()),
        }
    }

    /// Builds a complete copy that is not visible in the union yet.
    pub(crate) fn build(&self, op: &Op<'_>, copying: &Copying<'_>, change: Option<&mut Change>) -> Result<Built> {
        let &Copying { from, ref attr, to, .. } = copying;
        let built = match from.vnode.kind() {
            Kind::Regular => self.build_file(op, to)?,
            Kind::Directory => return Err(Errno::ISDIR),
            kind => self.build_special(op, from, attr, to, kind)?,
        };
        let filled = match &built.open {
            Some(open) => self.copy_data(
                op,
                from,
                attr,
                &**open,
                &*built.entry.vnode,
                Change::remaining_size(change.as_deref(), attr.size),
            ),
            None => Ok(()),
        };
        let attributed = filled.and_then(|()| self.copy_attributes(op, &from.vnode, attr, &built.entry.vnode));
        let changed = attributed.and_then(|()| change.map_or(Ok(()), |change| change.apply(op, &built)));
        if let Err(e) = changed {
            self.discard(op, &built);
            return Err(e);
        }
        Ok(built)
    }

    /// Creates an empty file on a branch, invisible in the union: without a name if the file system
    /// supports `O_TMPFILE`, else in the work directory.
    pub(crate) fn build_file(&self, op: &Op<'_>, to: BranchId) -> Result<Built> {
        let server = self.server(op);
        match op.set.branch(to)?.root.tmpfile(&server, 0o600, OpenFlags::RDWR) {
            Ok((entry, open)) => Ok(Built { entry, work: None, open: Some(open) }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let make = |dir: &Arc<dyn Vnode>, name: Name<'_>| dir.create(&server, name, 0o600, OpenFlags::RDWR);
                let (dir, name, (entry, open)) = self.begin_work(op, to, make)?;
                Ok(Built { entry, work: Some((dir, name)), open: Some(open) })
            }
            Err(e) => Err(e),
        }
    }

    fn build_special(&self, op: &Op<'_>, from: &Lower, attr: &Attr, to: BranchId, kind: Kind) -> Result<Built> {
        let server = self.server(op);
        let link = if kind == Kind::Symlink { Some(from.vnode.readlink(op)?) } else { None };
        let (dir, name, entry) = self.begin_work(op, to, |dir, name| match &link {
            Some(target) => dir.symlink(&server, name, target),
            None => dir.mknod(&server, name, kind.mode_bits() | 0o600, attr.rdev),
        })?;
        Ok(Built { entry, work: Some((dir, name)), open: None })
    }

    /// Removes an unpublished copy.
    pub(crate) fn discard(&self, op: &Op<'_>, built: &Built) {
        if let Some((dir, name)) = &built.work {
            let removed = name.name().and_then(|name| dir.unlink(&self.server(op), name));
            if let Err(errno) = removed
                && errno != Errno::NOENT
            {
                tracing::warn!(%errno, "could not remove an unfinished copy from the work directory");
            }
        }
    }

    /// Publishes a finished copy. `EAGAIN` if the file was renamed while it was copied.
    pub(crate) fn publish(&self, op: &Op<'_>, copying: &Copying<'_>, built: &Built) -> Result<()> {
        let &Copying { vnode, from, ref attr, place, to } = copying;
        let copy = Lower { vnode: built.entry.vnode.clone(), branch: to };
        let _locked = match place {
            Some(place) => Some(place.parent.lock_entry(op, place.name()?)?),
            None => None,
        };
        let at = match place {
            Some(place) => self.is_still_at(op, vnode, from, place)?,
            None => false,
        };
        if vnode.place().is_some() != at {
            return Err(Errno::AGAIN);
        }
        // The file still has a name that the union does not know: it had several, and the known one
        // was removed or leads to another object since the branches changed.
        let unknown = !at && attr.nlink > 0;
        // Names that remain on the branch after all of them were removed from the union are hidden.
        let several = !vnode.is_gone() && (attr.nlink > 1 || unknown);
        // A file created by `O_TMPFILE` has no name yet. It can still get one by link(2), and must
        // keep its number then.
        let linkable = !at && attr.nlink == 0 && !vnode.is_gone();
        if at || several || linkable {
            let copied = copy.vnode.getattr(op)?;
            self.identity
                .append(&self.server(op), self.alias_record(op, &copy, &copied, (vnode.id, vnode.generation()))?)?;
        }
        match (several, place.filter(|_| at)) {
            (true, place) => self.publish_index(op, &Copying { place, attr: *attr, ..*copying }, built)?,
            (false, Some(place)) => self.publish_name(op, place, &copy, built)?,
            (false, None) => self.publish_orphan(vnode, built, linkable),
        }
        vnode.set_leaf(copy);
        if let Some(place) = place {
            place.parent.entry_changed(place.name()?, EntryChange::Unknown);
            if at {
                self.drop_metacopy(op, &place.parent, place.name()?, &from.vnode);
            }
        }
        Ok(())
    }

    /// Whether `place` still leads to the file on its branch. If not, the vnode forgets that name.
    pub(crate) fn is_still_at(
        &self,
        op: &Op<'_>,
        vnode: &Arc<UnionVnode>,
        from: &Lower,
        place: &Place,
    ) -> Result<bool> {
        if !vnode.place().is_some_and(|now| now.is(place)) {
            return Ok(false);
        }
        let probe = place.parent.probe(op, &place.parent.stack()?, place.name()?)?;
        let there = match probe.hit {
            crate::lookup::Hit::Leaf { branch, entry } => branch == from.branch && entry.vnode.id() == from.vnode.id(),
            _ => false,
        };
        if !there {
            vnode.set_place(None);
        }
        Ok(there)
    }

    /// Publishes the copy of a file with several names by adding it to the index of copies. From
    /// then on, each of the original's names leads to the copy. Also links the copy at the known
    /// name, which may fail without harm.
    fn publish_index(&self, op: &Op<'_>, copying: &Copying<'_>, built: &Built) -> Result<()> {
        let &Copying { vnode, from, ref attr, place, to } = copying;
        let copy = &Lower { vnode: built.entry.vnode.clone(), branch: to };
        self.index_copy(op, vnode.id, (from, copy), place)?;
        let named = place.map_or(Err(Errno::NOENT), |place| {
            let _begun = self.begin_use(op, (&place.parent, place.name()?), (from, attr), Some(to))?;
            self.publish_name(op, place, copy, built)?;
            self.use_name(op, vnode.id, op.set.branch(to)?.tag);
            Ok(())
        });
        if named.is_err() {
            // The names lead to the copy by the index entry, which is enough.
            self.discard(op, built);
        }
        Ok(())
    }

    /// Publishes the copy of a file without a name. It is kept open while its vnode exists.
    fn publish_orphan(&self, vnode: &UnionVnode, built: &Built, linkable: bool) {
        if let Some(open) = &built.open {
            if !linkable {
                vnode.set_gone();
            }
            self.write_gate.keep_orphan(vnode.id, open.clone());
        }
    }

    pub(crate) fn publish_name(&self, op: &Op<'_>, place: &Place, copy: &Lower, built: &Built) -> Result<()> {
        let dir = place.parent.part(copy.branch)?.ok_or(Errno::AGAIN)?;
        let server = self.server(op);
        self.preserving_times(op, &dir, || match &built.work {
            Some((work, name)) => {
                let flags = RenameFlags { no_replace: true, ..RenameFlags::default() };
                work.rename(&server, name.name()?, &dir.vnode, place.name()?, flags)
            }
            None => dir.vnode.link(&server, place.name()?, &copy.vnode).map(drop),
        })
    }

    /// Runs `change` on a lower directory and restores the directory's times, because users of the
    /// union do not see the change.
    pub(crate) fn preserving_times<T>(
        &self,
        op: &Op<'_>,
        dir: &Lower,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let changed = preserving_times(&self.server(op), &dir.vnode, change);
        self.times_moved(dir.branch, &dir.vnode);
        changed
    }

    /// Links a copied-up file at `name` in `dir`, another of its names, if that still leads to the
    /// original: `probe` is the branch and entry found there. Users of the union see no change. The
    /// caller holds the entry lock of `dir`. Returns false if `dir` can't get the name on the
    /// copy's branch, so that the caller must choose another branch.
    pub(crate) fn link_copied_name(
        &self,
        op: &Op<'_>,
        vnode: &UnionVnode,
        dir: &UnionVnode,
        name: Name<'_>,
        probe: (BranchId, &Entry),
    ) -> Result<bool> {
        let (shown, entry) = probe;
        let lower = vnode.leaf();
        if !op.set.is_left(lower.branch, shown) {
            return Ok(true);
        }
        let Some(part) = dir.part(lower.branch)? else { return Ok(false) };
        let server = self.server(op);
        let old = Lower { vnode: entry.vnode.clone(), branch: shown };
        let _begun = self.begin_use(op, (dir, name), (&old, &entry.attr), Some(lower.branch))?;
        let linked = self.preserving_times(op, &part, || part.vnode.link(&server, name, &lower.vnode).map(drop));
        if let Err(e) = linked {
            return if op.set.retry_left(lower.branch, e) { Ok(false) } else { Err(e) };
        }
        self.use_name(op, vnode.id, op.set.branch(lower.branch)?.tag);
        Ok(true)
    }
}
