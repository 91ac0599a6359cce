//! Open files. They follow their vnode to another branch. Those that lie on a branch when it is
//! removed remain there.

use crate::branch::{BranchId, BranchState, Lower};
use crate::metacopy::as_metacopy;
use crate::node::UnionVnode;
use crate::op::Op;
use crate::retry::Retries;
use crate::set::BranchSet;
use crate::write_gate::{Direct, DirectWrites, Writing};
use parking_lot::RwLock;
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use vnode::{Cx, Errno, HostReader, OpenFile, OpenFlags, Result, Vnode, Whence};

/// The lower open file that was last used, and the state of the union for which it was opened. It
/// is the right one while both counters are unchanged.
struct Seen {
    generation: u64,
    moves: u16,
    /// The file's branch, kept in use by `_home`.
    branch: BranchId,
    _home: Option<Arc<BranchState>>,
    file: Arc<dyn OpenFile>,
}

/// Where a file stays: on a branch that was removed while the file lay there.
struct Pinned {
    lower: Lower,
    moves: u16,
    home: Arc<BranchState>,
}

/// An open file of the union.
pub(crate) struct UnionFile {
    vnode: Arc<UnionVnode>,
    flags: OpenFlags,
    /// The lower file as it was opened.
    first: Arc<dyn OpenFile>,
    /// The generation of the set in which the file never moves from where it was opened;
    /// [`NEVER_FIXED`] if it may be copied up.
    fixed: u64,
    /// The host file may be handed out for writing: the file can't move until this is dropped.
    holds_host_file: bool,
    /// With `lower=shared`: the vnode's number of moves at the open. While it is unchanged, the
    /// host file may be handed out, although the file may be copied up later.
    shared: Option<u16>,
    /// The kernel has the host file: all operations use it.
    bound: AtomicBool,
    /// Set once, when the branch on which the file lies is removed.
    pinned: OnceLock<Pinned>,
    direct_writes: DirectWrites,
    seen: RwLock<Seen>,
}

/// The right to write to a file, which does not move meanwhile.
struct WriteGuard<'a> {
    _direct: Option<Direct<'a>>,
    _writing: Option<Writing<'a>>,
}

/// The generation of no set.
const NEVER_FIXED: u64 = 0;
/// How long a change of the set waits for an operation that opens the lower file, which may hang.
const FOLLOWING: Duration = Duration::from_millis(20);

impl std::fmt::Debug for UnionFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UnionFile({:?}, {:?})", self.vnode, self.flags)
    }
}

impl UnionFile {
    /// Returns an open file for `file`, which is the vnode's lower file on `branch`, opened when
    /// the vnode had moved `moves` times.
    pub(crate) fn new(
        op: &Op<'_>,
        vnode: &Arc<UnionVnode>,
        flags: OpenFlags,
        (branch, moves): (BranchId, u16),
        file: Arc<dyn OpenFile>,
    ) -> Result<Arc<Self>> {
        // A rename or link may have to move a file that lies on a read-write branch other than the
        // leftmost. The host file of such a file is not handed out, so that it can always move.
        let shared = !flags.writes() && vnode.core.shares_lower(op, branch);
        let stays = op.set.files_stay(branch) && vnode.moves() == moves;
        let (generation, home) = (op.set.generation, op.set.branch(branch)?.clone());
        let may_hold = stays && flags.writes() && !vnode.core.options.no_passthrough;
        let holds_host_file = may_hold && file.backing().is_some();
        if stays && !op.set.read_only && !vnode.core.options.no_passthrough && file.backing().is_some() {
            home.handed_out.store(true, Ordering::Release);
        }
        if holds_host_file {
            vnode.core.write_gate.hold_host_file(vnode.id);
        }
        let opened = Arc::new(Self {
            vnode: vnode.clone(),
            flags,
            first: file.clone(),
            fixed: if stays { generation } else { NEVER_FIXED },
            holds_host_file,
            shared: shared.then_some(moves),
            bound: AtomicBool::new(false),
            pinned: OnceLock::new(),
            direct_writes: DirectWrites::default(),
            seen: RwLock::new(Seen { generation, moves, branch, _home: Some(home), file }),
        });
        let core = &vnode.core;
        core.open_files.add(&opened);
        if core.open_files.is_barred(branch) || vnode.metacopy_is_barred() {
            // A branch is being removed. Wait for the end of the change; if it succeeds, the caller
            // notices that and opens the file in the new set.
            drop(core.gate.enter(op)?);
        }
        Ok(opened)
    }

