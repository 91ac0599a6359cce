//! Lookup, creation and removal of entries.

use crate::managed::{Change, Managed, Spot};
use crate::node::{Held, UsenetVnode};
use crate::record::is_reserved;
use crate::state::Form;
use std::sync::Arc;
use vnode::{Cx, Entry, Errno, Kind, Name, Result, SetAttr, SetTime, Vnode};

/// A newly created lower object, possibly with an open file.
pub(crate) trait Created {
    fn kind(&self) -> Kind;
}

impl Created for Entry {
    fn kind(&self) -> Kind {
        self.vnode.kind()
    }
}

impl<T> Created for (Entry, T) {
    fn kind(&self) -> Kind {
        self.0.vnode.kind()
    }
}

impl UsenetVnode {
    pub(crate) fn find(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        if is_reserved(name.as_bytes()) {
            return self.state().map(|_| None);
        }
        let found = match &*self.look(cx)? {
            Form::Managed(managed) => managed.find(cx, &self.lower, name)?.map(|(_, _, entry)| entry),
            Form::Flat | Form::Unknown => self.lower.lookup(cx, name)?,
        };
        found.map(|entry| self.raise(cx, entry)).transpose()
    }

    /// Creates an entry in the lower directory to which its name belongs.
    pub(crate) fn make<T: Created>(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        make: impl FnOnce(&Arc<dyn Vnode>) -> Result<T>,
    ) -> Result<T> {
        if is_reserved(name.as_bytes()) {
            return Err(Errno::INVAL);
        }
        let mut managed = match self.hold(cx)? {
            Held::Flat(_flat) => return make(&self.lower),
            Held::Managed(managed) => managed,
        };
        let spot = managed.spot_for_new(cx, &self.lower, name)?;
        let place = self.place_for_new(cx, &mut managed, &spot)?;
        let made = make(&place)?;
        managed.count(&spot, made.kind(), Change::Added);
        self.touch(cx, &spot);
        self.split_if_large(cx, &mut managed, &spot);
        Ok(made)
    }

    /// Returns the lower directory for a new entry; creates it if necessary.
    pub(crate) fn place_for_new(&self, cx: &Cx<'_>, managed: &mut Managed, spot: &Spot) -> Result<Arc<dyn Vnode>> {
        let Spot::In(bucket) = spot else { return Ok(Arc::clone(&self.lower)) };
        let server = self.core.server(cx);
        let place = managed.make_bucket(&server, &self.lower, bucket)?;
        self.prepare(&server, managed, bucket)?;
        Ok(place)
    }

    pub(crate) fn remove_file(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        if is_reserved(name.as_bytes()) {
            return Err(Errno::NOENT);
        }
        let mut managed = match self.hold(cx)? {
            Held::Flat(_flat) => return self.lower.unlink(cx, name),
            Held::Managed(managed) => managed,
        };
        let (spot, place) = managed.place_of(cx, &self.lower, name)?.ok_or(Errno::NOENT)?;
        place.unlink(cx, name)?;
        managed.count(&spot, Kind::Regular, Change::Removed);
        self.touch(cx, &spot);
        Ok(())
    }

    /// Updates the directory's modification time after a change in a bucket.
    pub(crate) fn touch(&self, cx: &Cx<'_>, spot: &Spot) {
        if matches!(spot, Spot::In(_)) {
            let set = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
            if let Err(errno) = self.lower.setattr(&self.core.server(cx), &set, None) {
                tracing::warn!(%errno, "directory {}: can't update its modification time", self.lower.id());
            }
        }
    }
}

impl Managed {
    /// Returns the location for a new entry.
    pub(crate) fn spot_for_new(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: Name<'_>) -> Result<Spot> {
        let spots = self.spots(name.as_bytes());
        if spots.len() > 1 && self.find(cx, dir, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        spots.into_iter().next().ok_or(Errno::IO)
    }

    /// Returns the lower directory that contains, or would contain, an entry with this name.
    fn place_of(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: Name<'_>) -> Result<Option<(Spot, Arc<dyn Vnode>)>> {
        let spots = self.spots(name.as_bytes());
        if let [only] = spots.as_slice() {
            return Ok(self.directory(cx, dir, only)?.map(|place| (only.clone(), place)));
        }
        Ok(self.find(cx, dir, name)?.map(|(spot, place, _)| (spot, place)))
    }
}
