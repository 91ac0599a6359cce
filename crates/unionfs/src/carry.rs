//! Files of the old first branch that the kernel has open while a snapshot is taken:
//! docs/design/unionfs.md, "Snapshots". The kernel writes to them without asking the union, and
//! can't be made to stop. So the file itself is *carried* to the new branch, with its descriptors
//! and mappings, and a clone takes its place in the old one.

use crate::branch::{BranchId, Lower};
use crate::carry_list::{Found, List, Listed, clone_name, commit, find, list_name, snapshot_name, write};
use crate::carry_recovery::{complete, discard, remove_marker};
use crate::copy_used::{Created, Draft, Drafted};
use crate::in_use::{Copies, Used, as_union_file};
use crate::logs::Logs;
use crate::metacopy::as_metacopy;
use crate::node::{Core, UnionVnode};
use crate::op::Op;
use crate::options::{BuildError, Copyup};
use crate::ownfiles::Own;
use crate::recorded::Known;
use crate::set::{BranchSet, Member};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use vnode::{Attr, Cx, Entry, Errno, Name, OpenFile, OpenFlags, Result, SetAttr, Vnode};

type Outcome<T> = std::result::Result<T, BuildError>;

/// How often a file is cloned again because it was changed meanwhile, so that the clone's times are
/// those of its data. After that, they may be a little later.
const TRIES: usize = 4;

/// Number of threads that clone files.
const CLONED_AT_ONCE: usize = 16;

/// A file to carry.
struct File {
    vnode: Arc<UnionVnode>,
    lower: Lower,
    /// Whether it may be written without the union.
    writing: bool,
    /// The file in the old branch that takes its place. `None` if it is not carried after all.
    clone: Option<Entry>,
}

/// The files that the kernel has open on branches that become read-only.
#[derive(Default)]
pub(crate) struct OpenInKernel {
    /// Those that can be carried.
    files: Vec<File>,
    /// Those without a name, which no branch shows: they remain where they are.
    nameless: Vec<Arc<UnionVnode>>,
}

/// A snapshot that carries files, until it is committed.
pub(crate) struct Carrying<'a> {
    core: &'a Core,
    cx: Cx<'a>,
    /// The old first branch.
    from: Member,
    /// Its work directory, and the directory with the clones there.
    work: Arc<dyn Vnode>,
    dir: Arc<dyn Vnode>,
    /// The new branch's work directory, with a link to the list.
    to: Option<Arc<dyn Vnode>>,
    list: (Entry, Arc<dyn OpenFile>),
    /// Length of the list before it is committed.
    len: u64,
    listed: Vec<Listed>,
    files: Vec<File>,
}

/// Why files can't be carried.
#[derive(Clone, Copy)]
enum Refusal {
    /// A step failed.
    Errno(Errno),
    /// This file can't be linked or cloned.
    File(usize),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// Whether a file can't be linked or cloned for a reason that lies in the file or its file system.
fn is_impossible(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::XDEV
            | Errno::OPNOTSUPP
            | Errno::NOSYS
            | Errno::INVAL
            | Errno::PERM
            | Errno::ACCESS
            | Errno::MLINK
            | Errno::TXTBSY
    )
}

impl Core {
    /// Finds the files on the branches `switched`, which become read-only, that the kernel has open
    /// without asking the union for each read and write. Fails with a list of those that it may
    /// write and that can't be carried.
    pub(crate) fn open_in_kernel(&self, op: &Op<'_>, switched: &[BranchId]) -> Outcome<OpenInKernel> {
        let written = self.used_by_kernel(op, switched);
        let mut used: HashMap<u64, Used> = written.into_iter().map(|used| (used.vnode.id, used)).collect();
        for file in self.open_files.all().iter().filter_map(as_union_file) {
            let branch = file.branch();
            if switched.contains(&branch) && file.is_bound() {
                let new = || Used { vnode: file.vnode().clone(), branch, writing: false };
                used.entry(file.vnode().id).or_insert_with(new);
            }
        }
        let mut found = OpenInKernel::default();
        let mut blocking = Vec::new();
        for used in used.into_values() {
            let writing = used.writing;
            match self.carriable(op, &used) {
                Ok(Some(lower)) => {
                    found.files.push(File { vnode: used.vnode, lower, writing, clone: None });
                }
                Ok(None) if writing && self.is_nameless(op, &used) => found.nameless.push(used.vnode),
                Ok(None) if writing => blocking.push(used),
                // A reader continues to read the original, as after a copy-up.
                Ok(None) => {}
                Err(errno) => {
                    let path = op.set.branch(used.branch).map_or_else(|_| PathBuf::new(), |branch| branch.path.clone());
                    return Err(BuildError::Step {
                        what: "looking up the files that are open on the branch",
                        path,
                        errno,
                    });
                }
            }
        }
        found.files.sort_unstable_by_key(|file| file.vnode.id);
        if blocking.is_empty() { Ok(found) } else { Err(self.in_use(op.set, blocking.into_iter())) }
    }

