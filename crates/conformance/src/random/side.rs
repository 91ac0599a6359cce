use super::ops::{Caller, Op, Path, SLOTS};
use crate::fixture::{ROOT, name, user};
use core::fmt;
use std::sync::Arc;
use vnode::{
    Attr, Cx, Entry, Errno, Kind, Layer, OpenFile, OpenFlags, RenameFlags, Result, SetAttr, SetTime, Time, Vnode,
    XattrFlags,
};

/// The attributes that must not differ between two file systems.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    mode: u32,
    uid: u32,
    gid: u32,
    nlink: u32,
    size: u64,
    rdev: u64,
}

impl fmt::Debug for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, uid, gid, nlink, size, rdev } = self;
        write!(f, "{mode:o} {uid}:{gid} nlink={nlink} size={size} rdev={rdev:#x}")
    }
}

impl Summary {
    fn of(attr: Attr, count_directories: bool) -> Self {
        let is_dir = attr.kind() == Kind::Directory;
        // The size of a directory is specific to the file system.
        let size = if is_dir { 0 } else { attr.size };
        let nlink = if is_dir && !count_directories { 0 } else { attr.nlink };
        Self { mode: attr.mode, uid: attr.uid, gid: attr.gid, nlink, size, rdev: attr.rdev }
    }
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Answer {
    Done,
    Attr(Summary),
    Times(Time, Time),
    Bytes(Vec<u8>),
    Count(u64),
    Names(Vec<(Vec<u8>, Kind)>),
    /// The slot has no open file.
    Idle,
    Failed(Errno),
}

/// An open file and its vnode.
type Slot = Option<(Arc<dyn Vnode>, Arc<dyn OpenFile>)>;

/// A layer under test, with some open files.
#[derive(Debug)]
pub struct Side {
    root: Arc<dyn Vnode>,
    slots: [Slot; SLOTS],
    count_directories: bool,
}

fn caller(caller: Caller) -> Cx<'static> {
    user(caller.uid, caller.gid, caller.umask)
}

impl Side {
    /// Creates a side without open files. `count_directories`: whether to compare link counts of
    /// directories.
    #[must_use]
    pub fn new(layer: &dyn Layer, count_directories: bool) -> Self {
        Self { root: layer.root(), slots: Default::default(), count_directories }
    }

    /// Applies an operation.
    pub fn apply(&mut self, op: &Op) -> Answer {
        match (op, self.run(op)) {
            (_, Ok(answer)) => answer,
            // POSIX allows either errno for a non-empty directory; XFS returns the other one.
            (Op::Rename { flags, .. }, Err(Errno::EXIST)) if !flags.no_replace => Answer::Failed(Errno::NOTEMPTY),
            (_, Err(errno)) => Answer::Failed(errno),
        }
    }

    fn attr(&self, attr: Attr) -> Answer {
        Answer::Attr(Summary::of(attr, self.count_directories))
    }

    fn run(&mut self, op: &Op) -> Result<Answer> {
        match op {
            Op::Create { .. } | Op::Mkdir { .. } | Op::Symlink { .. } | Op::Mknod { .. } | Op::Tmpfile { .. } => {
                self.make(op)
            }
            Op::Link { .. } | Op::LinkSlot { .. } | Op::Unlink { .. } | Op::Rmdir { .. } | Op::Rename { .. } => {
                self.change_names(op)
            }
            Op::Open { at, flags, slot } => {
                let vnode = self.at(at)?;
                let file = vnode.open(&ROOT, OpenFlags(*flags))?;
                self.slots[*slot] = Some((vnode, file));
                Ok(Answer::Done)
            }
            Op::Close { slot } => {
                self.slots[*slot] = None;
                Ok(Answer::Done)
            }
            Op::Write { .. }
            | Op::Read { .. }
            | Op::Punch { .. }
            | Op::Copy { .. }
            | Op::TruncateSlot { .. }
            | Op::AttrSlot { .. } => self.on_slot(op),
            Op::Look { at } => Ok(self.attr(self.at(at)?.getattr(&ROOT)?)),
            Op::List { at } => self.list(at),
            Op::Setxattr { at, name, len, byte } => {
                self.at(at)?.setxattr(&ROOT, name.as_bytes(), &vec![*byte; *len], XattrFlags::default())?;
                Ok(Answer::Done)
            }
            Op::Removexattr { at, name } => {
                self.at(at)?.removexattr(&ROOT, name.as_bytes())?;
                Ok(Answer::Done)
            }
            Op::Truncate { .. } | Op::Chmod { .. } | Op::Chown { .. } | Op::Times { .. } | Op::KillSuid { .. } => {
                self.change_attributes(op)
            }
        }
    }

    /// Resolves a path without following symbolic links.
    fn at(&self, path: &Path) -> Result<Arc<dyn Vnode>> {
        let mut at = self.root.clone();
        for part in &path.0 {
            at = at.lookup(&ROOT, name(part))?.ok_or(Errno::NOENT)?.vnode;
        }
        Ok(at)
    }

    /// Returns the parent directory of a path and the last name.
    fn parent(&self, path: &Path) -> Result<(Arc<dyn Vnode>, vnode::Name<'static>)> {
        let (last, above) = path.0.split_last().ok_or(Errno::INVAL)?;
        Ok((self.at(&Path(above.to_vec()))?, name(last)))
    }

