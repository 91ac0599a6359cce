//! Attributes: getattr, setattr, statfs.

use crate::branch::{BranchId, Lower};
use crate::copymeta::Grants;
use crate::copyup::Change;
use crate::file::UnionFile;
use crate::inode_number::ROOT;
use crate::node::{UNCOUNTED, UnionVnode};
use crate::op::Op;
use crate::ownnames::{LINKS, WORK};
use crate::retry::Retries;
use crate::times::settled_attr;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vnode::{Attr, Cx, Errno, Kind, Name, OpenFile, Result, SetAttr, SetTime, StatFs, Time, Vnode};

/// The link count of a directory.
enum Links {
    Exactly(u32),
    /// That of the lower directory, without this number of the union's own directories in it.
    Without(u32),
}

impl Links {
    /// Returns the link count to show; `lower` is that of the lower directory.
    fn shown(&self, lower: u32) -> u32 {
        match *self {
            Self::Exactly(count) => count,
            // Some file systems do not count subdirectories.
            Self::Without(hidden) if lower > 2 => lower.saturating_sub(hidden).max(2),
            Self::Without(_) => lower,
        }
    }
}

impl UnionVnode {
    /// Runs `call` on the leftmost lower object. If that was removed out of band (`ESTALE`), runs
    /// it once more on the object that now has the name.
    pub(crate) fn on_leaf<T>(&self, cx: &Cx<'_>, mut call: impl FnMut(&Lower) -> Result<T>) -> Result<T> {
        if self.is_valid_in(self.core.branches.generation()) && !self.is_detached() {
            match self.on_present_leaf(&mut call) {
                Err(Errno::STALE) => {}
                answer => return answer,
            }
        }
        self.run_read(cx, |op| match self.on_present_leaf(&mut call) {
            Err(Errno::STALE) if self.refresh(op)? => self.on_present_leaf(&mut call),
            answer => answer,
        })
    }

    /// Runs `call` on the leftmost lower object, and again if the object moved to another branch
    /// meanwhile: the old one may have lost its name, and so have another link count, before `call`
    /// looked at it.
    fn on_present_leaf<T>(&self, call: &mut impl FnMut(&Lower) -> Result<T>) -> Result<T> {
        loop {
            let (lower, moves) = self.leaf_and_moves();
            let answer = call(&lower);
            if self.moves() == moves {
                return answer;
            }
        }
    }

    /// Returns the object's attributes as users see them.
    pub(crate) fn get_attr(&self, cx: &Cx<'_>) -> Result<Attr> {
        if self.dir.is_none() {
            return self.on_leaf(cx, |lower| lower.vnode.getattr(cx)).map(|attr| self.leaf_attr(attr));
        }
        let attr = self.on_leaf(cx, |lower| settled_attr(cx, &lower.vnode))?;
        self.run_read(cx, |op| self.dir_attr(op, attr))
    }

    /// Returns a directory's attributes as users see them.
    pub(crate) fn dir_attr(&self, op: &Op<'_>, mut attr: Attr) -> Result<Attr> {
        attr.nlink = self.dir_links(op)?.shown(attr.nlink);
        attr.ino = self.core.shown(self.id);
        attr.btime = attr.btime.min(self.first_birth(op)).or(attr.btime);
        Ok(attr)
    }

    /// Returns how a directory's link count follows from that of the lower directory.
    fn dir_links(&self, op: &Op<'_>) -> Result<Links> {
        if self.is_gone() {
            return Ok(Links::Exactly(0));
        }
        let stack = self.stack()?;
        match &*stack {
            [only] if self.id == ROOT => {
                let mut hidden = 0;
                for own in [WORK, LINKS] {
                    let found = only.vnode.lookup(op, Name::new(own)?)?;
                    hidden += u32::from(found.is_some_and(|entry| entry.vnode.kind() == Kind::Directory));
                }
                Ok(Links::Without(hidden))
            }
            [_] => Ok(Links::Without(0)),
            _ => match self.count_subdirs(op) {
                // By convention, 1 says that the number of subdirectories is unknown.
                Err(Errno::TIMEDOUT | Errno::IO) if op.set.isolated => Ok(Links::Exactly(1)),
                count => Ok(Links::Exactly(count?.saturating_add(2))),
            },
        }
    }

    /// Returns the time of birth of the rightmost part, if there are several: those further left
    /// were made when something in the directory changed. `None` if it is unknown, as on a branch
    /// that may hang: stat(2) does not depend on it.
    fn first_birth(&self, op: &Op<'_>) -> Option<Time> {
        let known = &self.dir().ok()?.first_birth;
        if known.get().is_none() {
            let stack = self.stack().ok()?;
            let [_, .., first] = &*stack else { return None };
            if op.set.branch(first.branch).ok()?.isolate.is_some() {
                return None;
            }
            let _ = known.set(first.vnode.getattr(&op.without_waiting()).ok()?.btime);
        }
        known.get().copied().flatten()
    }

