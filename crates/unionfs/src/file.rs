//! Open files: they follow their vnode to another branch.

use crate::branch::{BranchId, Lower};
use crate::movers::Writing;
use crate::node::UnionVnode;
use crate::op::Op;
use parking_lot::RwLock;
use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vnode::{Cx, Errno, OpenFile, OpenFlags, Result, SeekFrom};

/// An open file of the branch that the vnode lies on.
enum Current {
    /// The file stays where it is for as long as this lives.
    Fixed(Arc<dyn OpenFile>),
    /// It may be copied up: the vnode's count of moves when it was opened.
    Follows(RwLock<(u32, Arc<dyn OpenFile>)>),
    /// It may be copied up, and whoever has it open by passthrough then stays on the original
    /// (`lower=shared`).
    Shared(Shared),
}

/// An open file of a branch that the kernel may be given although the file may be copied up.
struct Shared {
    /// As it was opened, when the vnode had moved so often.
    original: Arc<dyn OpenFile>,
    moves: u32,
    /// The kernel was given the original.
    bound: AtomicBool,
    /// Where the file is now, for when it was not.
    current: RwLock<(u32, Arc<dyn OpenFile>)>,
}

/// An open file of the union.
pub(crate) struct UnionFile {
    vnode: Arc<UnionVnode>,
    flags: OpenFlags,
    current: Current,
}

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
        (branch, moves): (BranchId, u32),
        file: Arc<dyn OpenFile>,
    ) -> Arc<Self> {
        // A file on another read-write branch than the leftmost may have to move to the left, by a rename or a link: its host file
        // is not handed out, so that it always can.
        let current = if op.set.stays(branch) && vnode.moves() == moves {
            Current::Fixed(file)
        } else if vnode.core.shares_lower(op, branch) && !flags.writes() {
            Current::Shared(Shared {
                original: file.clone(),
                moves,
                bound: AtomicBool::new(false),
                current: RwLock::new((moves, file)),
            })
        } else {
            Current::Follows(RwLock::new((moves, file)))
        };
        Arc::new(Self { flags, current, vnode: vnode.clone() })
    }

    /// The open file of the branch where the file is now.
    pub(crate) fn lower(&self, cx: &Cx<'_>) -> Result<Arc<dyn OpenFile>> {
        let current = match &self.current {
            Current::Fixed(file) => return Ok(file.clone()),
            Current::Shared(shared) if shared.bound.load(Ordering::Acquire) => return Ok(shared.original.clone()),
            Current::Shared(Shared { current, .. }) | Current::Follows(current) => current,
        };
        {
            let current = current.read();
            if current.0 == self.vnode.moves() {
                return Ok(current.1.clone());
            }
        }
        let mut current = current.write();
        let (lower, moves) = self.vnode.leaf_and_moves();
        if current.0 != moves {
            let file = lower.vnode.open(&self.vnode.core.as_server(cx), self.flags.without_trunc())?;
            *current = (moves, file);
        }
        Ok(current.1.clone())
    }

    /// The open file for a write. Files are copied up when they are opened for writing, so it lies on a read-write branch.
    fn for_write(&self, cx: &Cx<'_>) -> Result<(Option<Writing<'_>>, Arc<dyn OpenFile>)> {
        if !self.flags.writes() {
            return Err(Errno::BADF);
        }
        if let Current::Fixed(file) = &self.current {
            return Ok((None, file.clone()));
        }
        let set = self.vnode.core.branches.get();
        let guard = self.vnode.guard_branch(&Op::new(cx, &set), self.vnode.branch())?;
        let file = self.lower(cx)?;
        if !set.writable(self.vnode.branch()) {
            return Err(Errno::ROFS);
        }
        Ok((guard, file))
    }

    /// The lower file of a source of a copy, where that is of a union too.
    fn look_through(cx: &Cx<'_>, source: &dyn OpenFile) -> Result<Option<Arc<dyn OpenFile>>> {
        source.as_any().downcast_ref::<Self>().map(|file| file.lower(cx)).transpose()
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

    fn backing(&self) -> Option<BorrowedFd<'_>> {
        match &self.current {
            Current::Fixed(file) => file.backing(),
            // Whoever is given it is told when the file moves: see `Upcalls::data_moved`.
            Current::Shared(shared) if shared.moves == self.vnode.moves() => shared.original.backing(),
            Current::Shared(_) | Current::Follows(_) => None,
        }
    }

    fn bind(&self) {
        match &self.current {
            Current::Fixed(file) => file.bind(),
            Current::Shared(shared) => {
                shared.original.bind();
                shared.bound.store(true, Ordering::Release);
            }
            Current::Follows(_) => {}
        }
    }

    fn read(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        self.lower(cx)?.read(cx, out, offset)
    }

    fn write(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize> {
        let (_writing, file) = self.for_write(cx)?;
        file.write(cx, data, offset)
    }

    fn flush(&self, cx: &Cx<'_>) -> Result<()> {
        self.lower(cx)?.flush(cx)
    }

    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()> {
        self.lower(cx)?.fsync(cx, data_only)
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
