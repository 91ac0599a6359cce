use crate::tree;
use crate::user::{Credentials, as_user};
use rustix::fs::{
    Access, AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A path relative to the root of the tree.
type Rel = Vec<u8>;

/// An operation. Every field is plain data, so that the operation can be repeated on the other
/// tree.
#[derive(Clone, Debug)]
pub(super) enum Op {
    /// open(2) with these flags, write at the offset (append if the flags say so), close.
    Write {
        path: Rel,
        flags: OFlags,
        mode: u32,
        offset: u64,
        data: Data,
    },
    /// Open for writing, ftruncate(2), close.
    Truncate {
        path: Rel,
        len: u64,
    },
    Mkdir {
        path: Rel,
        mode: u32,
    },
    Rmdir {
        path: Rel,
    },
    Unlink {
        path: Rel,
    },
    Symlink {
        target: Rel,
        path: Rel,
    },
    Link {
        from: Rel,
        to: Rel,
        follow: bool,
    },
    Rename {
        from: Rel,
        to: Rel,
        flags: RenameFlags,
    },
    Chmod {
        path: Rel,
        mode: u32,
    },
    Chown {
        path: Rel,
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    },
    Utimens {
        path: Rel,
        times: Timestamps,
    },
    SetXattr {
        path: Rel,
        name: &'static str,
        value: Vec<u8>,
        flags: XattrFlags,
    },
    RemoveXattr {
        path: Rel,
        name: &'static str,
    },
    GetXattr {
        path: Rel,
        name: &'static str,
    },
    Mknod {
        path: Rel,
        kind: FileType,
        mode: u32,
        dev: u64,
    },
    /// Open with `O_TMPFILE`, write, and link the file at `to` if given.
    Tmpfile {
        dir: Rel,
        mode: u32,
        data: Data,
        to: Option<Rel>,
    },
    /// Open, fallocate(2), close.
    Fallocate {
        path: Rel,
        mode: FallocateFlags,
        offset: u64,
        len: u64,
    },
    /// copy_file_range(2) from the start of one file to an offset of another.
    CopyRange {
        from: Rel,
        to: Rel,
        offset: u64,
        len: usize,
    },
    Stat {
        path: Rel,
        follow: bool,
    },
    Read {
        path: Rel,
    },
    ReadLink {
        path: Rel,
    },
    ReadDir {
        path: Rel,
    },
    Access {
        path: Rel,
        mode: Access,
    },
    /// Opens a file or directory and keeps it open.
    Open {
        slot: usize,
        path: Rel,
        flags: OFlags,
    },
    Close {
        slot: usize,
    },
    FdWrite {
        slot: usize,
        offset: u64,
        data: Data,
    },
    FdRead {
        slot: usize,
        offset: u64,
        len: usize,
    },
    FdTruncate {
        slot: usize,
        len: u64,
    },
    FdStat {
        slot: usize,
    },
    FdChmod {
        slot: usize,
        mode: u32,
    },
    FdChown {
        slot: usize,
        uid: u32,
        gid: u32,
    },
    FdTimes {
        slot: usize,
        times: Timestamps,
    },
    FdSetXattr {
        slot: usize,
        name: &'static str,
        value: Vec<u8>,
    },
    FdLink {
        slot: usize,
        to: Rel,
    },
    FdPunch {
        slot: usize,
        offset: u64,
        len: u64,
    },
    FdSync {
        slot: usize,
    },
    FdReadDir {
        slot: usize,
    },
    /// Creates a file in an open directory.
    FdCreate {
        slot: usize,
        name: Rel,
    },
}

/// Bytes derived from a seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Data {
    /// The seed.
    pub(super) seed: u64,
    /// Their number.
    pub(super) len: usize,
}

impl Data {
    pub(super) fn bytes(self) -> Vec<u8> {
        crate::Rng::new(self.seed).bytes(self.len)
    }
}

/// An operation and its caller.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// Credentials of the caller.
    pub(super) who: Credentials,
    /// File mode creation mask of the caller.
    pub(super) umask: u32,
    /// The operation.
    pub(super) op: Op,
}

impl Step {
    /// Runs `what` with the caller's credentials and umask.
    pub(super) fn act<T>(&self, what: impl FnOnce() -> T) -> T {
        let old = rustix::process::umask(Mode::from_raw_mode(self.umask));
        let result = as_user(self.who, what);
        rustix::process::umask(old);
        result
    }

    /// Returns the number of bytes that the operation is to write, or 0 if it returns no byte
    /// count.
    pub(super) fn count(&self) -> usize {
        match &self.op {
            Op::Write { data, .. } | Op::FdWrite { data, .. } | Op::Tmpfile { data, .. } => data.len,
            Op::CopyRange { len, .. } => *len,
            _ => 0,
        }
    }
}

