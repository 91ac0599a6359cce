//! Out-of-band changes that the layers of the branches report: docs/design/unionfs.md, "Out-of-band
//! changes".
//!
//! A report names a lower object. The union finds the objects that show it, drops what it knows of
//! the changed name, and passes the report on to the layer above, in terms of its own objects.

use crate::branch::BranchId;
use crate::lookup::{Hit, StableProbe};
use crate::metacopy::{METACOPIES, as_metacopy, metacopied};
use crate::node::{Core, UNCOUNTED, UnionVnode};
use crate::op::Op;
use crate::opaque_redirect::{MOVED, affects_stack};
use crate::whiteout::{Listed, classify};
use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use vnode::{Attr, Drained, Name, Result, Upcalls};

/// Receives the reports of one branch's layer.
pub(crate) struct BranchReports {
    core: Weak<Core>,
    branch: BranchId,
}

impl BranchReports {
    pub(crate) fn new(core: Weak<Core>, branch: BranchId) -> Arc<Self> {
        Arc::new(Self { core, branch })
    }

    /// Calls `report` with each live vnode that shows the lower object, and with its number.
    fn for_each(&self, lower: u64, report: impl Fn(&dyn Upcalls, u64)) {
        let Some(core) = self.core.upgrade() else { return };
        let Some(upcalls) = core.upcalls() else { return };
        for vnode in core.showing(self.branch, lower) {
            report(&**upcalls, core.shown(vnode.id));
        }
    }

    /// Returns the branch's objects that the vnodes returned by `list` lie on.
    fn on_branch(&self, list: impl Fn(&dyn Upcalls) -> Vec<u64>) -> Vec<u64> {
        let Some(core) = self.core.upgrade() else { return Vec::new() };
        let Some(upcalls) = core.upcalls() else { return Vec::new() };
        let vnodes = list(&**upcalls).into_iter().filter_map(|number| core.table.get(core.resolve_shown(number)));
        vnodes.map(|vnode| vnode.leaf()).filter(|leaf| leaf.branch == self.branch).map(|leaf| leaf.vnode.id()).collect()
    }

    fn entry(&self, dir: u64, name: Name<'_>, is_dir: bool) {
        let Some(core) = self.core.upgrade() else { return };
        for dir in core.merging(self.branch, dir) {
            core.lower_entry_changed(self.branch, &dir, name, is_dir);
        }
    }
}

impl fmt::Debug for BranchReports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BranchReports({:?})", self.branch)
    }
}

impl Upcalls for BranchReports {
    fn entry_changed(&self, dir: u64, name: Name<'_>) {
        self.entry(dir, name, false);
    }

    fn directory_entry_changed(&self, dir: u64, name: Name<'_>) {
        self.entry(dir, name, true);
    }

    fn attributes_changed(&self, vnode: u64) {
        self.for_each(vnode, |upcalls, number| upcalls.attributes_changed(number));
    }

    fn data_changed(&self, vnode: u64, range: Range<u64>) {
        self.for_each(vnode, |upcalls, number| upcalls.data_changed(number, range.clone()));
    }

    fn data_changed_out_of_band(&self, vnode: u64, attr: &Attr) {
        let Some(core) = self.core.upgrade() else { return };
        let Some(upcalls) = core.upcalls() else { return };
        for shown in core.showing(self.branch, vnode) {
            let number = core.shown(shown.id);
            // The size and times above a metacopy are its own, not those of the changed file.
            if as_metacopy(&shown.leaf().vnode).is_some() {
                upcalls.data_changed(number, 0..u64::MAX);
            } else {
                upcalls.data_changed_out_of_band(number, attr);
            }
        }
    }

    fn data_moved(&self, vnode: u64) {
        self.for_each(vnode, |upcalls, number| upcalls.data_moved(number));
    }

    fn everything_changed(&self) {
        let Some(core) = self.core.upgrade() else { return };
        for vnode in core.table.live() {
            vnode.entries_changed();
            if let Ok(dir) = vnode.dir() {
                dir.subdirs.store(UNCOUNTED, Ordering::Release);
            }
        }
        core.everything_changed();
    }

    fn stop_passthrough(&self, vnode: u64, drained: Drained) {
        // Several vnodes can't have passthrough open files of one lower file: each has a number of
        // its own, and a file has one.
        let core = self.core.upgrade();
        let number = core.as_ref().and_then(|core| core.showing(self.branch, vnode).first().map(|v| core.shown(v.id)));
        match (core.as_ref().and_then(|core| core.upcalls()), number) {
            (Some(upcalls), Some(number)) => upcalls.stop_passthrough(number, drained),
            _ => drained(),
        }
    }

    fn allow_passthrough(&self, vnode: u64) {
        self.for_each(vnode, |upcalls, number| upcalls.allow_passthrough(number));
    }

    fn passthrough(&self) -> Vec<u64> {
        self.on_branch(|upcalls| upcalls.passthrough())
    }

    fn maybe_mapped(&self) -> Vec<u64> {
        self.on_branch(|upcalls| upcalls.maybe_mapped())
    }

    fn is_host_file_unused(&self, file: BorrowedFd<'_>, readers: bool) -> bool {
        self.core.upgrade().is_none_or(|core| core.is_unused(file, readers))
    }

    fn settle(&self, timeout: Duration) -> bool {
        self.core.upgrade().is_none_or(|core| core.settle(timeout))
    }
}

