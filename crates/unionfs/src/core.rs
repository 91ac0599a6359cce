//! State that all vnodes of a union share, generic over the vnode type `V`, so that `node` can
//! import it.

use crate::branch::BranchId;
use crate::current::Current;
use crate::gate::Gate;
use crate::identity::Identity;
use crate::jobs::Jobs;
use crate::known::Indexes;
use crate::links::Links;
use crate::listing::Listings;
use crate::logged_once::{RateLimit, WarnedOnce};
use crate::mover::Mover;
use crate::op::Op;
use crate::open_files::OpenFiles;
use crate::options::{LowerFiles, Mode, Numbers, Options};
use crate::ownfiles::Own;
use crate::parts::Parts;
use crate::set::{BranchSet, Member};
use crate::table::Table;
use crate::write_gate::WriteGate;
use parking_lot::Mutex;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use vnode::{Cx, Errno, Finder, OpenFlags, Properties, Result, Upcalls, Vnode};

/// State that all vnodes of a union, of type `V`, share.
#[derive(Debug)]
pub(crate) struct Shared<V> {
    /// The current set of branches.
    pub(crate) branches: Current,
    /// Excludes changes of objects while the set changes.
    pub(crate) gate: Gate,
    /// The id of the next new branch. Locked during each change of the set, so that these exclude
    /// each other.
    pub(crate) next_branch: Mutex<u32>,
    pub(crate) options: Options,
    /// The user that the server runs as. It owns whiteouts and records.
    uid: u32,
    gid: u32,
    pub(crate) table: Table<V>,
    pub(crate) parts: Parts,
    pub(crate) open_files: OpenFiles,
    pub(crate) identity: Identity,
    pub(crate) links: Links,
    pub(crate) jobs: Jobs,
    pub(crate) write_gate: WriteGate,
    pub(crate) listings: Listings<V>,
    pub(crate) indexes: Indexes<V>,
    /// Finds objects below renamed directories by number.
    pub(crate) finder: Finder,
    /// Files being moved from a branch to others.
    pub(crate) mover: Mutex<Option<Mover<V>>>,
    /// The number of the last such task.
    pub(crate) last_move: AtomicU64,
    pub(crate) warned: WarnedOnce,
    pub(crate) refused_names: RateLimit,
    /// Locked while a directory is renamed: nothing else moves directories within the tree.
    pub(crate) tree: Mutex<()>,
    /// Number of objects that were placed by a policy.
    pub(crate) created: AtomicU64,
    /// The next number for a name in a work directory.
    pub(crate) work_number: AtomicU64,
    /// The warning was logged that copies can't get the original's owner.
    pub(crate) warned_of_owner: AtomicBool,
    /// The receiver of notifications, such as that a file moved.
    upcalls: OnceLock<Arc<dyn Upcalls>>,
    /// The properties that the receiver was told. They do not change any more.
    pub(crate) announced: OnceLock<Properties>,
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
            parts: Parts::new(),
            open_files: OpenFiles::new(),
            identity,
            links: Links::default(),
            jobs: Jobs::default(),
            write_gate: WriteGate::default(),
            listings: Listings::default(),
            indexes: Indexes::default(),
            finder: Finder::new(),
            mover: Mutex::default(),
            last_move: AtomicU64::new(0),
            warned: WarnedOnce::default(),
            refused_names: RateLimit::default(),
            tree: Mutex::new(()),
            created: AtomicU64::new(0),
            work_number: AtomicU64::new(0),
            warned_of_owner: AtomicBool::new(false),
            upcalls: OnceLock::new(),
            announced: OnceLock::new(),
        }
    }

    /// Sets the receiver of notifications about changes.
    pub(crate) fn attach(&self, upcalls: Arc<dyn Upcalls>) {
        // The interface's contract allows only one call.
        let _ = self.announced.set(self.branches.get().properties());
        let _ = self.upcalls.set(upcalls);
    }

    /// Returns the union's properties. Except for `read_only`, they remain those of the first set
    /// of branches once they were announced.
    pub(crate) fn properties(&self) -> Properties {
        let set = self.branches.get();
        match self.announced.get() {
            Some(announced) => Properties { read_only: set.read_only, ..*announced },
            None => set.properties(),
        }
    }

    /// Returns the receiver of notifications.
    pub(crate) fn upcalls(&self) -> Option<&Arc<dyn Upcalls>> {
        self.upcalls.get()
    }

    /// Whether files of this branch that are open for reading may be handed to the kernel although
    /// they may be copied up (`lower=shared`).
    pub(crate) fn shares_lower(&self, op: &Op<'_>, branch: BranchId) -> bool {
        self.options.lower_files == LowerFiles::Shared
            && self.upcalls.get().is_some()
            && op.set.member(branch).is_some_and(|member| member.mode != Mode::ReadWrite)
    }

    /// Notifies that a file's data are in another lower file from now on.
    pub(crate) fn data_moved(&self, number: u64) {
        if let Some(upcalls) = self.upcalls.get() {
            upcalls.data_moved(self.shown(number));
        }
    }

    /// Notifies that the change time of a lower directory has moved, which can't be restored: that
    /// of the directories that show it may be cached.
    pub(crate) fn times_moved(&self, branch: BranchId, dir: &Arc<dyn Vnode>) {
        let Some(upcalls) = self.upcalls.get() else { return };
        for number in self.parts.merged_in(branch, dir.id()) {
            upcalls.attributes_changed(self.shown(number));
        }
    }

    /// Notifies that all results that were cached from this union are stale.
    pub(crate) fn everything_changed(&self) {
        if let Some(upcalls) = self.upcalls.get() {
            upcalls.everything_changed();
        }
    }

    /// Returns the live vnodes that programs may have mapped for writing, although no file may be
    /// open.
    pub(crate) fn maybe_mapped(&self) -> Vec<Arc<V>> {
        let numbers = self.upcalls.get().map(|upcalls| upcalls.maybe_mapped()).unwrap_or_default();
        numbers.into_iter().filter_map(|number| self.table.get(self.resolve_shown(number))).collect()
    }

    /// Whether a process has the lower file open or mapped for writing.
    pub(crate) fn is_open_for_writing(&self, op: &Op<'_>, lower: &Arc<dyn Vnode>) -> Result<bool> {
        let Some(upcalls) = self.upcalls.get() else { return Ok(false) };
        let file = lower.open(&self.server(op), OpenFlags::RDONLY)?;
        Ok(file.backing().is_some_and(|backing| !upcalls.is_host_file_unused(backing.file, true)))
    }

    /// Whether no process has the host file open or mapped, except by `host`. With `readers`, it
    /// may be open or mapped for reading.
    pub(crate) fn is_unused(&self, host: BorrowedFd<'_>, readers: bool) -> bool {
        self.upcalls.get().is_none_or(|upcalls| upcalls.is_host_file_unused(host, readers))
    }

    /// Waits until all notifications so far have been processed. Returns false on timeout.
    pub(crate) fn settle(&self, timeout: Duration) -> bool {
        self.upcalls.get().is_none_or(|upcalls| upcalls.settle(timeout))
    }

    /// Returns the same operation with the server's user as its caller. It remains interruptible by
    /// the caller, and may wait only if the caller may.
    pub(crate) fn server<'a>(&self, op: &Op<'a>) -> Op<'a> {
        op.on_behalf_of(self.as_server(op))
    }

    /// As [`Self::server`], for a context.
    pub(crate) fn as_server<'a>(&self, cx: &Cx<'a>) -> Cx<'a> {
        cx.as_server(self.uid, self.gid)
    }

    /// Returns the context of work that no caller waits for.
    pub(crate) fn server_cx(&self) -> Cx<'static> {
        Cx::internal(self.uid, self.gid)
    }

    /// Returns an object's number as users see it. Everything stored, in memory or on a branch,
    /// uses the number itself.
    pub(crate) fn shown(&self, number: u64) -> u64 {
        match self.options.numbers {
            Numbers::Wide => number,
            Numbers::Narrow => crate::inode_number::narrow(number),
        }
    }

    /// Returns the number that [`Self::shown`] shows as this one.
    pub(crate) fn resolve_shown(&self, shown: u64) -> u64 {
        match self.options.numbers {
            Numbers::Wide => shown,
            Numbers::Narrow => crate::inode_number::widen(shown),
        }
    }

    /// Returns one of the union's own directories in a branch's root, if it exists.
    pub(crate) fn own_dir(&self, op: &Op<'_>, branch: BranchId, which: Own) -> Result<Option<Arc<dyn Vnode>>> {
        let Member { state, mode, .. } = op.set.member(branch).ok_or(Errno::STALE)?;
        state.own(which).get(&self.server(op), &state.root, &state.path, *mode == Mode::ReadWrite)
    }

    /// Runs `call` with one of the union's own directories, which is created if necessary. If the
    /// directory turns out to be removed, `call` runs once more with a new one.
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
        let make = || {
            let is_known = own.is_known();
            let made = own.make(&server, &state.root, &state.path);
            if !is_known {
                self.times_moved(branch, &state.root);
            }
            made
        };
        let dir = make().inspect_err(|&errno| op.set.explain_refusal(branch, errno))?;
        match call(&dir) {
            Err(Errno::NOENT | Errno::STALE | Errno::NOTDIR) => {
                own.forget_this(&dir);
                call(&make()?)
            }
            other => other,
        }
    }
}
