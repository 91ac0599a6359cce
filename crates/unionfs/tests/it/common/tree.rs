//! The model: a POSIX tree as plain maps, with the effect and the permitted errors of each
//! operation.
//!
//! It shares only the error numbers with the file systems under test.

use super::op::{Fill, Op, SLOTS};
use super::path::Path;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use vnode::{Errno, Kind, RenameFlags, Time};

/// The model's own object id.
pub type Id = u64;

/// The content of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A directory's entries.
    Dir(BTreeMap<Vec<u8>, Id>),
    /// A regular file's bytes, shared by copies of the model because those are many.
    Data(Arc<Vec<u8>>),
    /// A symbolic link's target.
    Target(Vec<u8>),
    /// No content: FIFO, socket, device.
    Special,
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// File type.
    pub kind: Kind,
    /// Permission bits.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u64,
    /// Modification time; `None` once the file system's clock has set it.
    pub mtime: Option<Time>,
    /// Content.
    pub body: Body,
    /// Whether it was created unnamed (`O_TMPFILE`) and not linked yet.
    pub linkable: bool,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The user on whose behalf an operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Mode bits that are cleared in new objects.
    pub umask: u32,
}

impl Caller {
    /// Root without a umask: new objects get exactly the requested mode.
    pub const ROOT: Self = Self { uid: 0, gid: 0, umask: 0 };
    /// An unprivileged user.
    pub const USER: Self = Self { uid: 1000, gid: 100, umask: 0o022 };
}

/// An open file of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenSlot {
    /// The object.
    pub id: Id,
    /// `O_*` bits.
    pub flags: u32,
}

/// A tree, and the files that a program holds open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// All objects, including open ones without a name.
    pub nodes: BTreeMap<Id, Node>,
    /// The open files.
    pub slots: [Option<OpenSlot>; SLOTS],
    /// Whether every change is refused.
    pub read_only: bool,
    /// Whether names that begin with `.wh.` are reserved, as in a union but not in a branch.
    pub reserve: bool,
    /// Id of the next new object.
    pub next: Id,
}

/// Id of the root.
pub const ROOT: Id = 1;

/// The errors that a refused operation may return: any one of these.
pub type Refusal = Vec<Errno>;

fn refuse<T>(errno: Errno) -> Result<T, Refusal> {
    Err(vec![errno])
}

/// Whether the name is reserved for the union.
pub fn is_reserved(name: &[u8]) -> bool {
    name.starts_with(b".wh.")
}

impl Tree {
    /// Creates a tree with an empty root of mode 0755, owned by root.
    pub fn new() -> Self {
        let root = Node {
            kind: Kind::Directory,
            perm: 0o755,
            uid: 0,
            gid: 0,
            rdev: 0,
            mtime: None,
            body: Body::Dir(BTreeMap::new()),
            linkable: false,
            xattrs: BTreeMap::new(),
        };
        Self {
            nodes: BTreeMap::from([(ROOT, root)]),
            slots: [None; SLOTS],
            read_only: false,
            reserve: true,
            next: ROOT + 1,
        }
    }

