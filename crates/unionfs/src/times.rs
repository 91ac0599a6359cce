//! Changes of lower directories that must not show in their times.

use std::sync::Arc;
use vnode::{Attr, Cx, Result, SetAttr, SetTime, Vnode};

/// Runs `change` on a lower directory so that its times stay.
pub(crate) fn keeping_times<T>(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, change: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = dir.getattr(cx)?;
    let answer = change()?;
    put_times_back(cx, dir, &before);
    Ok(answer)
}

/// Gives a lower directory the times that it had.
pub(crate) fn put_times_back(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, before: &Attr) {
    let set = SetAttr {
        atime: Some(SetTime::At(before.atime)),
        mtime: Some(SetTime::At(before.mtime)),
        ..SetAttr::default()
    };
    if let Err(errno) = dir.setattr(cx, &set, None) {
        tracing::warn!(%errno, "the times of a directory could not be put back");
    }
}
