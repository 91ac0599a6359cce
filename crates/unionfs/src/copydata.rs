//! The content of a copy: data first, then owner, mode and extended attributes, times last.

use crate::branch::Lower;
use crate::metacopy::{as_metacopy, is_own};
use crate::node::Core;
use crate::op::Op;
use crate::options::{Copyup, sole_directory_mode, without_group};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vnode::{
    Attr, Cx, Errno, Kind, OpenFile, OpenFlags, Result, SetAttr, SetTime, Vnode, Whence, XattrFlags, read_value,
};

/// Bytes copied between two checks for the caller's signals.
const CHUNK: u64 = 4 << 20;
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

impl Core {
    /// Copies the first `size` bytes of the data: by reflink if the file system supports it, else
    /// extent by extent, so that holes remain holes.
    pub(crate) fn copy_data(
        &self,
        op: &Op<'_>,
        from: &Lower,
        attr: &Attr,
        to: &dyn OpenFile,
        copy: &dyn Vnode,
        size: u64,
    ) -> Result<()> {
        if size == 0 {
            return Ok(());
        }
        let server = self.server(op);
        op.require_blocking()?;
        let source = from.vnode.open(&server, OpenFlags::RDONLY)?;
        let shared = size == attr.size && to.reflink_from(&server, &*source).is_ok();
        if !shared {
            copy_extents(&server, &*source, to, size)?;
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            copy.setattr(&server, &set, Some(to))?;
        }
        // Otherwise the name may become durable before the data, and a power failure would leave
        // part of a file.
        to.fsync(&server, true)
    }

    /// Copies owner, mode, extended attributes and times, as `copyup=` says.
    pub(crate) fn copy_attributes(
        &self,
        op: &Op<'_>,
        from: &Arc<dyn Vnode>,
        attr: &Attr,
        to: &Arc<dyn Vnode>,
    ) -> Result<()> {
        // The attributes in a metacopy may have been changed through the union: keep them, whatever
        // `copyup=` says.
        let changed = as_metacopy(from).is_some_and(|meta| op.set.writable(meta.home));
        let copyup = if changed || op.moves { Copyup::Preserve } else { self.options.copyup };
        self.copy_attributes_as(op, copyup, from, attr, to)
    }

    /// As [`Self::copy_attributes`], with owner and mode by `copyup`.
    pub(crate) fn copy_attributes_as(
        &self,
        op: &Op<'_>,
        copyup: Copyup,
        from: &Arc<dyn Vnode>,
        attr: &Attr,
        to: &Arc<dyn Vnode>,
    ) -> Result<()> {
        let server = self.server(op);
        let (uid, gid, mut mode) = copy_owner(copyup, op, attr);
        let owner = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
        let sole = matches!(copyup, Copyup::Sole { .. });
        let given = to.setattr(&server, &owner, None);
        if sole && given == Err(Errno::PERM) {
            mode = without_group(mode);
        } else if let Err(errno) = given {
            if errno == Errno::PERM && !self.warned_of_owner.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    owner = uid,
                    group = gid,
                    "copy-up failed: this server may not change the owner of files; mount with copyup=currentuser"
                );
            }
            return Err(errno);
        }
        let symlink = from.kind() == Kind::Symlink;
        if !symlink {
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            to.setattr(&server, &set, None)?;
        }
        let own_mode = matches!(copyup, Copyup::Preserve | Copyup::Sole { .. });
        copy_xattrs(&server, from, to, own_mode && !symlink)?;
        let times = SetAttr {
            atime: Some(SetTime::At(attr.atime)),
            mtime: Some(SetTime::At(attr.mtime)),
            ..SetAttr::default()
        };
        to.setattr(&server, &times, None).map(drop)
    }
}

/// Returns owner, group and permission bits of a copy.
pub(crate) fn copy_owner(copyup: Copyup, op: &Op<'_>, attr: &Attr) -> (u32, u32, u32) {
    match copyup {
        Copyup::Preserve => (attr.uid, attr.gid, attr.perm()),
        Copyup::CurrentUser => {
            let umask = op.process_umask().unwrap_or(op.umask);
            (op.uid, op.gid, attr.perm() & 0o777 & !umask)
        }
        Copyup::Sole { uid } if attr.kind() == Kind::Directory => {
            (uid, attr.gid, sole_directory_mode(attr.perm(), uid == attr.uid))
        }
        Copyup::Sole { uid } if uid == attr.uid => (uid, attr.gid, attr.perm()),
        Copyup::Sole { uid } => (uid, attr.gid, attr.perm() & 0o1777),
        Copyup::Mounter { uid, gid, mode } if attr.kind() == Kind::Directory => {
            (uid, gid, mode & 0o7777 | (mode & 0o444) >> 2)
        }
        Copyup::Mounter { uid, gid, mode } => (uid, gid, mode & 0o7777),
    }
}

fn copy_extents(op: &Op<'_>, source: &dyn OpenFile, to: &dyn OpenFile, size: u64) -> Result<()> {
    let mut at = 0;
    while at < size {
        let start = match source.seek(op, at, Whence::Data) {
            Ok(start) => start.max(at),
            Err(Errno::NXIO) => return Ok(()),
            // The file system can't report holes: treat all as data.
            Err(_) => at,
        };
        let end = match source.seek(op, start, Whence::Hole) {
            Ok(end) if end > start => end.min(size),
            _ => size,
        };
        if start >= size {
            return Ok(());
        }
        copy_range(op, source, to, start, end)?;
        at = end;
    }
    Ok(())
}

