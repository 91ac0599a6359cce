//! Who may read and change old versions: what the administrator lets the user do, and the mode and
//! owner of each version. The kernel checks the mode.

use crate::commands::only_reads;
use crate::core::Core;
use std::sync::Arc;
use versionpolicy::Access;
use vnode::{Cx, Errno, Kind, Result, Vnode};

/// The sticky bit of a directory.
const STICKY: u32 = 0o1000;

/// Commands that concern no old version.
const FREE: [&str; 2] = ["versionfs.policy", "versionfs.log"];

impl Core {
    /// Whether the administrator lets the caller read old versions.
    pub(crate) fn may_read_versions(&self, cx: &Cx<'_>) -> bool {
        self.policies.access(cx) >= Access::Read
    }

    /// Fails with `EACCES` if the administrator does not let the caller read old versions, or with
    /// `EPERM` if the command changes them and the caller may only read.
    pub(crate) fn require_access(&self, cx: &Cx<'_>, command: &str) -> Result<()> {
        if FREE.contains(&command) {
            return Ok(());
        }
        match self.policies.access(cx) {
            Access::None => Err(Errno::ACCESS),
            Access::Read if !only_reads(command) => Err(Errno::PERM),
            Access::Read | Access::Change => Ok(()),
        }
    }
}

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
