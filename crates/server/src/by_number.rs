//! Nodes that the kernel has forgotten and has a handle of (open_by_handle_at(2), NFS).
//!
//! The kernel asks for such a node by a LOOKUP of `.` on its id. For a directory it goes on with
//! LOOKUPs of `..` up to one that it knows, and on the way back finds the name of each directory by
//! its number in the listing of its parent.

use crate::caller::Calling;
use crate::nodes::ROOT;
use crate::ops::Server;
use fuse::Reply;
use fuse::abi::EntryOut;
use std::sync::Arc;
use vnode::{Cx, Entry, Errno, Kind, MAY_BLOCK, Result, Vnode};

impl Server {
    /// LOOKUP of `.`: the node itself. The kernel compares generations.
    pub(crate) fn find_itself(&self, call: &Calling<'_>, node: u64) -> Reply<Option<EntryOut>> {
        let cx = call.cx(0);
        let vnode = match self.nodes.get(node) {
            Ok(known) => known,
            Err(_) => self.layer.vnode(&cx, self.nodes.successors.number_of(node))?,
        };
        let attr = vnode.getattr(&cx)?;
        let removed = attr.nlink == 0 && !self.files.is_open(node);
        if removed || self.node_of(&vnode) != node {
            return Err(Errno::STALE);
        }
        self.found(call, &cx, &Entry { vnode, attr })
    }

    /// LOOKUP of `..`: the directory that a directory lies in.
    pub(crate) fn find_parent(&self, call: &Calling<'_>, node: u64) -> Reply<Option<EntryOut>> {
        let cx = call.cx(0);
        let dir = self.nodes.get(node)?;
        if dir.kind() != Kind::Directory {
            return Err(Errno::NOTDIR);
        }
        let vnode = if node == ROOT { Some(dir) } else { parent(&cx, &*dir)? };
        let vnode = vnode.ok_or(Errno::STALE)?;
        self.nodes.lies_in(node, self.node_of(&vnode));
        let attr = vnode.getattr(&cx)?;
        self.found(call, &cx, &Entry { vnode, attr })
    }

    fn found(&self, call: &Calling<'_>, cx: &Cx<'_>, entry: &Entry) -> Reply<Option<EntryOut>> {
        let vnode = &entry.vnode;
        self.listed.seen(cx, (self.node_of(vnode), &**vnode), &entry.attr, &self.teller)?;
        Ok(Some(self.known_out(&call.call, self.nodes.remember_found(entry), entry)))
    }

    /// The node id of the directory that a directory lies in; the root where that can't be found out.
    pub(crate) fn parent_of(&self, cx: &Cx<'_>, (node, dir): (u64, &dyn Vnode)) -> Reply<u64> {
        if let Some(known) = self.nodes.parent_of(node) {
            return Ok(known);
        }
        match parent(cx, dir) {
            Ok(Some(parent)) => {
                let parent = self.node_of(&parent);
                self.nodes.lies_in(node, parent);
                Ok(parent)
            }
            Err(errno @ (MAY_BLOCK | Errno::INTR)) => Err(errno),
            Ok(None) | Err(_) => Ok(ROOT),
        }
    }
}

/// The directory that a directory lies in; `None` if it was removed.
fn parent(cx: &Cx<'_>, dir: &dyn Vnode) -> Result<Option<Arc<dyn Vnode>>> {
    let mut parent = None;
    dir.names(cx, &mut |dir, _| {
        parent = Some(Arc::clone(dir));
        false
    })?;
    Ok(parent)
}