impl Core {
    /// Returns the live directories that merge a lower directory.
    fn merging(&self, branch: BranchId, lower: u64) -> Vec<Arc<UnionVnode>> {
        self.parts.merged_in(branch, lower).into_iter().filter_map(|number| self.table.get(number)).collect()
    }

    /// Returns the live vnodes that show a lower object.
    fn showing(&self, branch: BranchId, lower: u64) -> Vec<Arc<UnionVnode>> {
        let mut all = self.merging(branch, lower);
        let set = self.branches.get();
        let Some(member) = set.member(branch) else { return all };
        let tag = member.state.tag;
        let known = self.identity.alias(tag, lower).map(|alias| alias.number);
        for number in known.into_iter().chain([crate::inode_number::compose(tag, lower)]) {
            let leaf = self.table.get(number).filter(|live| live.dir.is_none());
            all.extend(leaf.filter(|live| live.branch() == branch && live.leaf().vnode.id() == lower));
        }
        all
    }

    /// Handles a change of the entry `name` in the part of a directory on `branch`.
    fn lower_entry_changed(&self, branch: BranchId, dir: &Arc<UnionVnode>, name: Name<'_>, is_dir: bool) {
        match classify(name.as_bytes()) {
            Listed::Plain => self.name_changed(Some(branch), dir, name, is_dir),
            // A whiteout beside a directory ends its stack.
            Listed::Whiteout(hidden) => {
                if let Ok(name) = Name::new(hidden) {
                    self.name_changed(Some(branch), dir, name, true);
                }
            }
            Listed::LongWhiteout(_) => self.names_changed(dir),
            Listed::Mark => self.mark_changed(branch, dir, name.as_bytes()),
        }
    }

    fn mark_changed(&self, branch: BranchId, dir: &Arc<UnionVnode>, mark: &[u8]) {
        if let Some(Ok(name)) = metacopied(mark).map(Name::new) {
            self.name_changed(Some(branch), dir, name, false);
        } else if affects_stack(mark) {
            if let Some(place) = dir.place()
                && let Ok(name) = place.name()
            {
                self.name_changed(None, &place.parent, name, true);
            }
            self.names_changed(dir);
        } else if let Some(member) = self.branches.get().member(branch) {
            // Another union begins to use redirects or metacopies on the branch.
            let flag = match mark {
                MOVED => &member.state.has_redirects,
                METACOPIES => &member.state.metacopies,
                _ => return,
            };
            if !flag.swap(true, Ordering::AcqRel) {
                self.everything_changed();
            }
        }
    }

    /// Handles a change of any number of names in a directory.
    fn names_changed(&self, dir: &UnionVnode) {
        dir.entries_changed();
        if let Ok(dir) = dir.dir() {
            dir.subdirs.store(UNCOUNTED, Ordering::Release);
        }
        self.everything_changed();
    }

    /// Handles a change of a name in a directory, as users see it; `branch`: where an entry of the
    /// directory's part changed; `is_dir`: the name is or was a directory on some branch.
    fn name_changed(&self, branch: Option<BranchId>, dir: &Arc<UnionVnode>, name: Name<'_>, is_dir: bool) {
        match branch {
            Some(branch) => self.part_changed(dir, branch),
            None => self.directory_changed(dir),
        }
        dir.lower_entry_changed(name);
        let number = self.shown(dir.id);
        if !is_dir {
            if let Some(upcalls) = self.upcalls() {
                upcalls.entry_changed(number, name);
            }
            return;
        }
        if let Ok(dir) = dir.dir() {
            dir.subdirs.store(UNCOUNTED, Ordering::Release);
        }
        match self.merge_again(dir, name) {
            Ok(false) => {}
            Ok(true) => self.everything_changed(),
            Err(errno) => {
                tracing::debug!(?dir, %errno, "could not look up a directory that changed out of band");
                self.everything_changed();
            }
        }
        if let Some(upcalls) = self.upcalls() {
            upcalls.directory_entry_changed(number, name);
        }
    }

    /// Replaces the stack of the live directory at this name, if it merges other parts now. Returns
    /// whether it does: other entries may then be visible everywhere below it.
    fn merge_again(&self, dir: &Arc<UnionVnode>, name: Name<'_>) -> Result<bool> {
        let (cx, set) = (self.server_cx(), self.branches.get());
        let op = Op::new(&cx, &set);
        if !dir.is_current(&set) || dir.is_detached() {
            // The next operation on it looks it up again.
            return Ok(false);
        }
        let StableProbe { lock, probe, .. } = dir.stable_probe(&op, name)?;
        if lock.is_none() {
            // A writer is stuck. The next lookup of the name replaces the stack.
            return Ok(true);
        }
        let Hit::Dir { stack, redirect, .. } = probe.hit else { return Ok(false) };
        let mut changed = false;
        for part in &stack {
            for live in self.merging(part.branch, part.vnode.id()) {
                if live.is_at(dir, name.as_bytes())
                    && live.is_current(&set)
                    && !crate::branch::same_stack(&live.stack()?, &stack)
                    && live.is_still(&op, &stack)?
                {
                    live.replace_stack(&op, stack.as_slice().into(), redirect.clone())?;
                    changed = true;
                }
            }
        }
        Ok(changed)
    }
}
