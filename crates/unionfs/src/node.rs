//! The union's vnode: which lower objects it shows, and where it is in the tree.

use crate::branch::{BranchId, Lower, Stack};
use crate::core::Shared;
use crate::entry_lock::{Certainty, EntryLock, Writer};
use crate::known::{Indexable, Known};
use crate::listing::{EntryChange, Listable, Slot};
use crate::names::hash;
use crate::op::Op;
use crate::released::ReleasedVnode;
use crate::set::{BranchSet, NO_GENERATION, short_generation_of};
use crate::shortname::ShortName;
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use vnode::{Cx, Errno, Kind, Name, Result, Time, Vnode};

/// Value of `Dir::subdirs` before the subdirectories were counted.
pub(crate) const UNCOUNTED: u32 = u32::MAX;

/// State that only directories have.
pub(crate) struct Dir {
    /// Exclusive to change an entry, shared for lookups and listings: docs/design/unionfs.md,
    /// "Locks".
    pub(crate) entry_lock: EntryLock,
    stack: Mutex<Stack>,
    /// The path of the other parts on the branches to the right, if it differs from the directory's
    /// own.
    pub(crate) redirect: Mutex<Option<Box<[u8]>>>,
    /// Number of entry changes made through this union.
    pub(crate) changes: AtomicU64,
    /// Number of subdirectories of a merged directory.
    pub(crate) subdirs: AtomicU32,
    /// Time of birth of the rightmost part of a merged directory, once that was asked.
    pub(crate) first_birth: OnceLock<Option<Time>>,
    pub(crate) listing: Mutex<Slot>,
    /// What is known of the parts, if there are several.
    pub(crate) known: Mutex<Option<Box<Known>>>,
    /// The last negative lookup.
    pub(crate) negative: Mutex<Option<NegativeLookup>>,
}

/// A negative lookup.
pub(crate) struct NegativeLookup {
    pub(crate) name: ShortName,
    /// [`Dir::changes`] at the time of the lookup.
    pub(crate) changes: u64,
    /// Generation of the set in which the name was looked up.
    pub(crate) generation: u64,
    /// The branch of the whiteout that ended the search.
    pub(crate) whiteout: Option<BranchId>,
    pub(crate) at: Instant,
}

struct State {
    parent: Option<Arc<UnionVnode>>,
    name: ShortName,
    /// The leftmost lower object.
    lower: Arc<dyn Vnode>,
}

/// The object's last name was removed.
const GONE: u8 = 1;
/// Since the set of branches changed, the object's known name leads to something else, or to
/// nothing.
const DETACHED: u8 = 2;
/// The file has or had several names: it can lose the known one and still have others.
const HARD_LINKED: u8 = 4;
/// The file has no name, and the kernel may write to it. It is changed where it is, even if its
/// branch is read-only.
const STAYS: u8 = 8;

/// State shared by all vnodes of a union.
pub(crate) type Core = Shared<UnionVnode>;

/// An object of the union.
pub(crate) struct UnionVnode {
    pub(crate) core: Arc<Core>,
    pub(crate) id: u64,
    pub(crate) dir: Option<Box<Dir>>,
    /// Number of moves of the file to another branch. Open files compare it to notice a move.
    moves: AtomicU16,
    /// [`BranchSet::short_generation`] of the set in which the vnode was last valid.
    short_generation: AtomicU16,
    /// The branch of `state.lower`, changed only while `state` is locked. It is outside only to
    /// fill a gap in this struct.
    branch: AtomicU16,
    pub(crate) kind: Kind,
    /// Any of [`GONE`], [`DETACHED`], [`HARD_LINKED`], [`STAYS`].
    flags: AtomicU8,
    state: Mutex<State>,
}

impl fmt::Debug for UnionVnode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        write!(f, "UnionVnode({:#x}, {:?}, {:?}, {:?})", self.id, self.kind, state.name, self.branch())
    }
}

impl Listable for UnionVnode {
    fn slot(&self) -> Option<&Mutex<Slot>> {
        self.dir.as_deref().map(|dir| &dir.listing)
    }
}

