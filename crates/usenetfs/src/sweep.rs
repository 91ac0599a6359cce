//! A directory that goes, or is no longer to be managed: what the layer keeps in it goes first.

use crate::managed::{Base, Change, Managed};
use crate::node::UsenetVnode;
use crate::record::{NEW_RECORD, RECORD, Record, STORE, is_reserved, remove};
use crate::split::names_in;
use crate::state::Form;
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Name, Result, Vnode};

/// What was taken away and can be put back.
#[derive(Debug)]
pub(crate) struct Swept {
    record: Option<Record>,
}

impl Swept {
    /// The directory stays after all. An empty one needs no buckets, but its record.
    pub(crate) fn undo(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>) {
        if let Some(record) = &self.record
            && let Err(errno) = record.write(cx, dir)
        {
            tracing::warn!(%errno, "directory {}: its record is lost; it is empty, and managed by digits", dir.id());
        }
    }
}

/// Takes away what the layer keeps in a directory that is empty to its users; `cx` is the server's. The record goes last, so that the form of
/// a directory that keeps some of it is known.
///
/// # Errors
/// `ENOTEMPTY` before anything is done, if there is an entry.
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
            must_be_empty(cx, base, bucket)?;
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

fn must_be_empty(cx: &Cx<'_>, base: &Arc<dyn Vnode>, bucket: &[u8]) -> Result<()> {
    let entry = base.lookup(cx, Name::new(bucket)?)?.ok_or(Errno::NOTEMPTY)?;
    let is_dir = entry.vnode.kind() == Kind::Directory;
    if is_dir && names_in(cx, &entry.vnode, 1, |_| true)?.is_empty() { Ok(()) } else { Err(Errno::NOTEMPTY) }
}

impl UsenetVnode {
    pub(crate) fn remove_dir(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        if is_reserved(name.as_bytes()) {
            return Err(Errno::NOENT);
        }
        let _several = self.several();
        let mut held = self.hold(cx)?;
        let (spot, place, entry) = held.find(cx, &self.lower, name)?.ok_or(Errno::NOENT)?;
        if entry.vnode.kind() != Kind::Directory {
            return place.rmdir(cx, name);
        }
        self.in_place_of(cx, &entry.vnode, || place.rmdir(cx, name))?;
        held.count(&spot, Kind::Directory, Change::Removed);
        self.touch(cx, &spot);
        Ok(())
    }

    /// Does what removes an empty directory. The caller has `several`, and not the directory.
    pub(crate) fn in_place_of(
        &self,
        cx: &Cx<'_>,
        dir: &Arc<dyn Vnode>,
        remove: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let server = self.core.server(cx);
        let state = self.core.states.get(dir.id());
        let mut form = state.change(&server, dir)?;
        let swept = match &*form {
            Form::Managed(managed) => sweep(&server, dir, Some(managed)),
            Form::Flat | Form::Unknown => sweep(&server, dir, None),
        };
        let done = match swept {
            // The layer below sees it too, and knows what else there may be to say.
            Err(Errno::NOTEMPTY) => remove(),
            Err(errno) => Err(errno),
            Ok(swept) => remove().inspect_err(|_| swept.undo(&server, dir)),
        };
        if done.is_ok() {
            self.core.states.forget(dir.id());
            *form = Form::Flat;
        } else if matches!(*form, Form::Managed(_)) && done != Err(Errno::NOTEMPTY) {
            *form = Form::Unknown;
        }
        done
    }
}
