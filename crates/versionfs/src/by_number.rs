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
        each_name(cx, &self.lower, |dir, name, is_stored| {
            if name.as_bytes() == STORE || is_stored {
                return true;
            }
            let dir: Arc<dyn Vnode> = Arc::new(Self::over(&self.core, Arc::clone(dir)));
            sink(&dir, name)
        })
    }
}

/// Passes the names of a lower object to `sink`, and whether they are in a store, until it returns
/// false.
///
/// # Errors
/// Those of the layer below, also if it is not known of a name whether it is in a store:
/// `MAY_BLOCK`, for example.
pub(crate) fn each_name(
    cx: &Cx<'_>,
    lower: &Arc<dyn Vnode>,
    mut sink: impl FnMut(&Arc<dyn Vnode>, Name<'_>, bool) -> bool,
) -> Result<()> {
    let mut failed = Ok(());
    lower.names(cx, &mut |dir, name| match is_in_store(cx, dir) {
        Ok(is_stored) => sink(dir, name, is_stored),
        // The directory was removed meanwhile.
        Err(Errno::STALE | Errno::NOENT) => sink(dir, name, true),
        Err(errno) => {
            failed = Err(errno);
            false
        }
    })?;
    failed
}

/// Whether a lower object has a name that is in no store.
///
/// # Errors
/// As [`each_name`].
pub(crate) fn is_shown(cx: &Cx<'_>, lower: &Arc<dyn Vnode>) -> Result<bool> {
    let mut is_shown = false;
    each_name(cx, lower, |_, _, is_stored| {
        is_shown = !is_stored;
        is_stored
    })?;
    Ok(is_shown)
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
            each_name(cx, &lower, |_, _, is_stored| {
                has_names = true;
                is_shown = !is_stored;
                is_stored
            })?;
        }
        if has_names && !is_shown { Err(Errno::STALE) } else { Ok(VersionVnode::over(self, lower)) }
    }
}
