//! Changing the set of branches of a union in use: docs/design/unionfs.md, "Branch sets".

use crate::branch::{BranchId, BranchState};
use crate::identity::Known;
use crate::in_use::{Copies, Used};
use crate::log::{Alias, Log, Record};
use crate::logfile::{TAGS, load, move_log, tag, why_not_written};
use crate::metacopy::METACOPIES;
use crate::node::{Core, UnionVnode};
use crate::op::Op;
use crate::opaque_redirect::MOVED;
use crate::options::{Branch, BuildError, Mode};
use crate::ownfiles::{Own, has_links, move_links_aside};
use crate::set::{BranchSet, Member};
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
    /// Removes the branch with this path from the set. Its contents remain.
    Remove(PathBuf),
    /// Changes the mode of the branch with this path.
    Mode(PathBuf, Mode),
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
    /// Records of the tags that were assigned for it.
    fresh: Vec<Record>,
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

/// The place of the identity log after the change.
enum NewLog {
    /// On the same branch as before.
    Unchanged,
    /// On another branch, with this content.
    Moves(Known, Log),
    /// Nowhere: a read-only union has no log.
    None(Known),
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
            BranchChange::Mode(path, mode) => {
                let at = place(&path).ok_or(BuildError::NoSuchBranch(path))?;
                match planned.get_mut(at) {
                    Some(Planned::Kept(member)) => member.mode = mode,
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
    /// Changes the set of branches: applies all of `changes` in one step, or nothing.
    pub(crate) fn change_branches(&self, changes: Vec<BranchChange>, policy: &ChangePolicy) -> Outcome<()> {
        let mut ids = self.next_branch.lock();
        let old = self.branches.get();
        if policy.expected_generation.is_some_and(|expected| expected != old.generation) {
            return Err(BuildError::Changed);
        }
        let planned = plan(&old, changes)?;
        let next = self.next_set(&old, planned, &mut ids)?;
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
        let barred = (policy.in_use != InUse::Keep).then(|| self.open_files.bar(closed_branches));
        if barred.is_some() {
            // Whatever the kernel writes itself would change a read-only branch.
            let written = self.used_by_kernel(&switched);
            if !written.is_empty() {
                return Err(self.in_use(&old, written.into_iter()));
            }
        }
        let used = match policy.in_use {
            InUse::Keep => Vec::new(),
            in_use => self.remaining_use(&Op::new(&cx, &old), &next, in_use)?,
        };
        let moving = used.iter().map(|used| self.write_gate.start_move(&cx, used.vnode.id)).collect::<Result<Vec<_>>>();
        let moving = moving.map_err(|_| BuildError::Busy)?;
        let op = Op::new(&cx, &next.set);
        self.replace_set(&old, &op, &next, &used)?;
        drop((moving, barred, no_direct, closed));
        self.sync_no_longer_written(&old, &op);
        self.on_branch_set_changed(&op);
        if let Err(errno) = self.identity.flush(&cx) {
            tracing::warn!(%errno, "could not write the identity log");
        }
        Ok(())
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
    fn replace_set(&self, old: &BranchSet, op: &Op<'_>, next: &Next, used: &[Used]) -> Outcome<()> {
        let set = &next.set;
        self.prepare(op, &newly_written(old, set))?;
        let index = self.load_links(op, false).map_err(|(branch, errno)| {
            let path = set.branch(branch).map_or_else(|_| PathBuf::new(), |branch| branch.path.clone());
            step("reading the index of hard links", &path)(errno)
        })?;
        self.keep_numbers(op);
        // The last step that can fail.
        let (log, index, copies) = match self.new_log(op, old, set, next.fresh.clone())? {
            NewLog::Moves(known, log) if !used.is_empty() => {
                let drafted = self.copy_to_inserted(op, (&next.all, set), used, (known, log))?;
                (NewLog::Moves(drafted.known, drafted.log), drafted.index, drafted.copies)
            }
            log => (log, index, Copies::new()),
        };
        if !next.removed.is_empty() {
            self.let_follow(set, &next.removed, &copies);
        }
        self.branches.replace(set.clone(), || {
            self.links.replace(index);
            match log {
                NewLog::Unchanged => {}
                NewLog::Moves(known, log) => self.identity.replace(known, Some(log)),
                NewLog::None(known) => self.identity.replace(known, None),
            }
        });
        self.adopt_copies(op, used, copies);
        self.finish_change(old, op);
        Ok(())
    }

    /// Returns the planned set.
    fn next_set(&self, old: &BranchSet, planned: Vec<Planned>, ids: &mut u32) -> Outcome<Next> {
        let mut known = self.identity.tags();
        let (tags, fresh) = tag(planned.iter().map(Planned::path), &mut known);
        let (mut all, mut removed) = (Vec::with_capacity(planned.len()), Vec::new());
        for (branch, tag) in planned.into_iter().zip(tags) {
            all.push(match branch {
                Planned::Kept(member) => member,
                Planned::Removed(member) => {
                    removed.push(member.id);
                    member
                }
                Planned::New(branch) => Member {
                    id: self.new_id(old, ids).ok_or(BuildError::TooManyBranches)?,
                    mode: branch.mode,
                    state: Arc::new(BranchState::new(branch, tag)),
                },
            });
        }
        let order = all.iter().filter(|member| !removed.contains(&member.id)).cloned().collect();
        Ok(Next { set: Arc::new(BranchSet::new(old.generation + 1, order)), all, removed, fresh })
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

    /// Reads the marks that an earlier union left in these branches, and empties the work
    /// directories.
    pub(crate) fn prepare(&self, op: &Op<'_>, branches: &[Member]) -> Outcome<()> {
        for Member { id, mode, state } in branches {
            for (mark, flag, what) in [
                (MOVED, &state.has_redirects, "looking for redirects"),
                (METACOPIES, &state.metacopies, "looking for metacopies"),
            ] {
                let found = Name::new(mark).and_then(|name| state.root.lookup(op, name));
                flag.store(found.map_err(step(what, &state.path))?.is_some(), Ordering::Release);
            }
            if *mode == Mode::ReadWrite
                && let Err(errno) = self.clean_work(op, *id)
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

    /// Ensures that the leftmost branch has the identity log, if it can be written.
    fn new_log(&self, cx: &Cx<'_>, old: &BranchSet, set: &BranchSet, fresh: Vec<Record>) -> Outcome<NewLog> {
        let first = set.order.first().ok_or(BuildError::NoBranches)?;
        let path = &first.state.path;
        if !old.read_only && !set.read_only && old.is_leftmost(first.id) {
            for record in &fresh {
                self.identity.append(cx, record.clone()).map_err(step("writing the identity log", path))?;
            }
            return Ok(NewLog::Unchanged);
        }
        let mut known = self.identity.known();
        fresh.into_iter().for_each(|record| known.apply(record));
        let root = &first.state.root;
        let own = load(cx, root, path).map_err(step("reading the identity log", path))?.known;
        // Link counts belong to the branch whose whiteouts and copies they count. If the leftmost
        // branch is new, those of its own log take precedence. If it has none, the current ones are
        // still right, unless they belong to a branch that was removed.
        let removed = old.order.first().is_some_and(|was| set.member(was.id).is_none());
        if known.merge_log(own, removed).is_err() {
            if has_links(cx, root).map_err(step("reading the index of hard links", path))? {
                return Err(BuildError::ForeignLinks(path.clone()));
            }
            tracing::warn!(
                branch = %path.display(),
                "the branch's identity log belongs to a union of other branches: it is replaced, and its inode numbers are dropped"
            );
            if !set.read_only {
                move_links_aside(cx, root, path).map_err(step("moving the index of hard links aside", path))?;
                first.state.own(Own::Links).forget();
            }
        }
        if set.read_only {
            return Ok(NewLog::None(known));
        }
        let log = move_log(cx, (root, path), &known).map_err(|errno| why_not_written(cx, root, path, errno))?;
        Ok(NewLog::Moves(known, log))
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
