//! Changes of lower directories that must not be visible in the directories' times.

use std::sync::Arc;
use vnode::{Attr, Cx, Result, SetAttr, SetTime, Vnode};

/// Runs `change` on a lower directory, then restores the directory's times.
pub(crate) fn preserving_times<T>(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, change: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = dir.getattr(cx)?;
    let answer = change()?;
    restore_times(cx, dir, &before);
    Ok(answer)
}

/// Restores the times of a lower directory.
pub(crate) fn restore_times(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, before: &Attr) {
    let set = SetAttr {
        atime: Some(SetTime::At(before.atime)),
        mtime: Some(SetTime::At(before.mtime)),
        ..SetAttr::default()
    };
    if let Err(errno) = dir.setattr(cx, &set, None) {
        tracing::warn!(%errno, "could not restore the times of a directory");
    }
}
