//! The link index on disk. It has an entry for each copied-up file that had several names:
//! docs/design/unionfs.md, "Hard links".

use crate::branch::{BranchId, Lower};
use crate::inode_number::{lower_of, tag_of};
use crate::links::Index;
use crate::log::{Alias, Original, Record};
use crate::node::Core;
use crate::op::Op;
use crate::opaque_redirect::components;
use crate::ownfiles::{Own, link_over};
use crate::ownnames::is_index_name;
use crate::set::Member;
use std::sync::Arc;
use vnode::{Attr, DirEntry, Entry, Errno, Kind, Result, Vnode};

/// Returns the file on a branch that is the original, or a copy of it with its times.
fn find_original(op: &Op<'_>, member: &Member, original: &Original) -> Result<Option<Entry>> {
    let mut dir = member.state.root.clone();
    let mut found = None;
    for name in components(&original.path) {
        if dir.kind() != Kind::Directory {
            return Ok(None);
        }
        let Some(entry) = dir.lookup(op, name?)? else { return Ok(None) };
        dir = entry.vnode.clone();
        found = Some(entry);
    }
    let is_same = |attr: &Attr| attr.size == original.size && attr.mtime == original.mtime;
    Ok(found.filter(|entry| entry.vnode.kind() != Kind::Directory && is_same(&entry.attr)))
}

impl Core {
    /// Returns the directory of index entries of a branch, if it exists.
    pub(crate) fn links_dir(&self, op: &Op<'_>, branch: BranchId) -> Result<Option<Arc<dyn Vnode>>> {
        self.own_dir(op, branch, Own::Links)
    }

    /// Reads the indexes of all branches. `tidy`: also removes entries of files that have moved
    /// further left, and restores what a power failure took from the logs.
    pub(crate) fn load_links(&self, op: &Op<'_>, tidy: bool) -> std::result::Result<Index, (BranchId, Errno)> {
        let mut index = Index::new();
        for member in &op.set.order {
            self.load_links_of(op, member.id, &mut index, tidy).map_err(|errno| (member.id, errno))?;
        }
        Ok(index)
    }