impl Indexable for UnionVnode {
    fn forget_index(&self) {
        if let Some(dir) = &self.dir {
            let old = dir.known.lock().as_mut().and_then(|known| known.forget());
            drop(old);
        }
    }
}

/// A parent directory and a name in it.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) parent: Arc<UnionVnode>,
    pub(crate) name: ShortName,
}

impl Place {
    pub(crate) fn name(&self) -> Result<Name<'_>> {
        Name::new(self.name.as_bytes())
    }

    /// Whether both are the same entry.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.parent, &other.parent) && self.name.as_bytes() == other.name.as_bytes()
    }
}

impl UnionVnode {
    pub(crate) fn new(
        core: &Arc<Core>,
        set: &BranchSet,
        id: u64,
        place: Option<Place>,
        leftmost: Lower,
        stack: Option<Stack>,
    ) -> Arc<Self> {
        let (parent, name) = match place {
            Some(place) => (Some(place.parent), place.name),
            None => (None, ShortName::new(b"")),
        };
        core.parts.add(id, stack.as_deref().unwrap_or_default());
        Arc::new(Self {
            core: core.clone(),
            id,
            dir: stack.map(|stack| {
                Box::new(Dir {
                    entry_lock: EntryLock::default(),
                    stack: Mutex::new(stack),
                    redirect: Mutex::new(None),
                    changes: AtomicU64::new(0),
                    subdirs: AtomicU32::new(UNCOUNTED),
                    first_birth: OnceLock::new(),
                    listing: Mutex::default(),
                    known: Mutex::new(None),
                    negative: Mutex::new(None),
                })
            }),
            moves: AtomicU16::new(0),
            short_generation: set.short_generation().into(),
            branch: leftmost.branch.0.into(),
            kind: leftmost.vnode.kind(),
            flags: AtomicU8::new(0),
            state: Mutex::new(State { parent, name, lower: leftmost.vnode }),
        })
    }

    /// Returns the `Arc` that owns `self`.
    pub(crate) fn arc(&self) -> Result<Arc<Self>> {
        // Every live vnode is in the table. (A pointer to itself would cost 16 bytes in each
        // vnode.)
        self.core.table.get(self.id).filter(|live| std::ptr::eq(&raw const **live, self)).ok_or(Errno::STALE)
    }

    /// Returns the state that only directories have. `ENOTDIR` for files.
    pub(crate) fn dir(&self) -> Result<&Dir> {
        self.dir.as_deref().ok_or(Errno::NOTDIR)
    }

    /// Returns the lower directories that this directory merges.
    pub(crate) fn stack(&self) -> Result<Stack> {
        Ok(self.dir()?.stack.lock().clone())
    }

    /// Returns the part of this directory on `branch`, if there is one.
    pub(crate) fn part(&self, branch: BranchId) -> Result<Option<Lower>> {
        Ok(self.dir()?.stack.lock().iter().find(|part| part.branch == branch).cloned())
    }

    /// Replaces the stack of a directory.
    pub(crate) fn set_stack(&self, stack: Stack) -> Result<()> {
        let dir = self.dir()?;
        let Some(leftmost) = stack.first().cloned() else { return Err(Errno::IO) };
        self.core.parts.add(self.id, &stack);
        let old = std::mem::replace(&mut *dir.stack.lock(), stack);
        self.core.parts.remove(self.id, &old);
        drop(old);
        self.set_leaf(leftmost);
        self.entries_changed();
        Ok(())
    }

    /// Returns the leftmost lower object.
    pub(crate) fn leaf(&self) -> Lower {
        let state = self.state.lock();
        Lower { vnode: state.lower.clone(), branch: self.branch() }
    }

    /// Returns the leftmost lower object and the number of its moves.
    pub(crate) fn leaf_and_moves(&self) -> (Lower, u16) {
        let state = self.state.lock();
        (Lower { vnode: state.lower.clone(), branch: self.branch() }, self.moves.load(Ordering::Acquire))
    }

