//! The branches of a union and what all its vnodes share.

use crate::hardlink::Links;
use crate::identity::Identity;
use crate::jobs::Jobs;
use crate::listing::Listings;
use crate::marks::Complaints;
use crate::movers::Movers;
use crate::node::{Lower, UnionVnode};
use crate::options::{Branch, Mode, Numbers, Options};
use crate::ownfiles::{Own, OwnDir};
use crate::spare::Spare;
use crate::table::Table;
use crate::unpack::Refusals;
use parking_lot::Mutex;
use std::path::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vnode::{Cx, Errno, Kind, Layer, Result, Vnode};

/// A branch in use.
#[derive(Debug)]
pub(crate) struct BranchState {
    pub(crate) layer: Arc<dyn Layer>,
    pub(crate) root: Arc<dyn Vnode>,
    pub(crate) path: std::path::PathBuf,
    pub(crate) mode: Mode,
    /// Bits 62..48 of the numbers of its objects.
    pub(crate) tag: u16,
    /// It is listed as read-write, but answered `EROFS`.
    refuses: AtomicBool,
    /// It was said that it refuses names of the union's own.
    refuses_names: AtomicBool,
    /// May directories on it have redirects?
    pub(crate) moved: AtomicBool,
    /// Where copies are built.
    work: OwnDir,
    /// The index of copied-up files with several names.
    links: OwnDir,
    /// What removing files needs once the branch is full.
    pub(crate) spare: Spare,
}

impl BranchState {
    pub(crate) fn new(branch: Branch, tag: u16) -> Self {
        Self {
            root: branch.layer.root(),
            layer: branch.layer,
            path: branch.path,
            mode: branch.mode,
            tag,
            refuses: AtomicBool::new(false),
            refuses_names: AtomicBool::new(false),
            moved: AtomicBool::new(false),
            work: OwnDir::new(Own::Work),
            links: OwnDir::new(Own::Links),
            spare: Spare::default(),
        }
    }

    /// A directory of the union's own.
    pub(crate) fn own(&self, which: Own) -> &OwnDir {
        match which {
            Own::Work => &self.work,
            Own::Links => &self.links,
        }
    }
}

/// What all vnodes of a union share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) branches: Box<[BranchState]>,
    pub(crate) options: Options,
    pub(crate) read_only: bool,
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
}

impl Core {
    pub(crate) fn new(branches: Box<[BranchState]>, options: Options, identity: Identity) -> Self {
        Self {
            read_only: branches.iter().all(|b| b.mode != Mode::ReadWrite),
            branches,
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
        }
    }

    /// The branch of that index.
    pub(crate) fn branch(&self, index: u16) -> Result<&BranchState> {
        self.branches.get(usize::from(index)).ok_or(Errno::IO)
    }

