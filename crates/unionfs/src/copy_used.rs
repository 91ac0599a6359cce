//! Copies of files in use from branches that are removed: docs/design/unionfs.md, "Branch sets".
//!
//! A file is copied up in the current set if a read-write branch left of it remains. Otherwise it
//! is copied to the branch that the same change inserts at the left, before users can see that
//! branch. That is done in a *draft*: a union of all old and new branches, of which only the
//! inserted one can be written. The draft has vnodes of its own; the union in use refers to the
//! copies when its set is replaced.

use crate::branch::{BranchId, Lower};
use crate::copyup::{Built, Copying};
use crate::identity::Identity;
use crate::in_use::{Copies, Copy, Used, as_union_file};
use crate::inode_number::ROOT;
use crate::links::Index;
use crate::log::{Alias, Record};
use crate::logs::Logs;
use crate::metacopy::as_metacopy;
use crate::node::{Core, Place, UnionVnode};
use crate::op::Op;
use crate::opaque_redirect::components;
use crate::options::{BuildError, Mode};
use crate::recorded::Known;
use crate::set::{BranchSet, Member};
use crate::shortname::ShortName;
use crate::table::Interned;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vnode::{Attr, Cx, Errno, Kind, Name, Result, Vnode};

/// The result of copying files to an inserted branch: what the union in use needs when its set is
/// replaced.
pub(crate) struct Drafted {
    pub(crate) copies: Copies,
    pub(crate) known: Known,
    pub(crate) logs: Logs,
    pub(crate) index: Index,
}

/// A union of old and new branches, for copying or linking files to the inserted one.
pub(crate) struct Draft {
    core: Arc<Core>,
    set: Arc<BranchSet>,
    root: Arc<UnionVnode>,
    to: BranchId,
}

/// A file that was copied, but whose copy has no name yet.
struct Staged {
    /// The draft's vnode.
    vnode: Arc<UnionVnode>,
    /// The number in the union in use.
    number: u64,
    from: Lower,
    attr: Attr,
    place: Option<Place>,
    built: Built,
}

/// What a step may have created on the inserted branch. Objects of the leftmost branch lie at their
/// path in the union.
pub(crate) enum Created {
    /// The copy with this number, at this path.
    Copy(Vec<u8>, u64),
    Directory(Vec<u8>),
    /// The index entry of this file for the copy with this number.
    Index(u64, u64),
}

/// An object of the inserted branch.
struct OnBranch {
    dir: Arc<dyn Vnode>,
    name: ShortName,
    vnode: Arc<dyn Vnode>,
}

/// How often a change checks whether writes under way have ended.
const NAP: Duration = Duration::from_millis(1);

/// Returns an error that names the branch of a file that could not be copied.
fn not_copied(set: &BranchSet, used: &Used, errno: Errno) -> BuildError {
    let path = set.branch(used.branch).map_or_else(|_| PathBuf::new(), |branch| branch.path.clone());
    BuildError::Step { what: "copying the files in use to another branch", path, errno }
}

/// Returns the branch for the copy of a file in use: the nearest one left of the file, and not
/// right of its metacopy, that can be written before and after the change.
fn remaining_target(old: &BranchSet, new: &BranchSet, leaf: &Lower) -> Option<BranchId> {
    let left = old.position(leaf.branch).min(old.order.len());
    let end = as_metacopy(&leaf.vnode).map_or(left, |meta| left.min(old.position(meta.home).saturating_add(1)));
    let stays = |member: &&Member| {
        old.writable(member.id) && new.member(member.id).is_some_and(|now| now.mode == Mode::ReadWrite)
    };
    old.order.get(..end)?.iter().rev().find(stays).map(|member| member.id)
}

impl Core {
    /// Copies files in use up to branches that remain read-write, where such a branch lies left of
    /// the file. A file that can't be copied, because the kernel writes to it or because its
    /// directory can't have a part on such a branch, is left as it is.
    pub(crate) fn copy_used(
        &self,
        (old, new): (&BranchSet, &BranchSet),
        used: &[Used],
        mut copy_up: impl FnMut(&Arc<UnionVnode>, BranchId) -> Result<()>,
    ) -> std::result::Result<(), BuildError> {
        for one in used {
            let Some(to) = remaining_target(old, new, &one.vnode.leaf()) else { continue };
            match copy_up(&one.vnode, to) {
                Ok(()) | Err(Errno::BUSY | Errno::ROFS) => {}
                Err(errno) => return Err(not_copied(old, one, errno)),
            }
        }
        Ok(())
    }

