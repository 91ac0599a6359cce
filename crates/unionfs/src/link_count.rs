//! Link counts: docs/design/unionfs.md, "Hard links".
//!
//! The identity log stores how many names a lower file had, and how many of them are *used up*:
//! hidden by a whiteout, replaced, or copied up. A name that is about to be used up is logged
//! first, so that the count can be completed after a crash (`link_recovery`).

use crate::branch::Lower;
use crate::links::{Counting, is_of};
use crate::log::Record;
use crate::node::{Core, UnionVnode};
use crate::op::Op;
use crate::ownnames::IndexName;
use parking_lot::MutexGuard;
use vnode::{Attr, Errno, Name, Result};

impl Core {
    /// Adds a copy of `old` to the index. From then on, the names of the file on its old branch
    /// count as lower names that lead to the copy.
    pub(crate) fn index_copy(&self, op: &Op<'_>, number: u64, old: &Lower, copy: &Lower) -> Result<()> {
        // Whether a name that is being removed counts as used up, or no longer exists, depends on
        // whether its file is in the index.
        let _no_name_is_removed = self.links.begin_copy(op, number)?;
        let nlink = old.vnode.getattr(op)?.nlink;
        if self.links.branch(number) != Some(old.branch) {
            self.use_name(op, number, nlink, 0);
            return self.add_to_index(op, number, copy);
        }
        // A copy moves further left. After a crash, the index tells the next mount whether it did.
        let tag = op.set.branch(old.branch)?.tag;
        let record = Record::Using { tag, number, first: nlink, path: Vec::new() };
        self.append_use(op, self.links.counting.lock(), record)?;
        if let Err(e) = self.add_to_index(op, number, copy) {
            self.end_use(op, number, 0);
            return Err(e);
        }
        self.index_moved(op, number, nlink);
        self.unlink_index(op, number, old.branch);
        Ok(())
    }

    fn append_use(&self, op: &Op<'_>, mut counting: MutexGuard<'_, Counting>, record: Record) -> Result<()> {
        self.identity.append(&self.server(op), record.clone())?;
        counting.pending.insert(std::thread::current().id(), record);
        Ok(())
    }

    /// Writes a link count, which ends this thread's operation on a name of that file. In the log,
    /// the record also ends the operations that other threads have begun on names of the file.
    /// Their [`Record::Using`] are therefore written again, with it.
    fn write_names(&self, op: &Op<'_>, mut counting: MutexGuard<'_, Counting>, number: u64, first: u32, used: u32) {
        let of_file = |record: &Record| is_of(record, number);
        let this = std::thread::current().id();
        if counting.pending.get(&this).is_some_and(of_file) {
            counting.pending.remove(&this);
            self.links.ended.notify_all();
        }
        let mut records = vec![Record::Names { number, first, used }];
        records.extend(counting.pending.values().filter(|record| of_file(record)).cloned());
        self.identity.append_all_or_defer(&self.server(op), records);
    }

    /// Updates the link count after an index entry moved to another branch: the file's `nlink`
    /// names on the old branch, without the old index entry, now count as lower names.
    pub(crate) fn index_moved(&self, op: &Op<'_>, number: u64, nlink: u32) {
        let counting = self.links.counting.lock();
        let names = self.identity.names(number).unwrap_or_default();
        let first = names.first.saturating_add(nlink.saturating_sub(1));
        self.write_names(op, counting, number, first, names.used);
    }

    /// Returns the number of a file if the log keeps its link count, or has to once this name is
    /// used up.
    fn counts(&self, op: &Op<'_>, lower: &Lower, attr: &Attr) -> Result<Option<u64>> {
        let number = self.number_of(op, lower, attr)?;
        let counted = match self.links.branch(number) {
            Some(at) => at != lower.branch,
            // Nothing hides names of the leftmost branch.
            None => attr.nlink > 1 && !op.set.is_leftmost(lower.branch),
        };
        Ok(counted.then_some(number))
    }

    /// Logs that a name of a lower file is about to be hidden, replaced or removed, so that the
    /// next mount after a crash checks whether it was. [`Self::name_removed`], [`Self::use_name`]
    /// or [`Self::cancel_use`] has to end this.
    pub(crate) fn begin_use(
        &self,
        op: &Op<'_>,
        dir: &UnionVnode,
        name: Name<'_>,
        lower: &Lower,
        attr: &Attr,
    ) -> Result<()> {
        let number = self.number_of(op, lower, attr)?;
        if attr.nlink < 2 && self.links.branch(number).is_none() {
            return Ok(());
        }
        let mut counting = self.links.begin_use(op, number)?;
        // Not before: a copy may have been added to the index meanwhile.
        if self.counts(op, lower, attr)?.is_none() {
            counting.uncounted.insert(std::thread::current().id(), number);
            return Ok(());
        }
        let tag = op.set.branch(lower.branch)?.tag;
        let record = Record::Using { tag, number, first: attr.nlink, path: dir.path_to(name) };
        match self.append_use(op, counting, record) {
            // A path of 64 KiB can't be logged. The link count is wrong only after a crash at this
            // moment.
            Err(Errno::NAMETOOLONG) => Ok(()),
            other => other,
        }
    }