impl Op {
    /// Whether the operation leaves the tree unchanged.
    pub(super) fn is_read_only(&self) -> bool {
        matches!(
            self,
            Self::Stat { .. }
                | Self::Read { .. }
                | Self::ReadLink { .. }
                | Self::ReadDir { .. }
                | Self::Access { .. }
                | Self::GetXattr { .. }
                | Self::Close { .. }
                | Self::FdRead { .. }
                | Self::FdStat { .. }
                | Self::FdSync { .. }
                | Self::FdReadDir { .. }
        )
    }

    /// Returns the paths that the operation names.
    pub(super) fn paths(&self) -> Vec<&[u8]> {
        match self {
            Self::Write { path, .. }
            | Self::Truncate { path, .. }
            | Self::Mkdir { path, .. }
            | Self::Rmdir { path }
            | Self::Unlink { path }
            | Self::Symlink { path, .. }
            | Self::Chmod { path, .. }
            | Self::Chown { path, .. }
            | Self::Utimens { path, .. }
            | Self::SetXattr { path, .. }
            | Self::RemoveXattr { path, .. }
            | Self::GetXattr { path, .. }
            | Self::Mknod { path, .. }
            | Self::Fallocate { path, .. }
            | Self::Stat { path, .. }
            | Self::Read { path }
            | Self::ReadLink { path }
            | Self::ReadDir { path }
            | Self::Access { path, .. }
            | Self::Open { path, .. } => vec![path],
            Self::Link { from, to, .. } | Self::Rename { from, to, .. } | Self::CopyRange { from, to, .. } => {
                vec![from, to]
            }
            Self::Tmpfile { dir, to, .. } => std::iter::once(dir).chain(to).map(Vec::as_slice).collect(),
            Self::FdLink { to, .. } => vec![to],
            _ => Vec::new(),
        }
    }

    /// Returns the slot of the open file that the operation uses.
    pub(super) fn slot(&self) -> Option<usize> {
        match self {
            Self::Close { slot }
            | Self::FdWrite { slot, .. }
            | Self::FdRead { slot, .. }
            | Self::FdTruncate { slot, .. }
            | Self::FdStat { slot }
            | Self::FdChmod { slot, .. }
            | Self::FdChown { slot, .. }
            | Self::FdTimes { slot, .. }
            | Self::FdSetXattr { slot, .. }
            | Self::FdLink { slot, .. }
            | Self::FdPunch { slot, .. }
            | Self::FdSync { slot }
            | Self::FdReadDir { slot }
            | Self::FdCreate { slot, .. } => Some(*slot),
            _ => None,
        }
    }
}

/// Result of an operation, as its caller sees it.
pub(super) type Outcome = Result<Value, Errno>;

/// Value that a successful operation returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// No value.
    Done,
    /// A number of bytes.
    Count(usize),
    /// Length and hash of bytes.
    Bytes(usize, u64),
    /// A short byte string.
    Text(Vec<u8>),
    /// Mode, owner, group, links, size (not for directories).
    Stat(u32, u32, u32, u64, i64),
    /// Names and types, sorted.
    Names(Vec<(Vec<u8>, FileType)>),
}

/// One of the two trees.
#[derive(Debug)]
pub(super) struct Side {
    /// Its root.
    pub(super) root: PathBuf,
    slots: Vec<Option<OwnedFd>>,
    /// Whether the tested file system encodes blocks.
    pub(super) encodes_blocks: bool,
}

impl Side {
    /// Returns the tree at `root`, with a number of slots for open files.
    #[must_use]
    pub(super) fn new(root: &Path, slots: usize) -> Self {
        Self { root: root.to_owned(), slots: (0..slots).map(|_| None).collect(), encodes_blocks: false }
    }

    /// Closes all open files.
    pub(super) fn close_all(&mut self) {
        self.slots.iter_mut().for_each(|slot| *slot = None);
    }

