//! Link counts: docs/design/unionfs.md, "Hard links".
//!
//! The log of each branch stores how many names of a file that branch has *used up*: hidden by a
//! whiteout, replaced, or copied up. If the branch has the file's copy, it also stores how many
//! names the file had before. A name that is about to be used up is logged first, so that the count
//! can be completed after a crash (`link_recovery`).

use crate::branch::{BranchId, Lower};
use crate::links::{Counting, is_of};
use crate::log::{Original, Record};
use crate::logs::LogFile;
use crate::node::{Core, Place, UnionVnode};
use crate::offline::each_file;
use crate::op::Op;
use crate::opaque_redirect::components;
use crate::options::Mode;
use crate::recorded::{Counts, LinkCount};
use parking_lot::MutexGuard;
use std::collections::BTreeMap;
use std::sync::Arc;
use vnode::{Attr, Errno, Name, Result, Vnode};

/// Returns a file's path on its branch, if that is the same as in the union.
fn path_on_branch(op: &Op<'_>, lower: &Lower, place: &Place) -> Option<Vec<u8>> {
    let path = place.parent.path_to(place.name().ok()?);
    let mut at = op.set.branch(lower.branch).ok()?.root.clone();
    for name in components(&path) {
        at = at.lookup(op, name.ok()?).ok()??.vnode;
    }
    (at.id() == lower.vnode.id()).then_some(path)
}

/// This thread's operation on a name ([`Core::begin_use`]). Dropping it ends the operation, in the
/// log too. If nothing counted the name as used up before, the counts remain.
#[must_use]
pub(crate) struct NameUse<'a> {
    core: &'a Core,
    op: &'a Op<'a>,
}

impl Drop for NameUse<'_> {
    fn drop(&mut self) {
        let counting = self.core.links.counting.lock();
        match counting.pending.get(&std::thread::current().id()) {
            Some(&Record::Using { number, .. }) => self.core.write_names(self.op, counting, number, &[]),
            _ => {
                drop(counting);
                self.core.links.forget_use();
            }
        }
    }
}

impl Core {
    /// Adds a copy of `old` to the index. From then on, the names of the file on its old branch
    /// count as lower names that lead to the copy. `place`: a name of the file, if one is known.
    pub(crate) fn index_copy(
        &self,
        op: &Op<'_>,
        number: u64,
        (old, copy): (&Lower, &Lower),
        place: Option<&Place>,
    ) -> Result<()> {
        // Whether a name that is being removed counts as used up, or no longer exists, depends on
        // whether its file is in the index.
        let _no_name_is_removed = self.links.begin_copy(op, number)?;
        let attr = old.vnode.getattr(op)?;
        let (by, tag) = (op.set.branch(copy.branch)?.tag, op.set.branch(old.branch)?.tag);
        // The index entry of a copy that moves further left is not one of its names.
        let moves = self.links.branch(number) == Some(old.branch);
        let names = if moves { attr.nlink.saturating_sub(1) } else { attr.nlink };
        if let Some(path) = place.and_then(|place| path_on_branch(op, old, place)) {
            let original = Original { size: attr.size, mtime: attr.mtime, path };
            self.identity.append_or_defer(&self.server(op), Record::Original { by, number, original });
        }
        // After a crash, the index tells the next mount whether the copy was added.
        let record = Record::Using { by, tag, number, first: names.saturating_add(1), path: Vec::new() };
        self.append_use(op, self.links.counting.lock(), record)?;
        if let Err(e) = self.add_to_index(op, number, copy) {
            self.end_use(op, number, by);
            return Err(e);
        }
        self.copy_indexed(op, number, by, names);
        if moves {
            self.unlink_index(op, number, old.branch);
        }
        Ok(())
    }

    fn append_use(&self, op: &Op<'_>, mut counting: MutexGuard<'_, Counting>, record: Record) -> Result<()> {
        self.identity.append(&self.server(op), record.clone())?;
        counting.pending.insert(std::thread::current().id(), record);
        Ok(())
    }

    /// Writes what branches say of a file's names, which ends this thread's operation on a name of
    /// that file. In a log, such a record also ends the operations that other threads have begun on
    /// names of the file. Their [`Record::Using`] are therefore written again, with it.
    pub(crate) fn write_names(
        &self,
        op: &Op<'_>,
        mut counting: MutexGuard<'_, Counting>,
        number: u64,
        counts: &[(u16, LinkCount)],
    ) {
        let of_file = |record: &Record| is_of(record, number);
        let this = std::thread::current().id();
        let mut counts = counts.to_vec();
        if counting.pending.get(&this).is_some_and(of_file)
            && let Some(Record::Using { by, .. }) = counting.pending.remove(&this)
        {
            if counts.iter().all(|(of, _)| *of != by) {
                counts.push((by, self.identity.names_by(number, by)));
            }
            self.links.ended.notify_all();
        }
        let names = counts.iter().map(|&(by, LinkCount { first, used })| Record::Names { by, number, first, used });
        let mut records: Vec<Record> = names.collect();
        let again = |record: &&Record| match record {
            Record::Using { by, .. } => of_file(record) && counts.iter().any(|(of, _)| of == by),
            _ => false,
        };
        records.extend(counting.pending.values().filter(again).cloned());
        if !records.is_empty() {
            self.identity.append_all_or_defer(&self.server(op), records);
        }
    }

