//! The link index on disk. It has an entry for each copied-up file that had several names:
//! docs/design/unionfs.md, "Hard links".

use crate::branch::{BranchId, Lower};
use crate::inode_number::{lower_of, tag_of};
use crate::links::Index;
use crate::log::{Alias, Original};
use crate::node::Core;
use crate::op::Op;
use crate::opaque_redirect::components;
use crate::ownfiles::{Own, link_over};
use crate::ownnames::is_index_name;
use crate::recorded::LinkCount;
use crate::set::Member;
use std::collections::HashMap;
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

/// What the indexes of all branches have.
#[derive(Debug, Default)]
pub(crate) struct Indexed {
    /// The leftmost copy of each file.
    pub(crate) index: Index,
    /// The rightmost one.
    rightmost: Index,
    /// Number of names of the leftmost copies, without the index entry.
    names: HashMap<u64, u32>,
    /// The copies that their log has lost: number, tag of the branch, and how many names the next
    /// copy to the right has, if there is one.
    lost: Vec<(u64, u16, Option<u32>)>,
}

impl Core {
    /// Returns the directory of index entries of a branch, if it exists.
    pub(crate) fn links_dir(&self, op: &Op<'_>, branch: BranchId) -> Result<Option<Arc<dyn Vnode>>> {
        self.own_dir(op, branch, Own::Links)
    }

    /// Reads the indexes of all branches.
    pub(crate) fn load_links(&self, op: &Op<'_>) -> std::result::Result<Indexed, (BranchId, Errno)> {
        let mut indexed = Indexed::default();
        for member in op.set.order.iter().rev() {
            self.load_links_of(op, member.id, &mut indexed).map_err(|errno| (member.id, errno))?;
        }
        Ok(indexed)
    }

    /// `indexed`: the entries of the branches further right.
    fn load_links_of(&self, op: &Op<'_>, branch: BranchId, indexed: &mut Indexed) -> Result<()> {
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
            let Some((copy, is_logged)) = self.index_entry(op, branch, &dir, number)? else { continue };
            let next = indexed.names.insert(number, copy.nlink.saturating_sub(1));
            indexed.lost.extend((!is_logged).then_some((number, state.tag, next)));
            indexed.rightmost.entry(number).or_insert(branch);
            // The file can have moved further left since. This copy remains: the branch can be
            // used without the other.
            indexed.index.insert(number, branch);
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

    /// Corrects link counts that are too small: the copies of a file count at least the names that
    /// its original has, and one that its log has lost counts those to its right. A power failure
    /// can have taken the end of a log; a branch between, which counted some of the names, can be
    /// gone. A link count is too high then rather than too low.
    pub(crate) fn restore_counts(&self, op: &Op<'_>, indexed: &Indexed) {
        let raise = |number: u64, by: u16, more: u32| {
            if more == 0 {
                return;
            }
            let LinkCount { first, used } = self.identity.names_by(number, by);
            let count = LinkCount { first: first.saturating_add(more), used };
            self.write_names(op, self.links.counting.lock(), number, &[(by, count)]);
        };
        let of_original = |number: u64| self.names_of_original(op, number, *indexed.rightmost.get(&number)?);
        for &(number, by, next) in &indexed.lost {
            let names = next.or_else(|| of_original(number)).unwrap_or(0);
            raise(number, by, names.saturating_sub(self.identity.names_by(number, by).first));
        }
        for (&number, &branch) in &indexed.index {
            let (Some(names), Ok(state)) = (of_original(number), op.set.branch(branch)) else { continue };
            let counted = self.identity.names(number).map_or(0, |count| count.first);
            raise(number, state.tag, names.saturating_sub(counted));
        }
    }

    /// Notes the copies that may have no name any more: a server that was killed has not looked for
    /// their names.
    pub(crate) fn doubt_nameless(&self, indexed: &Indexed) {
        for (&number, &names) in &indexed.names {
            if self.link_count(number, names.saturating_add(1)) == 0 {
                self.links.doubt(number);
            }
        }
    }

    /// Returns the number of names that the original of a copy on a branch has, if a branch to its
    /// right still has the original.
    fn names_of_original(&self, op: &Op<'_>, number: u64, copy: BranchId) -> Option<u32> {
        let natural = tag_of(number).map(|tag| (tag, lower_of(number)));
        let known = self.identity.aliases_of(number).into_iter().chain(natural);
        known.into_iter().find_map(|(tag, lower)| {
            let member = op.set.order.iter().find(|member| member.state.tag == tag)?;
            if !op.set.is_left(copy, member.id) {
                return None;
            }
            let original = member.state.layer.vnode(&self.server(op), lower).ok()?;
            original.getattr(op).ok().map(|attr| attr.nlink)
        })
    }

    /// Returns the attributes of the copy of which a branch's index has an entry, and whether the
    /// log has the copy's alias. `None` if the entry is not valid. Restores an alias that the log
    /// has lost: the entry's name is the number.
    fn index_entry(
        &self,
        op: &Op<'_>,
        branch: BranchId,
        dir: &Arc<dyn Vnode>,
        number: u64,
    ) -> Result<Option<(Attr, bool)>> {
        let found = dir.lookup(op, op.set.branch(branch)?.index_name(number).name()?)?;
        let Some(entry) = found.filter(|entry| entry.vnode.kind() != Kind::Directory) else { return Ok(None) };
        if !self.may_be_indexed(op, number, &Lower { vnode: entry.vnode.clone(), branch })? {
            let (number, path) = (format!("{number:016x}"), op.set.path_of(branch));
            tracing::debug!(branch = %path, number, "ignored an invalid index entry: the file lies on this branch or further left");
            return Ok(None);
        }
        let lower = Lower { vnode: entry.vnode, branch };
        let is_logged = self.number_of(op, &lower, &entry.attr)? == number;
        if !is_logged {
            self.identity.append_or_defer(op, self.alias_record(op, &lower, &entry.attr, (number, 0))?);
        }
        Ok(Some((entry.attr, is_logged)))
    }

    /// Finds the originals of copies if a branch that had the file is not one of the union's:
    /// another one may be a copy of that. They get the number of the file, so that their names lead
    /// to the leftmost copy.
    pub(crate) fn adopt_originals(&self, op: &Op<'_>, index: &Index) {
        let member_of = |tag: u16| op.set.order.iter().find(|member| member.state.tag == tag);
        for &number in index.keys() {
            let aliases = self.identity.aliases_of(number).into_iter().map(|(tag, _)| tag);
            let known: Vec<u16> = aliases.chain(tag_of(number)).collect();
            if known.iter().all(|tag| member_of(*tag).is_some()) {
                continue;
            }
            for (by, original) in self.identity.originals_of(number) {
                let Some(copy) = member_of(by) else { continue };
                let mut right = op.set.order.iter().filter(|member| op.set.is_left(copy.id, member.id));
                let found = right.find_map(|member| {
                    let found = find_original(op, member, &original);
                    let report = |errno: &Errno| {
                        let branch = member.state.path.display();
                        tracing::warn!(%branch, %errno, "could not look for a file whose copy the index of hard links has");
                    };
                    found.inspect_err(report).ok().flatten().map(|entry| (member.state.tag, entry))
                });
                if let Some((tag, Entry { vnode, attr })) = found.filter(|(tag, _)| !known.contains(tag)) {
                    let alias = Alias { born: attr.btime.unwrap_or_default(), number, generation: 0 };
                    self.identity.alias_deferred(tag, vnode.id(), alias);
                }
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