    fn make(&mut self, op: &Op) -> Result<Answer> {
        let entry: Entry = match op {
            Op::Create { at, mode, as_, slot } => {
                let (dir, name) = self.parent(at)?;
                let (entry, file) = dir.create(&caller(*as_), name, *mode, OpenFlags::RDWR)?;
                if let Some(slot) = slot {
                    self.slots[*slot] = Some((entry.vnode.clone(), file));
                }
                entry
            }
            Op::Mkdir { at, mode, as_ } => {
                let (dir, name) = self.parent(at)?;
                dir.mkdir(&caller(*as_), name, *mode)?
            }
            Op::Symlink { at, target, as_ } => {
                let (dir, name) = self.parent(at)?;
                dir.symlink(&caller(*as_), name, target.as_bytes())?
            }
            Op::Mknod { at, mode, rdev, as_ } => {
                let (dir, name) = self.parent(at)?;
                dir.mknod(&caller(*as_), name, *mode, *rdev)?
            }
            Op::Tmpfile { dir, mode, as_, slot } => {
                let (entry, file) = self.at(dir)?.tmpfile(&caller(*as_), *mode, OpenFlags::RDWR)?;
                self.slots[*slot] = Some((entry.vnode.clone(), file));
                entry
            }
            _ => return Err(Errno::NOSYS),
        };
        Ok(self.attr(entry.attr))
    }

    fn change_names(&mut self, op: &Op) -> Result<Answer> {
        match op {
            Op::Link { from, to } => {
                let target = self.at(from)?;
                let (dir, name) = self.parent(to)?;
                return Ok(self.attr(dir.link(&ROOT, name, &target)?.attr));
            }
            Op::LinkSlot { slot, to } => {
                let Some((target, _)) = &self.slots[*slot] else { return Ok(Answer::Idle) };
                let (dir, name) = self.parent(to)?;
                return Ok(self.attr(dir.link(&ROOT, name, target)?.attr));
            }
            Op::Unlink { at } => {
                let (dir, name) = self.parent(at)?;
                dir.unlink(&ROOT, name)?;
            }
            Op::Rmdir { at } => {
                let (dir, name) = self.parent(at)?;
                dir.rmdir(&ROOT, name)?;
            }
            Op::Rename { from, to, flags } => self.rename(from, to, *flags)?,
            _ => return Err(Errno::NOSYS),
        }
        Ok(Answer::Done)
    }

    fn rename(&self, from: &Path, to: &Path, flags: RenameFlags) -> Result<()> {
        let (old_dir, old) = self.parent(from)?;
        let (new_dir, new) = self.parent(to)?;
        old_dir.rename(&ROOT, old, &new_dir, new, flags)
    }

    fn on_slot(&mut self, op: &Op) -> Result<Answer> {
        let (Op::Write { slot, .. }
        | Op::Read { slot, .. }
        | Op::Punch { slot, .. }
        | Op::Copy { to: slot, .. }
        | Op::TruncateSlot { slot, .. }
        | Op::AttrSlot { slot }) = op
        else {
            return Err(Errno::NOSYS);
        };
        let Some((vnode, file)) = &self.slots[*slot] else { return Ok(Answer::Idle) };
        Ok(match op {
            Op::Write { offset, len, byte, .. } => {
                Answer::Count(file.write(&ROOT, &vec![*byte; *len], *offset)? as u64)
            }
            Op::Read { offset, len, .. } => {
                let mut out = vec![0; *len];
                let len = file.read(&ROOT, &mut out, *offset)?;
                out.truncate(len);
                Answer::Bytes(out)
            }
            Op::Punch { offset, len, .. } => {
                file.fallocate(&ROOT, 3, *offset, *len)?;
                Answer::Done
            }
            Op::Copy { from, from_offset, to_offset, len, .. } => {
                let Some((_, source)) = &self.slots[*from] else { return Ok(Answer::Idle) };
                Answer::Count(file.copy_from(&ROOT, *to_offset, &**source, *from_offset, *len)?)
            }
            Op::TruncateSlot { size, .. } => {
                let set = SetAttr { size: Some(*size), ..SetAttr::default() };
                self.attr(vnode.setattr(&ROOT, &set, Some(&**file))?)
            }
            _ => self.attr(vnode.getattr(&ROOT)?),
        })
    }

    fn change_attributes(&self, op: &Op) -> Result<Answer> {
        let mut set = SetAttr::default();
        let path = match op {
            Op::Truncate { at, size } => {
                set.size = Some(*size);
                at
            }
            Op::Chmod { at, mode } => {
                set.mode = Some(*mode);
                at
            }
            Op::Chown { at, uid, gid } => {
                (set.uid, set.gid) = (*uid, *gid);
                at
            }
            Op::Times { at, sec, nsec } => {
                let time = Time { sec: *sec, nsec: *nsec };
                (set.atime, set.mtime) = (Some(SetTime::At(time)), Some(SetTime::At(time)));
                at
            }
            Op::KillSuid { at } => {
                set.kill_suidgid = true;
                at
            }
            _ => return Err(Errno::NOSYS),
        };
        let attr = self.at(path)?.setattr(&ROOT, &set, None)?;
        Ok(if set.mtime.is_some() { Answer::Times(attr.atime, attr.mtime) } else { self.attr(attr) })
    }

    fn list(&self, path: &Path) -> Result<Answer> {
        let mut names = Vec::new();
        self.at(path)?.readdir(&ROOT, 0, &mut |entry| {
            names.push((entry.name.as_bytes().to_vec(), entry.kind));
            true
        })?;
        names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(Answer::Names(names))
    }
}