    /// Returns the branch of the leftmost lower object.
    pub(crate) fn branch(&self) -> BranchId {
        BranchId(self.branch.load(Ordering::Acquire))
    }

    /// Returns the number of moves of the file.
    pub(crate) fn moves(&self) -> u16 {
        self.moves.load(Ordering::Acquire)
    }

    /// Replaces the leftmost lower object, and counts a move.
    pub(crate) fn set_leaf(&self, lower: Lower) {
        let old = {
            let mut state = self.state.lock();
            self.branch.store(lower.branch.0, Ordering::Release);
            let old = std::mem::replace(&mut state.lower, lower.vnode);
            self.moves.fetch_add(1, Ordering::AcqRel);
            old
        };
        drop(old);
        if self.dir.is_none() {
            self.core.data_moved(self.id);
        }
    }

    /// Replaces the lower vnode by another one for the same lower file, with or without a metacopy.
    /// The data did not move.
    pub(crate) fn replace_view(&self, lower: Lower) {
        let old = {
            let mut state = self.state.lock();
            let same = self.branch() == lower.branch && state.lower.id() == lower.vnode.id();
            if same { std::mem::replace(&mut state.lower, lower.vnode) } else { lower.vnode }
        };
        drop(old);
    }

    /// Whether the object's last name was removed.
    pub(crate) fn is_gone(&self) -> bool {
        self.flags.load(Ordering::Acquire) & GONE != 0
    }

    /// Notes that the object's last name was removed.
    pub(crate) fn set_gone(&self) {
        self.flags.fetch_or(GONE, Ordering::AcqRel);
    }

    /// Notes how many names the lower file has.
    pub(crate) fn note_names(&self, count: u32) {
        if count > 1 && self.flags.load(Ordering::Acquire) & HARD_LINKED == 0 {
            self.flags.fetch_or(HARD_LINKED, Ordering::AcqRel);
        }
    }

    /// Whether the file is changed where it is, even if its branch is read-only.
    pub(crate) fn stays(&self) -> bool {
        self.flags.load(Ordering::Acquire) & STAYS != 0
    }

    /// Lets the file, which has no name, be changed where it is.
    pub(crate) fn set_stays(&self) {
        self.flags.fetch_or(STAYS, Ordering::AcqRel);
    }

    /// Whether the object's known name leads to something else, or to nothing, since the set of
    /// branches changed.
    pub(crate) fn is_detached(&self) -> bool {
        self.flags.load(Ordering::Acquire) & DETACHED != 0
    }

    /// Whether the vnode is valid in `set`.
    pub(crate) fn is_current(&self, set: &BranchSet) -> bool {
        self.short_generation.load(Ordering::Acquire) == set.short_generation()
    }

    /// Whether the vnode is valid in the set of that generation.
    pub(crate) fn is_valid_in(&self, generation: u64) -> bool {
        self.short_generation.load(Ordering::Acquire) == short_generation_of(generation)
    }

    /// Makes the vnode valid in the current set, with this lower object, and at `place` if one is
    /// given. `ESTALE` if the operation's set is no longer the current one.
    pub(crate) fn set_found(&self, op: &Op<'_>, lower: Lower, place: Option<Place>) -> Result<()> {
        let old = {
            let mut state = self.state.lock();
            op.check_set(&self.core.branches)?;
            self.replace_found(op, &mut state, lower, place, Certainty::Certain)
        };
        drop(old);
        Ok(())
    }

    /// As [`Self::set_found`], for what a lookup at the vnode's known place has found. If the vnode
    /// is valid by now, another operation has found it too, and may have moved or renamed it since:
    /// then this does nothing.
    pub(crate) fn set_found_again(&self, op: &Op<'_>, lower: Lower, certainty: Certainty) -> Result<()> {
        let old = {
            let mut state = self.state.lock();
            op.check_set(&self.core.branches)?;
            if self.is_current(op.set) {
                return Ok(());
            }
            self.replace_found(op, &mut state, lower, None, certainty)
        };
        drop(old);
        Ok(())
    }