    /// Updates the link count after the index of the branch with the tag `by` got a copy: the
    /// file's names on the branches to the right, without an index entry, now count as lower names.
    pub(crate) fn copy_indexed(&self, op: &Op<'_>, number: u64, by: u16, names: u32) {
        let counting = self.links.counting.lock();
        let used = self.identity.names_by(number, by).used;
        self.write_names(op, counting, number, &[(by, LinkCount { first: names, used })]);
    }

    /// Returns the tag of the branch that records that a name is used up: `hider`, which is about
    /// to hide it. A name of a copy's original that is about to be removed from its branch is
    /// recorded by the branch of the copy. `None` if nothing has to be recorded.
    fn recorder(&self, op: &Op<'_>, number: u64, lower: &Lower, nlink: u32, hider: Option<BranchId>) -> Option<u16> {
        let other = self.links.branch(number).filter(|at| *at != lower.branch);
        let by = match (hider, other) {
            (Some(hider), Some(_)) => hider,
            (Some(hider), None) if nlink > 1 => hider,
            (None, Some(copy)) => copy,
            (Some(_) | None, None) => return None,
        };
        let tag = |id: BranchId| op.set.branch(id).ok().map(|state| state.tag);
        // A read-only branch records nothing.
        if op.set.writable(by) { tag(by) } else { op.set.leftmost().ok().and_then(tag) }
    }

