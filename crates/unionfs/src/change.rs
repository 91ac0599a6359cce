//! Changing the set of branches of a union in use: docs/design/unionfs.md, "Branch sets".

use crate::branch::{BranchId, BranchState, Isolated, Lower};
use crate::carry::{Carrying, OpenInKernel};
use crate::copy_used::Drafted;
use crate::in_use::{Copies, Used};
use crate::log::{Alias, Record};
use crate::logfile::{IDENT, why_not_written};
use crate::logs::{LogFile, Logs};
use crate::metacopy::METACOPIES;
use crate::node::{Core, UnionVnode};
use crate::op::Op;
use crate::opaque_redirect::MOVED;
use crate::options::{Branch, BuildError, Mode, Moving};
use crate::ownfiles::{ASIDE, Own};
use crate::ownnames::WORK;
use crate::recorded::Known;
use crate::records::{Merger, Source};
use crate::set::{BranchSet, Member};
use crate::tags::TAGS;
use crate::work::{clean_work, entries};
use isolate::OnLoss;
use stack::{ChangePolicy, InUse};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use vnode::{Cx, Errno, Kind, Name, Properties, Result, Vnode};

type Outcome<T> = std::result::Result<T, BuildError>;

/// A change of the set of branches.
#[derive(Clone, Debug)]
pub enum BranchChange {
    /// Adds a branch.
    Insert {
        /// The branch's position: at most this many branches lie left of it.
        at: usize,
        /// The branch.
        branch: Branch,
    },
    /// Inserts this branch, whose root is empty, left of all others, and makes all others
    /// read-only. From then on they never change. It is the only change.
    Snapshot(Branch),
    /// Removes the branch with this path from the set. Its contents remain.
    Remove(PathBuf),
    /// Changes the mode of the branch with this path.
    Mode(PathBuf, Mode),
    /// Begins or ends moving files from the branch with this path to others. A drained branch can
    /// be removed only once it is empty; [`BranchChange::Mode`] ends that too.
    Moving(PathBuf, Moving),
    /// Moves the branch with this path: at most this many branches then lie left of it.
    Move(PathBuf, usize),
}

/// A branch of the old or the new set.
enum Planned {
    Kept(Member),
    New(Branch),
    Removed(Member),
}

impl Planned {
    fn path(&self) -> &Path {
        match self {
            Self::Kept(member) | Self::Removed(member) => &member.state.path,
            Self::New(branch) => &branch.path,
        }
    }

    fn mode(&self) -> Mode {
        match self {
            Self::Kept(member) | Self::Removed(member) => member.mode,
            Self::New(branch) => branch.mode,
        }
    }

    fn member(&self) -> Option<&Member> {
        match self {
            Self::Kept(member) | Self::Removed(member) => Some(member),
            Self::New(_) => None,
        }
    }

    fn remains(&self) -> bool {
        !matches!(self, Self::Removed(_))
    }
}

/// The branches after a change.
struct Next {
    set: Arc<BranchSet>,
    /// The branches of the old and the new set.
    all: Vec<Member>,
    removed: Vec<BranchId>,
    /// What all branches' records say after the change.
    known: Known,
    /// The new branches, with their logs.
    sources: Vec<(BranchId, Source)>,
    is_snapshot: bool,
}

impl Next {
    /// Whether the change inserts a read-write branch left of all others, also of those that it
    /// removes, and inserts none that it removes.
    fn inserts_leftmost(&self, old: &BranchSet) -> bool {
        let first = self.all.first().filter(|first| first.mode == Mode::ReadWrite && old.member(first.id).is_none());
        let mut paths = HashSet::new();
        first.is_some() && self.all.iter().all(|member| paths.insert(&member.state.path))
    }
}

/// Checks that a union can consist of these branches, listed from left to right.
pub(crate) fn check<'p>(branches: impl Iterator<Item = (&'p Path, Mode)> + Clone) -> Outcome<()> {
    let (first, mode) = branches.clone().next().ok_or(BuildError::NoBranches)?;
    if branches.clone().count() > usize::from(TAGS) {
        return Err(BuildError::TooManyBranches);
    }
    let mut seen = HashSet::new();
    for (path, _) in branches.clone() {
        if !seen.insert(path) {
            return Err(BuildError::Duplicate(path.to_owned()));
        }
    }
    let mut modes = branches.map(|(_, mode)| mode);
    if mode != Mode::ReadWrite && modes.any(|mode| mode == Mode::ReadWrite) {
        return Err(BuildError::LeftmostReadOnly(first.to_owned()));
    }
    Ok(())
}

