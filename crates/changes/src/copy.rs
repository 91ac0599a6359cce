//! Copies of objects, built under a temporary name: data first, then owner, mode and extended
//! attributes, times last.

use crate::compare::xattrs;
use crate::error::{Step, StepFailed};
use crate::ops::{read_full, set_times, write_all};
use crate::temp::Temp;
use std::sync::Arc;
use vnode::{Attr, Cx, Entry, Errno, Kind, OpenFile, OpenFlags, Result, SetAttr, Vnode, Whence, XattrFlags};

/// Bytes copied in one step.
const CHUNK: u64 = 4 << 20;

/// Creates a copy of `from` in `dir`, under a temporary name. That of a directory is empty. The
/// data of a file are durable.
pub(crate) fn build(
    cx: &Cx<'_>,
    dir: &Arc<dyn Vnode>,
    from: &Entry,
) -> core::result::Result<(Temp, Entry), StepFailed> {
    let temp = Temp::new(cx, dir).step("choose a temporary name")?;
    let built = create(cx, dir, &temp, from);
    if built.is_err() {
        // The next run removes what remains.
        let _removed = crate::ops::remove_tree(cx, dir, temp.bytes());
    }
    Ok((temp, built?))
}

fn create(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, temp: &Temp, from: &Entry) -> core::result::Result<Entry, StepFailed> {
    let name = temp.name().step("choose a temporary name")?;
    let kind = from.attr.kind();
    let (entry, file) = match kind {
        Kind::Regular => {
            let (entry, file) = dir.create(cx, name, 0o600, OpenFlags::RDWR).step("create the file")?;
            copy_data(cx, from, &entry, &*file).step("copy the data")?;
            (entry, Some(file))
        }
        Kind::Directory => (dir.mkdir(cx, name, 0o700).step("create the directory")?, None),
        Kind::Symlink => {
            let target = from.vnode.readlink(cx).step("read the symbolic link")?;
            (dir.symlink(cx, name, &target).step("create the symbolic link")?, None)
        }
        Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
            (dir.mknod(cx, name, kind.mode_bits() | 0o600, from.attr.rdev).step("create the special file")?, None)
        }
    };
    copy_attributes(cx, from, &entry.vnode)?;
    if let Some(file) = file {
        file.fsync(cx, false).step("write the file to the disk")?;
    }
    Ok(entry)
}

/// Gives an object the owner, mode, extended attributes and times of `from`.
pub(crate) fn copy_attributes(cx: &Cx<'_>, from: &Entry, to: &Arc<dyn Vnode>) -> core::result::Result<(), StepFailed> {
    let (wanted, present) = (&from.attr, to.getattr(cx).step("read the attributes")?);
    let changed = |wanted: u32, present: u32| (wanted != present).then_some(wanted);
    let owner =
        SetAttr { uid: changed(wanted.uid, present.uid), gid: changed(wanted.gid, present.gid), ..SetAttr::default() };
    if !owner.is_empty() {
        to.setattr(cx, &owner, None).step("give the file its owner and group")?;
    }
    let symlink = wanted.kind() == Kind::Symlink;
    if !symlink && wanted.perm() != to.getattr(cx).step("read the attributes")?.perm() {
        let mode = SetAttr { mode: Some(wanted.perm()), ..SetAttr::default() };
        to.setattr(cx, &mode, None).step("set the mode")?;
    }
    copy_xattrs(cx, &from.vnode, to)?;
    set_times_of(cx, to, wanted)
}

fn set_times_of(cx: &Cx<'_>, to: &Arc<dyn Vnode>, wanted: &Attr) -> core::result::Result<(), StepFailed> {
    set_times(cx, to, wanted).step("set the times")
}

fn copy_xattrs(cx: &Cx<'_>, from: &Arc<dyn Vnode>, to: &Arc<dyn Vnode>) -> core::result::Result<(), StepFailed> {
    const STEP: &str = "copy the extended attributes";
    let (wanted, present) = (xattrs(cx, from).step(STEP)?, xattrs(cx, to).step(STEP)?);
    // Security modules label files by their own rules.
    let is_label = |name: &[u8]| matches!(name, b"security.selinux" | b"security.SMACK64");
    for name in present.keys().filter(|name| !wanted.contains_key(*name) && !is_label(name)) {
        to.removexattr(cx, name).step(STEP)?;
    }
    for (name, value) in wanted.iter().filter(|(name, value)| present.get(*name) != Some(value)) {
        match to.setxattr(cx, name, value, XattrFlags::default()) {
            Err(Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) if is_label(name) => {}
            other => other.step(STEP)?,
        }
    }
    Ok(())
}

/// Copies the data: by reflink if possible, else extent by extent.
fn copy_data(cx: &Cx<'_>, from: &Entry, to: &Entry, file: &dyn OpenFile) -> Result<()> {
    let size = from.attr.size;
    if size == 0 {
        return Ok(());
    }
    let source = from.vnode.open(cx, OpenFlags::RDONLY)?;
    if file.reflink_from(cx, &*source).is_ok() {
        return Ok(());
    }
    let mut at = 0;
    while at < size {
        let start = match source.seek(cx, at, Whence::Data) {
            Ok(start) => start.max(at),
            Err(Errno::NXIO) => break,
            // The file system can't report holes.
            Err(_) => at,
        };
        if start >= size {
            break;
        }
        let end = match source.seek(cx, start, Whence::Hole) {
            Ok(end) if end > start => end.min(size),
            _ => size,
        };
        copy_range(cx, &*source, file, start, end)?;
        at = end;
    }
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    to.vnode.setattr(cx, &set, Some(file)).map(drop)
}

fn copy_range(cx: &Cx<'_>, source: &dyn OpenFile, to: &dyn OpenFile, mut at: u64, end: u64) -> Result<()> {
    while at < end {
        let len = (end - at).min(CHUNK);
        let copied = match to.copy_from(cx, at, source, at, len) {
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                let mut buffer = vec![0; usize::try_from(len.min(CHUNK / 4)).unwrap_or(0)];
                let read = read_full(cx, source, &mut buffer, at)?;
                write_all(cx, to, buffer.get(..read).unwrap_or_default(), at)?;
                read as u64
            }
            other => other?,
        };
        if copied == 0 {
            // Shorter than its size was: something else writes to it.
            return Err(Errno::IO);
        }
        at += copied;
    }
    Ok(())
}
