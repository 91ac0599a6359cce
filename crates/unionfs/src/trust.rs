//! Decides which files of a branch count as the union's own: docs/unionfs.md, "Which records the
//! union believes".

use vnode::Attr;

/// The mode bits for writing by group and others.
const OTHERS_WRITE: u32 = 0o022;
/// All mode bits of group and others.
pub(crate) const OTHERS: u32 = 0o077;

/// Whether only root and the user `server` can have created or changed the object with these
/// attributes.
///
/// A plain user can neither give a file to root nor write one that only root can write. ACLs make
/// no difference: the group bits of the mode are the most that an ACL grants.
pub(crate) fn is_servers(attr: &Attr, server: u32) -> bool {
    (attr.uid == 0 || attr.uid == server) && attr.mode & OTHERS_WRITE == 0
}