/// Checks that the branch's root is a directory.
pub(crate) fn check_root(branch: &Branch) -> Outcome<()> {
    if branch.layer.root().kind() == Kind::Directory {
        Ok(())
    } else {
        Err(BuildError::NotDirectory(branch.path.clone()))
    }
}

/// Checks that the server above knows of the branch's properties. It asks for them only once.
/// (`audits_refusals` has no effect in a union.)
fn check_announced(member: &Member, announced: &Properties) -> Outcome<()> {
    let own = member.properties();
    let new = [
        (own.varies_by_caller, announced.varies_by_caller, "shows different callers different files"),
        (
            own.attributes_vary_by_caller,
            announced.attributes_vary_by_caller,
            "shows different callers different attributes",
        ),
        (own.data_varies_by_caller, announced.data_varies_by_caller, "shows different callers different data"),
        (own.merges_names, announced.merges_names, "finds files by several spellings of their names"),
        (own.needs_flush, announced.needs_flush, "reports errors only when files are closed"),
        (own.may_hang, announced.may_hang, "may hang, as a network file system can"),
    ];
    match new.iter().find(|(has, known, _)| *has && !known) {
        Some((.., why)) => Err(BuildError::NeedsRemount(member.state.path.clone(), why)),
        None => Ok(()),
    }
}

/// Returns a function that turns an errno into an error that names the step and the branch.
fn step(what: &'static str, path: &Path) -> impl Fn(Errno) -> BuildError {
    move |errno| BuildError::Step { what, path: path.to_owned(), errno }
}

/// Inserts a branch so that at most `at` remaining branches lie left of it; left of any removed
/// branches at this position.
fn insert(planned: &mut Vec<Planned>, at: usize, branch: Planned) {
    let mut remaining = (0..).zip(&*planned).filter(|(_, branch)| branch.remains());
    let left = at.checked_sub(1).map(|at| remaining.nth(at).map_or(planned.len(), |(at, _)| at + 1));
    planned.insert(left.unwrap_or(0), branch);
}

/// Makes all branches read-only, and ends the moving of files.
fn make_read_only(planned: &mut [Planned]) {
    for branch in planned {
        if let Planned::Kept(member) = branch
            && member.mode == Mode::ReadWrite
        {
            member.mode = Mode::ReadOnly;
            member.moving = Moving::Stays;
        }
    }
}

/// Returns the branches after the changes, among those that the changes remove.
fn plan(old: &BranchSet, changes: Vec<BranchChange>) -> Outcome<Vec<Planned>> {
    let mut planned: Vec<Planned> = old.order.iter().cloned().map(Planned::Kept).collect();
    for change in changes {
        let place = |path: &Path| planned.iter().position(|branch| branch.remains() && branch.path() == path);
        match change {
            BranchChange::Insert { at, branch } => {
                check_root(&branch)?;
                insert(&mut planned, at, Planned::New(branch));
            }
            BranchChange::Snapshot(branch) => {
                check_root(&branch)?;
                make_read_only(&mut planned);
                insert(&mut planned, 0, Planned::New(Branch { mode: Mode::ReadWrite, ..branch }));
            }
            BranchChange::Remove(path) => {
                let at = place(&path).ok_or(BuildError::NoSuchBranch(path))?;
                if let Planned::Kept(member) = planned.remove(at) {
                    planned.insert(at, Planned::Removed(member));
                }
            }
            BranchChange::Move(path, to) => {
                let at = place(&path).ok_or(BuildError::NoSuchBranch(path))?;
                let branch = planned.remove(at);
                insert(&mut planned, to, branch);
            }
            BranchChange::Moving(path, moving) => {
                let at = place(&path).ok_or(BuildError::NoSuchBranch(path))?;
                if let Some(Planned::Kept(member)) = planned.get_mut(at) {
                    member.moving = moving;
                }
            }
            BranchChange::Mode(path, mode) => {
                let at = place(&path).ok_or(BuildError::NoSuchBranch(path))?;
                match planned.get_mut(at) {
                    Some(Planned::Kept(member)) => {
                        if mode.on_loss() == OnLoss::Empty && member.state.isolate.is_none() {
                            let path = member.state.path.clone();
                            return Err(BuildError::NeedsRemount(path, "is to be skipped if it is lost"));
                        }
                        member.mode = mode;
                        member.moving = Moving::Stays;
                    }
                    Some(Planned::New(branch)) => branch.mode = mode,
                    Some(Planned::Removed(_)) | None => {}
                }
            }
        }
    }
    check(planned.iter().filter(|branch| branch.remains()).map(|branch| (branch.path(), branch.mode())))?;
    Ok(planned)
}