    /// Adds an object without a name and returns its id.
    pub fn add(&mut self, node: Node) -> Id {
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, node);
        id
    }

    /// Returns the object with that id.
    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[&id]
    }

    fn node_mut(&mut self, id: Id) -> &mut Node {
        self.nodes.get_mut(&id).expect("an id of this tree")
    }

    /// Returns the entries of a directory; `None` for other objects.
    pub fn entries(&self, id: Id) -> Option<&BTreeMap<Vec<u8>, Id>> {
        match &self.node(id).body {
            Body::Dir(entries) => Some(entries),
            _ => None,
        }
    }

    /// Returns the entries of a directory for changes.
    pub fn entries_mut(&mut self, id: Id) -> &mut BTreeMap<Vec<u8>, Id> {
        match &mut self.node_mut(id).body {
            Body::Dir(entries) => entries,
            _ => unreachable!("not a directory"),
        }
    }

    /// Returns the link count, as in `st_nlink`.
    pub fn nlink(&self, id: Id) -> u32 {
        if let Some(entries) = self.entries(id) {
            return 2 + entries.values().filter(|&&e| self.node(e).kind == Kind::Directory).count() as u32;
        }
        let names = |n: &Node| match &n.body {
            Body::Dir(entries) => entries.values().filter(|&&e| e == id).count() as u32,
            _ => 0,
        };
        self.nodes.values().map(names).sum()
    }

    /// Returns all paths with their objects, in order, the root first.
    pub fn paths(&self) -> BTreeMap<Path, Id> {
        let mut all = BTreeMap::from([(Path::root(), ROOT)]);
        let mut todo = vec![(Path::root(), ROOT)];
        while let Some((path, id)) = todo.pop() {
            for (name, &entry) in self.entries(id).into_iter().flatten() {
                let path = path.join(name);
                all.insert(path.clone(), entry);
                todo.push((path, entry));
            }
        }
        all
    }

    /// Returns the object at a path.
    pub fn find(&self, path: &Path) -> Result<Id, Refusal> {
        let mut id = ROOT;
        for name in path.components() {
            let Some(entries) = self.entries(id) else { return refuse(Errno::NOTDIR) };
            if self.reserve && is_reserved(name) {
                return refuse(Errno::NOENT);
            }
            let Some(&entry) = entries.get(name) else { return refuse(Errno::NOENT) };
            id = entry;
        }
        Ok(id)
    }

    /// Returns the parent directory and the last component of a path that need not exist.
    fn parent_and_name(&self, path: &Path) -> Result<(Id, Vec<u8>), Refusal> {
        let Some((parent, name)) = path.split() else { return refuse(Errno::BUSY) };
        let dir = self.find(&parent)?;
        if self.entries(dir).is_none() {
            return refuse(Errno::NOTDIR);
        }
        Ok((dir, name.to_vec()))
    }

    /// Returns the parent directory and the name for a new object; the name must be free.
    fn free_parent_and_name(&self, path: &Path) -> Result<(Id, Vec<u8>), Refusal> {
        let (dir, name) = self.parent_and_name(path)?;
        if self.reserve && is_reserved(&name) {
            return refuse(Errno::PERM);
        }
        if self.entries(dir).is_some_and(|e| e.contains_key(&name)) {
            return refuse(Errno::EXIST);
        }
        Ok((dir, name))
    }

    /// Removes objects that have neither a name nor an open file.
    fn drop_unreferenced(&mut self) {
        let mut alive: BTreeSet<Id> = self.paths().into_values().collect();
        alive.extend(self.slots.iter().flatten().map(|s| s.id));
        self.nodes.retain(|id, _| alive.contains(id));
    }

    /// Closes every file.
    pub fn close_all(&mut self) {
        self.slots = [None; SLOTS];
        self.drop_unreferenced();
    }

    fn touch(&mut self, id: Id) {
        self.node_mut(id).mtime = None;
    }

    fn create(&mut self, caller: Caller, path: &Path, mode: u32, body: Body, rdev: u64) -> Result<(), Refusal> {
        let (dir, name) = self.free_parent_and_name(path)?;
        let id = self.create_unnamed(caller, dir, mode, body, rdev);
        self.entries_mut(dir).insert(name, id);
        self.touch(dir);
        Ok(())
    }

    fn create_unnamed(&mut self, caller: Caller, dir: Id, mode: u32, body: Body, rdev: u64) -> Id {
        let kind = Kind::from_mode(mode).expect("a mode with a type");
        let parent = self.node(dir);
        // New objects inherit the group of a set-group-ID directory; directories also the bit.
        let inherits = parent.perm & 0o2000 != 0;
        let gid = if inherits { parent.gid } else { caller.gid };
        let extra = if inherits && kind == Kind::Directory { 0o2000 } else { 0 };
        let perm = if kind == Kind::Symlink { 0o777 } else { mode & 0o7777 & !caller.umask | extra };
        self.add(Node {
            kind,
            perm,
            uid: caller.uid,
            gid,
            rdev,
            mtime: None,
            body,
            linkable: false,
            xattrs: BTreeMap::new(),
        })
    }

    /// Returns the regular file at a path; the error is EISDIR for directories, else one of
    /// `other`.
    fn regular_file(&mut self, path: &Path, other: &[Errno]) -> Result<Id, Refusal> {
        let id = self.find(path)?;
        match &self.node(id).body {
            Body::Data(_) => Ok(id),
            Body::Dir(_) => refuse(Errno::ISDIR),
            _ => Err(other.to_vec()),
        }
    }

    fn data_mut(&mut self, id: Id) -> &mut Vec<u8> {
        match &mut self.node_mut(id).body {
            Body::Data(data) => Arc::make_mut(data),
            _ => unreachable!("not a regular file"),
        }
    }

    fn write(&mut self, id: Id, offset: Option<u64>, bytes: &[u8]) {
        let data = self.data_mut(id);
        let start = offset.map_or(data.len(), |o| o as usize);
        let end = start + bytes.len();
        if data.len() < end {
            data.resize(end, 0);
        }
        data[start..end].copy_from_slice(bytes);
        self.touch(id);
    }

    /// Applies the operation, or returns the errors it may fail with. A refused operation changes
    /// nothing.
    pub fn apply(&mut self, caller: Caller, op: &Op) -> Result<(), Refusal> {
        let mut next = self.clone();
        let answer = next.change(caller, op);
        if self.read_only && !op.is_read() {
            // The layer may report either reason.
            return match answer {
                Err(mut errnos) => {
                    errnos.push(Errno::ROFS);
                    Err(errnos)
                }
                // An operation on an empty slot, which has no effect.
                Ok(()) if next == *self && op.uses_slot() => Ok(()),
                Ok(()) => refuse(Errno::ROFS),
            };
        }
        if answer.is_ok() {
            next.drop_unreferenced();
            *self = next;
        }
        answer
    }

    fn change(&mut self, caller: Caller, op: &Op) -> Result<(), Refusal> {
        match op {
            Op::Create { path, mode } => {
                self.create(caller, path, mode | Kind::Regular.mode_bits(), Body::Data(Arc::default()), 0)
            }
            Op::Mkdir { path, mode } => {
                self.create(caller, path, mode | Kind::Directory.mode_bits(), Body::Dir(BTreeMap::new()), 0)
            }
            Op::Mknod { path, mode, rdev } => {
                let regular = Kind::from_mode(*mode) == Some(Kind::Regular);
                self.create(
                    caller,
                    path,
                    *mode,
                    if regular { Body::Data(Arc::default()) } else { Body::Special },
                    *rdev,
                )
            }
            Op::Symlink { path, target } => {
                self.create(caller, path, Kind::Symlink.mode_bits() | 0o777, Body::Target(target.clone()), 0)
            }
            Op::Link { from, to } => self.link(from, to),
            Op::Unlink { path } => self.unlink(path),
            Op::Rmdir { path } => self.rmdir(path),
            Op::Rename { from, to, flags } => self.rename(caller, from, to, *flags),
            Op::Chmod { path, mode } => {
                let id = self.find(path)?;
                // The program never chooses this, but an earlier step may have failed or crashed.
                if self.node(id).kind == Kind::Symlink {
                    return refuse(Errno::OPNOTSUPP);
                }
                self.node_mut(id).perm = *mode;
                Ok(())
            }
            Op::Chown { path, uid, gid } => {
                let id = self.find(path)?;
                let node = self.node_mut(id);
                (node.uid, node.gid) = (*uid, *gid);
                Ok(())
            }
            Op::Utimes { path, mtime } => {
                let id = self.find(path)?;
                self.node_mut(id).mtime = Some(*mtime);
                Ok(())
            }
            Op::Truncate { path, size } => {
                let id = self.regular_file(path, &[Errno::INVAL])?;
                self.data_mut(id).resize(*size as usize, 0);
                self.touch(id);
                Ok(())
            }
            Op::Write { path, offset, fill } => self.write_path(path, Some(*offset), *fill),
            Op::Append { path, fill } => self.write_path(path, None, *fill),
            Op::OpenTrunc { path } => {
                let id = self.regular_file(path, &NOT_A_FILE_ERRORS)?;
                self.data_mut(id).clear();
                self.touch(id);
                Ok(())
            }
            Op::Fallocate { path, mode, offset, len } => self.fallocate(path, *mode, *offset, *len),
            Op::CopyRange { from, to } => self.copy_range(from, to),
            Op::Setxattr { path, name, value, flags } => {
                let id = self.xattr_target(path, name)?;
                let xattrs = &mut self.node_mut(id).xattrs;
                match xattrs.contains_key(*name) {
                    true if flags.create => return refuse(Errno::EXIST),
                    false if flags.replace => return refuse(Errno::NODATA),
                    _ => xattrs.insert(name.to_vec(), value.bytes()),
                };
                Ok(())
            }
            Op::Removexattr { path, name } => {
                let id = self.xattr_target(path, name)?;
                self.node_mut(id).xattrs.remove(*name).map(|_| ()).ok_or_else(|| vec![Errno::NODATA])
            }
            Op::Stat { path } => self.find(path).map(|_| ()),
            Op::Open { .. }
            | Op::Tmpfile { .. }
            | Op::LinkSlot { .. }
            | Op::WriteSlot { .. }
            | Op::TruncateSlot { .. }
            | Op::ChmodSlot { .. }
            | Op::Close { .. } => self.change_open(caller, op),
        }
    }

    /// Applies operations on open files. Model and session both skip an operation if its slot is
    /// empty or its file is not open for writing.
    fn change_open(&mut self, caller: Caller, op: &Op) -> Result<(), Refusal> {
        match op {
            Op::Open { slot, path, flags } => {
                let id = self.regular_file(path, &NOT_A_FILE_ERRORS)?;
                if flags & 0o1000 != 0 {
                    self.data_mut(id).clear();
                    self.touch(id);
                }
                self.slots[*slot] = Some(OpenSlot { id, flags: flags & !0o1000 });
            }
            Op::Tmpfile { slot, dir, mode } => {
                let dir = self.find(dir)?;
                if self.entries(dir).is_none() {
                    return refuse(Errno::NOTDIR);
                }
                let id =
                    self.create_unnamed(caller, dir, mode | Kind::Regular.mode_bits(), Body::Data(Arc::default()), 0);
                self.node_mut(id).linkable = true;
                self.slots[*slot] = Some(OpenSlot { id, flags: 2 });
            }
            Op::LinkSlot { slot, to } => {
                let Some(open) = self.slots[*slot] else { return Ok(()) };
                // A file whose last name was removed can't be linked again.
                let gone = self.nlink(open.id) == 0 && !self.node(open.id).linkable;
                let (dir, name) = match self.free_parent_and_name(to) {
                    Ok(_) if gone => return refuse(Errno::NOENT),
                    Err(mut errnos) if gone => {
                        errnos.push(Errno::NOENT);
                        return Err(errnos);
                    }
                    place => place?,
                };
                self.entries_mut(dir).insert(name, open.id);
                self.node_mut(open.id).linkable = false;
                self.touch(dir);
            }
            Op::WriteSlot { slot, offset, fill } => {
                if let Some(open) = self.slots[*slot].filter(|o| o.flags & 3 != 0) {
                    let offset = (open.flags & 0o2000 == 0).then_some(*offset);
                    self.write(open.id, offset, &fill.bytes());
                }
            }
            Op::TruncateSlot { slot, size } => {
                if let Some(open) = self.slots[*slot].filter(|o| o.flags & 3 != 0) {
                    self.data_mut(open.id).resize(*size as usize, 0);
                    self.touch(open.id);
                }
            }
            Op::ChmodSlot { slot, mode } => {
                if let Some(open) = self.slots[*slot] {
                    self.node_mut(open.id).perm = *mode;
                }
            }
            Op::Close { slot } => self.slots[*slot] = None,
            _ => unreachable!("not an operation on an open file"),
        }
        Ok(())
    }

    /// Returns the object at a path if it can have that extended attribute: `user.*` attributes are
    /// limited to regular files and directories.
    fn xattr_target(&self, path: &Path, name: &[u8]) -> Result<Id, Refusal> {
        let id = self.find(path)?;
        let takes_users = matches!(self.node(id).kind, Kind::Regular | Kind::Directory);
        if name.starts_with(b"user.") && !takes_users { Err(vec![Errno::PERM, Errno::NODATA]) } else { Ok(id) }
    }

    fn write_path(&mut self, path: &Path, offset: Option<u64>, fill: Fill) -> Result<(), Refusal> {
        let id = self.regular_file(path, &NOT_A_FILE_ERRORS)?;
        self.write(id, offset, &fill.bytes());
        Ok(())
    }

    fn fallocate(&mut self, path: &Path, mode: u32, offset: u64, len: u64) -> Result<(), Refusal> {
        let id = self.regular_file(path, &NOT_A_FILE_ERRORS)?;
        let data = self.data_mut(id);
        let end = (offset + len) as usize;
        // FALLOC_FL_KEEP_SIZE is 1, FALLOC_FL_PUNCH_HOLE 2, FALLOC_FL_ZERO_RANGE 16.
        if mode & 1 == 0 && data.len() < end {
            data.resize(end, 0);
        }
        if mode & (2 | 16) != 0 {
            let (start, end) = ((offset as usize).min(data.len()), end.min(data.len()));
            data[start..end].fill(0);
        }
        self.touch(id);
        Ok(())
    }

    fn copy_range(&mut self, from: &Path, to: &Path) -> Result<(), Refusal> {
        let (source, target) =
            match (self.regular_file(from, &NOT_A_FILE_ERRORS), self.regular_file(to, &NOT_A_FILE_ERRORS)) {
                (Ok(source), Ok(target)) => (source, target),
                // The layer may report either error.
                (source, target) => return Err([source.err(), target.err()].into_iter().flatten().flatten().collect()),
            };
        if source == target {
            return refuse(Errno::INVAL);
        }
        let bytes = self.data_mut(source).clone();
        self.write(target, Some(0), &bytes);
        Ok(())
    }

    fn link(&mut self, from: &Path, to: &Path) -> Result<(), Refusal> {
        let id = self.find(from)?;
        let place = self.free_parent_and_name(to);
        if self.entries(id).is_some() {
            let mut errnos = vec![Errno::PERM];
            errnos.extend(place.err().unwrap_or_default());
            return Err(errnos);
        }
        let (dir, name) = place?;
        self.entries_mut(dir).insert(name, id);
        self.touch(dir);
        Ok(())
    }

    fn unlink(&mut self, path: &Path) -> Result<(), Refusal> {
        let id = self.find(path)?;
        let (dir, name) = self.parent_and_name(path)?;
        if self.entries(id).is_some() {
            return refuse(Errno::ISDIR);
        }
        self.entries_mut(dir).remove(&name);
        self.touch(dir);
        Ok(())
    }

    fn rmdir(&mut self, path: &Path) -> Result<(), Refusal> {
        let id = self.find(path)?;
        let (dir, name) = self.parent_and_name(path)?;
        match self.entries(id) {
            None => return refuse(Errno::NOTDIR),
            Some(entries) if !entries.is_empty() => return refuse(Errno::NOTEMPTY),
            Some(_) => {}
        }
        self.entries_mut(dir).remove(&name);
        self.touch(dir);
        Ok(())
    }

    fn rename(&mut self, caller: Caller, from: &Path, to: &Path, flags: RenameFlags) -> Result<(), Refusal> {
        let mut errnos = Vec::new();
        if flags.exchange && (flags.no_replace || flags.whiteout) {
            errnos.push(Errno::INVAL);
        }
        let source = self.find(from).map_err(|e| errnos.extend(e)).ok();
        let (old_place, new_place) = (self.parent_and_name(from), self.parent_and_name(to));
        errnos.extend(old_place.as_ref().err().into_iter().flatten());
        errnos.extend(new_place.as_ref().err().into_iter().flatten());
        if let Ok((_, name)) = &new_place
            && self.reserve
            && is_reserved(name)
        {
            errnos.push(Errno::PERM);
            if flags.exchange {
                errnos.push(Errno::NOENT);
            }
        }
        let target = self.find(to).ok();
        if let Some(source) = source {
            errnos.extend(self.rename_conflicts(from, to, source, target, flags));
        }
        if !errnos.is_empty() {
            return Err(errnos);
        }
        let ((old_dir, old_name), (new_dir, new_name), Some(source)) = (old_place?, new_place?, source) else {
            return refuse(Errno::NOENT);
        };
        if target == Some(source) {
            return Ok(());
        }
        self.entries_mut(old_dir).remove(&old_name);
        self.entries_mut(new_dir).insert(new_name, source);
        if let Some(target) = target.filter(|_| flags.exchange) {
            self.entries_mut(old_dir).insert(old_name, target);
        }
        self.touch(old_dir);
        self.touch(new_dir);
        if flags.whiteout {
            self.create(caller, from, Kind::CharDevice.mode_bits(), Body::Special, 0)?;
        }
        Ok(())
    }

    fn rename_conflicts(&self, from: &Path, to: &Path, source: Id, target: Option<Id>, flags: RenameFlags) -> Refusal {
        let mut errnos = Vec::new();
        let is_dir = |id: Id| self.entries(id).is_some();
        if from != to && from.contains(to) && is_dir(source) {
            errnos.push(Errno::INVAL);
        }
        let Some(target) = target else {
            if flags.exchange {
                errnos.push(Errno::NOENT);
            }
            return errnos;
        };
        if flags.no_replace {
            errnos.push(Errno::EXIST);
        }
        if from != to && to.contains(from) {
            errnos.push(if flags.exchange { Errno::INVAL } else { Errno::NOTEMPTY });
        }
        if flags.exchange || target == source {
            return errnos;
        }
        match (is_dir(source), is_dir(target)) {
            (true, false) => errnos.push(Errno::NOTDIR),
            (false, true) => errnos.push(Errno::ISDIR),
            (true, true) if self.entries(target).is_some_and(|e| !e.is_empty()) => errnos.push(Errno::NOTEMPTY),
            _ => {}
        }
        errnos
    }
}

/// Errors for opening an object that is neither file nor directory. The kernel never sends such a
/// request, so any of these is permitted.
const NOT_A_FILE_ERRORS: [Errno; 5] = [Errno::LOOP, Errno::INVAL, Errno::NXIO, Errno::OPNOTSUPP, Errno::ACCESS];
