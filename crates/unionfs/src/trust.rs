//! Which files of a branch are believed to be the union's own: docs/unionfs.md, "Which records the union believes".

use vnode::Attr;

/// The bits of a mode that let others than the owner write.
const OTHERS_WRITE: u32 = 0o022;
/// The bits of a mode that let others than the owner do anything.
pub(crate) const OTHERS: u32 = 0o077;

/// Can only root and the user `server` have made, or changed, the object with these attributes?
///
/// A plain user can neither give a file away to root nor write one that only root can write. An ACL changes nothing: the
/// group bits of a mode are the most that it grants.
pub(crate) fn is_servers(attr: &Attr, server: u32) -> bool {
    (attr.uid == 0 || attr.uid == server) && attr.mode & OTHERS_WRITE == 0
}