    /// Returns the file's vnode.
    pub(crate) fn vnode(&self) -> &Arc<UnionVnode> {
        &self.vnode
    }

    /// Whether the file was opened for writing.
    pub(crate) fn writes(&self) -> bool {
        self.flags.writes()
    }

    /// Whether the host file may have been handed out for writing.
    pub(crate) fn holds_host_file(&self) -> bool {
        self.holds_host_file
    }

    /// Whether the kernel may have, or be about to get, the host file.
    pub(crate) fn may_be_handed_out(&self) -> bool {
        let was_fixed = self.fixed != NEVER_FIXED && !self.vnode.core.options.no_passthrough;
        self.is_bound() || (was_fixed && self.first.backing().is_some())
    }

    /// Whether the kernel has the host file, so that the file can't follow its vnode.
    pub(crate) fn is_bound(&self) -> bool {
        self.bound.load(Ordering::Acquire)
    }

    /// Whether a write that no move of the file waits for is under way.
    pub(crate) fn is_written_directly(&self) -> bool {
        self.direct_writes.any()
    }

    /// Returns the branch of the file: its vnode's, although it may not have followed yet, unless
    /// it stays where it is.
    pub(crate) fn branch(&self) -> BranchId {
        match self.pinned.get() {
            _ if self.is_bound() => self.seen.read().branch,
            Some(pinned) => pinned.lower.branch,
            None => self.vnode.branch(),
        }
    }

    /// Lets the file stay where its vnode is if that is on one of the branches `removed` of the set
    /// `old`. Called while that is replaced: takes no lock that is held during I/O. A file that has
    /// not followed its vnode yet does so later.
    pub(crate) fn pin(&self, old: &BranchSet, removed: &[BranchId]) {
        let (lower, moves) = self.vnode.leaf_and_moves();
        if removed.contains(&lower.branch)
            && let Ok(home) = old.branch(lower.branch)
        {
            let _unchanged = self.pinned.set(Pinned { lower, moves, home: home.clone() });
        }
    }

    /// Lets the file continue on the branch `to`: the lower file itself was carried there from the
    /// branch `from`, with everything that the kernel knows of it.
    pub(crate) fn was_carried(&self, from: BranchId, to: BranchId, state: &Arc<BranchState>) {
        let Some(mut seen) = self.seen.try_write_for(FOLLOWING) else { return };
        if seen.branch == from {
            (seen.branch, seen._home) = (to, Some(state.clone()));
        }
    }

    /// Whether the file is where it was opened and never moves.
    fn is_fixed(&self) -> bool {
        self.fixed == self.vnode.core.branches.generation()
    }

    /// Returns the lower open file on the branch where the file is now.
    pub(crate) fn lower(&self, cx: &Cx<'_>) -> Result<Arc<dyn OpenFile>> {
        if self.is_fixed() || self.is_bound() {
            return Ok(self.first.clone());
        }
        self.present(cx).map(|(file, _)| file)
    }

    /// Returns the lower open file and its branch.
    fn present(&self, cx: &Cx<'_>) -> Result<(Arc<dyn OpenFile>, BranchId)> {
        let core = &self.vnode.core;
        {
            let seen = self.seen.read();
            if self.is_bound() {
                return Ok((self.first.clone(), seen.branch));
            }
            let is_there = match self.pinned.get() {
                Some(pinned) => seen.moves == pinned.moves,
                None => seen.moves == self.vnode.moves() && seen.generation == core.branches.generation(),
            };
            if is_there {
                return Ok((seen.file.clone(), seen.branch));
            }
        }
        if self.pinned.get().is_some() {
            return self.follow(&Op::new(cx, &core.branches.get()));
        }
        self.vnode.run_read(cx, |op| self.follow(op))
    }

    /// Lets the file follow its vnode, or go where it stays. Returns the lower open file and its
    /// branch. `ESTALE` if the set of `op` is no longer the current one: the vnode may be where
    /// only a later set has a branch.
    fn follow(&self, op: &Op<'_>) -> Result<(Arc<dyn OpenFile>, BranchId)> {
        let mut seen = self.seen.write();
        let (lower, moves, home) = match self.pinned.get() {
            Some(Pinned { lower, moves, home }) => (lower.clone(), *moves, Some(home.clone())),
            None => {
                let (lower, moves) = self.vnode.leaf_and_moves();
                op.check_set(&self.vnode.core.branches)?;
                // A file that was copied while its branch was removed is there until its vnode
                // refers to the copy.
                let home = op.set.branch(lower.branch).ok().cloned();
                (lower, moves, home)
            }
        };
        if seen.moves != moves {
            let file = lower.vnode.open(&self.vnode.core.server(op), self.flags.without_trunc())?;
            *seen = Seen { generation: op.set.generation, moves, branch: lower.branch, _home: home, file };
        }
        seen.generation = op.set.generation;
        Ok((seen.file.clone(), seen.branch))
    }

