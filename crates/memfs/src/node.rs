use crate::shared::Shared;
use crate::tree::Tree;
use core::fmt;
use std::sync::Arc;
use vnode::{Errno, Kind, Result, Vnode};

/// A reference to an object of a memory file system. Keeps the object even after its last name is
/// removed.
pub(crate) struct MemVnode {
    pub(crate) fs: Arc<Shared>,
    pub(crate) ino: u64,
    pub(crate) kind: Kind,
}

impl MemVnode {
    /// Returns a new vnode, which holds a reference to the object. `ino` must exist.
    pub(crate) fn hold(fs: &Arc<Shared>, tree: &mut Tree, ino: u64) -> Self {
        let kind = match tree.inodes.get_mut(&ino) {
            Some(inode) => {
                inode.held += 1;
                inode.kind
            }
            None => Kind::Regular,
        };
        Self { fs: Arc::clone(fs), ino, kind }
    }

    /// Downcasts a vnode argument to this file system.
    pub(crate) fn same_layer<'a>(&self, other: &'a Arc<dyn Vnode>) -> Result<&'a Self> {
        let other = other.as_any().downcast_ref::<Self>().ok_or(Errno::XDEV)?;
        if Arc::ptr_eq(&self.fs, &other.fs) { Ok(other) } else { Err(Errno::XDEV) }
    }
}

impl Drop for MemVnode {
    fn drop(&mut self) {
        self.fs.tree().release(self.ino);
    }
}

impl fmt::Debug for MemVnode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemVnode({:?} {})", self.kind, self.ino)
    }
}
