//! Objects found by number: the layer's own files are none that users can open.

use crate::core::Core;
use crate::node::VersionVnode;
use std::sync::Arc;
use versionset::STORE;
use vnode::{Cx, Errno, Kind, Name, NameSink, Result, Vnode};

/// Deepest directory tree that is searched for a store above an object.
const MAX_DEPTH: usize = 4096;

impl VersionVnode {
    /// Passes the names of the object that users see to `sink`.
    pub(crate) fn report_names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()> {
        if self.inode.is_buried() {
            return Ok(());
        }
        self.lower.names(cx, &mut |dir, name| {
            if name.as_bytes() == STORE || is_in_store(cx, dir).unwrap_or(true) {
                return true;
            }
            let dir: Arc<dyn Vnode> = Arc::new(Self::over(&self.core, Arc::clone(dir)));
            sink(&dir, name)
        })
    }
}

/// Whether a lower directory is a store or below one.
pub(crate) fn is_in_store(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<bool> {
    let mut at = Arc::clone(dir);
    for _ in 0..MAX_DEPTH {
        let mut above = None;
        at.names(cx, &mut |dir: &Arc<dyn Vnode>, name: Name<'_>| {
            above = Some((Arc::clone(dir), name.as_bytes() == STORE));
            false
        })?;
        match above {
            Some((_, true)) => return Ok(true),
            Some((dir, false)) => at = dir,
            None => return Ok(false),
        }
    }
    Err(Errno::LOOP)
}

impl Core {
    /// Wraps a lower object that was found by number. Fails with `ESTALE` for the layer's own
    /// objects and for versions.
    pub(crate) fn wrap_found(self: &Arc<Self>, cx: &Cx<'_>, lower: Arc<dyn Vnode>) -> Result<VersionVnode> {
        let (mut has_names, mut is_shown) = (false, false);
        if lower.kind() == Kind::Directory {
            has_names = true;
            is_shown = !is_in_store(cx, &lower)?;
        } else {
            lower.names(cx, &mut |dir, _| {
                has_names = true;
                is_shown = !is_in_store(cx, dir).unwrap_or(true);
                !is_shown
            })?;
        }
        if has_names && !is_shown { Err(Errno::STALE) } else { Ok(VersionVnode::over(self, lower)) }
    }
}
