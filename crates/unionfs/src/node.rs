//! The union's vnode.

use crate::branch::{BranchId, Lower, Stack};
use crate::core::Shared;
use crate::listing::{Fate, Listable, Slot};
use crate::names::{Names, Writer};
use crate::op::Op;
use crate::set::{BranchSet, NEVER, turn_of};
use crate::shortname::ShortName;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;
use vnode::{Errno, Kind, Name, Result, Vnode};

/// `Dir::subdirs` before it was counted.
pub(crate) const UNCOUNTED: u32 = u32::MAX;

/// What only directories have.
pub(crate) struct Dir {
    /// Exclusive to change an entry, shared for lookups and listings: docs/design/unionfs.md,
    /// "Locks".
    pub(crate) names: Names,
    stack: Mutex<Stack>,
    /// The path in the branches to the right at which the stack goes on, if that is not its own.
    pub(crate) redirect: Mutex<Option<Box<[u8]>>>,
    /// Counts changes of entries through this union.
    pub(crate) changes: AtomicU64,
    /// Subdirectories of a merged directory.
    pub(crate) subdirs: AtomicU32,
    pub(crate) listing: Mutex<Slot>,
    /// The last name that was looked for and not found.
    pub(crate) absent: Mutex<Option<Absent>>,
}

/// A name that was not there.
pub(crate) struct Absent {
    pub(crate) name: ShortName,
    /// [`Dir::changes`] at that time.
    pub(crate) changes: u64,
    /// In the set of this generation.
    pub(crate) generation: u64,
    /// The branch of the whiteout that hid it.
    pub(crate) whiteout: Option<BranchId>,
    pub(crate) at: Instant,
}

struct State {
    parent: Option<Arc<UnionVnode>>,
    name: ShortName,
    /// The leftmost lower object.
    lower: Arc<dyn Vnode>,
}

/// Its last name is gone.
const GONE: u8 = 1;
/// Since the branches changed its known name leads to something else, or to nothing.
const ADRIFT: u8 = 2;

/// It has, or had, several names: the known one may go while the others stay.
const SEVERAL: u8 = 4;

/// What all vnodes of a union share.
pub(crate) type Core = Shared<UnionVnode>;

/// An object of the union.
pub(crate) struct UnionVnode {
    pub(crate) core: Arc<Core>,
    pub(crate) id: u64,
    pub(crate) dir: Option<Box<Dir>>,
    /// Counts how often a file moved to another branch: open files notice by it.
    moves: AtomicU16,
    /// [`BranchSet::turn`] of the set that it was last found right in.
    turn: AtomicU16,
    /// Part of the state, outside of it only because it fits into a gap there.
    branch: AtomicU16,
    pub(crate) kind: Kind,
    /// [`GONE`], [`ADRIFT`], [`SEVERAL`].
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

/// Where a vnode was found.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) parent: Arc<UnionVnode>,
    pub(crate) name: ShortName,
}

