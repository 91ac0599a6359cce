//! The beginning of an operation. It takes the current set of branches and revalidates the vnode
//! and its ancestors if they were last validated in an older set: it looks each of them up again at
//! its known name. See "Branch sets" in docs/design/unionfs.md.

use crate::entry_lock::Certainty;
use crate::inode_number::ROOT;
use crate::lookup::Hit;
use crate::node::{Core, Place, UnionVnode};
use crate::op::Op;
use crate::retry::Retries;
use std::sync::Arc;
use vnode::{Cx, Errno, Result};

impl UnionVnode {
    /// Runs an operation that changes no object. Runs it again if the set of branches was replaced
    /// meanwhile.
    pub(crate) fn run_read<T>(&self, cx: &Cx<'_>, mut run: impl FnMut(&Op<'_>) -> Result<T>) -> Result<T> {
        let mut retries = Retries::new();
        loop {
            let set = self.core.branches.get();
            let op = Op::new(cx, &set);
            let answer = self.revalidate(&op).and_then(|()| run(&op));
            if op.check_set(&self.core.branches).is_ok() {
                return answer;
            }
            retries.count()?;
        }
    }

    /// Runs an operation that changes objects. The set of branches can't be replaced until it ends.
    /// A long operation can return `EAGAIN` to let a waiting replacement proceed. It then runs
    /// again.
    pub(crate) fn run_change<T>(&self, cx: &Cx<'_>, mut run: impl FnMut(&Op<'_>) -> Result<T>) -> Result<T> {
        let gate = &self.core.gate;
        loop {
            let _entered = gate.enter(cx)?;
            let set = self.core.branches.get();
            let op = Op::new(cx, &set).changing(gate.wanted());
            match self.revalidate(&op).and_then(|()| run(&op)) {
                Err(Errno::AGAIN) if gate.is_wanted() => {}
                answer => return answer,
            }
        }
    }

    /// Revalidates this vnode for the operation's set of branches, after its ancestors. The caller
    /// holds no entry lock.
    ///
    /// # Errors
    ///
    /// `ESTALE` if this is a directory whose known name leads to another object or to nothing in
    /// the set: it is *detached*, see [`Self::is_detached`].
    pub(crate) fn revalidate(&self, op: &Op<'_>) -> Result<()> {
        if !self.is_current(op.set) {
            let mut chain: Vec<Arc<Self>> = Vec::new();
            let mut next = self.place();
            while let Some(place) = next.filter(|place| !place.parent.is_current(op.set)) {
                next = place.parent.place();
                chain.push(place.parent);
            }
            while let Some(dir) = chain.pop() {
                dir.revalidate_one(op)?;
            }
            self.revalidate_one(op)?;
        }
        if self.dir.is_some() && self.is_detached() { Err(Errno::STALE) } else { Ok(()) }
    }

    /// Revalidates only this vnode, by a lookup at its place. Its parent is valid already.
    fn revalidate_one(&self, op: &Op<'_>) -> Result<()> {
        if self.is_current(op.set) {
            return Ok(());
        }
        if self.id == ROOT {
            return self.set_found_dir(op, op.set.roots().into(), None, None, Certainty::Certain);
        }
        match self.place() {
            // It was removed, or never had a name.
            None => self.set_current(op),
            Some(place) if place.parent.is_detached() => self.set_detached(op),
            Some(place) => self.revalidate_at(op, &place),
        }
    }

    fn revalidate_at(&self, op: &Op<'_>, place: &Place) -> Result<()> {
        let look = place.parent.stable_probe(op, place.name()?)?;
        let certainty = if look.lock.is_some() { Certainty::Certain } else { Certainty::Uncertain };
        match look.probe.hit {
            Hit::Leaf { branch, entry } if self.dir.is_none() && entry.vnode.kind() == self.kind => {
                let (lower, attr) = self.core.follow_index(op, branch, entry)?;
                if self.leaf().is(&lower) || self.core.number_of(op, &lower, &attr)? == self.id {
                    return self.set_found_again(op, lower, certainty);
                }
            }
            Hit::Dir { stack, redirect, .. } if self.dir.is_some() && self.is_still(op, &stack)? => {
                return match certainty {
                    Certainty::Certain => self.adopt_stack(op, stack.into(), redirect, None),
                    Certainty::Uncertain => self.set_found_dir(op, stack.into(), redirect, None, certainty),
                };
            }
            Hit::None | Hit::Leaf { .. } | Hit::Dir { .. } => {}
        }
        match certainty {
            Certainty::Certain => self.set_detached(op),
            // The writer may be renaming it.
            Certainty::Uncertain if self.dir.is_some() && !self.is_current(op.set) => Err(Errno::STALE),
            Certainty::Uncertain => Ok(()),
        }
    }
}

impl Core {
    /// Makes the kernel drop everything that it cached: entries, attributes and data of the old set
    /// may be stale. Also revalidates vnodes that refer to a removed branch, so that afterwards
    /// only open files keep it in use. Called after the set of branches was replaced, while no
    /// operation changes an object.
    pub(crate) fn on_branch_set_changed(&self, op: &Op<'_>) {
        let open = self.open_vnodes();
        for member in &op.set.order {
            if let Some(isolate) = &member.state.isolate {
                isolate.set_on_loss(member.mode.on_loss());
            }
        }
        // Objects that a branch which hangs prevents from being revalidated are when they are used.
        let op = &op.without_waiting();
        for vnode in self.table.live() {
            if op.set.generation.is_multiple_of(crate::set::BranchSet::SHORT_GENERATIONS) {
                // Vnodes store a generation in 16 bits. From here on, the values repeat, so that a
                // vnode that is out of date could seem valid.
                vnode.set_outdated();
            }
            if !vnode.lies_in(op)
                && let Err(errno) = vnode.revalidate(op)
            {
                tracing::debug!(?vnode, %errno, "could not revalidate a vnode after the branches changed");
            }
            if !vnode.lies_in(op) && !open.contains(&Arc::as_ptr(&vnode)) {
                vnode.release_removed(op.set);
            }
        }
        self.everything_changed();
    }
}

impl UnionVnode {
    /// Whether all branches that this vnode refers to are in the set.
    fn lies_in(&self, op: &Op<'_>) -> bool {
        let parts = self.stack().unwrap_or_default();
        op.set.member(self.branch()).is_some() && parts.iter().all(|part| op.set.member(part.branch).is_some())
    }
}
