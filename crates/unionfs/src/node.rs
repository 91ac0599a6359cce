//! The union's vnode.

use crate::branch::{BranchId, Lower, Stack, same_stack};
use crate::core::Core;
use crate::listing::Slot;
use crate::names::Names;
use crate::op::Op;
use crate::shortname::ShortName;
use crate::table::Interned;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;
use vnode::{Cx, Errno, Kind, Name, Result, Vnode};

/// `Dir::subdirs` before it was counted.
pub(crate) const UNCOUNTED: u32 = u32::MAX;

/// What only directories have.
pub(crate) struct Dir {
    /// Exclusive for whoever changes an entry, shared for look-ups and listings: see "Locks" in docs/unionfs.md.
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

/// An object of the union.
pub(crate) struct UnionVnode {
    pub(crate) core: Arc<Core>,
    pub(crate) id: u64,
    pub(crate) dir: Option<Box<Dir>>,
    /// Counts how often a file moved to another branch: open files notice by it.
    moves: AtomicU32,
    /// Part of the state, outside of it only because it fits into a gap there.
    branch: std::sync::atomic::AtomicU16,
    pub(crate) kind: Kind,
    /// Its last name is gone.
    pub(crate) gone: AtomicBool,
    state: Mutex<State>,
}

impl fmt::Debug for UnionVnode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        write!(f, "UnionVnode({:#x}, {:?}, {:?}, {:?})", self.id, self.kind, state.name, self.branch())
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
            moves: AtomicU32::new(0),
            branch: leftmost.branch.0.into(),
            kind: leftmost.vnode.kind(),
            gone: AtomicBool::new(false),
            state: Mutex::new(State { parent, name, lower: leftmost.vnode }),
        })
    }

    /// The owner of `self`.
    pub(crate) fn arc(&self) -> Result<Arc<Self>> {
        // Every vnode is in the table for as long as it lives. (A pointer to itself would cost 16 bytes in each.)
        self.core.table.get(self.id).filter(|live| std::ptr::eq(&raw const **live, self)).ok_or(Errno::STALE)
    }

    /// Runs an operation that changes nothing.
    pub(crate) fn looking<T>(&self, cx: &Cx<'_>, mut run: impl FnMut(&Op<'_>) -> Result<T>) -> Result<T> {
        run(&Op::new(cx, &self.core.branches.get()))
    }

    /// Runs an operation that changes something.
    pub(crate) fn changing<T>(&self, cx: &Cx<'_>, mut run: impl FnMut(&Op<'_>) -> Result<T>) -> Result<T> {
        run(&Op::new(cx, &self.core.branches.get()))
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
    pub(crate) fn leaf_and_moves(&self) -> (Lower, u32) {
        let state = self.state.lock();
        (Lower { vnode: state.lower.clone(), branch: self.branch() }, self.moves.load(Ordering::Acquire))
    }

    /// The branch of the leftmost lower object.
    pub(crate) fn branch(&self) -> BranchId {
        BranchId(self.branch.load(Ordering::Acquire))
    }

    /// How often the file has moved.
    pub(crate) fn moves(&self) -> u32 {
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

    /// Notes that a subdirectory came (1) or went (-1).
    pub(crate) fn count_subdir(&self, by: i32) {
        if let Some(dir) = &self.dir {
            let counted = |n: u32| if n == UNCOUNTED { None } else { Some(n.saturating_add_signed(by)) };
            // Not yet counted is as good as counted: it will be.
            let _ = dir.subdirs.fetch_update(Ordering::AcqRel, Ordering::Acquire, counted);
        }
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
        if next.is_none() || self.gone.load(Ordering::Relaxed) {
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

impl Core {
    /// The live vnode of a file, or a new one.
    pub(crate) fn intern_leaf(self: &Arc<Self>, op: &Op<'_>, id: u64, place: Place, lower: &Lower) -> Arc<UnionVnode> {
        let mut id = id;
        loop {
            let new = || UnionVnode::new(self, id, Some(place.clone()), lower.clone(), None);
            match self.table.intern(id, new) {
                Interned::New(vnode) => return vnode,
                Interned::Present(live) if self.is_dead(&live, lower) => self.table.forget(id, Arc::as_ptr(&live)),
                Interned::Present(live)
                    if live.dir.is_none() && live.leaf().is(lower) && live.kind == lower.vnode.kind() =>
                {
                    if !op.set.stays(lower.branch) && !live.is_at(&place.parent, place.name.as_bytes()) {
                        live.set_place(Some(place));
                    }
                    return live;
                }
                // A branch was changed behind our back, and the number belongs to something else that still lives.
                Interned::Present(_) => id = crate::identity::next_free(id),
            }
        }
    }

    /// Is `live` the vnode of an object that is gone for good, whose number a branch has given to `found`?
    ///
    /// File systems give a number away again at once, while the kernel has not yet forgotten the old object. A bottom that
    /// knows its live vnodes answers the same one for the same object; otherwise the old one itself is asked.
    fn is_dead(&self, live: &UnionVnode, found: &Lower) -> bool {
        let leaf = live.leaf();
        if Arc::ptr_eq(&leaf.vnode, &found.vnode) {
            return false;
        }
        matches!(leaf.vnode.getattr(&self.own()), Err(Errno::STALE | Errno::NOENT))
    }

    /// The vnode of a new file without a name.
    pub(crate) fn intern_unnamed(self: &Arc<Self>, number: u64, lower: &Lower) -> Arc<UnionVnode> {
        let mut id = number;
        loop {
            match self.table.intern(id, || UnionVnode::new(self, id, None, lower.clone(), None)) {
                Interned::New(vnode) => return vnode,
                Interned::Present(live) if self.is_dead(&live, lower) => self.table.forget(id, Arc::as_ptr(&live)),
                Interned::Present(live) if live.dir.is_none() && live.leaf().is(lower) => return live,
                Interned::Present(_) => id = crate::identity::next_free(id),
            }
        }
    }

    /// The live vnode of a directory, or a new one.
    pub(crate) fn intern_dir(
        self: &Arc<Self>,
        op: &Op<'_>,
        place: Place,
        stack: Stack,
        redirect: Option<Box<[u8]>>,
    ) -> Result<Arc<UnionVnode>> {
        let mut id = self.directory_number(op, &stack)?;
        let leftmost = stack.first().cloned().ok_or(Errno::IO)?;
        loop {
            let new = || UnionVnode::new(self, id, Some(place.clone()), leftmost.clone(), Some(stack.clone()));
            match self.table.intern(id, new) {
                Interned::New(vnode) => {
                    *vnode.dir()?.redirect.lock() = redirect;
                    return Ok(vnode);
                }
                Interned::Present(live) if self.is_dead(&live, &leftmost) => {
                    self.table.forget(id, Arc::as_ptr(&live));
                }
                Interned::Present(live) if live.dir.is_some() => {
                    let here = live.is_at(&place.parent, place.name.as_bytes());
                    if same_stack(&live.stack()?, &stack) {
                        if !here {
                            live.set_place(Some(place));
                        }
                        return Ok(live);
                    }
                    if here {
                        live.set_stack(stack)?;
                        *live.dir()?.redirect.lock() = redirect;
                        return Ok(live);
                    }
                    id = crate::identity::next_free(id);
                }
                Interned::Present(_) => id = crate::identity::next_free(id),
            }
        }
    }
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
