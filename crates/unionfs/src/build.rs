//! Building a union from its branches, and its [`vnode::Layer`] implementation.

use crate::branch::{BranchId, BranchState, Isolated, Lower};
use crate::change::{BranchChange, check, check_root};
use crate::identity::Identity;
use crate::in_use::BranchList;
use crate::inode_number::ROOT;
use crate::logfile::why_not_written;
use crate::logs::Logs;
use crate::node::{Core, UnionVnode};
use crate::op::Op;
use crate::options::{Branch, BuildError, Mode, Options};
use crate::records::{Source, merge_all};
use crate::reported::BranchReports;
use crate::set::{BranchSet, Member};
use crate::table::Interned;
use stack::ChangePolicy;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use vnode::{Command, Cx, Errno, Layer, Properties, Reports, Result, Upcalls, Vnode};

/// A union: several directories, merged into one tree.
#[derive(Debug)]
pub struct Unionfs {
    core: Arc<Core>,
    root: Arc<UnionVnode>,
}

impl Unionfs {
    /// Builds a union of `branches`. The first one has the highest precedence. If any is
    /// read-write, the first must be.
    ///
    /// Reads the identity logs, and removes leftovers of an interrupted union.
    ///
    /// # Errors
    ///
    /// See [`BuildError`].
    pub fn new(branches: Vec<Branch>, options: Options) -> std::result::Result<Arc<Self>, BuildError> {
        Self::build(branches, options, |core, op| core.prepare(op, &op.set.order))
    }

    /// Builds a union that reads the branches and changes nothing, whatever a kill has left in
    /// them.
    pub(crate) fn inspect(branches: &[Branch]) -> std::result::Result<Arc<Self>, BuildError> {
        let read_only = |branch: &Branch| Branch { mode: Mode::ReadOnly, ..branch.clone() };
        let branches = branches.iter().map(read_only).collect();
        let prepare = |core: &Core, op: &Op<'_>| op.set.order.iter().try_for_each(|member| core.read_marks(op, member));
        Self::build(branches, Options::default(), prepare)
    }

