//! What remains of a lower object after its branch was removed: identity alone.

use std::any::Any;
use std::sync::Arc;
use vnode::{Errno, Kind, Vnode, refuse};

/// Replaces the lower vnode of an object on a removed branch, so that the object does not keep the
/// branch in use while the kernel remembers it. Every operation returns `ESTALE`.
#[derive(Debug)]
pub(crate) struct ReleasedVnode {
    id: u64,
    generation: u32,
    kind: Kind,
}

impl ReleasedVnode {
    /// Returns the replacement of a lower vnode.
    pub(crate) fn of(lower: &Arc<dyn Vnode>) -> Arc<dyn Vnode> {
        Arc::new(Self { id: lower.id(), generation: lower.generation(), kind: lower.kind() })
    }
}

impl ReleasedVnode {
    /// Whether `other` is the object that this one replaced, if both are on the same branch.
    pub(crate) fn is_same(&self, other: &Arc<dyn Vnode>) -> bool {
        (self.id, self.generation, self.kind) == (other.id(), other.generation(), other.kind())
    }
}

/// Returns the lower vnode as one that was released, if it is.
pub(crate) fn as_released(lower: &Arc<dyn Vnode>) -> Option<&ReleasedVnode> {
    lower.as_any().downcast_ref()
}

impl Vnode for ReleasedVnode {
    refuse!(Errno::STALE => getattr, setattr, lookup, names, readlink, readdir, open, create, tmpfile, mknod, mkdir);
    refuse!(Errno::STALE => symlink, link, unlink, rmdir, rename, getxattr, setxattr, listxattr, removexattr);
    refuse!(Errno::STALE => refused, statfs, ioctl, control, fsync);

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn generation(&self) -> u32 {
        self.generation
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn lists_exactly(&self, _cx: &vnode::Cx<'_>) -> bool {
        false
    }

    fn listing_stamp(&self, _cx: &vnode::Cx<'_>) -> Option<u64> {
        None
    }
}
