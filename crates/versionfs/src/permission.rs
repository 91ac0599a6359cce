//! Who may change old versions. Who may read them follows from their mode, which the kernel checks.

use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Result, Vnode};

/// The sticky bit of a directory.
const STICKY: u32 = 0o1000;

/// Whether the caller is the owner or root.
pub(crate) fn owns(cx: &Cx<'_>, uid: u32) -> bool {
    cx.uid == 0 || cx.uid == uid
}

/// Fails with `EPERM` unless the caller owns all of these.
pub(crate) fn require_owner(cx: &Cx<'_>, owners: impl IntoIterator<Item = u32>) -> Result<()> {
    if owners.into_iter().all(|uid| owns(cx, uid)) { Ok(()) } else { Err(Errno::PERM) }
}

/// Fails as unlink(2) does if the caller may not remove a name of these owners from a directory.
pub(crate) fn require_removable(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, owners: &[u32]) -> Result<()> {
    require_writable(cx, dir)?;
    let attr = dir.getattr(cx)?;
    if attr.perm() & STICKY == 0 || owns(cx, attr.uid) { Ok(()) } else { require_owner(cx, owners.iter().copied()) }
}

/// Fails with `EACCES` if the caller may not change the entries of a directory.
pub(crate) fn require_writable(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<()> {
    if dir.kind() != Kind::Directory {
        return Err(Errno::NOTDIR);
    }
    if access::refused(cx, &**dir, access::WRITE | access::SEARCH)? == 0 { Ok(()) } else { Err(Errno::ACCESS) }
}
