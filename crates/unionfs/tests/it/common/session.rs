//! Runs operations on a layer as the kernel does: lookups from the root, then the operation.

use super::op::{Op, SLOTS};
use super::path::Path;
use super::tree::Caller;
use super::view::{Object, internal_cx, object};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use vnode::{Cx, Entry, Errno, Layer, Name, OpenFile, OpenFlags, SetAttr, SetTime, Vnode};

static NOT_CANCELLED: AtomicBool = AtomicBool::new(false);

/// Returns the context of a request by `caller`.
pub fn cx(caller: Caller) -> Cx<'static> {
    Cx::new(caller.uid, caller.gid, 0, caller.umask, true, &NOT_CANCELLED)
}

/// Returns the object at a path.
pub fn find(cx: &Cx<'_>, layer: &dyn Layer, path: &Path) -> Result<Arc<dyn Vnode>, Errno> {
    let mut vnode = layer.root();
    for name in path.components() {
        let entry = vnode.lookup(cx, Name::new(name)?)?;
        vnode = entry.ok_or(Errno::NOENT)?.vnode;
    }
    Ok(vnode)
}

/// Returns the parent directory and the last component of a path.
fn parent_and_name<'p>(cx: &Cx<'_>, layer: &dyn Layer, path: &'p Path) -> Result<(Arc<dyn Vnode>, &'p [u8]), Errno> {
    let (parent, _) = path.split().ok_or(Errno::BUSY)?;
    let name = path.components().last().ok_or(Errno::BUSY)?;
    Ok((find(cx, layer, &parent)?, name))
}

/// An open file.
pub struct Slot {
    /// The object.
    pub vnode: Arc<dyn Vnode>,
    /// The open file.
    pub file: Arc<dyn OpenFile>,
    /// Open flags.
    pub flags: OpenFlags,
}

/// A program that runs on a layer, with its open files.
pub struct Session {
    /// The layer.
    pub layer: Arc<dyn Layer>,
    /// Its open files.
    pub slots: [Option<Slot>; SLOTS],
}

impl Session {
    /// Creates a session without open files.
    pub fn new(layer: Arc<dyn Layer>) -> Self {
        Self { layer, slots: Default::default() }
    }

    /// Runs one operation.
    pub fn run(&mut self, caller: Caller, op: &Op) -> Result<(), Errno> {
        let cx = &cx(caller);
        let layer = Arc::clone(&self.layer);
        let layer = &*layer;
        match op {
            Op::Create { path, mode } => {
                let (dir, name) = parent_and_name(cx, layer, path)?;
                check_created(&dir.create(cx, Name::new(name)?, *mode, OpenFlags::RDWR)?.0)
            }
            Op::Mkdir { path, mode } => {
                let (dir, name) = parent_and_name(cx, layer, path)?;
                check_created(&dir.mkdir(cx, Name::new(name)?, *mode)?)
            }
            Op::Mknod { path, mode, rdev } => {
                let (dir, name) = parent_and_name(cx, layer, path)?;
                check_created(&dir.mknod(cx, Name::new(name)?, *mode, *rdev)?)
            }
            Op::Symlink { path, target } => {
                let (dir, name) = parent_and_name(cx, layer, path)?;
                check_created(&dir.symlink(cx, Name::new(name)?, target)?)
            }
            Op::Link { from, to } => {
                let target = find(cx, layer, from)?;
                let (dir, name) = parent_and_name(cx, layer, to)?;
                check_created(&dir.link(cx, Name::new(name)?, &target)?)
            }
            Op::Unlink { path } => {
                let (dir, name) = parent_and_name(cx, layer, path)?;
                dir.unlink(cx, Name::new(name)?)
            }
            Op::Rmdir { path } => {
                let (dir, name) = parent_and_name(cx, layer, path)?;
                dir.rmdir(cx, Name::new(name)?)
            }
            Op::Rename { from, to, flags } => {
                let (dir, name) = parent_and_name(cx, layer, from)?;
                let (new_dir, new_name) = parent_and_name(cx, layer, to)?;
                dir.rename(cx, Name::new(name)?, &new_dir, Name::new(new_name)?, *flags)
            }
            Op::Chmod { path, mode } => set(cx, layer, path, &SetAttr { mode: Some(*mode), ..SetAttr::default() }),
            Op::Chown { path, uid, gid } => {
                set(cx, layer, path, &SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() })
            }
            Op::Utimes { path, mtime } => {
                set(cx, layer, path, &SetAttr { mtime: Some(SetTime::At(*mtime)), ..SetAttr::default() })
            }
            Op::Truncate { path, size } => set(cx, layer, path, &SetAttr { size: Some(*size), ..SetAttr::default() }),
            Op::Write { path, offset, fill } => {
                let file = find(cx, layer, path)?.open(cx, OpenFlags::WRONLY)?;
                check_written(file.write(cx, &fill.bytes(), *offset)?, fill.len)
            }
            Op::Append { path, fill } => {
                let file = find(cx, layer, path)?.open(cx, OpenFlags(1 | 0o2000))?;
                check_written(file.write(cx, &fill.bytes(), 0)?, fill.len)
            }
            Op::OpenTrunc { path } => {
                find(cx, layer, path)?.open(cx, OpenFlags::WRONLY.with_trunc())?;
                Ok(())
            }
            Op::Fallocate { path, mode, offset, len } => {
                let file = find(cx, layer, path)?.open(cx, OpenFlags::RDWR)?;
                file.fallocate(cx, *mode, *offset, *len)
            }
            Op::CopyRange { from, to } => copy(cx, layer, from, to),
            Op::Setxattr { path, name, value, flags } => {
                find(cx, layer, path)?.setxattr(cx, name, &value.bytes(), *flags)
            }
            Op::Removexattr { path, name } => find(cx, layer, path)?.removexattr(cx, name),
            Op::Stat { path } => {
                let vnode = find(cx, layer, path)?;
                vnode.getattr(cx).map(|_| ())
            }
            Op::Open { .. }
            | Op::Tmpfile { .. }
            | Op::LinkSlot { .. }
            | Op::WriteSlot { .. }
            | Op::TruncateSlot { .. }
            | Op::ChmodSlot { .. }
            | Op::Close { .. } => self.run_open(cx, op),
        }
    }

    fn run_open(&mut self, cx: &Cx<'_>, op: &Op) -> Result<(), Errno> {
        let layer = Arc::clone(&self.layer);
        match op {
            Op::Open { slot, path, flags } => {
                let vnode = find(cx, &*layer, path)?;
                let flags = OpenFlags(*flags);
                let file = vnode.open(cx, flags)?;
                self.slots[*slot] = Some(Slot { vnode, file, flags: flags.without_trunc() });
            }
            Op::Tmpfile { slot, dir, mode } => {
                let dir = find(cx, &*layer, dir)?;
                let (entry, file) = dir.tmpfile(cx, *mode, OpenFlags::RDWR)?;
                self.slots[*slot] = Some(Slot { vnode: entry.vnode, file, flags: OpenFlags::RDWR });
            }
            Op::LinkSlot { slot, to } => {
                let Some(open) = &self.slots[*slot] else { return Ok(()) };
                let (dir, name) = parent_and_name(cx, &*layer, to)?;
                check_created(&dir.link(cx, Name::new(name)?, &open.vnode)?)?;
            }
            Op::WriteSlot { slot, offset, fill } => {
                if let Some(open) = self.slots[*slot].as_ref().filter(|o| o.flags.writes()) {
                    check_written(open.file.write(cx, &fill.bytes(), *offset)?, fill.len)?;
                }
            }
            Op::TruncateSlot { slot, size } => {
                if let Some(open) = self.slots[*slot].as_ref().filter(|o| o.flags.writes()) {
                    let set = SetAttr { size: Some(*size), ..SetAttr::default() };
                    open.vnode.setattr(cx, &set, Some(&*open.file))?;
                }
            }
            Op::ChmodSlot { slot, mode } => {
                if let Some(open) = &self.slots[*slot] {
                    let set = SetAttr { mode: Some(*mode), ..SetAttr::default() };
                    open.vnode.setattr(cx, &set, Some(&*open.file))?;
                }
            }
            Op::Close { slot } => self.slots[*slot] = None,
            _ => unreachable!("not an operation on an open file"),
        }
        Ok(())
    }

    /// Returns the object of an open file, with the data read through that file if it is readable.
    pub fn observe_slot(&self, slot: usize) -> Option<Result<Object, String>> {
        let open = self.slots[slot].as_ref()?;
        Some(observe(open))
    }
}