impl Core {
    /// Changes the set of branches: applies all of `changes` in one step, or nothing. `attach`
    /// makes the layer of a new branch report changes.
    pub(crate) fn change_branches(
        &self,
        changes: Vec<BranchChange>,
        policy: &ChangePolicy,
        attach: impl Fn(&Member),
    ) -> Outcome<()> {
        let mut ids = self.next_branch.lock();
        let old = self.branches.get();
        if policy.expected_generation.is_some_and(|expected| expected != old.generation) {
            return Err(BuildError::Changed);
        }
        let is_snapshot = changes.iter().any(|change| matches!(change, BranchChange::Snapshot(_)));
        if is_snapshot && changes.len() > 1 {
            return Err(BuildError::SnapshotNotAlone);
        }
        let planned = plan(&old, changes)?;
        let next = Next { is_snapshot, ..self.next_set(&old, planned, &mut ids)? };
        if let Some(announced) = self.announced.get() {
            next.set.order.iter().try_for_each(|member| check_announced(member, announced))?;
        }
        let cx = self.server_cx();
        if policy.in_use == InUse::CopyUp {
            // While nobody has to wait.
            self.copy_to_remaining(&Op::new(&cx, &old), &next, |vnode, to| {
                vnode.run_change(&cx, |op| self.copy_up(op, vnode, Some(to), None))
            })?;
        }
        if is_snapshot {
            self.sync_early(&old);
        }
        let until = Instant::now() + policy.patience;
        let closed = self.gate.close(policy.patience).ok_or(BuildError::Busy)?;
        // Direct writes do not pass the gate.
        let no_direct = self.write_gate.forbid_direct();
        let ignored: &[BranchId] = if policy.in_use == InUse::Keep { &next.removed } else { &[] };
        if !self.wait_for_direct_writes(ignored, until) {
            return Err(BuildError::Busy);
        }
        let switched = switched_to_read_only(&old, &next.set);
        let closed_branches = next.removed.iter().chain(&switched).copied().collect();
        let barred = (is_snapshot || policy.in_use != InUse::Keep).then(|| self.open_files.bar(closed_branches));
        let mut in_kernel = OpenInKernel::default();
        if is_snapshot {
            in_kernel = self.open_in_kernel(&Op::new(&cx, &old), &switched)?;
        } else if barred.is_some() {
            // Whatever the kernel writes itself would change a read-only branch.
            let written = self.used_by_kernel(&Op::new(&cx, &old), &switched);
            if !written.is_empty() {
                return Err(self.in_use(&old, written.into_iter()));
            }
        }
        let used = match policy.in_use {
            InUse::Keep => Vec::new(),
            in_use => self.remaining_use(&Op::new(&cx, &old), &next, in_use)?,
        };
        // Writes to files that can move do not pass the gate either.
        let mut written: HashSet<u64> = used.iter().map(|used| used.vnode.id).collect();
        if is_snapshot {
            written.extend(self.open_for_writing(&switched));
        }
        let moving = written
            .iter()
            .map(|&id| self.write_gate.start_move_until(&cx, id, Some(until)))
            .collect::<Result<Vec<_>>>();
        let moving = moving.map_err(|_| BuildError::Busy)?;
        let op = Op::new(&cx, &next.set);
        let replaced = match is_snapshot {
            true => {
                self.take_snapshot(&old, &op, &next, &mut in_kernel).inspect_err(|_| self.forget_new_branch(&old, &op))
            }
            false => self.replace_set(&old, &op, &next, &used, None),
        };
        // After the last one, the set was replaced nevertheless.
        if let Err(error) = &replaced
            && !matches!(error, BuildError::Incomplete(..))
        {
            return replaced;
        }
        self.finish_change(&old, &op);
        drop((moving, barred, no_direct, closed));
        self.sync_no_longer_written(&old, &op);
        // Names and attributes that the kernel cached before this are invalidated next.
        op.set.order.iter().filter(|member| old.member(member.id).is_none()).for_each(attach);
        self.on_branch_set_changed(&op);
        if let Err(errno) = self.identity.flush(&cx) {
            tracing::warn!(%errno, "could not write the identity log");
        }
        replaced
    }