impl Place {
    pub(crate) fn name(&self) -> Result<Name<'_>> {
        Name::new(self.name.as_bytes())
    }

    /// Is that the same entry?
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
        Arc::new(Self {
            core: core.clone(),
            id,
            dir: stack.map(|stack| {
                Box::new(Dir {
                    names: Names::default(),
                    stack: Mutex::new(stack),
                    redirect: Mutex::new(None),
                    changes: AtomicU64::new(0),
                    subdirs: AtomicU32::new(UNCOUNTED),
                    listing: Mutex::default(),
                    absent: Mutex::new(None),
                })
            }),
            moves: AtomicU16::new(0),
            turn: set.turn().into(),
            branch: leftmost.branch.0.into(),
            kind: leftmost.vnode.kind(),
            flags: AtomicU8::new(0),
            state: Mutex::new(State { parent, name, lower: leftmost.vnode }),
        })
    }

    /// The owner of `self`.
    pub(crate) fn arc(&self) -> Result<Arc<Self>> {
        // Every vnode is in the table for as long as it lives. (A pointer to itself would cost 16 bytes in each.)
        self.core.table.get(self.id).filter(|live| std::ptr::eq(&raw const **live, self)).ok_or(Errno::STALE)
    }

    /// What only directories have.
    pub(crate) fn dir(&self) -> Result<&Dir> {
        self.dir.as_deref().ok_or(Errno::NOTDIR)
    }

    /// The lower directories.
    pub(crate) fn stack(&self) -> Result<Stack> {
        Ok(self.dir()?.stack.lock().clone())
    }

    /// The part on that branch, if there is one.
    pub(crate) fn part(&self, branch: BranchId) -> Result<Option<Lower>> {
        Ok(self.dir()?.stack.lock().iter().find(|part| part.branch == branch).cloned())
    }

    /// Gives a directory another stack.
    pub(crate) fn set_stack(&self, stack: Stack) -> Result<()> {
        let dir = self.dir()?;
        let Some(leftmost) = stack.first().cloned() else { return Err(Errno::IO) };
        let old = std::mem::replace(&mut *dir.stack.lock(), stack);
        drop(old);
        self.set_leaf(leftmost);
        self.entries_changed();
        Ok(())
    }

    /// The leftmost lower object.
    pub(crate) fn leaf(&self) -> Lower {
        let state = self.state.lock();
        Lower { vnode: state.lower.clone(), branch: self.branch() }
    }

    /// The leftmost lower object, and how often it has moved.
    pub(crate) fn leaf_and_moves(&self) -> (Lower, u16) {
        let state = self.state.lock();
        (Lower { vnode: state.lower.clone(), branch: self.branch() }, self.moves.load(Ordering::Acquire))
    }

    /// The branch of the leftmost lower object.
    pub(crate) fn branch(&self) -> BranchId {
        BranchId(self.branch.load(Ordering::Acquire))
    }

    /// How often the file has moved.
    pub(crate) fn moves(&self) -> u16 {
        self.moves.load(Ordering::Acquire)
    }

    /// The leftmost lower object is now this.
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

    /// The same lower file, seen in another way: its data have not moved.
    pub(crate) fn dress(&self, lower: Lower) {
        let old = {
            let mut state = self.state.lock();
            let same = self.branch() == lower.branch && state.lower.id() == lower.vnode.id();
            if same { std::mem::replace(&mut state.lower, lower.vnode) } else { lower.vnode }
        };
        drop(old);
    }

    /// Has its last name gone?
    pub(crate) fn is_gone(&self) -> bool {
        self.flags.load(Ordering::Acquire) & GONE != 0
    }

    /// Its last name has gone.
    pub(crate) fn set_gone(&self) {
        self.flags.fetch_or(GONE, Ordering::AcqRel);
    }

    /// The file was seen with so many names.
    pub(crate) fn note_names(&self, count: u32) {
        if count > 1 && self.flags.load(Ordering::Acquire) & SEVERAL == 0 {
            self.flags.fetch_or(SEVERAL, Ordering::AcqRel);
        }
    }

    /// Does its known name, since the branches changed, lead to something else or to nothing?
    pub(crate) fn is_adrift(&self) -> bool {
        self.flags.load(Ordering::Acquire) & ADRIFT != 0
    }

    /// Was it found right in that set?
    pub(crate) fn is_current(&self, set: &BranchSet) -> bool {
        self.turn.load(Ordering::Acquire) == set.turn()
    }

    /// Was it found right in the set of that generation?
    pub(crate) fn is_of(&self, generation: u64) -> bool {
        self.turn.load(Ordering::Acquire) == turn_of(generation)
    }

    /// It was found again in the present set: as this lower object, and at that place, if one is given. `ESTALE` if that set
    /// is no longer the present one.
    pub(crate) fn settle(&self, op: &Op<'_>, lower: Lower, place: Option<Place>) -> Result<()> {
        let old = {
            let mut state = self.state.lock();
            op.check_set(&self.core.branches)?;
            let same = self.branch() == lower.branch && state.lower.id() == lower.vnode.id();
            self.branch.store(lower.branch.0, Ordering::Release);
            let old = std::mem::replace(&mut state.lower, lower.vnode);
            if !same {
                self.moves.fetch_add(1, Ordering::AcqRel);
            }
            let old_place =
                place.map(|place| (state.parent.replace(place.parent), std::mem::replace(&mut state.name, place.name)));
            self.flags.fetch_and(SEVERAL, Ordering::AcqRel);
            self.turn.store(op.set.turn(), Ordering::Release);
            (old, old_place)
        };
        drop(old);
        Ok(())
    }

    /// The same for a directory with this stack.
    pub(crate) fn settle_dir(&self, op: &Op<'_>, stack: Stack, place: Option<Place>) -> Result<()> {
        let dir = self.dir()?;
        let leftmost = stack.first().cloned().ok_or(Errno::IO)?;
        let old = {
            let mut present = dir.stack.lock();
            if self.is_current(op.set) && !self.is_adrift() {
                return Ok(());
            }
            self.settle(op, leftmost, place)?;
            std::mem::replace(&mut *present, stack)
        };
        drop(old);
        self.entries_changed();
        dir.subdirs.store(UNCOUNTED, Ordering::Release);
        Ok(())
    }

    /// It was not found by its name in the present set: that name is forgotten.
    pub(crate) fn cast_off(&self, op: &Op<'_>) -> Result<()> {
        let old = {
            let mut state = self.state.lock();
            op.check_set(&self.core.branches)?;
            if self.flags.load(Ordering::Acquire) & SEVERAL == 0 {
                self.flags.fetch_or(ADRIFT, Ordering::AcqRel);
            }
            self.turn.store(op.set.turn(), Ordering::Release);
            (state.parent.take(), std::mem::replace(&mut state.name, ShortName::new(b"")))
        };
        drop(old);
        self.entries_changed();
        Ok(())
    }

    /// What it was is what it is in the present set, too.
    pub(crate) fn confirm(&self, op: &Op<'_>) -> Result<()> {
        let _state = self.state.lock();
        op.check_set(&self.core.branches)?;
        self.turn.store(op.set.turn(), Ordering::Release);
        Ok(())
    }

    /// Forgets in which set it was found right.
    pub(crate) fn doubt(&self) {
        self.turn.store(NEVER, Ordering::Release);
    }

    /// Where it was found last; `None` for the root, and where the last known name is gone.
    pub(crate) fn place(&self) -> Option<Place> {
        let state = self.state.lock();
        Some(Place { parent: state.parent.clone()?, name: state.name.clone() })
    }

    /// Is this where it was found last?
    pub(crate) fn is_at(&self, parent: &Self, name: &[u8]) -> bool {
        let state = self.state.lock();
        state.parent.as_deref().is_some_and(|p| std::ptr::eq(p, parent)) && state.name.as_bytes() == name
    }

    /// It was found or put there.
    pub(crate) fn set_place(&self, place: Option<Place>) {
        let (parent, name) = match place {
            Some(place) => (Some(place.parent), place.name),
            None => (None, ShortName::new(b"")),
        };
        let old = {
            let mut state = self.state.lock();
            (std::mem::replace(&mut state.parent, parent), std::mem::replace(&mut state.name, name))
        };
        // Outside of the lock: the old parent may go with it.
        drop(old);
    }

    /// The name `name` in `parent` is gone: forgets it if it is the one that is known.
    pub(crate) fn lost_name(&self, parent: &Self, name: &[u8]) {
        if self.is_at(parent, name) {
            self.set_place(None);
        }
    }

    /// Notes that entries changed, nobody knows which.
    pub(crate) fn entries_changed(&self) {
        if let Some(dir) = &self.dir {
            dir.changes.fetch_add(1, Ordering::AcqRel);
            self.core.finder.changed();
            let old = dir.listing.lock().forget();
            drop(old);
        }
    }

    /// Notes that the entry of that name changed. The caller holds the names.
    pub(crate) fn entry_changed(&self, name: Name<'_>, fate: Fate) {
        if let Some(dir) = &self.dir {
            dir.changes.fetch_add(1, Ordering::AcqRel);
            self.core.finder.changed();
            let old = dir.listing.lock().change(name.as_bytes(), fate);
            drop(old);
        }
    }

    /// Notes that a subdirectory came (1) or went (-1).
    pub(crate) fn count_subdir(&self, by: i32) {
        if let Some(dir) = &self.dir {
            let counted = |n: u32| if n == UNCOUNTED { None } else { Some(n.saturating_add_signed(by)) };
            // Not yet counted is as good as counted: it will be.
            let _ = dir.subdirs.fetch_update(Ordering::AcqRel, Ordering::Acquire, counted);
        }
    }

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

    /// The place of the entry `name` in this directory.
    pub(crate) fn place_of(&self, name: Name<'_>) -> Result<Place> {
        Ok(Place { parent: self.arc()?, name: ShortName::new(name.as_bytes()) })
    }
}

