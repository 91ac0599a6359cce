//! Compares two objects.

use crate::ops::read_full;
use std::collections::BTreeMap;
use std::sync::Arc;
use unionfs::offline::is_acl_alias;
use vnode::{Attr, Cx, Entry, Errno, Kind, OpenFlags, Result, Vnode, read_value};

/// Bytes that are compared at a time.
const CHUNK: usize = 256 * 1024;
/// Extended attributes of the union's own records.
const OWN: &[u8] = b"trusted.strata.";

/// How two objects differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Type, data, link target or device number.
    pub(crate) content: bool,
    /// Owner, mode, times or extended attributes.
    pub(crate) attributes: bool,
}

impl Difference {
    pub(crate) fn none(self) -> bool {
        self == Self::default()
    }
}

/// Compares two objects. `same_data`: both are known to have the same data. The times of
/// directories are not compared, since they change with each entry.
pub(crate) fn compare(cx: &Cx<'_>, one: &Entry, other: &Entry, same_data: bool) -> Result<Difference> {
    if one.attr.kind() != other.attr.kind() {
        return Ok(Difference { content: true, attributes: true });
    }
    let content = match one.attr.kind() {
        Kind::Regular => !same_data && !same_bytes(cx, one, other)?,
        Kind::Symlink => one.vnode.readlink(cx)? != other.vnode.readlink(cx)?,
        Kind::CharDevice | Kind::BlockDevice => one.attr.rdev != other.attr.rdev,
        Kind::Directory | Kind::Fifo | Kind::Socket => false,
    };
    let attributes = !same_attributes(&one.attr, &other.attr) || xattrs(cx, &one.vnode)? != xattrs(cx, &other.vnode)?;
    Ok(Difference { content, attributes })
}

fn same_attributes(one: &Attr, other: &Attr) -> bool {
    let of = |attr: &Attr| (attr.perm(), attr.uid, attr.gid);
    let times = one.kind() == Kind::Directory || one.mtime == other.mtime;
    of(one) == of(other) && times
}

fn same_bytes(cx: &Cx<'_>, one: &Entry, other: &Entry) -> Result<bool> {
    if one.attr.size != other.attr.size {
        return Ok(false);
    }
    if one.attr.size == 0 {
        return Ok(true);
    }
    let (a, b) = (one.vnode.open(cx, OpenFlags::RDONLY)?, other.vnode.open(cx, OpenFlags::RDONLY)?);
    let (mut left, mut right) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut at = 0;
    loop {
        let (read, again) = (read_full(cx, &*a, &mut left, at)?, read_full(cx, &*b, &mut right, at)?);
        if left.get(..read) != right.get(..again) {
            return Ok(false);
        }
        if read < CHUNK {
            return Ok(true);
        }
        at += read as u64;
    }
}

/// Whether this extended attribute is not one of the user's: the union's own records, and other
/// names of the ACLs.
pub(crate) fn is_left_out(name: &[u8]) -> bool {
    name.starts_with(OWN) || is_acl_alias(name)
}

/// Returns the user's extended attributes.
pub(crate) fn xattrs(cx: &Cx<'_>, vnode: &Arc<dyn Vnode>) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let names = match read_value(|out| vnode.listxattr(cx, out)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Vec::new(),
        other => other?,
    };
    let mut all = BTreeMap::new();
    for name in names.split(|&b| b == 0).filter(|name| !name.is_empty() && !is_left_out(name)) {
        match read_value(|out| vnode.getxattr(cx, name, out)) {
            Ok(value) => drop(all.insert(name.to_vec(), value)),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(all)
}