    /// Returns the lower open file for a write. Opening a file for writing copies it up, so it lies
    /// on a read-write branch; if that has become read-only since, the file is copied up now.
    fn for_write(&self, cx: &Cx<'_>) -> Result<(WriteGuard<'_>, Arc<dyn OpenFile>)> {
        if !self.flags.writes() {
            return Err(Errno::BADF);
        }
        let gate = &self.vnode.core.write_gate;
        if let Some(direct) = self.direct_writes.begin(gate, || self.is_fixed()) {
            return Ok((WriteGuard { _direct: Some(direct), _writing: None }, self.first.clone()));
        }
        let mut retries = Retries::new();
        loop {
            let writing = gate.write(cx, self.vnode.id)?;
            // Revalidates the vnode.
            let (file, branch) = self.present(cx)?;
            let set = self.vnode.core.branches.get();
            if set.member(branch).is_none() || set.writable(branch) || self.vnode.stays() {
                return Ok((WriteGuard { _direct: None, _writing: Some(writing) }, file));
            }
            drop((writing, file));
            self.vnode.run_change(cx, |op| self.vnode.for_change(op, None).map(drop))?;
            retries.count()?;
        }
    }

    /// Returns the branch on which the file stays, if that was removed from the set.
    pub(crate) fn removed_branch(&self, op: &Op<'_>) -> Option<BranchId> {
        let stays = self.is_bound() || self.pinned.get().is_some();
        stays.then(|| self.branch()).filter(|&branch| op.set.member(branch).is_none())
    }

    /// Returns the lower file of a copy's source, if the source is a file of a union too.
    fn lower_of_source(cx: &Cx<'_>, source: &dyn OpenFile) -> Result<Option<Arc<dyn OpenFile>>> {
        source.as_any().downcast_ref::<Self>().map(|file| file.lower(cx)).transpose()
    }
}

impl Drop for UnionFile {
    fn drop(&mut self) {
        self.vnode.core.open_files.remove(self);
        if self.holds_host_file {
            self.vnode.core.write_gate.release_host_file(self.vnode.id);
        }
        let set = self.vnode.core.branches.get();
        let is_open = || self.vnode.core.open_vnodes().contains(&Arc::as_ptr(&self.vnode));
        if set.member(self.vnode.branch()).is_none() && !is_open() {
            self.vnode.release_removed(&set);
        }
    }
}

impl UnionVnode {
    /// Whether the file has a metacopy on a branch on which no file may be opened at present.
    fn metacopy_is_barred(&self) -> bool {
        as_metacopy(&self.leaf().vnode).is_some_and(|meta| self.core.open_files.is_barred(meta.home))
    }