    /// Removes the work directory of a branch that was not added after all.
    fn forget_new_branch(&self, old: &BranchSet, op: &Op<'_>) {
        if self.branches.generation() == old.generation
            && let Some(to) = op.set.order.first()
        {
            self.drop_work(op, to.id);
        }
    }

    /// Takes a snapshot: checks the new branch, and carries open files to it.
    fn take_snapshot(&self, old: &BranchSet, op: &Op<'_>, next: &Next, in_kernel: &mut OpenInKernel) -> Outcome<()> {
        let to = next.set.order.first().ok_or(BuildError::NoBranches)?;
        self.prepare(op, std::slice::from_ref(to))?;
        check_empty(op, to)?;
        // The log of the old first branch is complete then.
        let path = old.order.first().map_or_else(PathBuf::new, |first| first.state.path.clone());
        self.identity.flush(op).map_err(step("writing the identity log", &path))?;
        let old_op = Op::new(op, old);
        let Some(mut carrying) = self.begin_carrying((&old_op, op), in_kernel)? else {
            return self.replace_set(old, op, next, &[], None).inspect(|()| Self::keep_nameless(in_kernel));
        };
        let created = carrying.create_clones(&old_op).map_err(step("cloning the open files", &path));
        match created.and_then(|()| self.replace_set(old, op, next, &[], Some(&mut carrying))) {
            Ok(()) => {
                Self::keep_nameless(in_kernel);
                carrying.complete().map_err(|errno| BuildError::Incomplete(path, errno))
            }
            Err(error) => {
                carrying.abort();
                Err(error)
            }
        }
    }

    /// Gives the root of a snapshot's new branch the attributes that users see at the root of the
    /// union.
    fn copy_root_attributes(&self, old: &BranchSet, op: &Op<'_>) -> Outcome<()> {
        let (Some(from), Some(to)) = (old.order.first(), op.set.order.first()) else { return Ok(()) };
        let root = &from.state.root;
        let copied = root.getattr(op).and_then(|attr| self.copy_attributes(op, root, &attr, &to.state.root));
        copied.map_err(step("copying the attributes of the union's root to this branch", &to.state.path))
    }

    /// Makes most of the changes durable, so that a snapshot takes less time while changes wait.
    fn sync_early(&self, old: &BranchSet) {
        let cx = self.server_cx();
        for member in old.order.iter().filter(|member| member.mode == Mode::ReadWrite) {
            // Those of the snapshot itself report errors.
            let _ignored = member.state.layer.sync(&cx);
        }
    }

    /// Makes earlier changes durable on the branches that are no longer written: later requests to
    /// sync the union leave them out.
    fn sync_no_longer_written(&self, old: &BranchSet, op: &Op<'_>) {
        for was in old.order.iter().filter(|was| was.mode == Mode::ReadWrite) {
            let is_written = op.set.member(was.id).is_some_and(|now| now.mode == Mode::ReadWrite);
            if !is_written && let Err(errno) = was.state.layer.sync(op) {
                tracing::warn!(%errno, branch = %was.state.path.display(), "could not sync a branch that is no longer written");
            }
        }
    }

    /// Copies files in use up, where a read-write branch left of the file remains.
    fn copy_to_remaining(
        &self,
        op: &Op<'_>,
        next: &Next,
        copy_up: impl FnMut(&Arc<UnionVnode>, BranchId) -> Result<()>,
    ) -> Outcome<()> {
        let used = self.used(op, &next.removed)?;
        self.copy_used((op.set, &next.set), &used, copy_up)
    }

    /// Returns the files in use that have to be copied to an inserted branch. Fails if any can't be
    /// copied, or may not.
    fn remaining_use(&self, op: &Op<'_>, next: &Next, in_use: InUse) -> Outcome<Vec<Used>> {
        if in_use == InUse::CopyUp {
            // Files that were opened meanwhile.
            self.copy_to_remaining(op, next, |vnode, to| self.copy_up(op, vnode, Some(to), None))?;
        }
        let used = self.used(op, &next.removed)?;
        let may_copy = in_use == InUse::CopyUp && next.inserts_leftmost(op.set);
        let blocks = |used: &Used| !may_copy || self.write_gate.is_host_file_held(used.vnode.id);
        match used.iter().any(blocks) {
            true => Err(self.in_use(op.set, used.into_iter().filter(blocks))),
            false => Ok(used),
        }
    }