    /// Logs that a name of a lower file is about to be hidden or replaced by the branch `hider`, or
    /// removed from its own branch (`None`), so that the next mount after a crash checks whether it
    /// was. [`Self::note_name_removed`] or [`Self::use_name`] counts the name as used up before the
    /// result is dropped.
    pub(crate) fn begin_use<'a>(
        &'a self,
        op: &'a Op<'a>,
        (dir, name): (&UnionVnode, Name<'_>),
        (lower, attr): (&Lower, &Attr),
        hider: Option<BranchId>,
    ) -> Result<NameUse<'a>> {
        let number = self.number_of(op, lower, attr)?;
        let begun = NameUse { core: self, op };
        if attr.nlink < 2 && self.links.branch(number).is_none() {
            return Ok(begun);
        }
        let mut counting = self.links.begin_use(op, number)?;
        // Not before: a copy may have been added to the index meanwhile.
        let Some(by) = self.recorder(op, number, lower, attr.nlink, hider) else {
            counting.uncounted.insert(std::thread::current().id(), number);
            return Ok(begun);
        };
        let tag = op.set.branch(lower.branch)?.tag;
        let record = Record::Using { by, tag, number, first: attr.nlink, path: dir.path_to(name) };
        match self.append_use(op, counting, record) {
            // A path of 64 KiB can't be logged. The link count is wrong only after a crash at this
            // moment.
            Err(Errno::NAMETOOLONG) => Ok(begun),
            other => other.map(|()| begun),
        }
    }

    /// Ends an operation, logged on the branch with the tag `by`, that used up no name.
    pub(crate) fn end_use(&self, op: &Op<'_>, number: u64, by: u16) {
        let counting = self.links.counting.lock();
        let count = self.identity.names_by(number, by);
        self.write_names(op, counting, number, &[(by, count)]);
    }

    /// Updates the link count after a hidden name was removed from its branch. The name counts as
    /// used up already, since it was hidden.
    pub(crate) fn hidden_name_removed(&self, op: &Op<'_>, lower: &Lower, attr: &Attr) {
        let Ok(number) = self.number_of(op, lower, attr) else { return };
        // The names of a copy's original are counted as they were: this one remains used up.
        let counted = self.links.branch(number).is_none_or(|at| at == lower.branch);
        if counted && attr.nlink > 1 {
            self.name_appears(op, number, lower.branch);
        }
        if attr.nlink < 2
            && let Ok(state) = op.set.branch(lower.branch)
        {
            self.identity.unalias(&self.server(op), state.tag, lower.vnode.id());
        }
    }

    /// Updates the link count after a hidden name became visible again.
    pub(crate) fn name_uncovered(&self, op: &Op<'_>, lower: &Lower, attr: &Attr) -> Result<()> {
        let number = self.number_of(op, lower, attr)?;
        if attr.nlink > 1 || self.links.branch(number).is_some() {
            self.name_appears(op, number, lower.branch);
        }
        Ok(())
    }

    /// Counts a name on this branch as no longer used up, for the nearest branch to its left that
    /// hides names of the file, or the branch itself.
    fn name_appears(&self, op: &Op<'_>, number: u64, branch: BranchId) {
        let counting = self.links.counting.lock();
        let counts = self.identity.counts(number);
        let position = |tag: u16| op.set.order.iter().position(|member| member.state.tag == tag);
        let last = op.set.position(branch);
        let hides = |(tag, count): &&(u16, LinkCount)| count.used > 0 && position(*tag).is_some_and(|at| at <= last);
        let nearest = counts.iter().filter(hides).max_by_key(|(tag, _)| position(*tag));
        if let Some(&(by, LinkCount { first, used })) = nearest {
            self.write_names(op, counting, number, &[(by, LinkCount { first, used: used - 1 })]);
        }
    }

    /// Counts a name that the branch with the tag `by` has used up.
    pub(crate) fn use_name(&self, op: &Op<'_>, number: u64, by: u16) {
        let counting = self.links.counting.lock();
        let LinkCount { first, used } = self.identity.names_by(number, by);
        self.write_names(op, counting, number, &[(by, LinkCount { first, used: used.saturating_add(1) })]);
    }

    /// Drops what the branches that are written say of the names of a file.
    pub(crate) fn drop_names(&self, op: &Op<'_>, number: u64) {
        let counting = self.links.counting.lock();
        let written = |by: u16| op.set.order.iter().any(|m| m.mode == Mode::ReadWrite && m.state.tag == by);
        let counts = self.identity.counts(number).into_iter().filter(|(by, _)| written(*by));
        let counts: Counts = counts.map(|(by, _)| (by, LinkCount::default())).collect();
        self.write_names(op, counting, number, &counts);
    }

    /// Writes what a branch says of the names of a file, also if that branch is not written
    /// otherwise. For tools, while no server uses the branches.
    pub(crate) fn correct_names(&self, op: &Op<'_>, number: u64, by: u16, count: LinkCount) -> Result<()> {
        let record = Record::Names { by, number, first: count.first, used: count.used };
        if self.identity.has_log(by) {
            return self.identity.append(&self.server(op), record);
        }
        let member = op.set.order.iter().find(|member| member.state.tag == by).ok_or(Errno::STALE)?;
        let state = &member.state;
        let mut log = LogFile::new((state.root.clone(), state.path.clone()), by, state.tags.clone());
        log.append(&self.server(op), &[&record], &self.identity.tags().tags)?;
        self.identity.apply(record);
        Ok(())
    }

    /// Corrects a link count that is too low by `missing`: fewer names count as used up, those of
    /// the leftmost branches first, or the file had more names when it was copied.
    pub(crate) fn raise_link_count(&self, op: &Op<'_>, number: u64, mut missing: u32) -> Result<()> {
        for tag in op.set.order.iter().map(|member| member.state.tag) {
            let count = self.identity.names_by(number, tag);
            let less = count.used.min(missing);
            if less == 0 {
                continue;
            }
            match self.correct_names(op, number, tag, LinkCount { used: count.used - less, ..count }) {
                Ok(()) => missing -= less,
                Err(Errno::ROFS) => {}
                Err(errno) => return Err(errno),
            }
        }
        let Some(copy) = self.links.branch(number).filter(|_| missing > 0) else { return Ok(()) };
        let tag = op.set.branch(copy)?.tag;
        let count = self.identity.names_by(number, tag);
        self.correct_names(op, number, tag, LinkCount { first: count.first.saturating_add(missing), ..count })
    }

    /// Corrects a link count that is too high by `more`: more names count as used up by the
    /// leftmost branch.
    pub(crate) fn lower_link_count(&self, op: &Op<'_>, number: u64, more: u32) -> Result<()> {
        let tag = op.set.branch(op.set.leftmost()?)?.tag;
        let count = self.identity.names_by(number, tag);
        self.correct_names(op, number, tag, LinkCount { used: count.used.saturating_add(more), ..count })
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
    /// the lower object that had the name, and its attributes before. `hider`: the branch that
    /// hides the lower name; `None` if that no longer exists.
    fn name_removed(&self, op: &Op<'_>, lower: &Lower, attr: &Attr, hider: Option<BranchId>) -> Result<()> {
        let number = self.number_of(op, lower, attr)?;
        let indexed = self.links.branch(number);
        if let Some(by) = self.recorder(op, number, lower, attr.nlink, hider) {
            self.use_name(op, number, by);
        }
        let own = indexed.is_none_or(|at| at == lower.branch);
        let left = match indexed {
            Some(_) => self.names_left(op, number, lower, attr, own && hider.is_none())?,
            None => {
                let used = self.identity.names(number).map_or(0, |names| names.used);
                attr.nlink.saturating_sub(u32::from(hider.is_none())).saturating_sub(used)
            }
        };
        if left == 0 || (attr.nlink < 2 && indexed.is_none()) {
            self.last_name_removed(op, number, lower)?;
        }
        Ok(())
    }

    /// As [`Self::name_removed`], for an operation that took effect and can't fail any more. An
    /// error is only logged: a link count is wrong then.
    pub(crate) fn note_name_removed(&self, op: &Op<'_>, lower: &Lower, attr: &Attr, hider: Option<BranchId>) {
        if let Err(errno) = self.name_removed(op, lower, attr, hider) {
            tracing::warn!(%errno, "could not update the link count of a file");
            self.links.forget_use();
        }
    }

    /// Returns the number of names that still lead to an indexed file.
    fn names_left(&self, op: &Op<'_>, number: u64, lower: &Lower, attr: &Attr, removed: bool) -> Result<u32> {
        let copy = if removed {
            attr.nlink.saturating_sub(1)
        } else {
            let branch = self.links.branch(number).unwrap_or(lower.branch);
            match self.links_dir(op, branch)? {
                Some(dir) => {
                    dir.lookup(op, op.set.branch(branch)?.index_name(number).name()?)?.map_or(1, |copy| copy.attr.nlink)
                }
                None => 1,
            }
        };
        Ok(self.link_count(number, copy))
    }

    fn last_name_removed(&self, op: &Op<'_>, number: u64, lower: &Lower) -> Result<()> {
        let op = &self.server(op);
        // A branch that was used without one to its left can have counted a name that both hide.
        if self.links.branch(number).is_some() && self.identity.counts(number).len() > 1 {
            self.links.doubt(number);
            return Ok(());
        }
        self.drop_copy(op, number)?;
        self.identity.unalias(op, op.set.branch(lower.branch)?.tag, lower.vnode.id());
        // A directory can have got the number before it was known to be taken.
        if let Some(vnode) = self.table.get(number).filter(|vnode| vnode.dir.is_none()) {
            vnode.set_gone();
        }
        Ok(())
    }

    /// Removes a file without names from the index.
    fn drop_copy(&self, op: &Op<'_>, number: u64) -> Result<()> {
        if let Some(branch) = self.links.branch(number)
            && let Some(dir) = self.links_dir(op, branch)?
            && let Some(copy) = dir.lookup(op, op.set.branch(branch)?.index_name(number).name()?)?
        {
            self.identity.unalias(op, op.set.branch(branch)?.tag, copy.vnode.id());
        }
        self.remove_from_index(op, number);
        self.drop_names(op, number);
        Ok(())
    }

    /// Looks for names of the files that may have none any more. Removes those without names from
    /// the index, and corrects the link counts of the others. Only while nothing else uses the
    /// union. `root`: its root.
    pub(crate) fn settle_doubtful(&self, op: &Op<'_>, root: Arc<dyn Vnode>) -> Result<()> {
        let mut names: BTreeMap<u64, u32> = self.links.take_doubtful().into_iter().map(|number| (number, 0)).collect();
        names.retain(|number, _| self.links.branch(*number).is_some());
        if names.is_empty() {
            return Ok(());
        }
        let mut shown = BTreeMap::new();
        each_file(op, root, |entry| {
            if let Some(names) = names.get_mut(&entry.vnode.id()) {
                *names += 1;
                shown.insert(entry.vnode.id(), entry.attr.nlink);
            }
            Ok(())
        })?;
        for (number, names) in names {
            match shown.get(&number) {
                None => self.drop_copy(op, number)?,
                Some(&shown) => self.raise_link_count(op, number, names.saturating_sub(shown))?,
            }
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
                scope.spawn(|| (0..NAMES).for_each(|_| core.use_name(&Op::new(&cx, &set), 77, 1)));
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
                    let attr = file.getattr(&cx).unwrap();
                    let begun = top.core.begin_use(&op, (top, name("b")), (&lower, &attr), Some(BranchId(0)));
                    std::mem::forget(begun.unwrap());
                    top.core.create_whiteout(&op, &top.part(BranchId(0)).unwrap().unwrap(), name("b")).unwrap();
                });
            });
            root.unlink(&cx, name("a")).unwrap();
        }
        let root = vnode::Layer::root(&*mount());
        assert_eq!(root.lookup(&cx, name("c")).unwrap().unwrap().attr.nlink, 2);
    }
}