    /// Returns what was replaced, to be dropped without the lock.
    fn replace_found(
        &self,
        op: &Op<'_>,
        state: &mut State,
        lower: Lower,
        place: Option<Place>,
        certainty: Certainty,
    ) -> impl Sized + use<> {
        let same = self.branch() == lower.branch && state.lower.id() == lower.vnode.id();
        self.branch.store(lower.branch.0, Ordering::Release);
        let old = std::mem::replace(&mut state.lower, lower.vnode);
        if !same {
            self.moves.fetch_add(1, Ordering::AcqRel);
        }
        let old_place =
            place.map(|place| (state.parent.replace(place.parent), std::mem::replace(&mut state.name, place.name)));
        self.flags.fetch_and(HARD_LINKED, Ordering::AcqRel);
        if certainty == Certainty::Certain {
            self.short_generation.store(op.set.short_generation(), Ordering::Release);
        }
        (old, old_place)
    }

    /// Gives a directory that is not valid in the current set, or is detached, this stack, and
    /// makes it valid if the stack is certain. Does nothing if it is valid by now: its stack may
    /// have changed since it was looked up.
    pub(crate) fn set_found_dir(
        &self,
        op: &Op<'_>,
        stack: Stack,
        redirect: Option<Box<[u8]>>,
        place: Option<Place>,
        certainty: Certainty,
    ) -> Result<()> {
        let dir = self.dir()?;
        let leftmost = stack.first().cloned().ok_or(Errno::IO)?;
        let old = {
            let mut present = dir.stack.lock();
            if self.is_current(op.set) && (certainty == Certainty::Uncertain || !self.is_detached()) {
                return Ok(());
            }
            let old = {
                let mut state = self.state.lock();
                op.check_set(&self.core.branches)?;
                self.replace_found(op, &mut state, leftmost, place, certainty)
            };
            self.core.parts.add(self.id, &stack);
            let old_redirect = std::mem::replace(&mut *dir.redirect.lock(), redirect);
            (std::mem::replace(&mut *present, stack), old_redirect, old)
        };
        self.core.parts.remove(self.id, &old.0);
        drop(old);
        self.entries_changed();
        dir.subdirs.store(UNCOUNTED, Ordering::Release);
        Ok(())
    }

    /// Makes the vnode valid in the current set without a name, because its known name does not
    /// lead to it there. It is detached, unless the file may have other names. If the vnode is
    /// valid by now, it was found at another name since: then this does nothing.
    pub(crate) fn set_detached(&self, op: &Op<'_>) -> Result<()> {
        let old = {
            let mut state = self.state.lock();
            op.check_set(&self.core.branches)?;
            if self.is_current(op.set) {
                return Ok(());
            }
            if self.flags.load(Ordering::Acquire) & HARD_LINKED == 0 {
                self.flags.fetch_or(DETACHED, Ordering::AcqRel);
            }
            self.short_generation.store(op.set.short_generation(), Ordering::Release);
            (state.parent.take(), std::mem::replace(&mut state.name, ShortName::new(b"")))
        };
        drop(old);
        self.entries_changed();
        Ok(())
    }

    /// Lets go of the lower objects on branches outside of the set: nothing has the object open, so
    /// it must not keep them in use.
    pub(crate) fn release_removed(&self, set: &BranchSet) {
        let old = {
            let mut state = self.state.lock();
            let is_current = set.generation == self.core.branches.generation();
            let removed = is_current && set.member(self.branch()).is_none();
            removed.then(|| ReleasedVnode::of(&state.lower)).map(|stub| std::mem::replace(&mut state.lower, stub))
        };
        drop(old);
        let Some(dir) = &self.dir else { return };
        let old = {
            let mut stack = dir.stack.lock();
            let is_current = set.generation == self.core.branches.generation();
            let is_removed = |part: &Lower| is_current && set.member(part.branch).is_none();
            let released = |part: &Lower| match is_removed(part) {
                true => Lower { vnode: ReleasedVnode::of(&part.vnode), branch: part.branch },
                false => part.clone(),
            };
            let new = stack.iter().any(is_removed).then(|| stack.iter().map(released).collect());
            new.map(|new: Stack| std::mem::replace(&mut *stack, new))
        };
        drop(old);
        self.entries_changed();
    }