fn observe(open: &Slot) -> Result<Object, String> {
    let attr = open.vnode.getattr(&internal_cx()).map_err(|e| format!("getattr: {e}"))?;
    let mut seen = object(&Entry { vnode: Arc::clone(&open.vnode), attr })?;
    if open.flags.reads() {
        let mut bytes = vec![0xee; attr.size as usize + 1];
        let got = open.file.read(&internal_cx(), &mut bytes, 0).map_err(|e| format!("read: {e}"))?;
        bytes.truncate(got);
        seen.bytes = Arc::new(bytes);
    }
    Ok(seen)
}

/// Checks that a creation returned the attributes of the new object.
fn check_created(entry: &Entry) -> Result<(), Errno> {
    assert_eq!(entry.attr.ino, entry.vnode.id(), "a creation returns another object's attributes");
    assert_eq!(entry.attr.kind(), entry.vnode.kind(), "a creation returns another object's kind");
    Ok(())
}

/// Checks for a complete write: the file systems under test never return short writes.
fn check_written(got: usize, len: usize) -> Result<(), Errno> {
    assert_eq!(got, len, "short write");
    Ok(())
}

fn set(cx: &Cx<'_>, layer: &dyn Layer, path: &Path, set: &SetAttr) -> Result<(), Errno> {
    let vnode = find(cx, layer, path)?;
    let attr = vnode.setattr(cx, set, None)?;
    assert_eq!(attr.ino, vnode.id(), "setattr returns another object's attributes");
    Ok(())
}

/// Copies a whole file with copy_file_range(2), or as the kernel does where that is unsupported.
fn copy(cx: &Cx<'_>, layer: &dyn Layer, from: &Path, to: &Path) -> Result<(), Errno> {
    let source = find(cx, layer, from)?;
    let target = find(cx, layer, to)?;
    if source.id() == target.id() && source.kind() == vnode::Kind::Regular {
        return Err(Errno::INVAL);
    }
    let source_file = source.open(cx, OpenFlags::RDONLY)?;
    let target_file = target.open(cx, OpenFlags::RDWR)?;
    let size = source.getattr(cx)?.size;
    match target_file.copy_from(cx, 0, &*source_file, 0, size) {
        Ok(copied) => check_written(copied as usize, size as usize),
        Err(Errno::OPNOTSUPP | Errno::XDEV) => {
            let mut bytes = vec![0; size as usize];
            let got = source_file.read(cx, &mut bytes, 0)?;
            check_written(target_file.write(cx, &bytes[..got], 0)?, got)
        }
        Err(e) => Err(e),
    }
}
