//! What all vnodes of a union share.

use crate::branch::BranchId;
use crate::current::Current;
use crate::gate::Gate;
use crate::identity::Identity;
use crate::jobs::Jobs;
use crate::links::Links;
use crate::listing::Listings;
use crate::movers::Movers;
use crate::op::Op;
use crate::options::{LowerFiles, Mode, Numbers, Options};
use crate::ownfiles::Own;
use crate::said::{Complaints, Refusals};
use crate::set::{BranchSet, Member};
use crate::table::Table;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use vnode::{Cx, Errno, Finder, Result, Upcalls, Vnode};

/// What all vnodes of a union, of type `V`, share.
#[derive(Debug)]
pub(crate) struct Shared<V> {
    /// The present set of branches.
    pub(crate) branches: Current,
    /// Closed while the set changes.
    pub(crate) gate: Gate,
    /// Held by whoever changes the set: the id that the next new branch gets.
    pub(crate) next_branch: Mutex<u32>,
    pub(crate) options: Options,
    /// The user that the server runs as: owner of whiteouts and records.
    uid: u32,
    gid: u32,
    pub(crate) table: Table<V>,
    pub(crate) identity: Identity,
    pub(crate) links: Links,
    pub(crate) jobs: Jobs,
    pub(crate) movers: Movers,
    pub(crate) listings: Listings<V>,
    /// Finds what lies below renamed directories by number.
    pub(crate) finder: Finder,
    pub(crate) complaints: Complaints,
    pub(crate) refusals: Refusals,
    /// Held while a directory is renamed: where directories lie does not change for anybody else.
    pub(crate) tree: Mutex<()>,
    /// Numbers the names in work directories.
    pub(crate) work_number: AtomicU64,
    /// It was said that owners can't be kept.
    pub(crate) told_of_owner: AtomicBool,
    /// Who is told that a file moved.
    upcalls: OnceLock<Arc<dyn Upcalls>>,
}

impl<V> Shared<V> {
    pub(crate) fn new(set: BranchSet, options: Options, identity: Identity) -> Self {
        Self {
            gate: Gate::default(),
            next_branch: Mutex::new(u32::try_from(set.order.len()).unwrap_or(u32::MAX)),
            branches: Current::new(set),
            options,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            table: Table::new(),
            identity,
            links: Links::default(),
            jobs: Jobs::default(),
            movers: Movers::default(),
            listings: Listings::default(),
            finder: Finder::new(),
            complaints: Complaints::default(),
            refusals: Refusals::default(),
            tree: Mutex::new(()),
            work_number: AtomicU64::new(0),
            told_of_owner: AtomicBool::new(false),
            upcalls: OnceLock::new(),
        }
    }

    /// Something stands on this union and is to be told of changes.
    pub(crate) fn attach(&self, upcalls: Arc<dyn Upcalls>) {
        // Attached once, by the interface's contract.
        let _ = self.upcalls.set(upcalls);
    }

    /// May the kernel be given open files of that branch that are only read, although they may be copied up?
    pub(crate) fn shares_lower(&self, op: &Op<'_>, branch: BranchId) -> bool {
        self.options.lower_files == LowerFiles::Shared
            && self.upcalls.get().is_some()
            && op.set.member(branch).is_some_and(|member| member.mode != Mode::ReadWrite)
    }

    /// A file's data lie in another lower file from now on.
    pub(crate) fn data_moved(&self, number: u64) {
        if let Some(upcalls) = self.upcalls.get() {
            upcalls.data_moved(self.shown(number));
        }
    }

    /// Whatever is kept of answers of this union is out of date.
    pub(crate) fn everything_changed(&self) {
        if let Some(upcalls) = self.upcalls.get() {
            upcalls.everything_changed();
        }
    }

    /// The same operation as the server's user, with the caller's interruption and patience.
    pub(crate) fn server<'a>(&self, op: &Op<'a>) -> Op<'a> {
        op.on_behalf_of(self.as_server(op))
    }

    /// The same for a caller.
    pub(crate) fn as_server<'a>(&self, cx: &Cx<'a>) -> Cx<'a> {
        cx.as_server(self.uid, self.gid)
    }

    /// The context of work that nobody waits for.
    pub(crate) fn own(&self) -> Cx<'static> {
        Cx::internal(self.uid, self.gid)
    }

    /// An object's number as users see it. Everything that is remembered, here or on a branch, goes by the number itself.
    pub(crate) fn shown(&self, number: u64) -> u64 {
        match self.options.numbers {
            Numbers::Wide => number,
            Numbers::Narrow => crate::identity::narrow(number),
        }
    }

    /// The number that is shown as this one.
    pub(crate) fn meant(&self, shown: u64) -> u64 {
        match self.options.numbers {
            Numbers::Wide => shown,
            Numbers::Narrow => crate::identity::widen(shown),
        }
    }

    /// A directory of the union's own on that branch, if it is there.
    pub(crate) fn own_dir(&self, op: &Op<'_>, branch: BranchId, which: Own) -> Result<Option<Arc<dyn Vnode>>> {
        let Member { state, mode, .. } = op.set.member(branch).ok_or(Errno::STALE)?;
        state.own(which).get(&self.server(op), &state.root, &state.path, *mode == Mode::ReadWrite)
    }

    /// Runs `call` with a directory of the union's own, which is made if need be; and again with a new one, should it turn out
    /// that somebody has removed it.
    pub(crate) fn in_own_dir<T>(
        &self,
        op: &Op<'_>,
        branch: BranchId,
        which: Own,
        mut call: impl FnMut(&Arc<dyn Vnode>) -> Result<T>,
    ) -> Result<T> {
        let state = op.set.branch(branch)?;
        let server = self.server(op);
        let own = state.own(which);
        let made = own.make(&server, &state.root, &state.path);
        let dir = made.inspect_err(|&errno| op.set.explain_refusal(branch, errno))?;
        match call(&dir) {
            Err(Errno::NOENT | Errno::STALE | Errno::NOTDIR) => {
                own.forget_this(&dir);
                call(&own.make(&server, &state.root, &state.path)?)
            }
            other => other,
        }
    }
}
