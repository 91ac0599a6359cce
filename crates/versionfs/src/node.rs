use crate::core::Core;
use crate::inode::Inode;
use crate::set::find_store;
use std::sync::Arc;
use versionset::STORE;
use vnode::{Attr, Cx, Entry, Errno, Kind, Name, Result, Vnode};

/// Preferred I/O size of regular files in bytes. Each write that the layer must see is a request,
/// so large writes are faster. Python buffers this much, glibc up to 8 KiB.
const IO_SIZE: u32 = 64 * 1024;

/// A vnode over one of the layer below.
#[derive(Debug)]
pub(crate) struct VersionVnode {
    pub(crate) core: Arc<Core>,
    pub(crate) lower: Arc<dyn Vnode>,
    pub(crate) inode: Arc<Inode>,
}

/// Whether a name is the layer's own.
pub(crate) fn is_reserved(name: Name<'_>) -> bool {
    name.as_bytes() == STORE
}

impl VersionVnode {
    pub(crate) fn over(core: &Arc<Core>, lower: Arc<dyn Vnode>) -> Self {
        let inode = core.inodes.get(lower.id());
        Self { core: Arc::clone(core), lower, inode }
    }

    /// Wraps an object that was found or made under a name of this directory.
    pub(crate) fn wrap_at(&self, cx: &Cx<'_>, name: Name<'_>, entry: Entry) -> Result<Entry> {
        let vnode = Self::over(&self.core, entry.vnode);
        vnode.inode.found_at(&self.lower, name.as_bytes());
        let attr = vnode.shown(cx, entry.attr)?;
        Ok(Entry { vnode: Arc::new(vnode), attr })
    }

    /// Wraps an object that was just made, after which nothing may fail.
    pub(crate) fn wrap_new(&self, name: Name<'_>, entry: Entry) -> Entry {
        let vnode = Self::over(&self.core, entry.vnode);
        vnode.inode.found_at(&self.lower, name.as_bytes());
        vnode.inode.note_birth(vnode.lower.generation(), entry.attr.btime);
        if entry.attr.kind() == Kind::Directory {
            vnode.inode.set_has_store(false);
        }
        Entry { attr: with_io_size(entry.attr), vnode: Arc::new(vnode) }
    }

    /// Downcasts an argument to a vnode of this layer; fails with `EXDEV` for others.
    pub(crate) fn same_layer<'a>(&self, other: &'a Arc<dyn Vnode>) -> Result<&'a Self> {
        let other = other.as_any().downcast_ref::<Self>().ok_or(Errno::XDEV)?;
        if Arc::ptr_eq(&self.core, &other.core) { Ok(other) } else { Err(Errno::XDEV) }
    }

    /// Whether this directory has a store.
    pub(crate) fn has_store(&self, cx: &Cx<'_>) -> Result<bool> {
        if let Some(known) = self.inode.has_store() {
            return Ok(known);
        }
        let has = find_store(cx, &self.lower)?.is_some();
        self.inode.set_has_store(has);
        Ok(has)
    }

    /// Returns the attributes that users see: without the store, and without names that are
    /// versions.
    pub(crate) fn shown(&self, cx: &Cx<'_>, mut attr: Attr) -> Result<Attr> {
        self.inode.note_birth(self.lower.generation(), attr.btime);
        if attr.kind() == Kind::Directory {
            // The store counts as a subdirectory on file systems that count those.
            if attr.nlink > 2 && self.has_store(cx)? {
                attr.nlink -= 1;
            }
            return Ok(attr);
        }
        if let Some(size) = self.inode.delayed() {
            attr.size = size;
            attr.mtime = self.inode.delayed_time();
            attr.ctime = attr.ctime.max(attr.mtime);
        }
        if self.inode.is_buried() {
            attr.nlink = 0;
        }
        Ok(with_io_size(attr))
    }
}

/// Returns the attributes of a new object as users see them.
pub(crate) fn with_io_size(attr: Attr) -> Attr {
    let blksize = if attr.kind() == Kind::Regular { attr.blksize.max(IO_SIZE) } else { attr.blksize };
    Attr { blksize, ..attr }
}