    /// Ends [`Self::begin_use`] of a name that was not used up.
    pub(crate) fn cancel_use(&self, op: &Op<'_>, lower: &Lower, attr: &Attr) {
        match self.counts(op, lower, attr) {
            Ok(Some(number)) => self.end_use(op, number, 0),
            Ok(None) | Err(_) => self.links.forget_use(),
        }
    }

    /// Ends an operation that used up no name. `removed`: the number of names of the lower file
    /// that it deleted.
    pub(crate) fn end_use(&self, op: &Op<'_>, number: u64, removed: u32) {
        let counting = self.links.counting.lock();
        let names = self.identity.names(number).unwrap_or_default();
        let first = match self.links.branch(number) {
            Some(_) => names.first,
            // No name is hidden: no record is needed.
            None if names.used == 0 => 0,
            None => names.first.saturating_sub(removed).max(names.used),
        };
        self.write_names(op, counting, number, first, names.used);
    }

    /// Updates the link count after a hidden name was removed from its branch. The name counts as
    /// used up already, since it was hidden.
    pub(crate) fn hidden_name_removed(&self, op: &Op<'_>, lower: &Lower, attr: &Attr) {
        let Ok(number) = self.number_of(op, lower, attr) else { return };
        // The names of a copy's original are counted as they were: this one remains used up.
        let counted = self.links.branch(number).is_none_or(|at| at == lower.branch);
        if counted && attr.nlink > 1 && self.identity.names(number).is_some_and(|names| names.used > 0) {
            self.use_name(op, number, attr.nlink.saturating_sub(1), -1);
        }
        if attr.nlink < 2
            && let Ok(state) = op.set.branch(lower.branch)
        {
            self.identity.unalias(&self.server(op), state.tag, lower.vnode.id());
        }
    }

    /// Updates the link count after a hidden name became visible again.
    pub(crate) fn name_uncovered(&self, op: &Op<'_>, lower: &Lower, attr: &Attr) -> Result<()> {
        if let Some(number) = self.counts(op, lower, attr)?
            && self.identity.names(number).is_some_and(|names| names.used > 0)
        {
            self.use_name(op, number, attr.nlink, -1);
        }
        Ok(())
    }

    /// Adds `by` to the number of used names of a lower file with `first` names. Once the file is
    /// in the index, the number of first names is fixed.
    pub(crate) fn use_name(&self, op: &Op<'_>, number: u64, first: u32, by: i32) {
        let counting = self.links.counting.lock();
        let fresh = crate::identity::LinkCount { first, used: 0 };
        let mut names = self.identity.names(number).unwrap_or(fresh);
        if self.links.branch(number).is_none() {
            names.first = first.max(1);
        }
        names.used = names.used.saturating_add_signed(by);
        self.write_names(op, counting, number, names.first, names.used);
    }

    /// Returns a file's link count as users see it, from that of its lower file.
    pub(crate) fn link_count(&self, number: u64, lower: u32) -> u32 {
        let indexed = self.links.branch(number).is_some();
        if lower < 2 && !indexed {
            return lower;
        }
        match self.identity.names(number) {
            // Names on the copy's own branch may be hidden too.
            Some(names) if indexed => lower.saturating_sub(1).saturating_add(names.first).saturating_sub(names.used),
            Some(names) => lower.saturating_sub(names.used),
            None => lower.saturating_sub(u32::from(indexed)),
        }
    }

    /// Updates the link count after a name of a file was removed from the view. `lower`, `attr`:
    /// the lower object that had the name, and its attributes before. `remains`: the lower name
    /// still exists, hidden.
    fn name_removed(&self, op: &Op<'_>, lower: &Lower, attr: &Attr, remains: bool) -> Result<()> {
        let number = self.number_of(op, lower, attr)?;
        let indexed = self.links.branch(number);
        let own = indexed.is_none_or(|at| at == lower.branch);
        if !own || (attr.nlink > 1 && remains) {
            self.use_name(op, number, attr.nlink, 1);
        } else if indexed.is_none() && attr.nlink > 1 && !op.set.is_leftmost(lower.branch) {
            self.end_use(op, number, 1);
        }
        let left = match indexed {
            Some(_) => self.names_left(op, number, lower, attr, own && !remains)?,
            None => {
                let used = self.identity.names(number).map_or(0, |names| names.used);
                attr.nlink.saturating_sub(u32::from(!remains)).saturating_sub(used)
            }
        };
        if left == 0 || (attr.nlink < 2 && indexed.is_none()) {
            self.last_name_removed(op, number, lower)?;
        }
        Ok(())
    }

    /// As [`Self::name_removed`], for an operation that took effect and can't fail any more. An
    /// error is only logged: a link count is wrong then.
    pub(crate) fn note_name_removed(&self, op: &Op<'_>, lower: &Lower, attr: &Attr, remains: bool) {
        if let Err(errno) = self.name_removed(op, lower, attr, remains) {
            tracing::warn!(%errno, "could not update the link count of a file");
            self.links.forget_use();
        }
        self.links.end_uncounted_use();
    }