    /// Waits for the direct writes under way, except those to files on the branches `ignored`. They
    /// would not notice that the file moves. Returns whether all ended in time.
    pub(crate) fn wait_for_direct_writes(&self, ignored: &[BranchId], until: Instant) -> bool {
        for file in self.open_files.all().iter().filter_map(as_union_file) {
            while file.is_written_directly() && !ignored.contains(&file.branch()) {
                if Instant::now() >= until {
                    return false;
                }
                std::thread::sleep(NAP);
            }
        }
        true
    }

    /// Copies files in use to the leftmost of the branches `all`, which the change inserts. The
    /// caller has closed the gate and stopped writes to these files. `known` is what the records
    /// say after the change, `logs` the logs that it opened, of which the first is that branch's.
    /// If this fails, the copies are removed again.
    pub(crate) fn copy_to_inserted(
        &self,
        cx: &Cx<'_>,
        (all, new): (&[Member], &BranchSet),
        used: &[Used],
        (known, logs): (Known, Logs),
    ) -> std::result::Result<Drafted, BuildError> {
        let first = all.first().ok_or(BuildError::NoBranches)?;
        let failed = |errno| BuildError::Step {
            what: "copying the files in use to this branch",
            path: first.state.path.clone(),
            errno,
        };
        let draft = self.draft(cx, all, (known, logs)).map_err(failed)?;
        let op = Op::new(cx, &draft.set);
        let mut created = Vec::new();
        let copied = draft.copy_all(&op, new, used, &mut created).and_then(|copies| {
            draft.core.identity.flush(cx)?;
            let index = draft.load_links(&Op::new(cx, new))?;
            Ok((copies, index))
        });
        match copied {
            Ok((copies, index)) => Ok(draft.finish(copies, index)),
            Err(errno) => {
                draft.undo(&op, created);
                Err(failed(errno))
            }
        }
    }

    pub(crate) fn draft(&self, cx: &Cx<'_>, all: &[Member], (known, logs): (Known, Logs)) -> Result<Draft> {
        let mode = |at| if at == 0 { Mode::ReadWrite } else { Mode::ReadOnly };
        let members = all.iter().enumerate().map(|(at, member)| Member { mode: mode(at), ..member.clone() });
        let set = BranchSet::new(BranchSet::FIRST, members.collect());
        let to = set.leftmost()?;
        let core = Arc::new(Core::new(set, self.options, Identity::new(known, logs)));
        let set = core.branches.get();
        let index = core.load_links(&Op::new(cx, &set)).map_err(|(_, errno)| errno)?.index;
        core.links.replace(index);
        let stack: Arc<[Lower]> = set.roots().into();
        let leftmost = stack.first().cloned().ok_or(Errno::IO)?;
        let new = || UnionVnode::new(&core, &set, ROOT, None, leftmost, Some(stack));
        let (Interned::New(root) | Interned::Present(root)) = core.table.intern(ROOT, new);
        Ok(Draft { root, set, to, core })
    }
}

impl Draft {
    /// Returns the set of all branches.
    pub(crate) fn set(&self) -> &BranchSet {
        &self.set
    }

    /// Writes the records of the identity log that were deferred.
    pub(crate) fn flush(&self, cx: &Cx<'_>) -> Result<()> {
        self.core.identity.flush(cx)
    }

    /// Reads the link index of the set of `op`.
    pub(crate) fn load_links(&self, op: &Op<'_>) -> Result<Index> {
        Ok(self.core.load_links(op).map_err(|(_, errno)| errno)?.index)
    }

    /// Returns what the records say, and the logs, with the copies.
    pub(crate) fn finish(&self, copies: Copies, index: Index) -> Drafted {
        let (known, logs) = self.core.identity.take();
        Drafted { copies, known, logs, index }
    }

