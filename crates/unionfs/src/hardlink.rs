//! Files of several names: docs/unionfs.md, "Hard links".

use crate::branch::{BranchId, Lower};
use crate::core::Core;
use crate::identity::Using;
use crate::log::Record;
use crate::lookup::Hit;
use crate::marks::components;
use crate::node::UnionVnode;
use crate::op::Op;
use crate::ownfiles::Own;
use crate::shortname::ShortName;
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;
use vnode::{Attr, DirEntry, Entry, Errno, Kind, Name, Result, Vnode};

/// The name of the index in the root of a branch.
pub(crate) const LINKS: &[u8] = b".wh..wh.links";

/// The copied-up files that had several names: number to the branch with the copy.
pub(crate) type Index = HashMap<u64, BranchId>;

/// The present index.
#[derive(Debug, Default)]
pub(crate) struct Links {
    index: RwLock<Index>,
    len: AtomicUsize,
    /// Held while a count of names is read, changed and written: names of one file may go from several directories at once.
    counting: Mutex<Pending>,
}

/// The [`Record::Using`] that are not yet ended, by the thread whose operation each belongs to: it has one at most.
type Pending = HashMap<ThreadId, Record>;

impl Links {
    /// The branch that holds the copy of the file of that number.
    pub(crate) fn branch(&self, number: u64) -> Option<BranchId> {
        if self.len.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.index.read().get(&number).copied()
    }

    /// Another index takes the place of this one.
    pub(crate) fn replace(&self, index: Index) {
        let mut present = self.index.write();
        *present = index;
        self.len.store(present.len(), Ordering::Release);
    }

    fn set(&self, number: u64, branch: Option<BranchId>) {
        let mut index = self.index.write();
        match branch {
            Some(branch) => drop(index.insert(number, branch)),
            None => drop(index.remove(&number)),
        }
        self.len.store(index.len(), Ordering::Release);
    }
}

/// What became of a name of a lower file.
enum Fate {
    /// It leads to the file as before.
    Shows,
    /// It is there, but something hides it.
    Hidden,
    /// It is not there any more.
    Removed,
}

/// The name of an index entry: 16 hexadecimal digits.
struct IndexName([u8; 16]);

impl IndexName {
    fn of(number: u64) -> Self {
        let mut hex = [0; 16];
        for (place, digit) in hex.iter_mut().enumerate() {
            let nibble = (number >> (60 - 4 * place)) & 15;
            *digit = b"0123456789abcdef".get(usize::try_from(nibble).unwrap_or(0)).copied().unwrap_or(b'0');
        }
        Self(hex)
    }

    fn parse(name: &[u8]) -> Option<u64> {
        let text = std::str::from_utf8(name).ok().filter(|t| t.len() == 16 && !t.starts_with('+'))?;
        u64::from_str_radix(text, 16).ok()
    }

    fn name(&self) -> Result<Name<'_>> {
        Name::new(&self.0)
    }
}

/// Is that the name of an index entry?
pub(crate) fn is_index_name(name: &[u8]) -> bool {
    IndexName::parse(name).is_some()
}

impl Core {
    /// The directory of index entries of a branch, if it is there.
    fn links_dir(&self, op: &Op<'_>, branch: BranchId) -> Result<Option<Arc<dyn Vnode>>> {
        self.own_dir(op, branch, Own::Links)
    }

    /// Reads the indexes of all branches. `tidy`: removes entries of files that have moved on to the left.
    pub(crate) fn load_links(&self, op: &Op<'_>, tidy: bool) -> std::result::Result<Index, (BranchId, Errno)> {
        let mut index = Index::new();
        for member in &op.set.order {
            self.load_links_of(op, member.id, &mut index, tidy).map_err(|errno| (member.id, errno))?;
        }
        Ok(index)
    }