    fn load_links_of(&self, op: &Op<'_>, branch: BranchId, index: &mut Index, tidy: bool) -> Result<()> {
        let Some(dir) = self.links_dir(op, branch)? else { return Ok(()) };
        let state = op.set.branch(branch)?;
        let (mut numbers, mut foreign) = (Vec::new(), 0);
        let mut sink = |entry: &DirEntry<'_>| {
            if is_index_name(entry.name.as_bytes()) {
                let number = state.indexed_number(entry.name.as_bytes());
                foreign += u32::from(number.is_none());
                numbers.extend(number);
            }
            true
        };
        dir.readdir(op, 0, &mut sink)?;
        if foreign > 0 {
            tracing::warn!(
                branch = %state.path.display(), files = foreign,
                "the branch's index of hard links has entries whose files can't be found in this union: their other names show old data"
            );
        }
        for number in numbers {
            if !self.is_index_entry(op, branch, &dir, number)? {
                continue;
            }
            if tidy {
                self.restore_count(op, branch, number)?;
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

    /// Whether a branch's index can have this entry, whose name is `number`. A copy lies left of
    /// its original, so an entry for a file of the same branch or further left is invalid, unless
    /// the original was moved away.
    pub(crate) fn may_be_indexed(&self, op: &Op<'_>, number: u64, entry: &Lower) -> Result<bool> {
        let at = |tag: u16| op.set.order.iter().position(|member| member.state.tag == tag);
        let is_left = tag_of(number).and_then(at).is_none_or(|at| at > op.set.position(entry.branch));
        Ok(is_left || self.has_left(op, number, entry)?)
    }

    /// If no log says anything of the names of an index entry's file, because a power failure took
    /// the end of the log, restores the number of names that it had. The link count is too high
    /// then rather than too low.
    fn restore_count(&self, op: &Op<'_>, branch: BranchId, number: u64) -> Result<()> {
        let by = op.set.branch(branch)?.tag;
        if self.identity.names(number).is_none()
            && let Some(first) = self.names_of_original(op, number)
        {
            self.identity.append_or_defer(op, Record::Names { by, number, first, used: 0 });
        }
        Ok(())
    }

    /// Returns the number of names that the original of a copy has, if its branch still has it.
    fn names_of_original(&self, op: &Op<'_>, number: u64) -> Option<u32> {
        let tag = tag_of(number)?;
        let member = op.set.order.iter().find(|member| member.state.tag == tag)?;
        let original = member.state.layer.vnode(&self.server(op), lower_of(number)).ok()?;
        original.getattr(op).ok().map(|attr| attr.nlink)
    }

    /// Whether a valid index entry exists for this number. If the log has lost the copy's alias,
    /// restores it: the entry's name is the number.
    fn is_index_entry(&self, op: &Op<'_>, branch: BranchId, dir: &Arc<dyn Vnode>, number: u64) -> Result<bool> {
        let Some(entry) = dir.lookup(op, op.set.branch(branch)?.index_name(number).name()?)? else {
            return Ok(false);
        };
        if entry.vnode.kind() == Kind::Directory {
            return Ok(false);
        }
        if !self.may_be_indexed(op, number, &Lower { vnode: entry.vnode.clone(), branch })? {
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

    /// Finds the originals of copies that the index has on branches which no union had so far: one
    /// may be a copy of the branch with the originals. They get the numbers of those, so that their
    /// names lead to the copies. `new`: the tags of these branches.
    pub(crate) fn adopt_originals(&self, op: &Op<'_>, index: &Index, new: &[u16]) {
        let is_new = |member: &&Member| new.contains(&member.state.tag);
        let new: Vec<&Member> = op.set.order.iter().filter(is_new).collect();
        let is_here =
            |number: u64| tag_of(number).is_none_or(|tag| op.set.order.iter().any(|member| member.state.tag == tag));
        for &number in index.keys().filter(|number| !new.is_empty() && !is_here(**number)) {
            let Some(original) = self.identity.original(number) else { continue };
            let found = new.iter().find_map(|member| {
                let found = find_original(op, member, &original);
                let report = |errno: &Errno| {
                    let branch = member.state.path.display();
                    tracing::warn!(%branch, %errno, "could not look for a file whose copy the index of hard links has");
                };
                found.inspect_err(report).ok().flatten().map(|entry| (member.state.tag, entry))
            });
            if let Some((tag, Entry { vnode, attr })) = found {
                let alias = Alias { born: attr.btime.unwrap_or_default(), number, generation: 0 };
                self.identity.alias_deferred(tag, vnode.id(), alias);
            }
        }
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
        match dir.lookup(op, op.set.branch(at)?.index_name(number).name()?)? {
            Some(copy) if copy.vnode.kind() == own.vnode.kind() => {
                let lower = Lower { vnode: copy.vnode.clone(), branch: at };
                if self.is_reused(op, number, &own, &lower)? {
                    return Ok((own, entry.attr));
                }
                Ok((Lower { vnode: copy.vnode, branch: at }, copy.attr))
            }
            _ => Ok((own, entry.attr)),
        }
    }

    /// Whether the original of a copy is no longer on its branch, because it was moved away.
    pub(crate) fn has_left(&self, op: &Op<'_>, number: u64, copy: &Lower) -> Result<bool> {
        let Some(alias) = self.identity.alias(op.set.branch(copy.branch)?.tag, copy.vnode.id()) else {
            return Ok(false);
        };
        let tag = tag_of(number);
        let Some(member) = op.set.order.iter().find(|member| Some(member.state.tag) == tag) else { return Ok(false) };
        let original = member.state.layer.vnode(&self.server(op), lower_of(number));
        let other = |original: Arc<dyn Vnode>| alias.generation != 0 && original.generation() != alias.generation;
        Ok(alias.number == number && original.map_or_else(|errno| errno == Errno::STALE, other))
    }

    /// Whether a file, whose own number this is, is not the original of the copy that has it: its
    /// file system has reused the inode number of an original that was removed.
    fn is_reused(&self, op: &Op<'_>, number: u64, own: &Lower, copy: &Lower) -> Result<bool> {
        let alias = self.identity.alias(op.set.branch(copy.branch)?.tag, copy.vnode.id());
        let known = alias.filter(|alias| alias.number == number && alias.generation != 0);
        let natural = op.set.natural_number(own.branch, own.vnode.id())? == number;
        Ok(natural && known.is_some_and(|alias| alias.generation != own.vnode.generation()))
    }

    /// Adds a copy to the index. From then on all lower names lead to it.
    pub(crate) fn add_to_index(&self, op: &Op<'_>, number: u64, copy: &Lower) -> Result<()> {
        let (server, name) = (self.server(op), op.set.branch(copy.branch)?.index_name(number));
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

    /// Removes index entries that an error kept from being removed. Only while nothing else uses
    /// the union: another file may get the number, and with it an entry.
    pub(crate) fn retry_unlink_index(&self, op: &Op<'_>) {
        for (number, branch) in self.links.take_unremoved() {
            self.unlink_index(op, number, branch);
        }
    }

    /// Removes an index entry that is not needed any more. On a branch that is not written it
    /// remains, without effect.
    pub(crate) fn unlink_index(&self, op: &Op<'_>, number: u64, branch: BranchId) {
        if !op.set.writable(branch) {
            return;
        }
        let removed = self.links_dir(op, branch).and_then(|dir| match dir {
            Some(dir) => dir.unlink(&self.server(op), op.set.branch(branch)?.index_name(number).name()?),
            None => Ok(()),
        });
        if let Err(errno) = removed
            && errno != Errno::NOENT
        {
            tracing::warn!(%errno, branch = %op.set.path_of(branch), "could not remove an entry that is no longer needed from the index of hard links: it is removed when the union is unmounted");
            self.links.note_unremoved(number, branch);
        }
    }
}