    /// Returns the lower file if it can be carried: it is a file of the leftmost branch with one
    /// name, which the union knows.
    fn carriable(&self, op: &Op<'_>, used: &Used) -> Result<Option<Lower>> {
        let vnode = &used.vnode;
        vnode.revalidate(op)?;
        let lower = vnode.leaf();
        if lower.branch != used.branch || !op.set.is_leftmost(lower.branch) || as_metacopy(&lower.vnode).is_some() {
            return Ok(None);
        }
        if lower.vnode.getattr(op)?.nlink != 1 {
            return Ok(None);
        }
        if vnode.place().is_none() {
            // One of two names was removed, and the union does not know the other.
            find_name(op, vnode)?;
        }
        let Some(place) = vnode.place() else { return Ok(None) };
        let Some(part) = place.parent.part(lower.branch)? else { return Ok(None) };
        let there = part.vnode.lookup(op, place.name()?)?;
        Ok(there.is_some_and(|there| there.vnode.id() == lower.vnode.id()).then_some(lower))
    }

    fn is_nameless(&self, op: &Op<'_>, used: &Used) -> bool {
        let leaf = used.vnode.leaf();
        leaf.branch == used.branch && leaf.vnode.getattr(op).is_ok_and(|attr| attr.nlink == 0)
    }

