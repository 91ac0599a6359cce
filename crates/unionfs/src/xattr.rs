//! Extended attributes: those of the leftmost lower object.

use crate::copymeta::Grants;
use crate::node::UnionVnode;
use crate::op::Op;
use crate::retry::Retries;
use vnode::{Cx, Errno, Result, XattrFlags};

/// Prefix of the names of both ACLs.
const ACL: &[u8] = b"system.posix_acl_";

impl UnionVnode {
    /// Reads an extended attribute.
    pub(crate) fn get_xattr(&self, cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize> {
        self.on_leaf(cx, |lower| lower.vnode.getxattr(cx, name, out))
    }

    /// Lists the names of the extended attributes.
    pub(crate) fn list_xattr(&self, cx: &Cx<'_>, out: &mut [u8]) -> Result<usize> {
        self.on_leaf(cx, |lower| lower.vnode.listxattr(cx, out))
    }

    /// Sets an extended attribute, after a copy-up if necessary.
    pub(crate) fn set_xattr(&self, op: &Op<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        let mut retries = Retries::new();
        loop {
            let target = self.for_attributes(op, Grants::of_xattr(name))?;
            match target.vnode().setxattr(op, name, value, flags) {
                Err(e) if op.set.retry_left(target.branch, e) => retries.count()?,
                Err(Errno::STALE) if self.refresh(op)? => retries.count()?,
                other => return other,
            }
        }
    }

    /// Removes an extended attribute, after a copy-up if necessary.
    pub(crate) fn remove_xattr(&self, op: &Op<'_>, name: &[u8]) -> Result<()> {
        op.set.require_writable()?;
        let lower = self.leaf();
        if !op.set.writable(lower.branch) {
            // Nothing is copied up to remove an attribute that does not exist.
            match lower.vnode.getxattr(op, name, &mut []) {
                // An ACL that does not exist equals the mode, so its removal succeeds.
                Err(Errno::NODATA) if name.starts_with(ACL) => return Ok(()),
                other => other?,
            };
        }
        let mut retries = Retries::new();
        loop {
            let target = self.for_attributes(op, Grants::default())?;
            match target.vnode().removexattr(op, name) {
                Err(e) if op.set.retry_left(target.branch, e) => retries.count()?,
                other => return other,
            }
        }
    }
}
