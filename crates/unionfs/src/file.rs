//! Open files: they follow their vnode to another branch, but not away from one that is removed.

use crate::branch::{BranchId, BranchState, Lower};
use crate::metacopy::as_metacopy;
use crate::movers::Writing;
use crate::node::UnionVnode;
use crate::op::Op;
use crate::retry::Tries;
use parking_lot::RwLock;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vnode::{Cx, Errno, HostReader, OpenFile, OpenFlags, Result, SeekFrom, Vnode};

/// Where an open file was when that was last looked at.
struct Seen {
    generation: u64,
    moves: u16,
    /// Its branch, which lives as long as this.
    branch: BranchId,
    _home: Arc<BranchState>,
    file: Arc<dyn OpenFile>,
}

/// An open file of the union.
pub(crate) struct UnionFile {
    vnode: Arc<UnionVnode>,
    flags: OpenFlags,
    /// As it was opened.
    first: Arc<dyn OpenFile>,
    /// In the set of this generation the file stays where it was opened; [`NEVER_FIXED`] where it may be copied up.
    fixed: u64,
    /// The host file was handed out for writing: the file can't move as long as this lives.
    promise: bool,
    /// The host file may be handed out although the file may be copied up (`lower=shared`), as long as the vnode has moved no
    /// more often than this.
    shared: Option<u16>,
    /// The kernel was given the host file: all operations stay there.
    bound: AtomicBool,
    seen: RwLock<Seen>,
}

/// No set has this generation.
const NEVER_FIXED: u64 = 0;

impl std::fmt::Debug for UnionFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UnionFile({:?}, {:?})", self.vnode, self.flags)
    }
}

impl UnionFile {
    /// `file` is an open file of the vnode's lower file on `branch`, opened when it had moved `moves` times.
    pub(crate) fn new(
        op: &Op<'_>,
        vnode: &Arc<UnionVnode>,
        flags: OpenFlags,
        (branch, moves): (BranchId, u16),
        file: Arc<dyn OpenFile>,
    ) -> Result<Arc<Self>> {
        // A file on another read-write branch than the leftmost may have to move to the left, by a rename or a link: its host file
        // is not handed out, so that it always can.
        let shared = !flags.writes() && vnode.core.shares_lower(op, branch);
        let stays = op.set.stays(branch) && vnode.moves() == moves;
        let (generation, home) = (op.set.generation, op.set.branch(branch)?.clone());
        let promise = stays && flags.writes() && file.backing().is_some();
        if promise {
            vnode.core.movers.promise(vnode.id);
        }
        Ok(Arc::new(Self {
            vnode: vnode.clone(),
            flags,
            first: file.clone(),
            fixed: if stays { generation } else { NEVER_FIXED },
            promise,
            shared: shared.then_some(moves),
            bound: AtomicBool::new(false),
            seen: RwLock::new(Seen { generation, moves, branch, _home: home, file }),
        }))
    }

    /// Is the file where it was opened, and stays there?
    fn is_fixed(&self) -> bool {
        self.fixed == self.vnode.core.branches.generation()
    }

    /// The open file of the branch where the file is now.
    pub(crate) fn lower(&self, cx: &Cx<'_>) -> Result<Arc<dyn OpenFile>> {
        if self.is_fixed() || self.bound.load(Ordering::Acquire) {
            return Ok(self.first.clone());
        }
        {
            let seen = self.seen.read();
            if seen.moves == self.vnode.moves() && seen.generation == self.vnode.core.branches.generation() {
                return Ok(seen.file.clone());
            }
        }
        self.vnode.looking(cx, |op| self.follow(op))
    }

    /// Goes to where the file is now. A file whose branch was removed stays there, whatever has its name since.
    fn follow(&self, op: &Op<'_>) -> Result<Arc<dyn OpenFile>> {
        let mut seen = self.seen.write();
        let (lower, moves) = self.vnode.leaf_and_moves();
        if seen.moves != moves
            && op.set.member(seen.branch).is_some()
            && let Ok(home) = op.set.branch(lower.branch)
        {
            let file = lower.vnode.open(&self.vnode.core.server(op), self.flags.without_trunc())?;
            *seen = Seen { generation: 0, moves, branch: lower.branch, _home: home.clone(), file };
        }
        (seen.generation, seen.moves) = (op.set.generation, moves);
        Ok(seen.file.clone())
    }

