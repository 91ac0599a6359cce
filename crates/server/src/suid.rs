//! Who loses set-user-id and set-group-id when a file is changed. With `HANDLE_KILLPRIV_V2` the kernel says when, and leaves
//! it to the server what exactly that takes away.

use crate::caller::Calling;
use crate::convert;
use crate::ops::Server;
use fuse::abi::SetattrIn;
use fuse::{Reply, Request};
use vnode::{Attr, Cx, Errno, Kind, OpenFile, SetAttr, Vnode};

const SUID: u32 = 0o4000;
const SGID: u32 = 0o2000;
const GROUP_EXEC: u32 = 0o010;

/// May the caller do what the host lets only root do, to the host's knowledge? Requests say nothing of capabilities.
pub(crate) fn is_root(rq: &Request<'_>) -> bool {
    rq.uid == 0
}

/// Before or after somebody changes the data of `vnode`, and the kernel has said that they lose the bits.
pub(crate) fn strip(cx: &Cx<'_>, vnode: &dyn Vnode, file: Option<&dyn OpenFile>) -> Reply<()> {
    let set = SetAttr { kill_suidgid: true, ..SetAttr::default() };
    vnode.setattr(cx, &exactly(cx, vnode, set)?, file).map(drop)
}

/// What a change of `vnode` takes away, exactly: a set-group-id bit where the group may not execute goes, too, unless the caller is of
/// the group. The kernel's request does not say so.
pub(crate) fn exactly(cx: &Cx<'_>, vnode: &dyn Vnode, set: SetAttr) -> Reply<SetAttr> {
    if !set.kill_suidgid || set.mode.is_some() || cx.uid == 0 {
        return Ok(set);
    }
    let attr = vnode.getattr(cx)?;
    if attr.mode & (SGID | GROUP_EXEC) != SGID || cx.is_in_group(attr.gid) {
        return Ok(set);
    }
    Ok(SetAttr { mode: Some(attr.perm() & !0o6000), kill_suidgid: false, ..set })
}

/// Does a change of `vnode`'s data or owner by this caller take anything away?
fn loses(cx: &Cx<'_>, attr: &Attr) -> bool {
    if attr.kind() == Kind::Directory {
        return false;
    }
    let sgid = attr.mode & SGID != 0 && (attr.mode & GROUP_EXEC != 0 || !(cx.uid == 0 || cx.is_in_group(attr.gid)));
    attr.mode & SUID != 0 || sgid
}

impl Server {
    /// A SETATTR that changes nothing takes set-user-id away. The kernel sends it when somebody writes, by passthrough, and for a
    /// chown(2) that changes nothing; the latter without a check of whose file it is. Anybody may do that where nothing is lost: then
    /// this answers the attributes as they are, and nothing is to be done.
    pub(crate) fn without_loss_of_suid(
        &self,
        rq: &Request<'_>,
        node: u64,
        vnode: &dyn Vnode,
        arg: &SetattrIn,
    ) -> Reply<Option<Attr>> {
        if !convert::changes_nothing(arg) || self.files.is_written(node) {
            return Ok(None);
        }
        let call = Calling::of(rq);
        let cx = call.cx(0);
        let attr = vnode.getattr(&cx)?;
        if !loses(&cx, &attr) {
            return Ok(Some(attr));
        }
        if is_root(rq) || attr.uid == rq.uid { Ok(None) } else { Err(Errno::PERM) }
    }
}