    /// Begins a change of the lower object on `branch`. Excludes a move of the object; returns
    /// `None` if it can't move.
    pub(crate) fn guard_branch(&self, op: &Op<'_>, branch: BranchId) -> Result<Option<Writing<'_>>> {
        if op.set.files_stay(branch) { Ok(None) } else { self.core.write_gate.write(op, self.id).map(Some) }
    }
}

impl OpenFile for UnionFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn backing(&self) -> Option<vnode::Backing<'_>> {
        // The holder is notified when the file moves: see `Upcalls::data_moved`.
        let is_fixed = self.is_fixed() && (self.holds_host_file || !self.flags.writes());
        let handed_out = is_fixed || self.shared == Some(self.vnode.moves());
        if handed_out { self.first.backing() } else { None }
    }

    fn closes_quickly(&self) -> bool {
        self.backing().is_some()
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
        // The attributes may be in a metacopy.
        let leaf = self.vnode.leaf();
        match as_metacopy(&leaf.vnode).filter(|_| !data_only).map(|meta| meta.fsync(cx, data_only)) {
            // The metacopy was removed: nothing to sync.
            None | Some(Ok(()) | Err(Errno::STALE)) => Ok(()),
            Some(failed) => failed,
        }
    }

    fn fallocate(&self, cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()> {
        let (_writing, file) = self.for_write(cx)?;
        file.fallocate(cx, mode, offset, len)
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, whence: Whence) -> Result<u64> {
        self.lower(cx)?.seek(cx, offset, whence)
    }

    fn copy_from(&self, cx: &Cx<'_>, offset: u64, source: &dyn OpenFile, source_offset: u64, len: u64) -> Result<u64> {
        let (_writing, file) = self.for_write(cx)?;
        match Self::lower_of_source(cx, source)? {
            Some(lower) => file.copy_from(cx, offset, &*lower, source_offset, len),
            None => file.copy_from(cx, offset, source, source_offset, len),
        }
    }

    fn reflink_from(&self, cx: &Cx<'_>, source: &dyn OpenFile) -> Result<()> {
        let (_writing, file) = self.for_write(cx)?;
        match Self::lower_of_source(cx, source)? {
            Some(lower) => file.reflink_from(cx, &*lower),
            None => file.reflink_from(cx, source),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Branch, BranchChange, Mode, Options, Unionfs};
    use memfs::MemFs;
    use stack::{ChangePolicy, InUse};
    use std::path::PathBuf;
    use vnode::{Layer, Name};

    const CX: Cx<'static> = Cx::internal(0, 0);

    fn branch(path: &str) -> Branch {
        Branch { layer: MemFs::new(), path: path.into(), mode: Mode::ReadWrite }
    }

    fn replace(union: &Unionfs, old: &str, new: &str, in_use: InUse) {
        let changes =
            vec![BranchChange::Insert { at: 0, branch: branch(new) }, BranchChange::Remove(PathBuf::from(old))];
        let policy = ChangePolicy { patience: Duration::from_secs(10), in_use, expected_generation: None };
        union.change_branches(changes, &policy).unwrap();
    }

    fn content(file: &dyn OpenFile) -> Vec<u8> {
        let mut out = vec![0; 64];
        let len = file.read(&CX, &mut out, 0).unwrap();
        out.truncate(len);
        out
    }

    /// A union of one branch, `/0`, and a file that is open twice.
    struct Opened {
        union: Arc<Unionfs>,
        file: Arc<dyn Vnode>,
        open: [Arc<dyn OpenFile>; 2],
    }

    impl Opened {
        fn new() -> Self {
            let union = Unionfs::new(vec![branch("/0")], Options::default()).unwrap();
            let name = Name::new(b"f").unwrap();
            let (entry, first) = union.root().create(&CX, name, 0o644, OpenFlags::RDWR).unwrap();
            let second = entry.vnode.open(&CX, OpenFlags::RDWR).unwrap();
            Self { union, file: entry.vnode, open: [first, second] }
        }

        /// Checks that both open files, and one opened now, read what was written through either.
        fn check(&self) {
            for (at, writer) in self.open.iter().enumerate() {
                let written = format!("written through {at}").into_bytes();
                writer.write(&CX, &written, 0).unwrap();
                let new = self.file.open(&CX, OpenFlags::RDONLY).unwrap();
                for reader in self.open.iter().chain([&new]) {
                    assert_eq!(content(&**reader), written);
                }
            }
        }
    }

    /// An operation that began before the set of branches was replaced looks where the file is when
    /// its vnode lies on a branch of the new set already. The file must still follow, or it would
    /// read and write the copy on the removed branch.
    #[test]
    fn an_operation_of_an_older_set_does_not_leave_a_file_behind() {
        let opened = Opened::new();
        let file: &UnionFile = opened.open[1].as_any().downcast_ref().unwrap();
        let core = file.vnode.core.clone();
        replace(&opened.union, "/0", "/1", InUse::CopyUp);
        let old = core.branches.get();
        replace(&opened.union, "/1", "/2", InUse::CopyUp);
        assert_eq!(file.follow(&Op::new(&CX, &old)).map(drop), Err(Errno::STALE));
        opened.check();
    }

    /// An open file that has not followed its vnode to a branch yet does so when that is removed,
    /// and stays there.
    #[test]
    fn a_file_that_has_not_followed_is_not_left_two_branches_behind() {
        let opened = Opened::new();
        replace(&opened.union, "/0", "/1", InUse::CopyUp);
        opened.open[0].write(&CX, b"written before", 0).unwrap();
        replace(&opened.union, "/1", "/2", InUse::Keep);
        assert_eq!(content(&*opened.open[1]), b"written before");
        opened.open[1].write(&CX, b"written after ", 0).unwrap();
        assert_eq!(content(&*opened.open[0]), b"written after ");
    }
}
