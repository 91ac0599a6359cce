//! Interning: each live object has one vnode.

use crate::branch::{Lower, Stack, same_stack};
use crate::entry_lock::Certainty;
use crate::log::Alias;
use crate::metacopy::same_metacopy;
use crate::node::{Core, Place, UNCOUNTED, UnionVnode};
use crate::op::Op;
use crate::released::as_released;
use crate::set::BranchSet;
use crate::table::Interned;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vnode::{Errno, Result, Vnode};

impl Core {
    /// Returns the live vnode of a file, or a new one. Its number is `id`, or another one of the
    /// hashed range if `id` belongs to another live object.
    pub(crate) fn intern_leaf(
        self: &Arc<Self>,
        op: &Op<'_>,
        id: u64,
        place: Place,
        lower: &Lower,
    ) -> Result<Arc<UnionVnode>> {
        let mut id = id;
        loop {
            let new = || UnionVnode::new(self, op.set, id, Some(place.clone()), lower.clone(), None);
            match self.table.intern(id, new) {
                Interned::New(vnode) => return Ok(vnode),
                Interned::Present(live) if self.is_dead(&live, lower) => self.table.forget(id, Arc::as_ptr(&live)),
                Interned::Present(live) if live.dir.is_none() && live.kind == lower.vnode.kind() => {
                    let unplaced = !live.is_current(op.set) || live.is_detached();
                    let same = live.leaf().is(lower);
                    // Its names had disappeared with its branch.
                    let is_back = as_released(&live.leaf().vnode).is_some_and(|was| was.is_same(&lower.vnode));
                    if is_back || (unplaced && (same || !live.is_gone())) {
                        live.set_found(op, lower.clone(), Some(place))?;
                        return Ok(live);
                    }
                    if same {
                        if !same_metacopy(&live.leaf().vnode, &lower.vnode) {
                            // Its metacopy was removed or created out of band.
                            live.replace_view(lower.clone());
                        }
                        if !op.set.files_stay(lower.branch) && !live.is_at(&place.parent, place.name.as_bytes()) {
                            live.set_place(Some(place));
                        }
                        return Ok(live);
                    }
                    id = crate::inode_number::next_free(id);
                }
                // After an out-of-band change the number belongs to another object that is still
                // live.
                Interned::Present(_) => id = crate::inode_number::next_free(id),
            }
        }
    }

    /// Whether `live` is the vnode of a deleted object, whose number the branch's file system has
    /// reused for `found`.
    ///
    /// File systems reuse numbers at once, while the kernel may still refer to the old object. A
    /// bottom layer that interns its vnodes returns the same vnode for the same object. If the
    /// vnodes differ, the old one is queried.
    pub(crate) fn is_dead(&self, live: &UnionVnode, found: &Lower) -> bool {
        let leaf = live.leaf();
        if Arc::ptr_eq(&leaf.vnode, &found.vnode) {
            return false;
        }
        if let Some(released) = as_released(&leaf.vnode) {
            // Its branch was removed, and is back.
            return !released.is_same(&found.vnode);
        }
        matches!(leaf.vnode.getattr(&self.server_cx().without_waiting()), Err(Errno::STALE | Errno::NOENT))
    }

    /// Returns the vnode of a new file without a name.
    pub(crate) fn intern_unnamed(self: &Arc<Self>, op: &Op<'_>, number: u64, lower: &Lower) -> Arc<UnionVnode> {
        let mut id = number;
        loop {
            match self.table.intern(id, || UnionVnode::new(self, op.set, id, None, lower.clone(), None)) {
                Interned::New(vnode) => return vnode,
                Interned::Present(live) if self.is_dead(&live, lower) => self.table.forget(id, Arc::as_ptr(&live)),
                Interned::Present(live) if live.dir.is_none() && live.leaf().is(lower) => return live,
                Interned::Present(_) => id = crate::inode_number::next_free(id),
            }
        }
    }