fn copy_range(op: &Op<'_>, source: &dyn OpenFile, to: &dyn OpenFile, mut at: u64, end: u64) -> Result<()> {
    while at < end {
        op.check()?;
        op.check_restart()?;
        let len = (end - at).min(CHUNK);
        let copied = match to.copy_from(op, at, source, at, len) {
            Ok(copied) => copied,
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                copy_through_buffer(op, source, to, at, len)?
            }
            Err(e) => return Err(e),
        };
        if copied == 0 {
            // The source is shorter than its size was: an out-of-band change.
            return Ok(());
        }
        at += copied;
    }
    Ok(())
}

/// Copies through a buffer, where the file systems don't support `copy_file_range`.
fn copy_through_buffer(cx: &Cx<'_>, source: &dyn OpenFile, to: &dyn OpenFile, at: u64, len: u64) -> Result<u64> {
    let mut buffer = vec![0; usize::try_from(len.min(CHUNK / 4)).unwrap_or(0)];
    let got = source.read(cx, &mut buffer, at)?;
    crate::log::write_all(to, cx, buffer.get(..got).unwrap_or_default(), at)?;
    Ok(got as u64)
}

/// Whether this is another name of an ACL: XFS lists both. Copies leave it out: the ACL itself is
/// copied, and on another file system the attribute would mean nothing.
#[must_use]
pub fn is_acl_alias(name: &[u8]) -> bool {
    matches!(name, b"trusted.SGI_ACL_FILE" | b"trusted.SGI_ACL_DEFAULT")
}

/// Whether a copy is useless without this attribute: it would give access that the original denies,
/// or lose a capability that a program needs to run.
fn must_copy(name: &[u8]) -> bool {
    ACLS.contains(&name) || name == b"security.capability"
}

/// Whether two directories have the same owner, mode and ACLs: new entries inherit the same from
/// both, and the same users may create them.
pub(crate) fn gives_same_access(cx: &Cx<'_>, one: &Arc<dyn Vnode>, other: &Arc<dyn Vnode>) -> Result<bool> {
    let access = |vnode: &Arc<dyn Vnode>| vnode.getattr(cx).map(|attr| (attr.uid, attr.gid, attr.perm()));
    if access(one)? != access(other)? {
        return Ok(false);
    }
    for name in ACLS {
        let acl = |vnode| match get_xattr(cx, vnode, name) {
            Ok(acl) => Ok(Some(acl)),
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
            Err(errno) => Err(errno),
        };
        if acl(one)? != acl(other)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes the extended attributes that another object lacks.
pub(crate) fn remove_other_xattrs(cx: &Cx<'_>, model: &Arc<dyn Vnode>, from: &Arc<dyn Vnode>) -> Result<()> {
    let wanted = list_xattrs(cx, model)?;
    for name in list_xattrs(cx, from)?.split(|&b| b == 0).filter(|name| !name.is_empty()) {
        if !wanted.split(|&b| b == 0).any(|other| other == name) {
            match from.removexattr(cx, name) {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(())
}

/// Copies extended attributes; with `acls`, also the ACLs, which belong to the mode.
fn copy_xattrs(cx: &Cx<'_>, from: &Arc<dyn Vnode>, to: &Arc<dyn Vnode>, acls: bool) -> Result<()> {
    let wanted = list_xattrs(cx, from)?;
    // Remove ACLs that the copy inherited from the directory in which it was built.
    for name in ACLS {
        if (!acls || !wanted.split(|&b| b == 0).any(|n| n == name)) && to.getxattr(cx, name, &mut []).is_ok() {
            to.removexattr(cx, name)?;
        }
    }
    for name in wanted.split(|&b| b == 0).filter(|name| !name.is_empty()) {
        // The origin in a metacopy describes only that metacopy.
        if is_own(name) || (!acls && ACLS.contains(&name)) {
            continue;
        }
        let value = match get_xattr(cx, from, name) {
            Ok(value) => value,
            Err(Errno::NODATA | Errno::OPNOTSUPP) => continue,
            Err(e) => return Err(e),
        };
        match to.setxattr(cx, name, &value, XattrFlags::default()) {
            // Without `acls` the copy does not keep the original's set-user-ID bit, so it may lose
            // capabilities too.
            Err(errno @ (Errno::OPNOTSUPP | Errno::PERM)) if !acls || !must_copy(name) => {
                tracing::debug!(name = %name.escape_ascii(), %errno, "the branch can't store this extended attribute: the copy is made without it");
            }
            other => other?,
        }
    }
    Ok(())
}

/// Returns the names of the extended attributes that a copy gets, each followed by a NUL.
fn list_xattrs(cx: &Cx<'_>, vnode: &Arc<dyn Vnode>) -> Result<Vec<u8>> {
    let all = match read_value(|out| vnode.listxattr(cx, out)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Vec::new()),
        other => other?,
    };
    let names = all.split_inclusive(|&b| b == 0).filter(|name| !is_acl_alias(name.strip_suffix(b"\0").unwrap_or(name)));
    Ok(names.flatten().copied().collect())
}

fn get_xattr(cx: &Cx<'_>, vnode: &Arc<dyn Vnode>, name: &[u8]) -> Result<Vec<u8>> {
    read_value(|out| vnode.getxattr(cx, name, out))
}
