//! Clearing of set-user-id and set-group-id when a file changes. With `HANDLE_KILLPRIV_V2` the
//! kernel says when, and the server decides which bits.

use crate::convert;
use crate::ops::Server;
use fuse::abi::SetattrIn;
use fuse::{Reply, Request};
use vnode::{Attr, Cx, Errno, Kind, OpenFile, SetAttr, Vnode};

const SUID: u32 = 0o4000;
const SGID: u32 = 0o2000;
const GROUP_EXEC: u32 = 0o010;

/// Whether the caller counts as root on the host. Requests carry no capabilities.
pub(crate) fn is_root(rq: &Request<'_>) -> bool {
    rq.uid == 0
}

/// Clears the bits of `vnode` where the kernel requested it, before or after a change of its data.
pub(crate) fn strip(cx: &Cx<'_>, vnode: &dyn Vnode, file: Option<&dyn OpenFile>) -> Reply<()> {
    let set = SetAttr { kill_suidgid: true, ..SetAttr::default() };
    vnode.setattr(cx, &exact_change(cx, vnode, set)?, file).map(drop)
}

/// Completes a change that clears set-id bits: a set-group-id bit without group execute permission
/// is cleared too, unless the caller is in the group. The kernel's request does not include that.
pub(crate) fn exact_change(cx: &Cx<'_>, vnode: &dyn Vnode, set: SetAttr) -> Reply<SetAttr> {
    if !set.kill_suidgid || set.mode.is_some() || cx.uid == 0 {
        return Ok(set);
    }
    let attr = vnode.getattr(cx)?;
    if attr.mode & (SGID | GROUP_EXEC) != SGID || cx.is_in_group(attr.gid) {
        return Ok(set);
    }
    Ok(SetAttr { mode: Some(attr.perm() & !0o6000), kill_suidgid: false, ..set })
}

/// Whether a change of the file's data or owner by this caller clears any bit.
fn drops_privileges(cx: &Cx<'_>, attr: &Attr) -> bool {
    if attr.kind() == Kind::Directory {
        return false;
    }
    let sgid = attr.mode & SGID != 0 && (attr.mode & GROUP_EXEC != 0 || !(cx.uid == 0 || cx.is_in_group(attr.gid)));
    attr.mode & SUID != 0 || sgid
}

impl Server {
    /// Returns the current attributes for a SETATTR that changes nothing, or `None` if it has to be
    /// executed.
    ///
    /// Such a SETATTR clears set-user-id. The kernel sends it for a write with passthrough, and for
    /// a chown(2) without effect, the latter without checking the file's owner. Any user may do
    /// that if no bit is lost, and then nothing has to be done.
    pub(crate) fn noop_setattr(
        &self,
        rq: &Request<'_>,
        node: u64,
        vnode: &dyn Vnode,
        arg: &SetattrIn,
    ) -> Reply<Option<Attr>> {
        if !convert::changes_nothing(arg) || self.files.is_written(node) {
            return Ok(None);
        }
        let call = self.context(rq);
        let cx = call.cx(0);
        let attr = vnode.getattr(&cx)?;
        if !drops_privileges(&cx, &attr) {
            return Ok(Some(attr));
        }
        if is_root(rq) || attr.uid == rq.uid { Ok(None) } else { Err(Errno::PERM) }
    }
}