    /// Returns the live vnode of a directory, or a new one.
    pub(crate) fn intern_dir(
        self: &Arc<Self>,
        op: &Op<'_>,
        place: Place,
        stack: Stack,
        redirect: Option<Box<[u8]>>,
    ) -> Result<Arc<UnionVnode>> {
        let mut id = self.directory_number(op, &stack)?;
        let leftmost = stack.first().cloned().ok_or(Errno::IO)?;
        if let Some(live) = self.renumbered(op, id, (&place.parent, place.name.as_bytes()), &stack)? {
            live.adopt_stack(op, stack, redirect, Some(place))?;
            return Ok(live);
        }
        loop {
            let new = || UnionVnode::new(self, op.set, id, Some(place.clone()), leftmost.clone(), Some(stack.clone()));
            match self.table.intern(id, new) {
                Interned::New(vnode) => {
                    *vnode.dir()?.redirect.lock() = redirect;
                    return Ok(vnode);
                }
                Interned::Present(live) if self.is_dead(&live, &leftmost) => {
                    self.table.forget(id, Arc::as_ptr(&live));
                }
                Interned::Present(live) if live.dir.is_some() => {
                    if !live.is_current(op.set) || live.is_detached() {
                        live.adopt_stack(op, stack, redirect, Some(place))?;
                        return Ok(live);
                    }
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
                        // The parts changed out of band. A report that follows finds the new stack.
                        self.everything_changed();
                        return Ok(live);
                    }
                    id = crate::inode_number::next_free(id);
                }
                Interned::Present(_) => id = crate::inode_number::next_free(id),
            }
        }
    }

    /// Creates the vnode of an object that was looked up without the entry lock. It is not valid
    /// yet. `None` if the number has a vnode by now. `stack`: that of a directory, with its
    /// redirect.
    pub(crate) fn intern_uncertain(
        self: &Arc<Self>,
        op: &Op<'_>,
        id: u64,
        place: Place,
        lower: Lower,
        stack: Option<(Stack, Option<Box<[u8]>>)>,
    ) -> Option<Arc<UnionVnode>> {
        let (stack, redirect) = stack.unzip();
        let interned = self.table.intern(id, || {
            let vnode = UnionVnode::new(self, op.set, id, Some(place), lower, stack);
            vnode.set_outdated();
            if let Some(dir) = &vnode.dir {
                *dir.redirect.lock() = redirect.flatten();
            }
            vnode
        });
        match interned {
            Interned::New(vnode) => Some(vnode),
            Interned::Present(_) => None,
        }
    }

    /// Returns the live vnode of the directory at this place if its stack has grown to the right
    /// since the set changed. The vnode keeps its number, although `number`, that of the new
    /// rightmost part, differs.
    pub(crate) fn renumbered(
        &self,
        op: &Op<'_>,
        number: u64,
        (parent, name): (&UnionVnode, &[u8]),
        stack: &[Lower],
    ) -> Result<Option<Arc<UnionVnode>>> {
        if op.set.generation == BranchSet::FIRST || stack.len() < 2 || self.table.get(number).is_some() {
            return Ok(None);
        }
        for part in stack.iter().rev().skip(1) {
            let known = self.directory_number(op, std::slice::from_ref(part))?;
            if let Some(live) = self.table.get(known)
                && live.dir.is_some()
                && !live.is_current(op.set)
                && live.is_at(parent, name)
            {
                return Ok(Some(live));
            }
        }
        Ok(None)
    }
}

impl UnionVnode {
    /// Makes a directory valid in the current set, with this stack. It keeps its number, also in
    /// later mounts: the number is logged as an alias if the stack has another one.
    pub(crate) fn adopt_stack(
        &self,
        op: &Op<'_>,
        stack: Stack,
        redirect: Option<Box<[u8]>>,
        place: Option<Place>,
    ) -> Result<()> {
        self.keep_number_of(op, &stack)?;
        self.set_found_dir(op, stack, redirect, place, Certainty::Certain)
    }

    /// As [`Self::adopt_stack`], for a directory that is valid in the current set already.
    pub(crate) fn replace_stack(&self, op: &Op<'_>, stack: Stack, redirect: Option<Box<[u8]>>) -> Result<()> {
        self.keep_number_of(op, &stack)?;
        self.set_stack(stack)?;
        let dir = self.dir()?;
        *dir.redirect.lock() = redirect;
        dir.subdirs.store(UNCOUNTED, Ordering::Release);
        Ok(())
    }

    /// Logs the directory's number as the alias of this stack, which the directory gets, unless the
    /// stack has that number already or another vnode has the stack's.
    fn keep_number_of(&self, op: &Op<'_>, stack: &[Lower]) -> Result<()> {
        let last = stack.last().ok_or(Errno::IO)?;
        let number = self.core.directory_number(op, stack)?;
        if number != self.id && crate::inode_number::tag_of(self.id).is_some() && self.core.table.get(number).is_none()
        {
            let born = last.vnode.getattr(op)?.btime.unwrap_or_default();
            let alias = Alias { born, number: self.id, generation: self.generation() };
            self.core.identity.alias_deferred(op.set.branch(last.branch)?.tag, last.vnode.id(), alias);
        }
        Ok(())
    }

    /// Whether the directory with this stack, which was found at this one's place, is this one. The
    /// number of a directory can change with its parts. It is then the same directory if it shares
    /// a part with this vnode, unless another vnode has that number.
    pub(crate) fn is_still(&self, op: &Op<'_>, stack: &[Lower]) -> Result<bool> {
        let number = self.core.directory_number(op, stack)?;
        Ok(match self.core.table.get(number) {
            Some(live) => std::ptr::eq(&raw const *live, self),
            // A vnode that has lost its own number to another one is outdated.
            None => number != self.id && self.shares_part(stack)?,
        })
    }

    /// Whether one of these lower directories is a part of this directory.
    pub(crate) fn shares_part(&self, stack: &[Lower]) -> Result<bool> {
        let own = self.stack()?;
        Ok(stack.iter().any(|part| own.iter().any(|own| own.is(part))))
    }
}