    /// Links a file of the union in use, which has one name, into the inserted branch. Returns the
    /// record with which it keeps its number there.
    pub(crate) fn link(
        &self,
        op: &Op<'_>,
        new: &BranchSet,
        live: &UnionVnode,
        lower: &Lower,
        created: &mut Vec<Created>,
    ) -> Result<Record> {
        let vnode = self.find(op, live)?;
        let place = vnode.place().ok_or(Errno::STALE)?;
        self.make_parents(op, &place.parent, created)?;
        self.keep_numbers(op, &place.parent, new)?;
        let dir = place.parent.part(self.to)?.ok_or(Errno::IO)?;
        let (server, name) = (self.core.server(op), place.name()?);
        created.push(Created::Copy(place.parent.path_to(name), lower.vnode.id()));
        let linked = self.core.preserving_times(op, &dir, || dir.vnode.link(&server, name, &lower.vnode))?;
        let linked = (Lower { vnode: linked.vnode, branch: self.to }, linked.attr);
        self.core.alias_record(op, &linked.0, &linked.1, (live.id, live.generation()))
    }

    /// Writes records to the identity log.
    pub(crate) fn log(&self, cx: &Cx<'_>, records: Vec<Record>) -> Result<()> {
        self.core.identity.append_all(cx, records)
    }

    /// Copies the data of all files first. That takes long, and leaves nothing behind if the server
    /// is killed. Then gives the copies their names.
    fn copy_all(&self, op: &Op<'_>, new: &BranchSet, used: &[Used], created: &mut Vec<Created>) -> Result<Copies> {
        let mut staged = Vec::new();
        for used in used {
            match self.stage(op, &used.vnode) {
                Ok(one) => staged.push(one),
                Err(errno) => {
                    staged.iter().for_each(|one: &Staged| self.core.discard(op, &one.built));
                    return Err(errno);
                }
            }
        }
        let mut copies = Copies::new();
        for (at, one) in staged.iter().enumerate() {
            if let Err(errno) = self.publish(op, new, one, created) {
                staged.iter().skip(at).for_each(|one| self.core.discard(op, &one.built));
                return Err(errno);
            }
            let nameless = self.core.links.branch(one.number).is_none() && one.vnode.place().is_none();
            let open = one.built.open.clone().filter(|_| nameless);
            copies.insert(one.number, Copy { lower: one.vnode.leaf(), open });
        }
        Ok(copies)
    }

    /// Returns the draft's vnode of a file of the union in use.
    fn find(&self, op: &Op<'_>, live: &UnionVnode) -> Result<Arc<UnionVnode>> {
        let leaf = live.leaf();
        if live.place().is_some() {
            let path = live.own_path();
            let mut next = Some(self.root.clone());
            for name in components(&path) {
                let Some(dir) = next.filter(|dir| dir.kind == Kind::Directory) else {
                    next = None;
                    break;
                };
                next = dir.find(op, name?)?.map(|(vnode, _)| vnode);
            }
            if let Some(found) = next.filter(|found| found.id == live.id && found.leaf().is(&leaf)) {
                return Ok(found);
            }
        }
        // It has no name, or none in a union with the inserted branch.
        let new = || UnionVnode::new(&self.core, &self.set, live.id, None, leaf.clone(), None);
        let (Interned::New(vnode) | Interned::Present(vnode)) = self.core.table.intern(live.id, new);
        if live.is_gone() {
            vnode.set_gone();
        }
        Ok(vnode)
    }

    /// Copies a file to an unnamed file.
    fn stage(&self, op: &Op<'_>, live: &UnionVnode) -> Result<Staged> {
        let vnode = self.find(op, live)?;
        let (from, place) = (vnode.leaf(), vnode.place());
        let attr = from.vnode.getattr(op)?;
        let copying = Copying { vnode: &vnode, from: &from, attr, place: place.as_ref(), to: self.to };
        let built = self.core.build(op, &copying, None)?;
        Ok(Staged { number: live.id, from, attr, place, built, vnode })
    }

    fn publish(&self, op: &Op<'_>, new: &BranchSet, staged: &Staged, created: &mut Vec<Created>) -> Result<()> {
        let Staged { vnode, from, attr, place, built, .. } = staged;
        if let Some(place) = place {
            self.make_parents(op, &place.parent, created)?;
            self.keep_numbers(op, &place.parent, new)?;
        }
        // Noted in advance: a step that fails may have taken effect.
        let copy = built.entry.vnode.id();
        if let Some(place) = place {
            created.push(Created::Copy(place.parent.path_to(place.name()?), copy));
        }
        created.push(Created::Index(vnode.id, copy));
        let copying = Copying { vnode, from, attr: *attr, place: place.as_ref(), to: self.to };
        self.core.publish(op, &copying, built)?;
        // A copy with an index entry may have got no name. But after the change, its original's
        // names may lead to nothing.
        if let Some(place) = vnode.place() {
            let there = self.on_branch(op, &place.parent.path_to(place.name()?))?;
            there.filter(|there| there.vnode.id() == copy).ok_or(Errno::IO)?;
        }
        Ok(())
    }