    /// Returns the number of names that still lead to an indexed file.
    fn names_left(&self, op: &Op<'_>, number: u64, lower: &Lower, attr: &Attr, removed: bool) -> Result<u32> {
        let copy = if removed {
            attr.nlink.saturating_sub(1)
        } else {
            let branch = self.links.branch(number).unwrap_or(lower.branch);
            match self.links_dir(op, branch)? {
                Some(dir) => dir.lookup(op, IndexName::of(number).name()?)?.map_or(1, |copy| copy.attr.nlink),
                None => 1,
            }
        };
        Ok(self.link_count(number, copy))
    }

    fn last_name_removed(&self, op: &Op<'_>, number: u64, lower: &Lower) -> Result<()> {
        let op = &self.server(op);
        if let Some(branch) = self.links.branch(number)
            && let Some(dir) = self.links_dir(op, branch)?
            && let Some(copy) = dir.lookup(op, IndexName::of(number).name()?)?
        {
            self.identity.unalias(op, op.set.branch(branch)?.tag, copy.vnode.id());
        }
        self.remove_from_index(op, number);
        if self.identity.names(number).is_some() {
            self.identity.append_or_defer(op, Record::Names { number, first: 0, used: 0 });
        }
        self.identity.unalias(op, op.set.branch(lower.branch)?.tag, lower.vnode.id());
        // A directory can have got the number before it was known to be taken.
        if let Some(vnode) = self.table.get(number).filter(|vnode| vnode.dir.is_none()) {
            vnode.set_gone();
        }
        Ok(())
    }
}

impl UnionVnode {
    /// Returns a file's attributes as users see them, from those of its lower file.
    pub(crate) fn leaf_attr(&self, mut attr: Attr) -> Attr {
        attr.ino = self.core.shown(self.id);
        attr.nlink = if self.is_gone() && attr.nlink < 2 { 0 } else { self.core.link_count(self.id, attr.nlink) };
        attr
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branch::BranchId;
    use vnode::Kind;

    /// Names of one file may be removed from several directories at once.
    #[test]
    fn names_used_by_several_threads_are_all_counted() {
        const THREADS: u32 = 4;
        const NAMES: u32 = 3000;
        let layer = memfs::MemFs::new();
        let branch = crate::Branch { layer, path: "/b".into(), mode: crate::Mode::ReadWrite };
        let union = crate::Unionfs::new(vec![branch], crate::Options::default()).unwrap();
        let root = vnode::Layer::root(&*union);
        let core = &root.as_any().downcast_ref::<UnionVnode>().unwrap().core;
        let (cx, set) = (vnode::Cx::internal(0, 0), core.branches.get());
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| (0..NAMES).for_each(|_| core.use_name(&Op::new(&cx, &set), 77, THREADS * NAMES + 1, 1)));
            }
        });
        assert_eq!(core.identity.names(77).map(|names| names.used), Some(THREADS * NAMES));
    }

    /// A crash while names of one file are removed from several directories: one operation has
    /// ended, another is to be completed.
    #[test]
    fn ending_one_operation_does_not_end_others() {
        let layers = [memfs::MemFs::new(), memfs::MemFs::new()];
        let cx = vnode::Cx::internal(0, 0);
        let name = |text: &'static str| Name::new(text.as_bytes()).unwrap();
        let below = vnode::Layer::root(&*layers[1]);
        let file = below.mknod(&cx, name("a"), Kind::Regular.mode_bits() | 0o644, 0).unwrap().vnode;
        for other in ["b", "c", "d"] {
            below.link(&cx, name(other), &file).unwrap();
        }
        let mount = || {
            let modes = [crate::Mode::ReadWrite, crate::Mode::ReadOnly];
            let branches = layers.iter().zip(modes).zip(["/0", "/1"]).map(|((layer, mode), path)| crate::Branch {
                layer: layer.clone(),
                path: path.into(),
                mode,
            });
            crate::Unionfs::new(branches.collect(), crate::Options::default()).unwrap()
        };
        {
            let root = vnode::Layer::root(&*mount());
            let top = root.as_any().downcast_ref::<UnionVnode>().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let lower = Lower { vnode: file.clone(), branch: BranchId(1) };
                    let set = top.core.branches.get();
                    let op = Op::new(&cx, &set);
                    top.core.begin_use(&op, top, name("b"), &lower, &file.getattr(&cx).unwrap()).unwrap();
                    top.core.create_whiteout(&op, &top.part(BranchId(0)).unwrap().unwrap(), name("b")).unwrap();
                });
            });
            root.unlink(&cx, name("a")).unwrap();
        }
        let root = vnode::Layer::root(&*mount());
        assert_eq!(root.lookup(&cx, name("c")).unwrap().unwrap().attr.nlink, 2);
    }
}