    /// The open file for a write. Files are copied up when they are opened for writing, so it lies on a read-write branch, unless
    /// that was made a read-only one since: then the file is copied up now.
    fn for_write(&self, cx: &Cx<'_>) -> Result<(Option<Writing<'_>>, Arc<dyn OpenFile>)> {
        if !self.flags.writes() {
            return Err(Errno::BADF);
        }
        if self.is_fixed() {
            return Ok((None, self.first.clone()));
        }
        let mut tries = Tries::new();
        loop {
            // Brings the vnode up to the present set.
            self.lower(cx)?;
            let set = self.vnode.core.branches.get();
            let guard = self.vnode.guard_branch(&Op::new(cx, &set), self.vnode.branch())?;
            let file = self.lower(cx)?;
            let branch = self.seen.read().branch;
            if set.member(branch).is_none() || set.writable(branch) {
                return Ok((guard, file));
            }
            drop((guard, file));
            self.vnode.changing(cx, |op| self.vnode.for_change(op, None).map(drop))?;
            tries.again()?;
        }
    }

    /// The open file and its branch, if that is not in the set any more.
    pub(crate) fn left_behind(&self, op: &Op<'_>) -> Option<(BranchId, Arc<dyn OpenFile>)> {
        let seen = self.seen.read();
        op.set.member(seen.branch).is_none().then(|| (seen.branch, seen.file.clone()))
    }

    /// The lower file of a source of a copy, where that is of a union too.
    fn look_through(cx: &Cx<'_>, source: &dyn OpenFile) -> Result<Option<Arc<dyn OpenFile>>> {
        source.as_any().downcast_ref::<Self>().map(|file| file.lower(cx)).transpose()
    }
}

impl Drop for UnionFile {
    fn drop(&mut self) {
        if self.promise {
            self.vnode.core.movers.fulfil(self.vnode.id);
        }
    }
}

impl UnionVnode {
    /// Lets a write begin, where the file might be about to move.
    pub(crate) fn guard_branch(&self, op: &Op<'_>, branch: BranchId) -> Result<Option<Writing<'_>>> {
        if op.set.stays(branch) { Ok(None) } else { self.core.movers.write(op, self.id).map(Some) }
    }

    /// The same for an attribute change of `lower`.
    pub(crate) fn guard_write(&self, op: &Op<'_>, lower: &Lower) -> Result<Option<Writing<'_>>> {
        if self.dir.is_some() { Ok(None) } else { self.guard_branch(op, lower.branch) }
    }
}

impl OpenFile for UnionFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn backing(&self) -> Option<vnode::Backing<'_>> {
        // Whoever is given it is told when the file moves all the same: see `Upcalls::data_moved`.
        let handed_out = self.is_fixed() || self.shared == Some(self.vnode.moves());
        if handed_out { self.first.backing() } else { None }
    }

    fn bind(&self) {
        self.first.bind();
        self.bound.store(true, Ordering::Release);
    }

    fn read(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        self.lower(cx)?.read(cx, out, offset)
    }

    fn read_host(&self, cx: &Cx<'_>, take: HostReader<'_>) -> Result<Option<usize>> {
        self.lower(cx)?.read_host(cx, take)
    }

    fn write(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize> {
        let (_writing, file) = self.for_write(cx)?;
        file.write(cx, data, offset)
    }

    fn flush(&self, cx: &Cx<'_>) -> Result<()> {
        self.lower(cx)?.flush(cx)
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        self.lower(cx)?.fsync(cx, data_only)?;
        // The attributes may be in a file of their own.
        let leaf = self.vnode.leaf();
        match as_metacopy(&leaf.vnode).filter(|_| !data_only).map(|meta| meta.fsync(cx, data_only)) {
            // Removed: there is nothing to be kept.
            None | Some(Ok(()) | Err(Errno::STALE)) => Ok(()),
            Some(failed) => failed,
        }
    }

    fn fallocate(&self, cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()> {
        let (_writing, file) = self.for_write(cx)?;
        file.fallocate(cx, mode, offset, len)
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, whence: SeekFrom) -> Result<u64> {
        self.lower(cx)?.seek(cx, offset, whence)
    }

    fn copy_from(&self, cx: &Cx<'_>, offset: u64, source: &dyn OpenFile, source_offset: u64, len: u64) -> Result<u64> {
        let (_writing, file) = self.for_write(cx)?;
        match Self::look_through(cx, source)? {
            Some(lower) => file.copy_from(cx, offset, &*lower, source_offset, len),
            None => file.copy_from(cx, offset, source, source_offset, len),
        }
    }

    fn reflink_from(&self, cx: &Cx<'_>, source: &dyn OpenFile) -> Result<()> {
        let (_writing, file) = self.for_write(cx)?;
        match Self::look_through(cx, source)? {
            Some(lower) => file.reflink_from(cx, &*lower),
            None => file.reflink_from(cx, source),
        }
    }
}