    fn count_subdirs(&self, op: &Op<'_>) -> Result<u32> {
        let dir = self.dir()?;
        let counted = dir.subdirs.load(Ordering::Acquire);
        if counted != UNCOUNTED {
            return Ok(counted);
        }
        // Attributes are requested for every path through the directory: they don't wait for a
        // branch that hangs.
        self.listed_subdirs(&op.without_waiting())
    }

    /// Changes attributes, after a copy-up if necessary. `file`: the open file through which the
    /// change is made.
    pub(crate) fn set_attr(&self, op: &Op<'_>, set: &SetAttr, file: Option<&dyn OpenFile>) -> Result<Attr> {
        let file = file.and_then(|file| file.as_any().downcast_ref::<UnionFile>());
        if let Some(file) = file
            && let Some(branch) = file.removed_branch(op)
        {
            // Its branch was removed: the change is made on the open file.
            let open = file.lower(op)?;
            let lower = Some(self.leaf()).filter(|leaf| leaf.branch == branch).ok_or(Errno::STALE)?;
            return lower.vnode.setattr(op, set, Some(&*open)).map(|attr| self.leaf_attr(attr));
        }
        op.set.require_writable()?;
        let mut change = set.size.map(|_| Change::truncate(set));
        let mut retries = Retries::new();
        loop {
            let target = match &mut change {
                Some(change) => self.for_change(op, Some(change))?,
                None => self.for_attributes(op, Grants::of_setattr(set))?,
            };
            if let Some(changed) = change.as_mut().and_then(|change| change.done.take()) {
                return Ok(self.changed_attr(op, target.vnode(), changed.attr));
            }
            let open = match file {
                Some(file) => Some(file.lower(op)?),
                None => None,
            };
            // All that can fail comes before the change: once that is made, the operation succeeds.
            let links = if self.dir.is_some() { Some(self.dir_links(op)?) } else { None };
            match target.vnode().setattr(op, set, open.as_deref()) {
                Ok(attr) => {
                    return Ok(match links {
                        Some(links) => Attr { ino: self.core.shown(self.id), nlink: links.shown(attr.nlink), ..attr },
                        None => self.leaf_attr(attr),
                    });
                }
                Err(e) if op.set.retry_left(target.branch, e) => retries.count()?,
                Err(Errno::STALE) if self.refresh(op)? => retries.count()?,
                Err(e) => return Err(e),
            }
        }
    }

    /// Returns the attributes after a change that a copy-up applied to the copy. `changed` was read
    /// before the copy got its name, so its link count is out of date.
    fn changed_attr(&self, op: &Op<'_>, lower: &Arc<dyn Vnode>, changed: Attr) -> Attr {
        let attr = lower.getattr(op).unwrap_or(Attr { nlink: 1, ..changed });
        self.leaf_attr(attr)
    }

    /// Updates the directory's times after its entries changed on `branch`, if its attributes come
    /// from another branch.
    pub(crate) fn touch(&self, op: &Op<'_>, branch: BranchId) {
        if self.branch() == branch {
            return;
        }
        let set = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        let server = self.core.server(op);
        let touched = self.for_change(op, None).and_then(|part| part.vnode().setattr(&server, &set, None));
        if let Err(errno) = touched {
            tracing::warn!(%errno, dir = ?self, "could not set the times of a changed directory");
        }
    }

    /// Returns the sum of the figures of all file systems that hold branches. Free space counts
    /// only on writable branches.
    pub(crate) fn stat_fs(&self, op: &Op<'_>) -> Result<StatFs> {
        let mut total: Option<StatFs> = None;
        let mut seen = HashSet::new();
        for member in &op.set.order {
            if member.state.fsid.get().is_some_and(|fsid| seen.contains(fsid)) {
                continue;
            }
            let one = match member.state.root.statfs(&op.without_waiting()) {
                // A branch that hangs or is lost does not count.
                Err(Errno::TIMEDOUT | Errno::IO | Errno::STALE) if member.state.isolate.is_some() => continue,
                one => one?,
            };
            let _ = member.state.fsid.set(one.fsid);
            if seen.contains(&one.fsid) {
                continue;
            }
            seen.insert(one.fsid);
            let free = op.set.writable(member.id);
            total = Some(add(total, &one, free));
        }
        let mut total = total.ok_or(Errno::IO)?;
        total.namemax = 255;
        Ok(total)
    }
}

/// Adds the figures of another file system, in units of the first one's blocks.
fn add(total: Option<StatFs>, one: &StatFs, free: bool) -> StatFs {
    let mut sum = total.unwrap_or(StatFs { blocks: 0, bfree: 0, bavail: 0, files: 0, ffree: 0, ..*one });
    let unit = u128::from(sum.frsize.max(1));
    let scaled = |n: u64| u64::try_from(u128::from(n) * u128::from(one.frsize) / unit).unwrap_or(u64::MAX);
    sum.blocks = sum.blocks.saturating_add(scaled(one.blocks));
    sum.files = sum.files.saturating_add(one.files);
    if free {
        sum.bfree = sum.bfree.saturating_add(scaled(one.bfree));
        sum.bavail = sum.bavail.saturating_add(scaled(one.bavail));
        sum.ffree = sum.ffree.saturating_add(one.ffree);
    }
    sum
}
