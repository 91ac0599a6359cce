use super::ops::{Caller, Op, Path, SLOTS};
use crate::fixture::{ROOT, in_session, name, user};
use core::fmt;
use std::sync::Arc;
use testkit::Rng;
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
    /// Returns the attributes without the size.
    #[must_use]
    pub const fn without_size(self) -> Self {
        Self { size: 0, ..self }
    }

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

/// The attributes and the content of an open file; the content is empty if the file can't be read.
pub type OpenState = Result<(Summary, Vec<u8>)>;

/// A layer under test, with some open files.
#[derive(Debug)]
pub struct Side {
    root: Arc<dyn Vnode>,
    slots: [Slot; SLOTS],
    count_directories: bool,
    /// The session in which root makes all calls, if that matters.
    session: Option<u32>,
}

/// Returns the context of a caller in the session of `cx`: there, root makes all calls.
fn caller<'a>(cx: &Cx<'a>, caller: Caller) -> Cx<'a> {
    if caller == Caller::ROOT { *cx } else { user(caller.uid, caller.gid, caller.umask) }
}

impl Side {
    /// Creates a side without open files. `count_directories`: whether to compare link counts of
    /// directories.
    #[must_use]
    pub fn new(layer: &dyn Layer, count_directories: bool) -> Self {
        Self { root: layer.root(), slots: Default::default(), count_directories, session: None }
    }

    /// Makes all later calls in this session, for operations [by root](Op::as_root).
    pub fn enter(&mut self, session: u32) {
        self.session = Some(session);
    }

    /// Closes all files.
    pub fn close_all(&mut self) {
        self.slots = Default::default();
    }

    /// Returns the state of each open file.
    pub fn open_files(&self) -> [Option<OpenState>; SLOTS] {
        self.slots.each_ref().map(|slot| {
            let (vnode, file) = slot.as_ref()?;
            Some(self.with_cx(|cx| {
                let attr = vnode.getattr(cx)?;
                let mut bytes = vec![0; attr.size as usize];
                match file.read(cx, &mut bytes, 0) {
                    // It is open for writing only.
                    Err(Errno::BADF) => bytes.clear(),
                    len => bytes.truncate(len?),
                }
                Ok((Summary::of(attr, self.count_directories), bytes))
            }))
        })
    }

    /// Gives the file in a slot this content, through another open file.
    ///
    /// # Errors
    /// Those of the layer.
    pub fn put(&self, slot: usize, bytes: &[u8]) -> Result<()> {
        let Some((vnode, _)) = &self.slots[slot] else { return Ok(()) };
        self.with_cx(|cx| {
            let file = vnode.open(cx, OpenFlags::RDWR)?;
            let size = SetAttr { size: Some(bytes.len() as u64), ..SetAttr::default() };
            vnode.setattr(cx, &size, Some(&*file))?;
            file.write(cx, bytes, 0).map(|_| ())
        })
    }