    /// Replaces the set of branches. `used`: files to be copied to the inserted leftmost branch.
    /// `carrying`: for a snapshot, open files to be carried there.
    fn replace_set(
        &self,
        old: &BranchSet,
        op: &Op<'_>,
        next: &Next,
        used: &[Used],
        mut carrying: Option<&mut Carrying<'_>>,
    ) -> Outcome<()> {
        let set = &next.set;
        // The log of a branch that is removed or no longer written gets nothing after this.
        if let Err(errno) = self.identity.flush(op) {
            tracing::warn!(%errno, "could not write the identity log: link counts and inode numbers of some files can change");
        }
        for drained in next.removed.iter().filter_map(|&id| old.member(id)).filter(|m| m.moving == Moving::Drained) {
            self.leave(op, old, drained)?;
        }
        if !next.is_snapshot {
            self.prepare(op, &newly_written(old, set))?;
        }
        let indexed = self.load_links(op).map_err(|(branch, errno)| {
            let path = set.branch(branch).map_or_else(|_| PathBuf::new(), |branch| branch.path.clone());
            step("reading the index of hard links", &path)(errno)
        })?;
        self.keep_numbers(op);
        // The last step that can fail.
        let records = self.new_records(op, next)?;
        if next.is_snapshot {
            self.copy_root_attributes(old, op)?;
        }
        let drafted = match carrying.as_deref_mut() {
            Some(carrying) => self.carry_to_inserted(op, (&next.all, old, set), carrying, records)?,
            None if !used.is_empty() => self.copy_to_inserted(op, (&next.all, set), used, records)?,
            None => Drafted { copies: Copies::new(), known: records.0, logs: records.1, index: indexed.index.clone() },
        };
        let Drafted { copies, known, logs, index } = drafted;
        let written: Vec<u16> = set.order.iter().filter(|m| m.mode == Mode::ReadWrite).map(|m| m.state.tag).collect();
        let mut files = Vec::new();
        self.branches.replace(set.clone(), || {
            // A file that is opened later is opened again, in the new set.
            if !next.removed.is_empty() {
                files = self.pin_remaining(old, &next.removed, &copies);
            }
            self.links.replace(index);
            self.identity.replace(known, logs, &written);
        });
        self.adopt_originals(op, &self.links.all());
        // A removed branch takes along what it counted; a new one can have lost what it should.
        if !next.removed.is_empty() || !next.sources.is_empty() {
            self.restore_counts(op, &indexed);
        }
        drop(files);
        self.adopt_copies(op, used, copies);
        if let Some(carrying) = carrying {
            self.adopt_carried(op, carrying);
        }
        Ok(())
    }

    /// Checks that a drained branch is empty. If it provides the attributes of the root, the
    /// branch that is the leftmost after it gets them.
    fn leave(&self, op: &Op<'_>, old: &BranchSet, drained: &Member) -> Outcome<()> {
        let path = &drained.state.path;
        let root = Lower { vnode: drained.state.root.clone(), branch: drained.id };
        let empty = self.is_drained(op, &root).map_err(step("looking for remaining files", path))?;
        if !empty {
            return Err(BuildError::NotDrained(path.clone()));
        }
        if let Some(first) = op.set.roots().first().filter(|_| old.is_leftmost(drained.id)) {
            self.mirror_attributes(op, &root, first).map_err(step("copying the attributes of the root", path))?;
        }
        Ok(())
    }

