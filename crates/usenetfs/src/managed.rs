//! A managed directory: its buckets, and the location of its entries.

use crate::listing::Listing;
use crate::record::{Phase, Record, STORE, is_reserved};
use crate::scheme::{MAX_HASH_DIGITS, Scheme, bucket_of_number, hash_digits};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, OnceLock};
use vnode::{Cx, Entry, Errno, Kind, Name, Result, Vnode};

/// Name of a bucket.
pub(crate) type BucketName = Vec<u8>;

/// Permission bits of the layer's own directories.
pub(crate) const PRIVATE: u32 = 0o700;

/// The parent directory of buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// The managed directory itself.
    Directory,
    /// The store, a hidden subdirectory of the managed directory.
    Store,
}

/// An existing bucket.
#[derive(Debug)]
pub(crate) struct Bucket {
    pub(crate) base: Base,
    vnode: OnceLock<Arc<dyn Vnode>>,
    /// Number of its entries, once it has been counted.
    pub(crate) entries: Option<u32>,
    /// Whether new entries inherit the same group and default ACL as in the directory.
    pub(crate) inherits: bool,
}

impl Bucket {
    pub(crate) fn at(base: Base) -> Self {
        Self { base, vnode: OnceLock::new(), entries: None, inherits: false }
    }
}

/// A possible location of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// In the directory itself.
    Flat,
    /// In this bucket, which may not exist yet.
    In(BucketName),
}

/// An entry with its location and the lower directory that contains it.
pub(crate) type Found = (Location, Arc<dyn Vnode>, Entry);

/// The in-memory state of a managed directory.
#[derive(Debug)]
pub(crate) struct Managed {
    pub(crate) record: Record,
    pub(crate) buckets: BTreeMap<BucketName, Bucket>,
    /// Number of visible subdirectories, once it has been counted.
    pub(crate) subdirs: Option<u32>,
    /// Number of changes of entries by users.
    pub(crate) changes: u64,
    /// Buckets with changes that may not be durable.
    pub(crate) dirty: BTreeSet<BucketName>,
    pub(crate) listing: Mutex<Option<Arc<Listing>>>,
    /// Number of entries that the conversion has moved since it started, changed direction, or was
    /// loaded.
    pub(crate) moved: u64,
}

impl Managed {
    /// Loads the record and the list of buckets. `cx` is the server's.
    pub(crate) fn load(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Self> {
        cx.require_blocking()?;
        let record = Record::read(cx, dir)?.unwrap_or(Record::NONE);
        let mut managed = Self::new(record);
        if managed.bases().contains(&Base::Directory) {
            managed.list_base(cx, dir, Base::Directory)?;
        }
        if let Some(store) = dir.lookup(cx, Name::new(STORE)?)? {
            managed.list_base(cx, &store.vnode, Base::Store)?;
        }
        // A previous server may have been killed before these changes were durable.
        managed.dirty = managed.buckets.keys().cloned().collect();
        Ok(managed)
    }

    pub(crate) fn new(record: Record) -> Self {
        Self {
            record,
            buckets: BTreeMap::new(),
            subdirs: None,
            changes: 0,
            dirty: BTreeSet::new(),
            listing: Mutex::new(None),
            moved: 0,
        }
    }

    fn list_base(&mut self, cx: &Cx<'_>, base_dir: &Arc<dyn Vnode>, base: Base) -> Result<()> {
        let scheme = self.record.scheme;
        base_dir.readdir(cx, 0, &mut |entry| {
            let name = entry.name.as_bytes();
            if entry.kind == Kind::Directory && scheme.is_bucket(name) {
                self.buckets.insert(name.to_vec(), Bucket::at(base));
            }
            true
        })
    }

    /// Returns the directories that can contain buckets. New buckets are created in the first.
    pub(crate) fn bases(&self) -> &'static [Base] {
        match (self.record.scheme, self.record.phase) {
            (Scheme::Hash { .. }, _) | (_, Phase::Filling | Phase::Emptying) => &[Base::Store],
            (_, Phase::Stable) => &[Base::Directory],
            (_, Phase::Raising) => &[Base::Directory, Base::Store],
            (_, Phase::Lowering) => &[Base::Store, Base::Directory],
        }
    }

    /// Whether entries can be both in buckets and in the directory itself, because a conversion is
    /// moving them.
    pub(crate) fn is_split(&self) -> bool {
        matches!(self.record.phase, Phase::Filling | Phase::Emptying)
    }

    /// Returns the possible locations of a name. The first is for new entries.
    pub(crate) fn locations(&self, name: &[u8]) -> Vec<Location> {
        let mut locations = match self.record.scheme {
            Scheme::Digits => match bucket_of_number(name) {
                Some(bucket) => vec![Location::In(bucket.to_vec())],
                None => return vec![Location::Flat],
            },
            Scheme::Hash { key, .. } => self.hash_locations(&hash_digits(&key, name)),
        };
        match self.record.phase {
            Phase::Filling => locations.push(Location::Flat),
            Phase::Emptying => locations.insert(0, Location::Flat),
            Phase::Stable | Phase::Raising | Phase::Lowering => {}
        }
        locations
    }