    /// Creates the directory's part on the branch, and those of its ancestors.
    fn make_parents(&self, op: &Op<'_>, dir: &Arc<UnionVnode>, created: &mut Vec<Created>) -> Result<()> {
        let mut missing = Vec::new();
        let mut next = dir.clone();
        while next.part(self.to)?.is_none() {
            let place = next.place().ok_or(Errno::NOENT)?;
            missing.push(Created::Directory(place.parent.path_to(place.name()?)));
            next = place.parent;
        }
        created.extend(missing.into_iter().rev());
        if self.core.ensure_part(op, dir, self.to)? { Ok(()) } else { Err(Errno::ROFS) }
    }

    /// Keeps the numbers of a directory and its ancestors of which the new set has only the part on
    /// the inserted branch.
    fn keep_numbers(&self, op: &Op<'_>, dir: &Arc<UnionVnode>, new: &BranchSet) -> Result<()> {
        let mut next = Some(dir.clone());
        while let Some(dir) = next.filter(|dir| dir.id != ROOT) {
            let stack = dir.stack()?;
            let alone = stack.iter().all(|part| part.branch == self.to || new.member(part.branch).is_none());
            if let (Some(part), true) = (stack.first(), alone) {
                let born = part.vnode.getattr(op)?.btime.unwrap_or_default();
                let alias = Alias { born, number: dir.id, generation: dir.generation() };
                self.core.identity.alias_deferred(op.set.branch(self.to)?.tag, part.vnode.id(), alias);
            }
            next = dir.place().map(|place| place.parent);
        }
        Ok(())
    }

    /// Removes what was created on the branch.
    pub(crate) fn undo(&self, op: &Op<'_>, created: Vec<Created>) {
        for step in created.into_iter().rev() {
            if let Err(errno) = self.undo_step(op, &step)
                && errno != Errno::NOENT
            {
                tracing::warn!(
                    %errno, branch = %op.set.path_of(self.to),
                    "the branch was not inserted, but copies of files in use could not be removed from it: empty it before \
                     you insert it again"
                );
            }
        }
        if let Err(errno) = self.core.identity.flush(op) {
            tracing::warn!(%errno, "could not write the identity log");
        }
        self.core.drop_work(&self.core.server(op), self.to);
    }

    fn undo_step(&self, op: &Op<'_>, step: &Created) -> Result<()> {
        let server = self.core.server(op);
        let tag = op.set.branch(self.to)?.tag;
        match step {
            Created::Copy(path, number) => {
                if let Some(OnBranch { dir, name, vnode }) = self.on_branch(op, path)?
                    && vnode.id() == *number
                {
                    dir.unlink(&server, Name::new(name.as_bytes())?)?;
                    self.core.identity.unalias_deferred(tag, *number);
                }
            }
            Created::Directory(path) => {
                if let Some(OnBranch { dir, name, vnode }) = self.on_branch(op, path)? {
                    dir.rmdir(&server, Name::new(name.as_bytes())?)?;
                    self.core.identity.unalias_deferred(tag, vnode.id());
                }
            }
            Created::Index(file, number) => {
                let name = op.set.branch(self.to)?.index_name(*file);
                if let Some(dir) = self.core.links_dir(op, self.to)?
                    && dir.lookup(op, name.name()?)?.is_some_and(|entry| entry.vnode.id() == *number)
                {
                    dir.unlink(&server, name.name()?)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the object at a path of the branch.
    fn on_branch(&self, op: &Op<'_>, path: &[u8]) -> Result<Option<OnBranch>> {
        let mut next = op.set.branch(self.to)?.root.clone();
        let mut found = None;
        for name in components(path) {
            let name = name?;
            let Some(entry) = next.lookup(op, name)? else { return Ok(None) };
            let dir = std::mem::replace(&mut next, entry.vnode.clone());
            found = Some(OnBranch { dir, name: ShortName::new(name.as_bytes()), vnode: entry.vnode });
        }
        Ok(found)
    }
}