    /// Makes the vnode valid in the current set as it is.
    pub(crate) fn set_current(&self, op: &Op<'_>) -> Result<()> {
        let _state = self.state.lock();
        op.check_set(&self.core.branches)?;
        self.short_generation.store(op.set.short_generation(), Ordering::Release);
        Ok(())
    }

    /// Makes the vnode invalid in all sets, so that the next operation revalidates it.
    pub(crate) fn set_outdated(&self) {
        self.short_generation.store(NO_GENERATION, Ordering::Release);
    }

    /// Returns the place where the vnode was last found; `None` for the root, and if the last known
    /// name was removed.
    pub(crate) fn place(&self) -> Option<Place> {
        let state = self.state.lock();
        Some(Place { parent: state.parent.clone()?, name: state.name.clone() })
    }

    /// Whether the vnode was last found at this name.
    pub(crate) fn is_at(&self, parent: &Self, name: &[u8]) -> bool {
        let state = self.state.lock();
        state.parent.as_deref().is_some_and(|p| std::ptr::eq(p, parent)) && state.name.as_bytes() == name
    }

    /// Sets the place where the vnode was found or created.
    pub(crate) fn set_place(&self, place: Option<Place>) {
        let (parent, name) = match place {
            Some(place) => (Some(place.parent), place.name),
            None => (None, ShortName::new(b"")),
        };
        let old = {
            let mut state = self.state.lock();
            (std::mem::replace(&mut state.parent, parent), std::mem::replace(&mut state.name, name))
        };
        // Not while `state` is locked, because this may drop the old parent.
        drop(old);
    }

    /// Notes that `name` was removed from `parent`: forgets it if it is the known one.
    pub(crate) fn forget_name(&self, parent: &Self, name: &[u8]) {
        if self.is_at(parent, name) {
            self.set_place(None);
        }
    }

    /// Notes that entries of this directory changed, without knowing which.
    pub(crate) fn entries_changed(&self) {
        if let Some(dir) = &self.dir {
            dir.changes.fetch_add(1, Ordering::AcqRel);
            self.core.finder.changed();
            let old = dir.listing.lock().forget();
            drop(old);
            self.forget_index();
        }
    }

    /// Notes that the entry `name` changed. The caller holds the entry lock.
    pub(crate) fn entry_changed(&self, name: Name<'_>, change: EntryChange) {
        if let Some(dir) = &self.dir {
            dir.changes.fetch_add(1, Ordering::AcqRel);
            self.core.finder.changed();
            let old = dir.listing.lock().change(name.as_bytes(), change);
            drop(old);
        }
    }

    /// Notes that the entry `name` of a lower directory changed out of band.
    pub(crate) fn lower_entry_changed(&self, name: Name<'_>) {
        self.entry_is_elsewhere(name);
    }

    /// Notes that an entry may lie in other parts than before. To be called after a lower entry was
    /// created in one part, before it is removed from another: readers that do not wait for the
    /// entry lock must find one of both.
    pub(crate) fn entry_is_elsewhere(&self, name: Name<'_>) {
        self.entry_changed(name, EntryChange::Unknown);
        if let Some(dir) = &self.dir
            && let Some(known) = dir.known.lock().as_mut()
        {
            known.change(hash(name.as_bytes()));
        }
    }

    /// Locks the entries exclusively, to change this one.
    pub(crate) fn lock_entry(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<ChangingEntries<'_>> {
        lock_entries(cx, &[(self, Some(name))])
    }

    /// Notes that a subdirectory was added (1) or removed (-1).
    pub(crate) fn count_subdir(&self, by: i32) {
        if let Some(dir) = &self.dir {
            let counted = |n: u32| if n == UNCOUNTED { None } else { Some(n.saturating_add_signed(by)) };
            // Subdirectories that were not counted yet are counted when the number is needed.
            let _ = dir.subdirs.fetch_update(Ordering::AcqRel, Ordering::Acquire, counted);
        }
    }

