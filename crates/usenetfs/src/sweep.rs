//! Removal of the layer's own objects from a directory that is to be removed or to become
//! unmanaged.

use crate::managed::{Base, Change, Managed};
use crate::node::UsenetVnode;
use crate::record::{NEW_RECORD, RECORD, Record, STORE, is_reserved, remove};
use crate::split::names_in;
use crate::state::Layout;
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Name, Result, Vnode};

/// The removed objects that can be restored.
#[derive(Debug)]
pub(crate) struct Swept {
    record: Option<Record>,
}

impl Swept {
    /// Restores the record, if the directory could not be removed. An empty directory needs no
    /// buckets.
    pub(crate) fn undo(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>) {
        if let Some(record) = &self.record
            && let Err(errno) = record.write(cx, dir)
        {
            tracing::warn!(%errno, "directory {}: can't restore its record; the directory is empty, and now managed by digits", dir.id());
        }
    }
}

/// Removes the layer's own objects from a directory that is empty for its users; `cx` is the
/// server's. The record is removed last, so that the scheme is still known if an earlier step
/// fails.
///
/// # Errors
/// `ENOTEMPTY` if there is an entry; nothing is removed then.
pub(crate) fn sweep(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, managed: Option<&Managed>) -> Result<Swept> {
    let is_bucket =
        |name: &[u8]| managed.is_some_and(|m| m.bases().contains(&Base::Directory) && m.record.scheme.is_bucket(name));
    let mut own = Vec::new();
    let mut others = false;
    dir.readdir(cx, 0, &mut |entry| {
        let name = entry.name.as_bytes();
        others = !(is_reserved(name) || (entry.kind == Kind::Directory && is_bucket(name)));
        own.push(name.to_vec());
        !others
    })?;
    if others {
        return Err(Errno::NOTEMPTY);
    }
    if own.is_empty() {
        return Ok(Swept { record: None });
    }
    cx.require_blocking()?;
    let mut bases = vec![(Arc::clone(dir), own.iter().filter(|name| !is_reserved(name)).cloned().collect::<Vec<_>>())];
    if let Some(store) = dir.lookup(cx, Name::new(STORE)?)? {
        let names = names_in(cx, &store.vnode, usize::MAX, |_| true)?;
        bases.push((store.vnode, names.into_iter().map(|(name, _)| name).collect()));
    }
    for (base, buckets) in &bases {
        for bucket in buckets {
            require_empty(cx, base, bucket)?;
        }
    }
    for (base, buckets) in &bases {
        for bucket in buckets {
            base.rmdir(cx, Name::new(bucket)?)?;
        }
    }
    if bases.len() > 1 {
        dir.rmdir(cx, Name::new(STORE)?)?;
    }
    remove(cx, dir, NEW_RECORD)?;
    remove(cx, dir, RECORD)?;
    let record = managed.map(|managed| managed.record).filter(|record| *record != Record::NONE);
    Ok(Swept { record })
}

fn require_empty(cx: &Cx<'_>, base: &Arc<dyn Vnode>, bucket: &[u8]) -> Result<()> {
    let entry = base.lookup(cx, Name::new(bucket)?)?.ok_or(Errno::NOTEMPTY)?;
    let is_dir = entry.vnode.kind() == Kind::Directory;
    if is_dir && names_in(cx, &entry.vnode, 1, |_| true)?.is_empty() { Ok(()) } else { Err(Errno::NOTEMPTY) }
}

impl UsenetVnode {
    /// Removes a directory in which users see no entry.
    pub(crate) fn remove_dir(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        if is_reserved(name.as_bytes()) {
            return Err(Errno::NOENT);
        }
        let _multi_dir = self.multi_dir();
        let mut held = self.lock_for_change(cx)?;
        let (location, place, entry) = held.find(cx, &self.lower, name)?.ok_or(Errno::NOENT)?;
        if entry.vnode.kind() != Kind::Directory {
            return place.rmdir(cx, name);
        }
        self.remove_swept(cx, &entry.vnode, || place.rmdir(cx, name))?;
        held.count(&location, Kind::Directory, Change::Removed);
        self.touch(cx, &location);
        Ok(())
    }

    /// Sweeps `dir` and then removes it with `remove`. The caller holds `multi_dir`, but has not
    /// locked `dir`.
    pub(crate) fn remove_swept(
        &self,
        cx: &Cx<'_>,
        dir: &Arc<dyn Vnode>,
        remove: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let server = self.core.server(cx);
        let state = self.core.states.get(dir.id());
        let mut layout = state.write_layout(&server, dir)?;
        let swept = match &*layout {
            Layout::Managed(managed) => sweep(&server, dir, Some(managed)),
            Layout::Flat | Layout::Unknown => sweep(&server, dir, None),
        };
        let done = match swept {
            // Let the layer below return the error, since others may take precedence.
            Err(Errno::NOTEMPTY) => remove(),
            Err(errno) => Err(errno),
            Ok(swept) => remove().inspect_err(|_| swept.undo(&server, dir)),
        };
        if done.is_ok() {
            self.core.states.forget(dir.id());
            *layout = Layout::Flat;
        } else if matches!(*layout, Layout::Managed(_)) && done != Err(Errno::NOTEMPTY) {
            *layout = Layout::Unknown;
        }
        done
    }
}