    /// Returns the planned set. Reads the logs of the new branches.
    fn next_set(&self, old: &BranchSet, planned: Vec<Planned>, ids: &mut u32) -> Outcome<Next> {
        let cx = self.server_cx();
        let stays = |planned: &&Planned| matches!(planned, Planned::Kept(_));
        let kept = planned.iter().filter(stays).filter_map(Planned::member).map(|m| m.state.tag).collect();
        let mut merger = Merger::new(self.identity.known(), kept);
        let (mut all, mut removed) = (Vec::with_capacity(planned.len()), Vec::new());
        let mut sources = Vec::new();
        for branch in planned {
            all.push(match branch {
                Planned::Kept(member) => member,
                Planned::Removed(member) => {
                    removed.push(member.id);
                    member
                }
                Planned::New(branch) => {
                    let layer = Isolated::new(&branch);
                    let source = Source::read(&cx, &layer.layer, &branch.path, all.is_empty());
                    let mut source = source.map_err(step("reading the identity log", &branch.path))?;
                    if source.loaded.is_old {
                        return Err(BuildError::NeedsRemount(branch.path, "has records in an earlier format"));
                    }
                    merger.adopt_tags(&mut source);
                    let tag = merger.tags(std::slice::from_ref(&source)).first().copied().unwrap_or_default();
                    let id = self.new_id(old, ids).ok_or(BuildError::TooManyBranches)?;
                    let state = BranchState::new(layer, branch.path, tag, source.tags.clone());
                    sources.push((id, source));
                    Member { id, mode: branch.mode, moving: Moving::Stays, state: Arc::new(state) }
                }
            });
        }
        let order = all.iter().filter(|member| !removed.contains(&member.id)).cloned().collect();
        let set = Arc::new(BranchSet::new(old.generation + 1, order));
        Ok(Next { set, all, removed, known: merger.known, sources, is_snapshot: false })
    }

    /// Returns an id for a new branch, to which no set in use and no vnode refers.
    fn new_id(&self, old: &BranchSet, ids: &mut u32) -> Option<BranchId> {
        if let Ok(id) = u16::try_from(*ids) {
            *ids += 1;
            return Some(BranchId(id));
        }
        // All ids were used once.
        let mut used: HashSet<BranchId> = old.order.iter().map(|member| member.id).collect();
        for vnode in self.table.live() {
            used.insert(vnode.branch());
            used.extend(vnode.stack().unwrap_or_default().iter().map(|part| part.branch));
        }
        used.extend(self.branches_of_open_files());
        (0..=u16::MAX).map(BranchId).find(|id| !used.contains(id))
    }

    /// Reads the marks that an earlier union left in this branch.
    pub(crate) fn read_marks(&self, op: &Op<'_>, branch: &Member) -> Outcome<()> {
        let state = &branch.state;
        for (mark, flag, what) in [
            (MOVED, &state.has_redirects, "looking for redirects"),
            (METACOPIES, &state.metacopies, "looking for metacopies"),
        ] {
            let found = Name::new(mark).and_then(|name| state.root.lookup(op, name));
            flag.store(found.map_err(step(what, &state.path))?.is_some(), Ordering::Release);
        }
        Ok(())
    }

    /// Reads the marks that an earlier union left in these branches, completes or reverts an
    /// interrupted snapshot, and empties the work directories.
    pub(crate) fn prepare(&self, op: &Op<'_>, branches: &[Member]) -> Outcome<()> {
        for member in branches {
            let Member { id, mode, state, .. } = member;
            self.read_marks(op, member)?;
            let work = self.own_dir(op, *id, Own::Work).map_err(step("looking for the work directory", &state.path))?;
            let Some(work) = work else { continue };
            self.recover_snapshot(op, member, &work)?;
            if *mode == Mode::ReadWrite
                && let Err(errno) = clean_work(op, &work)
            {
                // Leftovers have no effect.
                tracing::warn!(%errno, branch = %state.path.display(), "could not empty the work directory");
            }
        }
        Ok(())
    }

    /// Keeps the numbers of directories in use whose rightmost part is on a branch that is to be
    /// removed: the rightmost remaining part gets the number as an alias.
    fn keep_numbers(&self, op: &Op<'_>) {
        for dir in self.table.live() {
            let Ok(stack) = dir.stack() else { continue };
            if stack.last().is_none_or(|last| op.set.member(last.branch).is_some()) || dir.is_gone() {
                continue;
            }
            let Some(part) = stack.iter().rev().find(|part| op.set.member(part.branch).is_some()) else { continue };
            if let (Ok(attr), Ok(branch)) = (part.vnode.getattr(op), op.set.branch(part.branch)) {
                let born = attr.btime.unwrap_or_default();
                let alias = Alias { born, number: dir.id, generation: dir.generation() };
                self.identity.alias_deferred(branch.tag, part.vnode.id(), alias);
            }
        }
    }