    /// Returns the path in the union of an entry of this directory.
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

    /// Returns the object's own path in the union; empty if it has no known name.
    pub(crate) fn own_path(&self) -> Vec<u8> {
        let Some(place) = self.place() else { return Vec::new() };
        place.name().map_or_else(|_| Vec::new(), |name| place.parent.path_to(name))
    }

    /// Returns the place of the entry `name` in this directory.
    pub(crate) fn place_of(&self, name: Name<'_>) -> Result<Place> {
        Ok(Place { parent: self.arc()?, name: ShortName::new(name.as_bytes()) })
    }
}

impl Drop for UnionVnode {
    fn drop(&mut self) {
        self.core.table.forget(self.id, self);
        if let Some(dir) = &mut self.dir {
            self.core.parts.remove(self.id, dir.stack.get_mut());
        }
        // Drops a chain of parents that nothing else refers to in a loop: recursion could overflow
        // the stack in a very deep tree.
        let mut next = self.state.get_mut().parent.take();
        if next.is_none() || self.is_gone() {
            self.core.write_gate.release_orphan(self.id);
        }
        while let Some(parent) = next.take() {
            let at = Arc::as_ptr(&parent);
            if let Some(mut last) = Arc::into_inner(parent) {
                // It moved to another address than the table knows, so its own drop can't remove it
                // from the table.
                last.core.table.forget(last.id, at);
                next = last.state.get_mut().parent.take();
            }
        }
    }
}

/// Returns the union vnode that `vnode` is. `EXDEV` if it belongs to another layer or union.
pub(crate) fn same_layer<'a>(core: &Arc<Core>, vnode: &'a Arc<dyn Vnode>) -> Result<&'a UnionVnode> {
    let vnode = vnode.as_any().downcast_ref::<UnionVnode>().ok_or(Errno::XDEV)?;
    if Arc::ptr_eq(&vnode.core, core) { Ok(vnode) } else { Err(Errno::XDEV) }
}

/// The exclusive right to change some entries.
pub(crate) struct ChangingEntries<'a> {
    entries: Vec<(&'a Dir, u64)>,
    _locks: Vec<Writer<'a>>,
}

impl Drop for ChangingEntries<'_> {
    fn drop(&mut self) {
        // Even an operation that failed may have left a whiteout, which the name index must not
        // miss. The locks are released after this.
        for (dir, name) in &self.entries {
            if let Some(known) = dir.known.lock().as_mut() {
                known.change(*name);
            }
        }
    }
}

/// Locks the entries of several directories, in the order of their addresses. The names are those
/// of the entries that will be changed.
pub(crate) fn lock_entries<'a>(
    cx: &Cx<'_>,
    entries: &[(&'a UnionVnode, Option<Name<'_>>)],
) -> Result<ChangingEntries<'a>> {
    let mut locks: Vec<&'a EntryLock> = Vec::with_capacity(entries.len());
    let mut changing = Vec::with_capacity(entries.len());
    for &(vnode, name) in entries {
        let dir = vnode.dir()?;
        locks.push(&dir.entry_lock);
        changing.extend(name.map(|name| (dir, hash(name.as_bytes()))));
    }
    locks.sort_unstable_by_key(|lock| std::ptr::from_ref::<EntryLock>(lock));
    locks.dedup_by(|a, b| std::ptr::eq(*a, *b));
    let locks = locks.into_iter().map(|lock| lock.write(cx)).collect::<Result<_>>()?;
    Ok(ChangingEntries { entries: changing, _locks: locks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vnode_fits_into_104_bytes() {
        // The allocation for a file that was only looked up: two reference counts and this struct.
        // glibc adds 8 bytes.
        assert!(size_of::<UnionVnode>() + 16 <= 104, "{}", size_of::<UnionVnode>());
    }
}
