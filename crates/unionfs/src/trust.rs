//! Which files of a branch are believed to be the union's own: docs/unionfs.md, "Who may write a branch".

use crate::branch::{Lower, same_stack};
use crate::core::Core;
use crate::identity::ROOT;
use crate::node::UnionVnode;
use crate::op::Op;
use std::sync::Arc;
use vnode::{Attr, Name};

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

/// All bits of a mode that let anybody write.
const WRITE: u32 = 0o222;

impl Core {
    /// The same, for a redirect, which says something about other places than its own.
    ///
    /// A redirect is made read-only even for its owner. Files of root with a user's data in them, such as copies under
    /// `copyup=mounter`, rarely are: the owner of their directory must not be able to pass one off as a redirect by renaming it.
    pub(crate) fn trusts(&self, attr: &Attr) -> bool {
        is_servers(attr, self.own().uid) && attr.mode & WRITE == 0
    }

    /// The path in the union of the entry `name` of the directories `stack`, for messages. Only the name where that directory
    /// is not in use.
    pub(crate) fn path_for_log(&self, op: &Op<'_>, stack: &[Lower], name: Name<'_>) -> String {
        let merges = |dir: &Arc<UnionVnode>| dir.stack().is_ok_and(|own| same_stack(&own, stack));
        let numbers = [Some(ROOT), self.directory_number(op, stack).ok()];
        let path = match numbers.into_iter().flatten().filter_map(|number| self.table.get(number)).find(merges) {
            Some(dir) => dir.path_to(name),
            None => name.as_bytes().to_vec(),
        };
        path.escape_ascii().to_string()
    }
}
