//! What all vnodes of a union share.

use crate::branch::{BranchId, Lower};
use crate::current::Current;
use crate::gate::Gate;
use crate::hardlink::Links;
use crate::identity::Identity;
use crate::jobs::Jobs;
use crate::listing::Listings;
use crate::marks::Complaints;
use crate::movers::Movers;
use crate::node::UnionVnode;
use crate::op::Op;
use crate::options::{LowerFiles, Mode, Numbers, Options};
use crate::set::BranchSet;
use crate::table::Table;
use crate::unpack::Refusals;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use vnode::{Cx, Errno, Result, Upcalls, Vnode};

/// What all vnodes of a union share.
#[derive(Debug)]
pub(crate) struct Core {
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
    pub(crate) table: Table,
    pub(crate) identity: Identity,
    pub(crate) links: Links,
    pub(crate) jobs: Jobs,
    pub(crate) movers: Movers,
    pub(crate) listings: Listings,
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

impl Core {
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

    /// The nearest read-write branch, from the position `bound` to the left, on which each of these directories has or can have
    /// a part.
    ///
    /// Every operation that may have to make a part of a directory chooses its branch here: see
    /// [`UnionVnode::can_lie_on`]. The leftmost branch is always possible.
    pub(crate) fn branch_for(&self, op: &Op<'_>, dirs: &[&UnionVnode], bound: usize) -> Result<BranchId> {
        for member in op.set.order.iter().take(bound.saturating_add(1)).rev() {
            if self.fits(op, dirs, member.id)? {
                return Ok(member.id);
            }
        }
        Err(Errno::ROFS)
    }

    /// Can that branch be written, and has each of these directories a part there, or can one be made?
    pub(crate) fn fits(&self, op: &Op<'_>, dirs: &[&UnionVnode], branch: BranchId) -> Result<bool> {
        if !op.set.writable(branch) {
            return Ok(false);
        }
        for dir in dirs {
            if !dir.can_lie_on(op, branch)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// An object's number as users see it. Everything that is remembered, here or on a branch, goes by the number itself.
    pub(crate) fn shown(&self, number: u64) -> u64 {
        match self.options.numbers {
            Numbers::Wide => number,
            Numbers::Narrow => crate::identity::narrow(number),
        }
    }

    /// The number of a directory: that of its rightmost part, or what that is known as: see [`Self::keep_number`].
    pub(crate) fn directory_number(&self, op: &Op<'_>, stack: &[Lower]) -> Result<u64> {
        let part = stack.last().ok_or(Errno::IO)?;
        let lower = part.vnode.id();
        if self.identity.alias(op.set.branch(part.branch)?.tag, lower).is_none() {
            return op.set.natural_number(part.branch, lower);
        }
        self.number_of(op, part, &part.vnode.getattr(&self.own())?)
    }

    /// To be called before a whiteout or the loss of a redirect ends a directory's stack with its leftmost part, on the way to
    /// its removal: if the removal then fails or a crash interrupts it, the directory is still there and keeps its number.
    pub(crate) fn keep_number(&self, op: &Op<'_>, dir: &UnionVnode) -> Result<()> {
        let stack = dir.stack()?;
        let [leftmost, _, ..] = &*stack else { return Ok(()) };
        let attr = leftmost.vnode.getattr(op)?;
        if self.number_of(op, leftmost, &attr)? == dir.id {
            return Ok(());
        }
        self.identity.append(&self.server(op), self.alias_record(op, leftmost, &attr, dir.id)?)
    }

    /// To be called after a part of a directory was removed.
    pub(crate) fn part_went(&self, op: &Op<'_>, part: &Lower) {
        if let Ok(branch) = op.set.branch(part.branch) {
            self.identity.unalias(&self.server(op), branch.tag, part.vnode.id());
        }
    }
}

/// The live vnode behind an argument of the interface, if it is of this union.
pub(crate) fn same_layer<'a>(core: &Arc<Core>, vnode: &'a Arc<dyn Vnode>) -> Result<&'a UnionVnode> {
    let vnode = vnode.as_any().downcast_ref::<UnionVnode>().ok_or(Errno::XDEV)?;
    if Arc::ptr_eq(&vnode.core, core) { Ok(vnode) } else { Err(Errno::XDEV) }
}
