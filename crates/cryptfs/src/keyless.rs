//! What a session without a key may do.

use crate::keyring::Keyring;
use std::sync::Arc;
use vnode::{Cx, Kind, Result};
use wrapfs::hooks::{Op, OpKind, OpSet, Operations, Verdict};

/// Refuses operations of sessions without a key, whether or not names are encrypted. Permitted are
/// the attributes of objects that the session has already, the use of open files, and the
/// statistics of the file system.
#[derive(Debug)]
pub(crate) struct KeyNeeded(pub(crate) Arc<Keyring>);

impl Operations for KeyNeeded {
    fn interest(&self) -> OpSet {
        OpSet::of(&[
            OpKind::Lookup,
            OpKind::Setattr,
            OpKind::Readlink,
            OpKind::Readdir,
            OpKind::Open,
            OpKind::Create,
            OpKind::Tmpfile,
            OpKind::Mknod,
            OpKind::Mkdir,
            OpKind::Symlink,
            OpKind::Link,
            OpKind::Unlink,
            OpKind::Rmdir,
            OpKind::Rename,
            OpKind::Setxattr,
            OpKind::Listxattr,
            OpKind::Removexattr,
        ])
    }

    fn before(&self, cx: &Cx<'_>, op: &Op<'_>) -> Result<Verdict> {
        match op {
            // The file may be open. Changing its size needs the key that it was opened with.
            Op::Setattr { file, .. } if file.kind() == Kind::Regular => Ok(Verdict::Proceed),
            _ => self.0.with(cx, |_keys| Ok(Verdict::Proceed)),
        }
    }
}