    /// Returns the possible buckets of a hash. New entries belong in the deepest bucket; buckets
    /// above it may not be fully split yet.
    pub(crate) fn hash_locations(&self, digits: &[u8]) -> Vec<Location> {
        let prefix = |len: usize| digits.get(..len).unwrap_or(digits);
        let mut len = 1;
        while len < MAX_HASH_DIGITS && self.is_divided(prefix(len)) {
            len += 1;
        }
        let above = (1..len).rev().map(prefix).filter(|name| self.buckets.contains_key(*name));
        core::iter::once(prefix(len)).chain(above).map(|name| Location::In(name.to_vec())).collect()
    }

    /// Whether there are buckets below this one.
    pub(crate) fn is_divided(&self, name: &[u8]) -> bool {
        let after = self.buckets.range::<[u8], _>((Bound::Excluded(name), Bound::Unbounded)).next();
        after.is_some_and(|(next, _)| next.starts_with(name))
    }

    /// Returns the lower directory of a location, or `None` if it does not exist.
    pub(crate) fn directory(
        &self,
        cx: &Cx<'_>,
        dir: &Arc<dyn Vnode>,
        location: &Location,
    ) -> Result<Option<Arc<dyn Vnode>>> {
        match location {
            Location::Flat => Ok(Some(Arc::clone(dir))),
            Location::In(name) if self.buckets.contains_key(name) => self.bucket(cx, dir, name).map(Some),
            Location::In(_) => Ok(None),
        }
    }

    /// Returns the lower directory of an existing bucket.
    pub(crate) fn bucket(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<Arc<dyn Vnode>> {
        let bucket = self.buckets.get(name).ok_or(Errno::IO)?;
        if let Some(vnode) = bucket.vnode.get() {
            return Ok(Arc::clone(vnode));
        }
        let base = self.base(cx, dir, bucket.base)?;
        let found = base.lookup(cx, Name::new(name)?)?.filter(|entry| entry.vnode.kind() == Kind::Directory);
        let found = found.ok_or_else(|| {
            tracing::error!("directory {}: bucket {} is missing", dir.id(), name.escape_ascii());
            Errno::IO
        })?;
        Ok(Arc::clone(bucket.vnode.get_or_init(|| found.vnode)))
    }

    /// Returns the parent directory of buckets.
    pub(crate) fn base(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, base: Base) -> Result<Arc<dyn Vnode>> {
        match base {
            Base::Directory => Ok(Arc::clone(dir)),
            Base::Store => Ok(dir.lookup(cx, Name::new(STORE)?)?.ok_or(Errno::IO)?.vnode),
        }
    }

    /// Returns the parent directory of buckets; creates it if necessary. `cx` is the server's.
    pub(crate) fn make_base(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, base: Base) -> Result<Arc<dyn Vnode>> {
        match base {
            Base::Directory => Ok(Arc::clone(dir)),
            Base::Store => make_own_dir(cx, dir, STORE),
        }
    }

    /// Returns a bucket; creates it if necessary. `cx` is the server's.
    pub(crate) fn make_bucket(&mut self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<Arc<dyn Vnode>> {
        if self.buckets.contains_key(name) {
            return self.bucket(cx, dir, name);
        }
        let base = self.bases().first().copied().ok_or(Errno::IO)?;
        let vnode = make_own_dir(cx, &self.make_base(cx, dir, base)?, name)?;
        let bucket = Bucket { entries: Some(0), ..Bucket::at(base) };
        let _ = bucket.vnode.set(Arc::clone(&vnode));
        self.buckets.insert(name.to_vec(), bucket);
        Ok(vnode)
    }

    /// Looks up an entry in its possible locations.
    pub(crate) fn find(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: Name<'_>) -> Result<Option<Found>> {
        for location in self.locations(name.as_bytes()) {
            if let Some(place) = self.directory(cx, dir, &location)?
                && let Some(entry) = place.lookup(cx, name)?
            {
                return Ok(Some((location, place, entry)));
            }
        }
        Ok(None)
    }

    /// Whether users see an entry of the lower directory at `location`.
    pub(crate) fn shows(&self, location: &Location, name: &[u8]) -> bool {
        !is_reserved(name) && self.locations(name).contains(location)
    }

    /// Updates the counters after a user has added or removed an entry.
    pub(crate) fn count(&mut self, location: &Location, kind: Kind, change: Change) {
        let by = |count: u32| match change {
            Change::Added => count.saturating_add(1),
            Change::Removed => count.saturating_sub(1),
        };
        self.changes += 1;
        if kind == Kind::Directory {
            self.subdirs = self.subdirs.map(by);
        }
        if let Location::In(name) = location {
            if let Some(bucket) = self.buckets.get_mut(name) {
                bucket.entries = bucket.entries.map(by);
            }
            self.dirty.insert(name.clone());
        }
    }
}

/// See [`Managed::count`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Added,
    Removed,
}

/// Returns one of the layer's own directories; creates it if necessary.
fn make_own_dir(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<Arc<dyn Vnode>> {
    let name = Name::new(name)?;
    match dir.mkdir(cx, name, PRIVATE) {
        Err(Errno::EXIST) => {}
        done => return Ok(done?.vnode),
    }
    let found = dir.lookup(cx, name)?.ok_or(Errno::IO)?.vnode;
    if found.kind() == Kind::Directory {
        return Ok(found);
    }
    tracing::error!("directory {}: {name} is reserved for this layer, but is not a directory", dir.id());
    Err(Errno::IO)
}