    /// Begins a snapshot that carries `files`. `None` if there are none, or if they are only read
    /// and the file systems do not allow it. `op`: the old set, `next`: the new one.
    pub(crate) fn begin_carrying<'a>(
        &'a self,
        (op, next): (&Op<'a>, &Op<'_>),
        files: &mut OpenInKernel,
    ) -> Outcome<Option<Carrying<'a>>> {
        let Some(from) = op.set.order.first().filter(|_| !files.files.is_empty()) else { return Ok(None) };
        let failed = |errno| BuildError::Step { what: "cloning the open files", path: from.state.path.clone(), errno };
        let mut begun = self.begin_list(op, from, std::mem::take(&mut files.files)).map_err(failed)?;
        match begun.try_out(next) {
            Ok(()) => Ok(Some(begun)),
            Err(refusal) => {
                let writing = begun.files.iter().any(|file| file.writing);
                let error = begun.error(op.set, refusal, true);
                begun.abort();
                if writing || !matches!(error, BuildError::InUse(_)) { Err(error) } else { Ok(None) }
            }
        }
    }

    fn begin_list<'a>(&'a self, op: &Op<'a>, from: &Member, files: Vec<File>) -> Result<Carrying<'a>> {
        let cx = self.as_server(op);
        let (work, dir) = self.in_own_dir(op, from.id, Own::Work, |work| {
            // An earlier snapshot of this union may have failed to remove it.
            match find(&cx, work)? {
                Found::Nothing => {}
                Found::Old(dir, _) => discard(&cx, work, &dir)?,
                Found::New(_) => remove_marker(&cx, work)?,
            }
            Ok((work.clone(), work.mkdir(&cx, snapshot_name()?, 0o700)?.vnode))
        })?;
        let listed = |file: &File| Listed {
            number: file.lower.vnode.id(),
            generation: file.lower.vnode.generation(),
            path: file.vnode.own_path(),
        };
        let listed: Vec<Listed> = files.iter().map(listed).collect();
        let list = dir.create(&cx, list_name()?, 0o600, OpenFlags::RDWR);
        let written = list.and_then(|list| Ok((write(&cx, &*list.1, &listed)?, list)));
        match written {
            Ok((len, list)) => {
                Ok(Carrying { core: self, cx, from: from.clone(), work, dir, to: None, list, len, listed, files })
            }
            Err(errno) => {
                let _errno_of_the_cause_is_returned = discard(&cx, &work, &dir);
                Err(errno)
            }
        }
    }

    /// Lets the open files of carried vnodes use them in their new place, after the set was
    /// replaced.
    pub(crate) fn adopt_carried(&self, op: &Op<'_>, carrying: &Carrying<'_>) {
        let Ok(to) = op.set.leftmost() else { return };
        let Ok(state) = op.set.branch(to) else { return };
        let carried: HashMap<u64, &File> =
            carrying.files.iter().filter(|file| file.clone.is_some()).map(|file| (file.vnode.id, file)).collect();
        for file in carried.values() {
            if let Err(errno) = file.vnode.revalidate(op) {
                tracing::debug!(vnode = ?file.vnode, %errno, "could not look up a carried file after the branches changed");
            }
        }
        for file in self.open_files.all().iter().filter_map(as_union_file) {
            if carried.contains_key(&file.vnode().id) {
                file.was_carried(carrying.from.id, to, state);
            }
        }
    }

    /// Files without a name can't be carried. They are changed where they are, which no branch
    /// shows.
    pub(crate) fn keep_nameless(files: &OpenInKernel) {
        files.nameless.iter().for_each(|vnode| vnode.set_stays());
    }

    /// Completes the first link of a nameless file that stayed on a branch when it became
    /// read-only: from now on it is a file of the branch `to`, with the same number.
    pub(crate) fn moved_by_link(
        &self,
        op: &Op<'_>,
        vnode: &UnionVnode,
        (from, to): (BranchId, BranchId),
        entry: &Entry,
    ) -> Result<()> {
        let lower = Lower { vnode: entry.vnode.clone(), branch: to };
        let record = self.alias_record(op, &lower, &entry.attr, (vnode.id, vnode.generation()))?;
        self.identity.append_or_defer(&self.as_server(op), record);
        // Also ends that the file stays.
        vnode.set_found(op, lower, None)?;
        let state = op.set.branch(to)?;
        for file in self.open_files.all().iter().filter_map(as_union_file) {
            if std::ptr::eq(Arc::as_ptr(file.vnode()), vnode) {
                file.was_carried(from, to, state);
            }
        }
        Ok(())
    }

    /// Links the carried files into the new first branch, and clones them in the old one. As
    /// [`Self::copy_to_inserted`], with `known` and `logs`. The snapshot is taken
    /// when this returns without an error.
    pub(crate) fn carry_to_inserted(
        &self,
        cx: &Cx<'_>,
        (all, old, new): (&[Member], &BranchSet, &BranchSet),
        carrying: &mut Carrying<'_>,
        (known, logs): (Known, Logs),
    ) -> Outcome<Drafted> {
        let first = all.first().ok_or(BuildError::NoBranches)?;
        let failed = |errno| BuildError::Step {
            what: "linking the open files into this branch",
            path: first.state.path.clone(),
            errno,
        };
        let draft = self.draft(cx, all, (known, logs)).map_err(failed)?;
        let op = Op::new(cx, draft.set());
        let mut created = Vec::new();
        let carried = carrying.carry(&op, &draft, new, &mut created).and_then(|()| {
            draft.flush(cx)?;
            let index = draft.load_links(&Op::new(cx, new))?;
            carrying.clone_data(&op)?;
            carrying.commit()?;
            Ok(index)
        });
        match carried {
            Ok(index) => Ok(draft.finish(Copies::new(), index)),
            Err(refusal) => {
                // If the list was committed after all, this ends it.
                carrying.cut_list();
                draft.undo(&op, created);
                let error = carrying.error(old, refusal, false);
                Err(match error {
                    BuildError::Step { errno, .. } => failed(errno),
                    other => other,
                })
            }
        }
    }
}