    /// Returns what the branches' records say after the change, and the logs of the branches that
    /// are written from now on. Ensures that the leftmost one has a log with all tags.
    fn new_records(&self, cx: &Cx<'_>, next: &Next) -> Outcome<(Known, Logs)> {
        let set = &next.set;
        let tag_of = |id: BranchId| next.all.iter().find(|member| member.id == id).map(|member| member.state.tag);
        // Not those of `next`: operations may have added to them meanwhile.
        let mut known = self.identity.known();
        known.tags.extend(next.known.tags.clone());
        let removed: Vec<u16> = next.removed.iter().filter_map(|id| tag_of(*id)).collect();
        let mut merger = Merger::new(known, HashSet::new());
        removed.iter().for_each(|tag| merger.known.forget_branch(*tag));
        let sources = || next.sources.iter().filter_map(|(id, source)| Some((source, tag_of(*id)?)));
        sources().for_each(|(source, own)| merger.add_own(source, own));
        sources().for_each(|(source, own)| merger.add_others(source, own));
        let known = merger.known;
        let mut files = Vec::new();
        let is_opened = |member: &&Member| member.mode == Mode::ReadWrite && !self.identity.has_log(member.state.tag);
        for (at, member) in set.order.iter().enumerate().filter(|(_, member)| is_opened(member)) {
            let state = &member.state;
            let below = set.order.get(at + 1..).unwrap_or_default();
            let below: Vec<_> = below.iter().map(|member| member.state.layer.fingerprint()).collect();
            let refused = |errno| why_not_written(cx, &state.root, &state.path, errno);
            let found = next.sources.iter().find(|(id, _)| *id == member.id).map(|(_, source)| source);
            files.push(match found {
                Some(source) => source.open(cx, state, &known.tags, &below).map_err(refused)?,
                None => {
                    LogFile::new((state.root.clone(), state.path.clone()), state.tag, state.tags.clone()).above(&below)
                }
            });
        }
        let mut opened = Logs::new(files, known.tags.clone());
        let Some(first) = set.order.first().filter(|first| first.mode == Mode::ReadWrite) else {
            return Ok((known, opened));
        };
        let refused = |errno| why_not_written(cx, &first.state.root, &first.state.path, errno);
        let tags: Vec<u16> = set.order.iter().map(|member| member.state.tag).collect();
        // The log of a removed branch can hold records about objects of unwritten branches.
        let is_removed = !next.removed.is_empty();
        let written = |tag: u16| set.order.iter().any(|m| m.mode == Mode::ReadWrite && m.state.tag == tag);
        let aliases = match is_removed {
            true => known.aliases.of.iter().filter(|((tag, _), _)| tags.contains(tag) && !written(*tag)).collect(),
            false => Vec::new(),
        };
        let aliases: Vec<Record> =
            aliases.into_iter().map(|(&(tag, lower), &alias)| Record::Alias { tag, lower, alias }).collect();
        if opened.has(first.state.tag) {
            opened.write_first(cx, &tags, &aliases).map_err(refused)?;
        } else {
            self.identity.write_first(cx, first.state.tag, (&known.tags, &tags), &aliases).map_err(refused)?;
        }
        opened.write_copies(cx);
        Ok((known, opened))
    }

    /// Releases and prepares branches after the set has changed.
    fn finish_change(&self, old: &BranchSet, op: &Op<'_>) {
        for was in &old.order {
            let now = op.set.member(was.id).map(|now| now.mode);
            if was.mode == Mode::ReadWrite && now != Some(Mode::ReadWrite) {
                self.drop_work(&Op::new(op, old), was.id);
            }
            if now.is_none() || now != Some(was.mode) {
                was.state.release();
            }
        }
        for member in newly_written(old, op.set).iter().filter(|member| member.mode == Mode::ReadWrite) {
            member.state.turned_read_only.store(false, Ordering::Relaxed);
            self.prepare_reserve(op, member.id);
        }
        if let Err(errno) = self.complete_names(op) {
            tracing::warn!(%errno, "could not complete the link counts of some files");
        }
    }
}

/// Checks that the new branch of a snapshot holds nothing but records of the union, which an
/// interrupted snapshot may have left.
fn check_empty(cx: &Cx<'_>, to: &Member) -> Outcome<()> {
    let names = entries(cx, &to.state.root).map_err(step("reading it", &to.state.path))?;
    let is_own = |name: &[u8]| name.starts_with(IDENT) || name == WORK || name.starts_with(ASIDE.as_bytes());
    match names.iter().all(|(name, _)| is_own(name)) {
        true => Ok(()),
        false => Err(BuildError::NotEmpty(to.state.path.clone())),
    }
}

