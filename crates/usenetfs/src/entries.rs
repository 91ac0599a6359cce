//! Lookup, creation and removal of entries.

use crate::managed::{Change, Location, Managed};
use crate::node::{LockedDir, UsenetVnode};
use crate::record::is_reserved;
use crate::state::Layout;
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
    /// Looks up an entry. Returns `None` if it does not exist, or if its name is reserved.
    pub(crate) fn find(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        if is_reserved(name.as_bytes()) {
            return self.state().map(|_| None);
        }
        let found = match &*self.read_layout(cx)? {
            Layout::Managed(managed) => managed.find(cx, &self.lower, name)?.map(|(_, _, entry)| entry),
            Layout::Flat | Layout::Unknown => self.lower.lookup(cx, name)?,
        };
        found.map(|entry| self.wrap(cx, entry)).transpose()
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
        let mut managed = match self.lock_for_change(cx)? {
            LockedDir::Flat(_flat) => return make(&self.lower),
            LockedDir::Managed(managed) => managed,
        };
        let location = managed.location_for_new(cx, &self.lower, name)?;
        let place = self.place_for_new(cx, &mut managed, &location)?;
        let made = make(&place)?;
        managed.count(&location, made.kind(), Change::Added);
        self.touch(cx, &location);
        self.split_if_large(cx, &mut managed, &location);
        Ok(made)
    }

    /// Returns the lower directory for a new entry; creates it if necessary.
    pub(crate) fn place_for_new(
        &self,
        cx: &Cx<'_>,
        managed: &mut Managed,
        location: &Location,
    ) -> Result<Arc<dyn Vnode>> {
        let Location::In(bucket) = location else { return Ok(Arc::clone(&self.lower)) };
        let server = self.core.server(cx);
        let place = managed.make_bucket(&server, &self.lower, bucket)?;
        self.prepare(&server, managed, bucket)?;
        Ok(place)
    }

    /// Removes the name of a file.
    pub(crate) fn remove_file(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        if is_reserved(name.as_bytes()) {
            return Err(Errno::NOENT);
        }
        let mut managed = match self.lock_for_change(cx)? {
            LockedDir::Flat(_flat) => return self.lower.unlink(cx, name),
            LockedDir::Managed(managed) => managed,
        };
        let (location, place) = managed.place_of(cx, &self.lower, name)?.ok_or(Errno::NOENT)?;
        place.unlink(cx, name)?;
        managed.count(&location, Kind::Regular, Change::Removed);
        self.touch(cx, &location);
        Ok(())
    }

    /// Updates the directory's modification time after a change in a bucket.
    pub(crate) fn touch(&self, cx: &Cx<'_>, location: &Location) {
        if matches!(location, Location::In(_)) {
            let set = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
            if let Err(errno) = self.lower.setattr(&self.core.server(cx), &set, None) {
                tracing::warn!(%errno, "directory {}: can't update its modification time", self.lower.id());
            }
        }
    }
}

impl Managed {
    /// Returns the location for a new entry.
    pub(crate) fn location_for_new(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: Name<'_>) -> Result<Location> {
        let locations = self.locations(name.as_bytes());
        if locations.len() > 1 && self.find(cx, dir, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        locations.into_iter().next().ok_or(Errno::IO)
    }

    /// Returns the lower directory that contains, or would contain, an entry with this name.
    fn place_of(
        &self,
        cx: &Cx<'_>,
        dir: &Arc<dyn Vnode>,
        name: Name<'_>,
    ) -> Result<Option<(Location, Arc<dyn Vnode>)>> {
        let locations = self.locations(name.as_bytes());
        if let [only] = locations.as_slice() {
            return Ok(self.directory(cx, dir, only)?.map(|place| (only.clone(), place)));
        }
        Ok(self.find(cx, dir, name)?.map(|(location, place, _)| (location, place)))
    }
}