    fn load_links_of(&self, op: &Op<'_>, branch: BranchId, index: &mut Index, tidy: bool) -> Result<()> {
        let Some(dir) = self.links_dir(op, branch)? else { return Ok(()) };
        let mut numbers = Vec::new();
        let mut sink = |entry: &DirEntry<'_>| {
            numbers.extend(IndexName::parse(entry.name.as_bytes()));
            true
        };
        dir.readdir(op, 0, &mut sink)?;
        for number in numbers {
            if !self.is_index_entry(op, branch, &dir, number)? {
                continue;
            }
            if let std::collections::hash_map::Entry::Vacant(e) = index.entry(number) {
                e.insert(branch);
            } else if tidy && op.set.writable(branch) {
                // The file moved on to the left.
                self.unlink_index(op, number, branch);
            }
        }
        Ok(())
    }

    /// Is there a copy in the index of that branch? The tail of the log may be lost: the index knows the copy's number, too.
    fn is_index_entry(&self, op: &Op<'_>, branch: BranchId, dir: &Arc<dyn Vnode>, number: u64) -> Result<bool> {
        let Some(entry) = dir.lookup(op, IndexName::of(number).name()?)? else { return Ok(false) };
        if entry.vnode.kind() == Kind::Directory {
            return Ok(false);
        }
        // The copy of a file lies left of it: what claims to be one of a file on its own branch, or left of it, is none.
        let own = op.set.at(branch);
        let at = |tag: u16| op.set.order.iter().position(|member| member.state.tag == tag);
        if crate::identity::tag_of(number).and_then(at).is_some_and(|at| at <= own) {
            let (number, path) = (format!("{number:016x}"), op.set.path_of(branch));
            tracing::debug!(branch = %path, number, "an index entry of a file further left is ignored");
            return Ok(false);
        }
        let lower = Lower { vnode: entry.vnode, branch };
        if self.number_of(op, &lower, &entry.attr)? != number {
            self.identity.note(op, self.alias_record(op, &lower, &entry.attr, number)?);
        }
        Ok(true)
    }

    /// The record that a lower file is known as `number`.
    pub(crate) fn alias_record(&self, op: &Op<'_>, lower: &Lower, attr: &Attr, number: u64) -> Result<Record> {
        let tag = op.set.branch(lower.branch)?.tag;
        Ok(Record::Alias { tag, lower: lower.vnode.id(), born: attr.btime.unwrap_or_default(), number })
    }

    /// The file that a lower name leads to: the copy that was made of it under another name, else itself.
    pub(crate) fn behind_links(&self, op: &Op<'_>, branch: BranchId, entry: Entry) -> Result<(Lower, Attr)> {
        let own = Lower { vnode: entry.vnode, branch };
        // (A single name may be what is left of several, also on a branch that is read-only now.)
        if self.links.len.load(Ordering::Acquire) == 0 {
            return Ok((own, entry.attr));
        }
        let number = self.number_of(op, &own, &entry.attr)?;
        let Some(at) = self.links.branch(number).filter(|&at| op.set.is_left(at, branch)) else {
            return Ok((own, entry.attr));
        };
        let Some(dir) = self.links_dir(op, at)? else { return Ok((own, entry.attr)) };
        match dir.lookup(op, IndexName::of(number).name()?)? {
            Some(copy) if copy.vnode.kind() == own.vnode.kind() => {
                Ok((Lower { vnode: copy.vnode, branch: at }, copy.attr))
            }
            _ => Ok((own, entry.attr)),
        }
    }

    /// Puts a copy into the index: from then on all lower names lead to it.
    pub(crate) fn add_to_index(&self, op: &Op<'_>, number: u64, copy: &Lower) -> Result<()> {
        let (server, name) = (self.server(op), IndexName::of(number));
        self.in_own_dir(op, copy.branch, Own::Links, |dir| match dir.link(&server, name.name()?, &copy.vnode) {
            Err(Errno::EXIST) => {
                // Left behind by an operation that was not finished: nothing leads to it.
                dir.unlink(&server, name.name()?)?;
                dir.link(&server, name.name()?, &copy.vnode)
            }
            other => other,
        })?;
        self.links.set(number, Some(copy.branch));
        Ok(())
    }

    /// Takes a copy out of the index.
    pub(crate) fn remove_from_index(&self, op: &Op<'_>, number: u64) {
        let Some(branch) = self.links.branch(number) else { return };
        self.unlink_index(op, number, branch);
        self.links.set(number, None);
    }

    /// Removes an index entry that nothing needs any more. On a branch that is not written to it stays, and means nothing.
    pub(crate) fn unlink_index(&self, op: &Op<'_>, number: u64, branch: BranchId) {
        if !op.set.writable(branch) {
            return;
        }
        let removed = self.links_dir(op, branch).and_then(|dir| match dir {
            Some(dir) => dir.unlink(&self.server(op), IndexName::of(number).name()?),
            None => Ok(()),
        });
        if let Err(errno) = removed
            && errno != Errno::NOENT
        {
            tracing::warn!(%errno, branch = %op.set.path_of(branch), "a file without names stays in the index");
        }
    }

    /// Gives a copy its index entry. The names that the file has where it lay so far are from then on names that lead to it.
    pub(crate) fn index_copy(&self, op: &Op<'_>, number: u64, from: (&Lower, &Attr), copy: &Lower) -> Result<()> {
        let (old, attr) = from;
        if self.links.branch(number) != Some(old.branch) {
            self.use_name(op, number, attr.nlink, 0);
            return self.add_to_index(op, number, copy);
        }
        // A copy that moves on. After a crash the next mount sees by the index whether it did.
        let tag = op.set.branch(old.branch)?.tag;
        let record = Record::Using { tag, number, first: attr.nlink, path: Vec::new() };
        self.begin_using(op, record)?;
        if let Err(e) = self.add_to_index(op, number, copy) {
            self.end_using(op, number, 0);
            return Err(e);
        }
        self.index_moved(op, number, attr.nlink);
        self.unlink_index(op, number, old.branch);
        Ok(())
    }

    fn begin_using(&self, op: &Op<'_>, record: Record) -> Result<()> {
        let mut counting = self.links.counting.lock();
        self.identity.append(&self.server(op), record.clone())?;
        counting.insert(std::thread::current().id(), record);
        Ok(())
    }

    /// Writes a count of names, which ends the operation of this thread on a name of that file. In the log it ends those of
    /// other threads too, which are still to be completed after a crash: they are written again with it.
    fn write_names(&self, op: &Op<'_>, mut counting: MutexGuard<'_, Pending>, number: u64, first: u32, used: u32) {
        let of_file = |record: &Record| matches!(record, Record::Using { number: n, .. } if *n == number);
        let this = std::thread::current().id();
        if counting.get(&this).is_some_and(of_file) {
            counting.remove(&this);
        }
        let mut records = vec![Record::Names { number, first, used }];
        records.extend(counting.values().filter(|record| of_file(record)).cloned());
        self.identity.note_all(&self.server(op), records);
    }

    /// An index entry came to another branch: the `nlink` names of the file on the old one lead to it, but for the old entry.
    fn index_moved(&self, op: &Op<'_>, number: u64, nlink: u32) {
        let counting = self.links.counting.lock();
        let names = self.identity.names(number).unwrap_or_default();
        let first = names.first.saturating_add(nlink.saturating_sub(1));
        self.write_names(op, counting, number, first, names.used);
    }

    /// Is that a name of a file whose link count is kept in the log, or will be once the name is used up?
    fn counts(&self, op: &Op<'_>, lower: &Lower, attr: &Attr) -> Result<Option<u64>> {
        let number = self.number_of(op, lower, attr)?;
        let counted = match self.links.branch(number) {
            Some(at) => at != lower.branch,
            // On the leftmost branch nothing hides a name.
            None => attr.nlink > 1 && !op.set.is_leftmost(lower.branch),
        };
        Ok(counted.then_some(number))
    }

    /// To be called before a name of a lower file is hidden, replaced or removed: after a crash the next mount finds out what
    /// came of it. What [`Self::name_went`] or [`Self::use_name`] writes later, or [`Self::kept_name`], ends this.
    pub(crate) fn going_to_use(
        &self,
        op: &Op<'_>,
        dir: &UnionVnode,
        name: Name<'_>,
        lower: &Lower,
        attr: &Attr,
    ) -> Result<()> {
        let Some(number) = self.counts(op, lower, attr)? else { return Ok(()) };
        let tag = op.set.branch(lower.branch)?.tag;
        let record = Record::Using { tag, number, first: attr.nlink, path: dir.path_to(name) };
        match self.begin_using(op, record) {
            // A path of 64 KiB: only a crash just now could make the link count wrong.
            Err(Errno::NAMETOOLONG) => Ok(()),
            other => other,
        }
    }

    /// The name was not used up after all.
    pub(crate) fn kept_name(&self, op: &Op<'_>, lower: &Lower, attr: &Attr) {
        if let Ok(Some(number)) = self.counts(op, lower, attr) {
            self.end_using(op, number, 0);
        }
    }

    /// No name was used up; `removed` names of the lower file are gone for good.
    fn end_using(&self, op: &Op<'_>, number: u64, removed: u32) {
        let counting = self.links.counting.lock();
        let names = self.identity.names(number).unwrap_or_default();
        let first = match self.links.branch(number) {
            Some(_) => names.first,
            // Nothing is hidden, nothing to be remembered.
            None if names.used == 0 => 0,
            None => names.first.saturating_sub(removed).max(names.used),
        };
        self.write_names(op, counting, number, first, names.used);
    }

    /// Bookkeeping after a name was removed that something had hidden: it was counted as used up when that came.
    pub(crate) fn hidden_name_went(&self, op: &Op<'_>, lower: &Lower, attr: &Attr) {
        let Ok(number) = self.number_of(op, lower, attr) else { return };
        // Of a copy's original it goes on being one of the first names, and used up.
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

    /// Bookkeeping after a name that something hid shows again.
    pub(crate) fn name_came_back(&self, op: &Op<'_>, lower: &Lower, attr: &Attr) -> Result<()> {
        if let Some(number) = self.counts(op, lower, attr)?
            && self.identity.names(number).is_some_and(|names| names.used > 0)
        {
            self.use_name(op, number, attr.nlink, -1);
        }
        Ok(())
    }

    /// Completes the counting of names that a crash interrupted.
    pub(crate) fn complete_names(&self, op: &Op<'_>) -> Result<()> {
        for (number, using) in self.identity.in_use() {
            if using.path.is_empty() {
                match self.links.branch(number) {
                    Some(at) if op.set.branch(at)?.tag != using.tag => self.index_moved(op, number, using.first),
                    _ => self.end_using(op, number, 0),
                }
                continue;
            }
            let fate = match self.fate(op, number, &using) {
                // No branch can have such a name: it was never used.
                Err(Errno::NAMETOOLONG | Errno::INVAL | Errno::LOOP) => Fate::Shows,
                other => other?,
            };
            match fate {
                Fate::Shows => self.end_using(op, number, 0),
                Fate::Hidden => self.use_name(op, number, using.first, 1),
                Fate::Removed if self.links.branch(number).is_some() => self.use_name(op, number, using.first, 1),
                Fate::Removed => self.end_using(op, number, 1),
            }
        }
        Ok(())
    }

    /// What became of a lower name?
    fn fate(&self, op: &Op<'_>, number: u64, using: &Using) -> Result<Fate> {
        let mut stack = op.set.roots();
        let mut fate = Fate::Removed;
        for name in components(&using.path) {
            let name = name?;
            fate = self.fate_in(op, &stack, name, number, using.tag)?;
            match self.probe(op, &stack, name)?.hit {
                Hit::Dir { stack: next, .. } => stack = next,
                Hit::None | Hit::Leaf { .. } => break,
            }
        }
        Ok(fate)
    }

    fn fate_in(&self, op: &Op<'_>, stack: &[Lower], name: Name<'_>, number: u64, tag: u16) -> Result<Fate> {
        for part in stack {
            if op.set.branch(part.branch)?.tag != tag {
                continue;
            }
            let Some(entry) = part.vnode.lookup(op, name)? else { break };
            let lower = Lower { vnode: entry.vnode, branch: part.branch };
            if self.number_of(op, &lower, &entry.attr)? != number {
                break;
            }
            let shows = self.probe(op, stack, name)?.branch() == Some(part.branch);
            return Ok(if shows { Fate::Shows } else { Fate::Hidden });
        }
        Ok(Fate::Removed)
    }

    /// Counts one of the names of a lower file with `first` names as used up. Once the file is in the index, the names that it
    /// had then stay what is counted from.
    pub(crate) fn use_name(&self, op: &Op<'_>, number: u64, first: u32, by: i32) {
        let counting = self.links.counting.lock();
        let fresh = crate::identity::Names { first, used: 0 };
        let mut names = self.identity.names(number).unwrap_or(fresh);
        if self.links.branch(number).is_none() {
            names.first = first.max(1);
        }
        names.used = names.used.saturating_add_signed(by);
        self.write_names(op, counting, number, names.first, names.used);
    }

    /// The link count to show for a file, given that of its lower file.
    pub(crate) fn link_count(&self, number: u64, lower: u32) -> u32 {
        let indexed = self.links.branch(number).is_some();
        if lower < 2 && !indexed {
            return lower;
        }
        match self.identity.names(number) {
            // A name on the copy's own branch may be hidden too.
            Some(names) if indexed => lower.saturating_sub(1).saturating_add(names.first).saturating_sub(names.used),
            Some(names) => lower.saturating_sub(names.used),
            None => lower.saturating_sub(u32::from(indexed)),
        }
    }

    /// Bookkeeping after a name of a file went. `lower`, `attr`: what the name led to on its own branch, with the attributes
    /// from before; `stays`: the lower name is still there, hidden.
    fn name_went(&self, op: &Op<'_>, lower: &Lower, attr: &Attr, stays: bool) -> Result<()> {
        let number = self.number_of(op, lower, attr)?;
        let indexed = self.links.branch(number);
        let own = indexed.is_none_or(|at| at == lower.branch);
        if !own || (attr.nlink > 1 && stays) {
            self.use_name(op, number, attr.nlink, 1);
        } else if indexed.is_none() && attr.nlink > 1 && !op.set.is_leftmost(lower.branch) {
            self.end_using(op, number, 1);
        }
        let left = match indexed {
            Some(_) => self.names_left(op, number, lower, attr, own && !stays)?,
            None => {
                let used = self.identity.names(number).map_or(0, |names| names.used);
                attr.nlink.saturating_sub(u32::from(!stays)).saturating_sub(used)
            }
        };
        if left == 0 || (attr.nlink < 2 && indexed.is_none()) {
            self.last_name_went(op, number, lower)?;
        }
        Ok(())
    }

    /// The same after the moment of an operation, when it can't fail any more: at worst a link count is not right.
    pub(crate) fn note_name_went(&self, op: &Op<'_>, lower: &Lower, attr: &Attr, stays: bool) {
        if let Err(errno) = self.name_went(op, lower, attr, stays) {
            tracing::warn!(%errno, "the names of a file could not be counted");
        }
    }

    /// How many names still lead to an indexed file.
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

    fn last_name_went(&self, op: &Op<'_>, number: u64, lower: &Lower) -> Result<()> {
        let op = &self.server(op);
        if let Some(branch) = self.links.branch(number)
            && let Some(dir) = self.links_dir(op, branch)?
            && let Some(copy) = dir.lookup(op, IndexName::of(number).name()?)?
        {
            self.identity.unalias(op, op.set.branch(branch)?.tag, copy.vnode.id());
        }
        self.remove_from_index(op, number);
        if self.identity.names(number).is_some() {
            self.identity.note(op, Record::Names { number, first: 0, used: 0 });
        }
        self.identity.unalias(op, op.set.branch(lower.branch)?.tag, lower.vnode.id());
        if let Some(vnode) = self.table.get(number) {
            vnode.set_gone();
        }
        Ok(())
    }
}