    /// The path of a branch, for messages.
    pub(crate) fn path_of(&self, index: u16) -> Display<'_> {
        self.branches.get(usize::from(index)).map_or(std::path::Path::new("?"), |b| &b.path).display()
    }

    /// The index of the rightmost branch.
    pub(crate) fn last_branch(&self) -> u16 {
        u16::try_from(self.branches.len().saturating_sub(1)).unwrap_or(u16::MAX)
    }

    /// The caller's interruption and patience, as the server's user.
    pub(crate) fn server<'a>(&self, cx: &Cx<'a>) -> Cx<'a> {
        cx.as_server(self.uid, self.gid)
    }

    /// The context of work that nobody waits for.
    pub(crate) fn own(&self) -> Cx<'static> {
        Cx::internal(self.uid, self.gid)
    }

    /// Are files on that branch changed in place?
    pub(crate) fn writable(&self, index: u16) -> bool {
        self.branches
            .get(usize::from(index))
            .is_some_and(|b| b.mode == Mode::ReadWrite && !b.refuses.load(Ordering::Relaxed))
    }

    /// Answers `EROFS` if this union is read-only.
    pub(crate) fn require_writable(&self) -> Result<()> {
        if self.read_only { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// A change on that branch failed with `error`. Answers true if the branch turned out to be read-only and the change
    /// can be tried again further left.
    pub(crate) fn go_left(&self, index: u16, error: Errno) -> bool {
        let Some(branch) = self.branches.get(usize::from(index)) else { return false };
        if error != Errno::ROFS || index == 0 {
            return false;
        }
        // Of several operations that meet this at once, each tries again; one of them warns.
        if !branch.refuses.swap(true, Ordering::Relaxed) {
            tracing::warn!(branch = %branch.path.display(), "listed as read-write, but its file system is read-only: used as ro");
        }
        true
    }

    /// The making of a name of the union's own on that branch failed with `error`: says what that may mean.
    pub(crate) fn explain_refusal(&self, index: u16, error: Errno) {
        let Some(branch) = self.branches.get(usize::from(index)) else { return };
        if error == Errno::PERM && !branch.refuses_names.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                branch = %branch.path.display(),
                "names that begin with .wh. can't be made here (EPERM), and without them nothing of the branches to the right can \
                 be removed or renamed: does the branch lie in another union? Put it on a file system outside of that"
            );
        }
    }

    /// Do files on that branch stay there as long as they live?
    pub(crate) fn stays(&self, index: u16) -> bool {
        self.read_only || index == 0
    }

    /// The nearest read-write branch, from `bound` to the left, on which each of these directories has or can have a part.
    ///
    /// Every operation that may have to make a part of a directory chooses its branch here: see
    /// [`UnionVnode::can_lie_on`]. The leftmost branch is always possible.
    pub(crate) fn branch_for(&self, dirs: &[&UnionVnode], bound: u16) -> Result<u16> {
        for branch in (0..=bound.min(self.last_branch())).rev() {
            if self.fits(dirs, branch)? {
                return Ok(branch);
            }
        }
        Err(Errno::ROFS)
    }

    /// Can that branch be written, and has each of these directories a part there, or can one be made?
    pub(crate) fn fits(&self, dirs: &[&UnionVnode], branch: u16) -> Result<bool> {
        if !self.writable(branch) {
            return Ok(false);
        }
        for dir in dirs {
            if !dir.can_lie_on(branch)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The number of a lower object that is not a directory's leftmost part nor an aliased file.
    pub(crate) fn natural_number(&self, index: u16, lower: u64) -> u64 {
        let tag = self.branches.get(usize::from(index)).map_or(0, |b| b.tag);
        crate::identity::compose(tag, lower)
    }

    /// An object's number as users see it. Everything that is remembered, here or on a branch, goes by the number itself.
    pub(crate) fn shown(&self, number: u64) -> u64 {
        match self.options.numbers {
            Numbers::Wide => number,
            Numbers::Narrow => crate::identity::narrow(number),
        }
    }

    /// The number of a directory: that of its rightmost part, or what that is known as: see [`Self::keep_number`].
    pub(crate) fn directory_number(&self, stack: &[Lower]) -> Result<u64> {
        let part = stack.last().ok_or(Errno::IO)?;
        let lower = part.vnode.id();
        if self.identity.alias(self.branch(part.branch)?.tag, lower).is_none() {
            return Ok(self.natural_number(part.branch, lower));
        }
        self.number_of(part, &part.vnode.getattr(&self.own())?)
    }

    /// To be called before a whiteout or the loss of a redirect ends a directory's stack with its leftmost part, on the way to
    /// its removal: if the removal then fails or a crash interrupts it, the directory is still there and keeps its number.
    pub(crate) fn keep_number(&self, cx: &Cx<'_>, dir: &UnionVnode) -> Result<()> {
        let stack = dir.stack()?;
        let [leftmost, _, ..] = &*stack else { return Ok(()) };
        let attr = leftmost.vnode.getattr(cx)?;
        if self.number_of(leftmost, &attr)? == dir.id {
            return Ok(());
        }
        self.identity.append(&self.server(cx), self.alias_record(leftmost, &attr, dir.id)?)
    }

    /// To be called after a part of a directory was removed.
    pub(crate) fn part_went(&self, cx: &Cx<'_>, part: &Lower) {
        if let Ok(branch) = self.branch(part.branch) {
            self.identity.unalias(&self.server(cx), branch.tag, part.vnode.id());
        }
    }

    /// All parts of the root from that branch on.
    pub(crate) fn roots_from(&self, first: u16) -> Vec<Lower> {
        (first..=self.last_branch())
            .filter_map(|branch| Some(Lower { vnode: self.branches.get(usize::from(branch))?.root.clone(), branch }))
            .collect()
    }
}

/// Is that lower object a directory?
pub(crate) fn is_dir(vnode: &Arc<dyn Vnode>) -> bool {
    vnode.kind() == Kind::Directory
}

/// The live vnode behind an argument of the interface, if it is of this union.
pub(crate) fn same_layer<'a>(core: &Arc<Core>, vnode: &'a Arc<dyn Vnode>) -> Result<&'a UnionVnode> {
    let vnode = vnode.as_any().downcast_ref::<UnionVnode>().ok_or(Errno::XDEV)?;
    if Arc::ptr_eq(&vnode.core, core) { Ok(vnode) } else { Err(Errno::XDEV) }
}