impl Carrying<'_> {
    /// Returns the error for a refusal. With `all`, a file that can't be carried stands for all.
    fn error(&self, set: &BranchSet, refusal: Refusal, all: bool) -> BuildError {
        let index = match refusal {
            Refusal::Errno(errno) => {
                let path = self.from.state.path.clone();
                return BuildError::Step { what: "cloning the open files", path, errno };
            }
            Refusal::File(index) => index,
        };
        let files = self.files.iter().enumerate();
        let refused = files.filter(|(at, file)| if all { file.writing } else { *at == index });
        let used = |(_, file): (usize, &File)| Used {
            vnode: file.vnode.clone(),
            branch: file.lower.branch,
            writing: file.writing,
        };
        self.core.in_use(set, refused.map(used))
    }

    /// Finds out whether files can be linked between the branches, and cloned: links the list, and
    /// clones the first file.
    fn try_out(&mut self, next: &Op<'_>) -> std::result::Result<(), Refusal> {
        let impossible = |errno| if is_impossible(errno) { Refusal::File(0) } else { Refusal::Errno(errno) };
        let linked = self.core.in_own_dir(next, next.set.leftmost()?, Own::Work, |work| {
            work.link(&self.cx, snapshot_name()?, &self.list.0.vnode)?;
            Ok(work.clone())
        });
        self.to = Some(linked.map_err(impossible)?);
        self.try_clone().map_err(impossible)
    }

    fn try_clone(&self) -> Result<()> {
        let Some(file) = self.files.first() else { return Ok(()) };
        let name = Name::new(b"try")?;
        let (_, clone) = self.dir.create(&self.cx, name, 0o600, OpenFlags::RDWR)?;
        let source = file.lower.vnode.open(&self.cx, OpenFlags::RDONLY)?;
        let cloned = clone.reflink_from(&self.cx, &*source);
        drop(clone);
        self.dir.unlink(&self.cx, name)?;
        cloned
    }

    /// Creates the clones, still empty, with their numbers in the old branch's identity log: the
    /// clone has the file's number if the union is mounted without the new branch.
    pub(crate) fn create_clones(&mut self, op: &Op<'_>) -> Result<()> {
        let mut records = Vec::new();
        for (index, file) in self.files.iter_mut().enumerate() {
            let name = clone_name(index);
            let (entry, _) = self.dir.create(&self.cx, Name::new(name.as_bytes())?, 0o600, OpenFlags::RDWR)?;
            let clone = Lower { vnode: entry.vnode.clone(), branch: file.lower.branch };
            file.clone = Some(entry.clone());
            let known = (file.vnode.id, file.vnode.generation());
            records.push(self.core.alias_record(op, &clone, &entry.attr, known)?);
        }
        self.core.identity.append_all(&self.cx, records)
    }

    /// Links the files into the new branch, below directories that are created there.
    fn carry(
        &mut self,
        op: &Op<'_>,
        draft: &Draft,
        new: &BranchSet,
        created: &mut Vec<Created>,
    ) -> std::result::Result<(), Refusal> {
        let mut records = Vec::new();
        for index in 0..self.files.len() {
            let Some(file) = self.files.get(index) else { break };
            match draft.link(op, new, &file.vnode, &file.lower, created) {
                Ok(record) => records.push(record),
                Err(errno) if is_impossible(errno) && file.writing => return Err(Refusal::File(index)),
                // A reader continues to read the original.
                Err(errno) if is_impossible(errno) => self.leave(index)?,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(draft.log(&self.cx, records)?)
    }

    /// Does not carry the file.
    fn leave(&mut self, index: usize) -> Result<()> {
        if let Some(clone) = self.files.get_mut(index).and_then(|file| file.clone.take()) {
            self.core.identity.unalias(&self.cx, self.from.state.tag, clone.vnode.id());
            self.dir.unlink(&self.cx, Name::new(clone_name(index).as_bytes())?)?;
        }
        Ok(())
    }

    /// Makes each clone equal to its file, at one instant of the file. A clone waits until the
    /// file's dirty pages are written, so many files are cloned in parallel.
    fn clone_data(&self, op: &Op<'_>) -> std::result::Result<(), Refusal> {
        let op = self.core.server(op);
        let files: Vec<(usize, &File)> = self.files.iter().enumerate().collect();
        if files.len() < CLONED_AT_ONCE {
            return self.clone_some(&op, &files);
        }
        let part = files.len().div_ceil(CLONED_AT_ONCE);
        std::thread::scope(|scope| {
            let clone = |part| scope.spawn(move || self.clone_some(&op, part));
            let threads: Vec<_> = files.chunks(part).map(clone).collect();
            let done = threads.into_iter().map(|thread| thread.join().unwrap_or(Err(Refusal::Errno(Errno::IO))));
            // Waits for all, whatever the first one returns.
            done.collect::<Vec<_>>().into_iter().collect()
        })
    }

    fn clone_some(&self, op: &Op<'_>, files: &[(usize, &File)]) -> std::result::Result<(), Refusal> {
        for (index, file) in files {
            let Some(clone) = &file.clone else { continue };
            self.clone_one(op, &file.lower, &clone.vnode).map_err(|errno| match is_impossible(errno) {
                true => Refusal::File(*index),
                false => Refusal::Errno(errno),
            })?;
        }
        Ok(())
    }

    fn clone_one(&self, op: &Op<'_>, from: &Lower, clone: &Arc<dyn Vnode>) -> Result<()> {
        let source = from.vnode.open(op, OpenFlags::RDONLY)?;
        let target = clone.open(op, OpenFlags::RDWR)?;
        let mut attr = from.vnode.getattr(op)?;
        for try_ in 0..TRIES {
            if try_ > 0 {
                // Otherwise the end would remain if the file has become shorter.
                clone.setattr(op, &SetAttr { size: Some(0), ..SetAttr::default() }, Some(&*target))?;
            }
            target.reflink_from(op, &*source)?;
            let before = std::mem::replace(&mut attr, from.vnode.getattr(op)?);
            if is_unchanged(&before, &attr) {
                break;
            }
        }
        drop(target);
        self.core.copy_attributes_as(op, Copyup::Preserve, &from.vnode, &attr, clone)
    }

    /// Takes the snapshot.
    fn commit(&self) -> std::result::Result<(), Refusal> {
        // The clones and links must not become durable later than the list says.
        self.from.state.layer.sync(&self.cx)?;
        Ok(commit(&self.cx, &*self.list.1, (self.len, self.listed.len()))?)
    }

    fn cut_list(&self) {
        let cut = SetAttr { size: Some(self.len), ..SetAttr::default() };
        if let Err(errno) = self.list.0.vnode.setattr(&self.cx, &cut, Some(&*self.list.1)) {
            tracing::warn!(%errno, "could not revert the list of a snapshot");
        }
    }

    /// Removes everything from the old branch, and the list from the new one.
    pub(crate) fn abort(&mut self) {
        if let Some(Err(errno)) = self.to.take().map(|work| remove_marker(&self.cx, &work)) {
            tracing::warn!(%errno, "could not remove the list of a snapshot from its branch; remove .wh..wh.work there");
        }
        for clone in self.files.iter_mut().filter_map(|file| file.clone.take()) {
            self.core.identity.unalias(&self.cx, self.from.state.tag, clone.vnode.id());
        }
        if let Err(errno) = discard(&self.cx, &self.work, &self.dir) {
            tracing::warn!(
                %errno, branch = %self.from.state.path.display(),
                "could not remove the clones of open files; the next mount does"
            );
        }
    }

    /// Puts the clones in the places of the files, after the set was replaced.
    pub(crate) fn complete(&self) -> Result<()> {
        let list = List { files: self.listed.clone(), committed: true };
        let placed = || complete(&self.cx, &self.from.state.root, &self.dir, &list);
        placed().or_else(|_| placed())?;
        let removed = discard(&self.cx, &self.work, &self.dir);
        if let Err(errno) = removed.and_then(|()| self.to.as_ref().map_or(Ok(()), |to| remove_marker(&self.cx, to))) {
            tracing::warn!(%errno, "could not remove the list of a snapshot; the next mount does");
        }
        Ok(())
    }
}

/// Finds a name of the file, if it has any.
fn find_name(op: &Op<'_>, vnode: &UnionVnode) -> Result<()> {
    vnode.report_names(op, &mut |dir, name| {
        if let Some(place) = dir.as_any().downcast_ref::<UnionVnode>().and_then(|dir| dir.place_of(name).ok()) {
            vnode.set_place(Some(place));
        }
        false
    })
}

fn is_unchanged(before: &Attr, after: &Attr) -> bool {
    (before.size, before.mtime, before.ctime) == (after.size, after.mtime, after.ctime)
}