impl UnionVnode {
    /// The path of an entry of this directory in the union.
    pub(crate) fn path_to(&self, name: Name<'_>) -> Vec<u8> {
        let mut names = vec![ShortName::new(name.as_bytes())];
        let mut next = self.place();
        while let Some(place) = next {
            names.push(place.name.clone());
            next = place.parent.place();
        }
        names.iter().rev().fold(Vec::new(), |mut path, name| {
            path.push(b'/');
            path.extend(name.as_bytes());
            path
        })
    }

    /// A file's attributes as users see them, from those of its lower file.
    pub(crate) fn leaf_attr(&self, mut attr: Attr) -> Attr {
        attr.ino = self.core.shown(self.id);
        attr.nlink = if self.is_gone() && attr.nlink < 2 { 0 } else { self.core.link_count(self.id, attr.nlink) };
        attr
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of one file may go from several directories at once.
    #[test]
    fn names_that_go_at_once_are_all_counted() {
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

    /// A crash while names of one file go from several directories: one operation has ended, another is to be completed.
    #[test]
    fn the_end_of_one_operation_leaves_others_to_be_completed() {
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
                    top.core.going_to_use(&op, top, name("b"), &lower, &file.getattr(&cx).unwrap()).unwrap();
                    top.core.make_whiteout(&op, &top.part(BranchId(0)).unwrap().unwrap(), name("b")).unwrap();
                });
            });
            root.unlink(&cx, name("a")).unwrap();
        }
        let root = vnode::Layer::root(&*mount());
        assert_eq!(root.lookup(&cx, name("c")).unwrap().unwrap().attr.nlink, 2);
    }

    #[test]
    fn names_of_index_entries() {
        for number in [0, 1, 0x8000_0000_0000_0001, u64::MAX] {
            assert_eq!(IndexName::parse(IndexName::of(number).name().unwrap().as_bytes()), Some(number));
        }
        assert_eq!(IndexName::of(255).0, *b"00000000000000ff");
        assert_eq!(IndexName::parse(b"+00000000000000f"), None);
        assert_eq!(IndexName::parse(b"ff"), None);
    }
}
