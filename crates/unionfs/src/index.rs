//! The link index on disk. It has an entry for each copied-up file that had several names:
//! docs/design/unionfs.md, "Hard links".

use crate::branch::{BranchId, Lower};
use crate::links::Index;
use crate::node::Core;
use crate::op::Op;
use crate::ownfiles::{Own, link_over};
use crate::ownnames::IndexName;
use std::sync::Arc;
use vnode::{Attr, DirEntry, Entry, Errno, Kind, Result, Vnode};

impl Core {
    /// Returns the directory of index entries of a branch, if it exists.
    pub(crate) fn links_dir(&self, op: &Op<'_>, branch: BranchId) -> Result<Option<Arc<dyn Vnode>>> {
        self.own_dir(op, branch, Own::Links)
    }

    /// Reads the indexes of all branches. `tidy`: also removes entries of files that have moved
    /// further left.
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
                // The file has moved further left.
                self.unlink_index(op, number, branch);
            }
        }
        Ok(())
    }

    /// Whether a valid index entry exists for this number. If the log has lost the copy's alias,
    /// restores it: the entry's name is the number.
    fn is_index_entry(&self, op: &Op<'_>, branch: BranchId, dir: &Arc<dyn Vnode>, number: u64) -> Result<bool> {
        let Some(entry) = dir.lookup(op, IndexName::of(number).name()?)? else { return Ok(false) };
        if entry.vnode.kind() == Kind::Directory {
            return Ok(false);
        }
        // A copy lies left of its original, so an entry for a file of the same branch or further
        // left is invalid.
        let own = op.set.position(branch);
        let at = |tag: u16| op.set.order.iter().position(|member| member.state.tag == tag);
        if crate::identity::tag_of(number).and_then(at).is_some_and(|at| at <= own) {
            let (number, path) = (format!("{number:016x}"), op.set.path_of(branch));
            tracing::debug!(branch = %path, number, "ignored an invalid index entry: the file lies on this branch or further left");
            return Ok(false);
        }
        let lower = Lower { vnode: entry.vnode, branch };
        if self.number_of(op, &lower, &entry.attr)? != number {
            self.identity.append_or_defer(op, self.alias_record(op, &lower, &entry.attr, (number, 0))?);
        }
        Ok(true)
    }

    /// Returns the file that a lower name leads to: the copy, if the file was copied up under
    /// another name, else the lower file.
    pub(crate) fn follow_index(&self, op: &Op<'_>, branch: BranchId, entry: Entry) -> Result<(Lower, Attr)> {
        let own = Lower { vnode: entry.vnode, branch };
        // Don't check for `nlink > 1`: a file with one name may have had several, also on a branch
        // that is read-only now.
        if self.links.is_empty() {
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

    /// Adds a copy to the index. From then on all lower names lead to it.
    pub(crate) fn add_to_index(&self, op: &Op<'_>, number: u64, copy: &Lower) -> Result<()> {
        let (server, name) = (self.server(op), IndexName::of(number));
        self.in_own_dir(op, copy.branch, Own::Links, |dir| link_over(&server, dir, name.name()?, &copy.vnode))?;
        self.links.set(number, Some(copy.branch));
        Ok(())
    }

    /// Removes a copy from the index.
    pub(crate) fn remove_from_index(&self, op: &Op<'_>, number: u64) {
        let Some(branch) = self.links.branch(number) else { return };
        self.unlink_index(op, number, branch);
        self.links.set(number, None);
    }

    /// Removes an index entry that is not needed any more. On a branch that is not written it
    /// remains, without effect.
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
            tracing::warn!(%errno, branch = %op.set.path_of(branch), "could not remove an entry that is no longer needed from the index of hard links");
        }
    }
}
