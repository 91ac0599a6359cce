//! Files that a process opened in one view, and uses in another: it was moved, or received the
//! descriptor.
//!
//! The process may use such a file only as far as its own view shows the same file. The views agree
//! on a file if the host file that contains its data is the same.
//!
//! * Reading is allowed while the views agree. Pages that a mapping reads are in the kernel's cache
//!   for the view in which the file was opened, and must be those of that view.
//! * Writing continues on the file of the process's own view, if the views agreed when it wrote for
//!   the first time. The first write copies the file up in that view. The views no longer agree
//!   then, so reading ends.

use crate::node::{At, Body, Node};
use classify::ViewId;
use std::sync::Arc;
use vnode::{Attr, Cx, Errno, Kind, Name, OpenFile, OpenFlags, Result, Vnode};

/// Identifies a host file.
type HostId = (u64, u64);

/// Returns the host file that now contains a file's data, if its bytes are unchanged there.
fn host_id(cx: &Cx<'_>, file: &dyn OpenFile) -> Result<Option<HostId>> {
    // A thread that must not block gets no host file.
    cx.require_blocking()?;
    let mut id = None;
    file.read_host(cx, &mut |host| {
        id = rustix::fs::fstat(host).ok().map(|stat| (stat.st_dev, stat.st_ino));
        id.map(|_| 0)
    })?;
    Ok(id)
}

/// Whether two open files have the same data because it is in the same host file.
pub(crate) fn agree(cx: &Cx<'_>, one: &dyn OpenFile, other: &dyn OpenFile) -> Result<bool> {
    let (one, other) = (host_id(cx, one)?, host_id(cx, other)?);
    Ok(one.is_some() && one == other)
}

/// Whether attributes differ in nothing that a permission check or a program relies on.
fn is_same(one: &Attr, other: &Attr) -> bool {
    let key = |attr: &Attr| (attr.mode, attr.uid, attr.gid, attr.size, attr.mtime);
    key(one) == key(other)
}

/// A file as another view has it.
pub(crate) struct Counterpart {
    pub(crate) vnode: Arc<dyn Vnode>,
    /// Open for reading.
    pub(crate) file: Arc<dyn OpenFile>,
    pub(crate) attr: Attr,
}

impl Node {
    /// Returns a file of another view as `view` has it.
    ///
    /// # Errors
    /// `ESTALE` if the views do not agree.
    pub(crate) fn counterpart(&self, cx: &Cx<'_>, view: ViewId) -> Result<Counterpart> {
        let Body::Single { lower, at: Some(At { parent, name }), .. } = &self.body else { return Err(Errno::STALE) };
        let found = parent.lower_in(cx, view)?.lookup(cx, Name::new(name)?)?.ok_or(Errno::STALE)?;
        if lower.kind() != Kind::Regular || found.vnode.kind() != Kind::Regular {
            return Err(Errno::STALE);
        }
        let attr = lower.getattr(cx)?;
        // The server's right to open files: the process has opened this one already.
        let server = cx.as_server(cx.uid, cx.gid);
        let (own, file) = (lower.open(&server, OpenFlags::RDONLY)?, found.vnode.open(&server, OpenFlags::RDONLY)?);
        if !agree(cx, &*own, &*file)? || !is_same(&attr, &found.attr) {
            return Err(Errno::STALE);
        }
        Ok(Counterpart { vnode: found.vnode, file, attr })
    }

    /// Returns the attributes of a file of another view, if this is one.
    ///
    /// # Errors
    /// `ESTALE` if the views do not agree.
    pub(crate) fn attr_of_foreign_file(&self, cx: &Cx<'_>, view: ViewId) -> Result<Option<Attr>> {
        match &self.body {
            Body::Single { view: own, .. } if *own != view => {
                let attr = self.counterpart(cx, view)?.attr;
                Ok(Some(self.present(*own, attr)))
            }
            _ => Ok(None),
        }
    }
}