    /// Calls `act` with the context of root.
    fn with_cx<T>(&self, act: impl FnOnce(&Cx<'_>) -> T) -> T {
        match self.session {
            None => act(&ROOT),
            Some(session) => in_session(0, session, act),
        }
    }

    /// Applies an operation, and leaves the slots as they are.
    pub fn apply_unopened(&mut self, op: &Op) -> Answer {
        let slots = self.slots.clone();
        let answer = self.apply(op);
        self.slots = slots;
        answer
    }

    /// Applies an operation.
    pub fn apply(&mut self, op: &Op) -> Answer {
        let answer = match self.session {
            None => self.run(&ROOT, op),
            Some(session) => in_session(0, session, |cx| self.run(cx, op)),
        };
        match (op, answer) {
            (_, Ok(answer)) => answer,
            // POSIX allows either errno for a non-empty directory; XFS returns the other one.
            (Op::Rename { flags, .. }, Err(Errno::EXIST)) if !flags.no_replace => Answer::Failed(Errno::NOTEMPTY),
            (_, Err(errno)) => Answer::Failed(errno),
        }
    }

    fn attr(&self, attr: Attr) -> Answer {
        Answer::Attr(Summary::of(attr, self.count_directories))
    }

    fn run(&mut self, cx: &Cx<'_>, op: &Op) -> Result<Answer> {
        match op {
            Op::Create { .. } | Op::Mkdir { .. } | Op::Symlink { .. } | Op::Mknod { .. } | Op::Tmpfile { .. } => {
                self.make(cx, op)
            }
            Op::Link { .. } | Op::LinkSlot { .. } | Op::Unlink { .. } | Op::Rmdir { .. } | Op::Rename { .. } => {
                self.change_names(cx, op)
            }
            Op::Open { at, flags, slot } => {
                let vnode = self.at(cx, at)?;
                let file = vnode.open(cx, OpenFlags(*flags))?;
                self.slots[*slot] = Some((vnode, file));
                Ok(Answer::Done)
            }
            Op::Close { slot } => {
                self.slots[*slot] = None;
                Ok(Answer::Done)
            }
            Op::Write { .. }
            | Op::Read { .. }
            | Op::Scribble { .. }
            | Op::Punch { .. }
            | Op::Allocate { .. }
            | Op::Fsync { .. }
            | Op::Clone { .. }
            | Op::Copy { .. }
            | Op::TruncateSlot { .. }
            | Op::AttrSlot { .. } => self.on_slot(cx, op),
            Op::Look { at } => Ok(self.attr(self.at(cx, at)?.getattr(cx)?)),
            Op::List { at } => self.list(cx, at),
            Op::Setxattr { at, name, len, byte } => {
                self.at(cx, at)?.setxattr(cx, name.as_bytes(), &vec![*byte; *len], XattrFlags::default())?;
                Ok(Answer::Done)
            }
            Op::Removexattr { at, name } => {
                self.at(cx, at)?.removexattr(cx, name.as_bytes())?;
                Ok(Answer::Done)
            }
            Op::Truncate { .. } | Op::Chmod { .. } | Op::Chown { .. } | Op::Times { .. } | Op::KillSuid { .. } => {
                self.change_attributes(cx, op)
            }
        }
    }

    /// Resolves a path without following symbolic links.
    fn at(&self, cx: &Cx<'_>, path: &Path) -> Result<Arc<dyn Vnode>> {
        let mut at = self.root.clone();
        for part in &path.0 {
            at = at.lookup(cx, name(part))?.ok_or(Errno::NOENT)?.vnode;
        }
        Ok(at)
    }

    /// Returns the parent directory of a path and the last name.
    fn parent(&self, cx: &Cx<'_>, path: &Path) -> Result<(Arc<dyn Vnode>, vnode::Name<'static>)> {
        let (last, above) = path.0.split_last().ok_or(Errno::INVAL)?;
        Ok((self.at(cx, &Path(above.to_vec()))?, name(last)))
    }

    fn make(&mut self, cx: &Cx<'_>, op: &Op) -> Result<Answer> {
        let entry: Entry = match op {
            Op::Create { at, mode, as_, slot } => {
                let (dir, name) = self.parent(cx, at)?;
                let (entry, file) = dir.create(&caller(cx, *as_), name, *mode, OpenFlags::RDWR)?;
                if let Some(slot) = slot {
                    self.slots[*slot] = Some((entry.vnode.clone(), file));
                }
                entry
            }
            Op::Mkdir { at, mode, as_ } => {
                let (dir, name) = self.parent(cx, at)?;
                dir.mkdir(&caller(cx, *as_), name, *mode)?
            }
            Op::Symlink { at, target, as_ } => {
                let (dir, name) = self.parent(cx, at)?;
                dir.symlink(&caller(cx, *as_), name, target.as_bytes())?
            }
            Op::Mknod { at, mode, rdev, as_ } => {
                let (dir, name) = self.parent(cx, at)?;
                dir.mknod(&caller(cx, *as_), name, *mode, *rdev)?
            }
            Op::Tmpfile { dir, mode, as_, slot } => {
                let (entry, file) = self.at(cx, dir)?.tmpfile(&caller(cx, *as_), *mode, OpenFlags::RDWR)?;
                self.slots[*slot] = Some((entry.vnode.clone(), file));
                entry
            }
            _ => return Err(Errno::NOSYS),
        };
        Ok(self.attr(entry.attr))
    }

    fn change_names(&mut self, cx: &Cx<'_>, op: &Op) -> Result<Answer> {
        match op {
            Op::Link { from, to } => {
                let target = self.at(cx, from)?;
                let (dir, name) = self.parent(cx, to)?;
                return Ok(self.attr(dir.link(cx, name, &target)?.attr));
            }
            Op::LinkSlot { slot, to } => {
                let Some((target, _)) = &self.slots[*slot] else { return Ok(Answer::Idle) };
                let (dir, name) = self.parent(cx, to)?;
                return Ok(self.attr(dir.link(cx, name, target)?.attr));
            }
            Op::Unlink { at } => {
                let (dir, name) = self.parent(cx, at)?;
                dir.unlink(cx, name)?;
            }
            Op::Rmdir { at } => {
                let (dir, name) = self.parent(cx, at)?;
                dir.rmdir(cx, name)?;
            }
            Op::Rename { from, to, flags } => self.rename(cx, from, to, *flags)?,
            _ => return Err(Errno::NOSYS),
        }
        Ok(Answer::Done)
    }

    fn rename(&self, cx: &Cx<'_>, from: &Path, to: &Path, flags: RenameFlags) -> Result<()> {
        let (old_dir, old) = self.parent(cx, from)?;
        let (new_dir, new) = self.parent(cx, to)?;
        old_dir.rename(cx, old, &new_dir, new, flags)
    }

    fn on_slot(&mut self, cx: &Cx<'_>, op: &Op) -> Result<Answer> {
        let (Op::Write { slot, .. }
        | Op::Read { slot, .. }
        | Op::Scribble { slot, .. }
        | Op::Punch { slot, .. }
        | Op::Allocate { slot, .. }
        | Op::Fsync { slot }
        | Op::Clone { to: slot, .. }
        | Op::Copy { to: slot, .. }
        | Op::TruncateSlot { slot, .. }
        | Op::AttrSlot { slot }) = op
        else {
            return Err(Errno::NOSYS);
        };
        let Some((vnode, file)) = &self.slots[*slot] else { return Ok(Answer::Idle) };
        Ok(match op {
            Op::Write { offset, len, byte, .. } => Answer::Count(file.write(cx, &vec![*byte; *len], *offset)? as u64),
            Op::Scribble { offset, len, seed, .. } => {
                Answer::Count(file.write(cx, &Rng::new(*seed).bytes(*len), *offset)? as u64)
            }
            Op::Read { offset, len, .. } => {
                let mut out = vec![0; *len];
                let len = file.read(cx, &mut out, *offset)?;
                out.truncate(len);
                Answer::Bytes(out)
            }
            Op::Punch { offset, len, .. } => {
                file.fallocate(cx, 3, *offset, *len)?;
                Answer::Done
            }
            Op::Allocate { mode, offset, len, .. } => {
                file.fallocate(cx, *mode, *offset, *len)?;
                Answer::Done
            }
            Op::Fsync { .. } => {
                file.fsync(cx, false)?;
                Answer::Done
            }
            Op::Clone { from, .. } => {
                let Some((_, source)) = &self.slots[*from] else { return Ok(Answer::Idle) };
                file.reflink_from(cx, &**source)?;
                Answer::Done
            }
            Op::Copy { from, from_offset, to_offset, len, .. } => {
                let Some((_, source)) = &self.slots[*from] else { return Ok(Answer::Idle) };
                Answer::Count(file.copy_from(cx, *to_offset, &**source, *from_offset, *len)?)
            }
            Op::TruncateSlot { size, .. } => {
                let set = SetAttr { size: Some(*size), ..SetAttr::default() };
                self.attr(vnode.setattr(cx, &set, Some(&**file))?)
            }
            _ => self.attr(vnode.getattr(cx)?),
        })
    }

    fn change_attributes(&self, cx: &Cx<'_>, op: &Op) -> Result<Answer> {
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
        let attr = self.at(cx, path)?.setattr(cx, &set, None)?;
        Ok(if set.mtime.is_some() { Answer::Times(attr.atime, attr.mtime) } else { self.attr(attr) })
    }

    fn list(&self, cx: &Cx<'_>, path: &Path) -> Result<Answer> {
        let mut names = Vec::new();
        self.at(cx, path)?.readdir(cx, 0, &mut |entry| {
            names.push((entry.name.as_bytes().to_vec(), entry.kind));
            true
        })?;
        names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(Answer::Names(names))
    }
}