    pub(super) fn at(&self, path: &[u8]) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(OsStr::from_bytes(path)) }
    }

    pub(super) fn slot(&self, slot: usize) -> Result<&OwnedFd, Errno> {
        self.slots[slot].as_ref().ok_or(Errno::BADF)
    }

    /// Performs a step and returns its result.
    pub(super) fn perform(&mut self, step: &Step) -> Outcome {
        step.act(|| self.perform_op(&step.op))
    }

    fn perform_op(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Open { slot, path, flags } => {
                self.slots[*slot] = Some(open(&self.at(path), *flags, 0)?);
                Ok(Value::Done)
            }
            Op::Close { slot } => self.slots[*slot].take().map(|_| Value::Done).ok_or(Errno::BADF),
            Op::Write { .. }
            | Op::Truncate { .. }
            | Op::Tmpfile { .. }
            | Op::Fallocate { .. }
            | Op::CopyRange { .. } => self.content(op),
            Op::FdWrite { .. }
            | Op::FdRead { .. }
            | Op::FdTruncate { .. }
            | Op::FdStat { .. }
            | Op::FdChmod { .. }
            | Op::FdChown { .. }
            | Op::FdTimes { .. }
            | Op::FdSetXattr { .. }
            | Op::FdLink { .. }
            | Op::FdPunch { .. }
            | Op::FdSync { .. }
            | Op::FdReadDir { .. }
            | Op::FdCreate { .. } => self.descriptor(op),
            Op::Stat { .. }
            | Op::Read { .. }
            | Op::ReadLink { .. }
            | Op::ReadDir { .. }
            | Op::Access { .. }
            | Op::GetXattr { .. } => self.query(op),
            _ => self.change(op).map(|()| Value::Done),
        }
    }

    /// Performs a change of names or attributes.
    fn change(&self, op: &Op) -> Result<(), Errno> {
        let follow = |follow: bool| if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        let mode = |mode: &u32| Mode::from_raw_mode(*mode);
        match op {
            Op::Mkdir { path, mode: m } => rustix::fs::mkdir(self.at(path), mode(m)),
            Op::Rmdir { path } => rustix::fs::rmdir(self.at(path)),
            Op::Unlink { path } => rustix::fs::unlink(self.at(path)),
            Op::Symlink { target, path } => rustix::fs::symlink(target.as_slice(), self.at(path)),
            Op::Link { from, to, follow } => {
                let flags = if *follow { AtFlags::SYMLINK_FOLLOW } else { AtFlags::empty() };
                rustix::fs::linkat(CWD, self.at(from), CWD, self.at(to), flags)
            }
            Op::Rename { from, to, flags } => rustix::fs::renameat_with(CWD, self.at(from), CWD, self.at(to), *flags),
            Op::Chmod { path, mode: m } => rustix::fs::chmod(self.at(path), mode(m)),
            Op::Chown { path, uid, gid, follow: f } => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                rustix::fs::chownat(CWD, self.at(path), uid, gid, follow(*f))
            }
            Op::Utimens { path, times } => rustix::fs::utimensat(CWD, self.at(path), times, AtFlags::SYMLINK_NOFOLLOW),
            Op::SetXattr { path, name, value, flags } => rustix::fs::lsetxattr(self.at(path), *name, value, *flags),
            Op::RemoveXattr { path, name } => rustix::fs::lremovexattr(self.at(path), *name),
            Op::Mknod { path, kind, mode: m, dev } => rustix::fs::mknodat(CWD, self.at(path), *kind, mode(m), *dev),
            other => unreachable!("{other:?} changes neither names nor attributes"),
        }
    }

    /// Performs a change of file contents.
    fn content(&self, op: &Op) -> Outcome {
        match op {
            Op::Write { path, flags, mode, offset, data } => {
                let fd = open(&self.at(path), *flags, *mode)?;
                if flags.contains(OFlags::APPEND) {
                    return rustix::io::write(&fd, &data.bytes()).map(Value::Count);
                }
                rustix::io::pwrite(&fd, &data.bytes(), *offset).map(Value::Count)
            }
            Op::Truncate { path, len } => {
                let fd = open(&self.at(path), OFlags::WRONLY | OFlags::NONBLOCK, 0)?;
                rustix::fs::ftruncate(&fd, *len).map(|()| Value::Done)
            }
            Op::Tmpfile { dir, mode, data, to } => {
                let fd = open(&self.at(dir), OFlags::TMPFILE | OFlags::RDWR, *mode)?;
                let written = rustix::io::write(&fd, &data.bytes())?;
                if let Some(to) = to {
                    link_descriptor(&fd, &self.at(to))?;
                }
                Ok(Value::Count(written))
            }
            Op::Fallocate { path, mode, offset, len } => {
                let fd = open(&self.at(path), OFlags::WRONLY | OFlags::NONBLOCK, 0)?;
                rustix::fs::fallocate(&fd, *mode, *offset, *len).map(|()| Value::Done)
            }
            Op::CopyRange { from, to, offset, len } => {
                let from = open(&self.at(from), OFlags::RDONLY | OFlags::NONBLOCK, 0)?;
                let to = open(&self.at(to), OFlags::WRONLY | OFlags::NONBLOCK, 0)?;
                let mut offset = *offset;
                rustix::fs::copy_file_range(&from, Some(&mut 0), &to, Some(&mut offset), *len).map(Value::Count)
            }
            other => unreachable!("{other:?} changes no contents"),
        }
    }

    /// Performs an operation that changes nothing.
    fn query(&self, op: &Op) -> Outcome {
        match op {
            Op::Stat { path, follow } => {
                let path = self.at(path);
                let st = if *follow { rustix::fs::stat(path) } else { rustix::fs::lstat(path) };
                st.map(|st| stat(&st))
            }
            Op::Read { path } => {
                let fd = open(&self.at(path), OFlags::RDONLY | OFlags::NONBLOCK, 0)?;
                read(&fd, 0, 1 << 20)
            }
            Op::ReadLink { path } => {
                rustix::fs::readlink(self.at(path), Vec::new()).map(|t| Value::Text(t.into_bytes()))
            }
            Op::ReadDir { path } => names(&open(&self.at(path), OFlags::RDONLY | OFlags::DIRECTORY, 0)?),
            Op::Access { path, mode } => {
                rustix::fs::accessat(CWD, self.at(path), *mode, AtFlags::EACCESS).map(|()| Value::Done)
            }
            Op::GetXattr { path, name } => {
                let mut value = vec![0; 65536];
                let len = rustix::fs::lgetxattr(self.at(path), *name, &mut value)?;
                value.truncate(len);
                Ok(Value::Text(value))
            }
            other => unreachable!("{other:?} is no question"),
        }
    }

    /// Performs an operation on an open file.
    fn descriptor(&self, op: &Op) -> Outcome {
        let done = |result: Result<(), Errno>| result.map(|()| Value::Done);
        match op {
            Op::FdWrite { slot, offset, data } => {
                rustix::io::pwrite(self.slot(*slot)?, &data.bytes(), *offset).map(Value::Count)
            }
            Op::FdRead { slot, offset, len } => read(self.slot(*slot)?, *offset, *len),
            Op::FdTruncate { slot, len } => done(rustix::fs::ftruncate(self.slot(*slot)?, *len)),
            Op::FdStat { slot } => rustix::fs::fstat(self.slot(*slot)?).map(|st| stat(&st)),
            Op::FdChmod { slot, mode } => done(rustix::fs::fchmod(self.slot(*slot)?, Mode::from_raw_mode(*mode))),
            Op::FdChown { slot, uid, gid } => {
                done(rustix::fs::fchown(self.slot(*slot)?, Some(Uid::from_raw(*uid)), Some(Gid::from_raw(*gid))))
            }
            Op::FdTimes { slot, times } => done(rustix::fs::futimens(self.slot(*slot)?, times)),
            Op::FdSetXattr { slot, name, value } => {
                done(rustix::fs::fsetxattr(self.slot(*slot)?, *name, value, XattrFlags::empty()))
            }
            Op::FdLink { slot, to } => done(link_descriptor(self.slot(*slot)?, &self.at(to))),
            Op::FdPunch { slot, offset, len } => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                done(rustix::fs::fallocate(self.slot(*slot)?, mode, *offset, *len))
            }
            Op::FdSync { slot } => done(rustix::fs::fsync(self.slot(*slot)?)),
            Op::FdReadDir { slot } => names(self.slot(*slot)?),
            Op::FdCreate { slot, name } => {
                let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let mode = Mode::from_raw_mode(0o644);
                let path = OsStr::from_bytes(name);
                rustix::fs::openat(self.slot(*slot)?, path, flags, mode).map(|_| Value::Done)
            }
            other => unreachable!("{other:?} needs no open file"),
        }
    }
}

pub(super) fn open(path: &Path, flags: OFlags, mode: u32) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode))
}

fn read(fd: &OwnedFd, offset: u64, len: usize) -> Outcome {
    let mut bytes = vec![0; len];
    let mut have = 0;
    while have < len {
        match rustix::io::pread(fd, &mut bytes[have..], offset + have as u64)? {
            0 => break,
            n => have += n,
        }
    }
    Ok(Value::Bytes(have, tree::hash(&bytes[..have])))
}

fn stat(st: &rustix::fs::Stat) -> Value {
    let size = if FileType::from_raw_mode(st.st_mode).is_dir() { 0 } else { st.st_size };
    Value::Stat(st.st_mode, st.st_uid, st.st_gid, st.st_nlink, size)
}

fn names(fd: &OwnedFd) -> Outcome {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(fd)? {
        let entry = entry?;
        names.push((entry.file_name().to_bytes().to_vec(), entry.file_type()));
    }
    names.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(Value::Names(names))
}

fn link_descriptor(fd: &OwnedFd, to: &Path) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    let from = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::linkat(CWD, from, CWD, to, AtFlags::SYMLINK_FOLLOW)
}
