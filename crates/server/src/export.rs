//! Lookup by file handle (open_by_handle_at(2), NFS) of nodes that the kernel has forgotten.
//!
//! The kernel requests such a node by a LOOKUP of `.` on its id. For a directory it continues with
//! LOOKUPs of `..` up to one that it knows. On the way back it finds the name of each directory by
//! its inode number in the listing of its parent.

use crate::caller::RequestContext;
use crate::nodes::ROOT;
use crate::ops::Server;
use fuse::Reply;
use fuse::abi::EntryOut;
use std::sync::Arc;
use vnode::{Cx, Entry, Errno, Kind, MAY_BLOCK, Result, Vnode};

impl Server {
    /// LOOKUP of `.`: returns the node itself. The kernel compares generations.
    pub(crate) fn lookup_self(&self, call: &RequestContext<'_>, node: u64) -> Reply<Option<EntryOut>> {
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
        self.counted_entry(call, &cx, &Entry { vnode, attr })
    }

    /// LOOKUP of `..`: returns the parent of a directory.
    pub(crate) fn lookup_parent(&self, call: &RequestContext<'_>, node: u64) -> Reply<Option<EntryOut>> {
        let cx = call.cx(0);
        let dir = self.nodes.get(node)?;
        if dir.kind() != Kind::Directory {
            return Err(Errno::NOTDIR);
        }
        let vnode = if node == ROOT { Some(dir) } else { parent(&cx, &*dir)? };
        let vnode = vnode.ok_or(Errno::STALE)?;
        self.nodes.set_parent(node, self.node_of(&vnode));
        let attr = vnode.getattr(&cx)?;
        self.counted_entry(call, &cx, &Entry { vnode, attr })
    }

    fn counted_entry(&self, call: &RequestContext<'_>, cx: &Cx<'_>, entry: &Entry) -> Reply<Option<EntryOut>> {
        let vnode = &entry.vnode;
        self.listing_cache.check(cx, (self.node_of(vnode), &**vnode), &entry.attr, &self.notifier)?;
        Ok(Some(self.nameless_entry_out(call, self.nodes.add_lookup_by_id(entry), entry)))
    }

    /// Returns the node id of a directory's parent, or the root if it cannot be determined.
    pub(crate) fn parent_of(&self, cx: &Cx<'_>, (node, dir): (u64, &dyn Vnode)) -> Reply<u64> {
        if let Some(known) = self.nodes.parent_of(node) {
            return Ok(known);
        }
        match parent(cx, dir) {
            Ok(Some(parent)) => {
                let parent = self.node_of(&parent);
                self.nodes.set_parent(node, parent);
                Ok(parent)
            }
            Err(errno @ (MAY_BLOCK | Errno::INTR)) => Err(errno),
            Ok(None) | Err(_) => Ok(ROOT),
        }
    }
}

/// Returns the parent of a directory; `None` if the directory was removed.
fn parent(cx: &Cx<'_>, dir: &dyn Vnode) -> Result<Option<Arc<dyn Vnode>>> {
    let mut parent = None;
    dir.names(cx, &mut |dir, _| {
        parent = Some(Arc::clone(dir));
        false
    })?;
    Ok(parent)
}