    fn build(
        branches: Vec<Branch>,
        options: Options,
        prepare: impl FnOnce(&Core, &Op<'_>) -> std::result::Result<(), BuildError>,
    ) -> std::result::Result<Arc<Self>, BuildError> {
        check(branches.iter().map(|branch| (&*branch.path, branch.mode)))?;
        branches.iter().try_for_each(check_root)?;
        let path = branches.first().ok_or(BuildError::NoBranches)?.path.clone();
        let step = |what, path: &Path| {
            let path = path.to_owned();
            move |errno| BuildError::Step { what, path, errno }
        };
        let cx = Cx::internal(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let layers: Vec<Isolated> = branches.iter().map(Isolated::new).collect();
        let mut sources = Vec::new();
        for (branch, isolated) in branches.iter().zip(&layers) {
            let source = Source::read(&cx, &isolated.layer, &branch.path, sources.is_empty());
            sources.push(source.map_err(step("reading the identity log", &branch.path))?);
        }
        let merged = merge_all(&cx, &mut sources).map_err(step("reading the identity logs of the branches", &path))?;
        let (known, tags) = merged;
        let members = branches.into_iter().zip(layers).zip(&sources).zip(&tags).zip(0..);
        let members = members.map(|((((branch, layer), source), tag), id)| Member {
            moving: crate::options::Moving::Stays,
            id: BranchId(id),
            mode: branch.mode,
            state: Arc::new(BranchState::new(layer, branch.path, *tag, source.tags.clone())),
        });
        let members: Box<[Member]> = members.collect();
        let mut logs = Vec::new();
        let fingerprints: Vec<_> = members.iter().map(|member| member.state.layer.fingerprint()).collect();
        for (at, (member, source)) in members.iter().zip(&sources).enumerate() {
            if member.mode != Mode::ReadWrite {
                continue;
            }
            let state = &member.state;
            let log = source.open(&cx, state, &known.tags, fingerprints.get(at + 1..).unwrap_or_default());
            logs.push(log.map_err(|errno| why_not_written(&cx, &state.root, &state.path, errno))?);
        }
        let mut logs = Logs::new(logs, known.tags.clone());
        logs.write_first(&cx, &tags, &[]).map_err(|errno| {
            members.first().map_or(BuildError::NoBranches, |first| {
                why_not_written(&cx, &first.state.root, &first.state.path, errno)
            })
        })?;
        logs.write_copies(&cx);
        let set = BranchSet::new(BranchSet::FIRST, members);
        let core = Arc::new(Core::new(set, options, Identity::new(known, logs)));
        let set = core.branches.get();
        for member in &set.order {
            attach_branch(&core, member);
        }
        let op = Op::new(&cx, &set);
        prepare(&core, &op)?;
        let indexed = core.load_links(&op).map_err(|(branch, errno)| BuildError::Step {
            what: "reading the index of hard links",
            path: set.branch(branch).map_or_else(|_| PathBuf::new(), |branch| branch.path.clone()),
            errno,
        })?;
        core.adopt_originals(&op, &indexed.index);
        core.links.replace(indexed.index.clone());
        for member in set.writables() {
            core.prepare_reserve(&op, member.id);
        }
        core.complete_names(&op).map_err(step("completing the link counts of files", &path))?;
        core.restore_counts(&op, &indexed);
        core.doubt_nameless(&indexed);
        let root = create_root(&core, &set).map_err(step("creating the root", &path))?;
        Ok(Arc::new(Self { core, root }))
    }

    /// Applies `changes` to the set of branches of a union in use, in their order and in one step.
    /// Effects on objects and open files: docs/design/unionfs.md, "Branch sets".
    ///
    /// # Errors
    ///
    /// See [`BuildError`]. The set is unchanged then.
    pub fn change_branches(
        &self,
        changes: Vec<BranchChange>,
        policy: &ChangePolicy,
    ) -> std::result::Result<(), BuildError> {
        self.core.change_branches(changes, policy, |member| attach_branch(&self.core, member))
    }

    /// Returns the current branches.
    #[must_use]
    pub fn branches(&self) -> BranchList {
        self.core.list_branches()
    }

    /// Returns the state that all vnodes share.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Makes the server close the files that it keeps open without a user.
    pub(crate) fn forget_kept(&self) {
        self.core.everything_changed();
    }

    /// Waits until the kernel was notified of all changes so far. Returns false on timeout. Must
    /// not be called from an operation on a vnode.
    pub(crate) fn settle(&self, timeout: Duration) -> bool {
        self.core.settle(timeout)
    }

    /// Whether a change of the set of branches waits for operations under way.
    #[doc(hidden)]
    #[must_use]
    pub fn change_is_waiting(&self) -> bool {
        self.core.gate.is_wanted() || self.core.write_gate.is_direct_forbidden()
    }
}

/// Makes the layer of a branch report out-of-band changes to the union.
fn attach_branch(core: &Arc<Core>, member: &Member) {
    member.state.layer.attach(BranchReports::new(Arc::downgrade(core), member.id));
    // Only from now on: what was read before may have changed without a report.
    if let Some(source) = member.state.layer.reports() {
        let _set_once = member.state.reports.set(source);
    }
}

fn create_root(core: &Arc<Core>, set: &BranchSet) -> Result<Arc<UnionVnode>> {
    let stack: Arc<[Lower]> = set.roots().into();
    let leftmost = stack.first().cloned().ok_or(Errno::IO)?;
    match core.table.intern(ROOT, || UnionVnode::new(core, set, ROOT, None, leftmost, Some(stack))) {
        Interned::New(root) | Interned::Present(root) => Ok(root),
    }
}

impl Drop for Unionfs {
    fn drop(&mut self) {
        let cx = self.core.server_cx();
        if let Err(errno) = self.core.identity.flush(&cx) {
            tracing::warn!(%errno, "could not write the end of the identity log: some inode numbers and link counts change");
        }
        let set = self.core.branches.get();
        if let Err(errno) = self.core.settle_doubtful(&Op::new(&cx, &set), self.root.clone()) {
            tracing::warn!(%errno, "could not look for names of files: fsck.unionfs finds those that have none (index-unused)");
        }
        self.core.retry_unlink_index(&Op::new(&cx, &set));
        for member in set.writables() {
            self.core.drop_work(&Op::new(&cx, &set), member.id);
        }
    }
}

impl Layer for Unionfs {
    fn root(&self) -> Arc<dyn Vnode> {
        self.root.clone()
    }

    fn properties(&self) -> Properties {
        self.core.properties()
    }

    fn attach(&self, upcalls: Arc<dyn Upcalls>) {
        self.core.attach(upcalls);
    }

    fn reports(&self) -> Option<Arc<dyn Reports>> {
        // Changes of the set of branches are not reported entry by entry.
        None
    }

    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        let number = self.core.resolve_shown(number);
        let found = self.root.run_read(cx, |op| self.core.by_number(op, number))?;
        Ok(found)
    }

    fn commands(&self) -> Vec<Command> {
        crate::control::commands(&self.core.branches.get())
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        cx.require_blocking()?;
        let mut done = self.core.identity.flush(&self.core.as_server(cx));
        for branch in self.core.branches.get().order.iter().filter(|b| b.mode == Mode::ReadWrite) {
            // Continue with the others after a failure.
            done = done.and(branch.state.layer.sync(cx));
        }
        done
    }

    fn unmounted(&self) {
        self.core.branches.get().order.iter().for_each(|branch| branch.state.layer.unmounted());
    }
}