impl Drop for UnionVnode {
    fn drop(&mut self) {
        self.core.table.forget(self.id, self);
        // A chain of parents that nobody else holds goes one by one, not recursively: a tree may be very deep.
        let mut next = self.state.get_mut().parent.take();
        if next.is_none() || self.is_gone() {
            self.core.movers.release_orphan(self.id);
        }
        while let Some(parent) = next.take() {
            let at = Arc::as_ptr(&parent);
            if let Some(mut last) = Arc::into_inner(parent) {
                // It was moved out of its place, by which the table knows it: its own drop can't take it out.
                last.core.table.forget(last.id, at);
                next = last.state.get_mut().parent.take();
            }
        }
    }
}

/// The live vnode behind an argument of the interface, if it is of this union.
pub(crate) fn same_layer<'a>(core: &Arc<Core>, vnode: &'a Arc<dyn Vnode>) -> Result<&'a UnionVnode> {
    let vnode = vnode.as_any().downcast_ref::<UnionVnode>().ok_or(Errno::XDEV)?;
    if Arc::ptr_eq(&vnode.core, core) { Ok(vnode) } else { Err(Errno::XDEV) }
}

/// Locks the names of several directories, in an order that is the same for everybody.
pub(crate) fn lock_names<'a>(dirs: &[&'a UnionVnode]) -> Result<Vec<Writer<'a>>> {
    let mut locks: Vec<&'a Names> = Vec::with_capacity(dirs.len());
    for dir in dirs {
        locks.push(&dir.dir()?.names);
    }
    locks.sort_unstable_by_key(|lock| std::ptr::from_ref::<Names>(lock));
    locks.dedup_by(|a, b| std::ptr::eq(*a, *b));
    Ok(locks.into_iter().map(Names::write).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vnodes_are_small() {
        // The allocation of a file that was only looked up: two counters and this. glibc adds 8.
        assert!(size_of::<UnionVnode>() + 16 <= 104, "{}", size_of::<UnionVnode>());
    }
}