/// Returns the branches of both sets that are read-write in the old one alone.
fn switched_to_read_only(old: &BranchSet, new: &BranchSet) -> Vec<BranchId> {
    let is_switched = |was: &&Member| {
        was.mode == Mode::ReadWrite && new.member(was.id).is_some_and(|now| now.mode != Mode::ReadWrite)
    };
    old.order.iter().filter(is_switched).map(|member| member.id).collect()
}

/// Returns the branches that are new in the set, and those whose mode changed to read-write.
fn newly_written(old: &BranchSet, set: &BranchSet) -> Vec<Member> {
    let is_old = |member: &&Member| {
        old.member(member.id).is_some_and(|was| was.mode == member.mode || member.mode != Mode::ReadWrite)
    };
    set.order.iter().filter(|member| !is_old(member)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::UnionVnode;
    use crate::{Options, Unionfs};
    use std::time::Duration;
    use vnode::Layer;

    const CX: Cx<'static> = Cx::internal(0, 0);
    const POLICY: ChangePolicy =
        ChangePolicy { patience: Duration::from_secs(10), in_use: InUse::Keep, expected_generation: None };

    fn branch(path: &str) -> Branch {
        Branch { layer: memfs::MemFs::new(), path: path.into(), mode: Mode::ReadWrite }
    }

    fn core(union: &Unionfs) -> Arc<Core> {
        union.root().as_any().downcast_ref::<UnionVnode>().unwrap().core.clone()
    }

    /// After all ids were used once, those that nothing refers to are reused.
    #[test]
    fn ids_in_use_are_not_reused() {
        let union = Unionfs::new(vec![branch("/0")], Options::default()).unwrap();
        let core = core(&union);
        let change = |change| union.change_branches(vec![change], &POLICY).unwrap();
        change(BranchChange::Insert { at: 0, branch: branch("/1") });
        let name = Name::new(b"f").unwrap();
        let file = union.root().mknod(&CX, name, Kind::Regular.mode_bits() | 0o644, 0).unwrap().vnode;
        change(BranchChange::Remove("/1".into()));
        *core.next_branch.lock() = u32::from(u16::MAX);
        let ids = |core: &Core| core.branches.get().order.iter().map(|member| member.id.0).collect::<Vec<_>>();
        for (path, id) in [("/2", u16::MAX), ("/3", 2), ("/4", 3)] {
            change(BranchChange::Insert { at: 0, branch: branch(path) });
            // 0 is in the set, 1 in the file.
            assert_eq!(ids(&core).first(), Some(&id));
        }
        drop(file);
        change(BranchChange::Insert { at: 0, branch: branch("/5") });
        assert_eq!(ids(&core), [1, 3, 2, u16::MAX, 0]);
    }

    /// A vnode that was last valid before short generations repeated is not considered valid when
    /// its short generation occurs again.
    #[test]
    fn vnodes_are_revalidated_after_short_generations_repeat() {
        let union = Unionfs::new(vec![branch("/0")], Options::default()).unwrap();
        let core = core(&union);
        let name = Name::new(b"d").unwrap();
        let dir = union.root().mkdir(&CX, name, 0o755).unwrap().vnode;
        let set = core.branches.get();
        let jump = |generation| core.branches.replace(Arc::new(BranchSet::new(generation, set.order.clone())), || {});
        jump(BranchSet::SHORT_GENERATIONS - 1);
        drop(dir.lookup(&CX, name).unwrap());
        let short = core.branches.get().short_generation();
        let other = branch("/1");
        other.layer.root().mkdir(&CX, name, 0o755).unwrap().vnode.mkdir(&CX, name, 0o755).unwrap();
        union.change_branches(vec![BranchChange::Insert { at: 0, branch: other }], &POLICY).unwrap();
        let all = core.branches.get().order.clone();
        core.branches.replace(Arc::new(BranchSet::new(2 * BranchSet::SHORT_GENERATIONS - 1, all)), || {});
        assert_eq!(core.branches.get().short_generation(), short);
        assert!(dir.lookup(&CX, name).unwrap().is_some());
    }
}
