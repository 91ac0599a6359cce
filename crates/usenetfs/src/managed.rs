//! A managed directory: its buckets, and where an entry is.

use crate::listing::Listing;
use crate::record::{Phase, Record, STORE, is_reserved};
use crate::scheme::{DEEPEST, Scheme, bucket_of_number, hash_digits};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, OnceLock};
use vnode::{Cx, Entry, Errno, Kind, Name, Result, Vnode};

/// What a bucket is called.
pub(crate) type BucketName = Vec<u8>;

/// The permission bits of what the layer makes for itself.
pub(crate) const PRIVATE: u32 = 0o700;

/// Where buckets lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// In the managed directory itself.
    Directory,
    /// In the store, a directory in it.
    Store,
}

/// A bucket that is there.
#[derive(Debug)]
pub(crate) struct Bucket {
    pub(crate) base: Base,
    vnode: OnceLock<Arc<dyn Vnode>>,
    /// How many entries it has, once somebody had to know.
    pub(crate) entries: Option<u32>,
    /// Does it hand down what the directory hands down (group, default ACL)?
    pub(crate) fits: bool,
}

impl Bucket {
    pub(crate) fn at(base: Base) -> Self {
        Self { base, vnode: OnceLock::new(), entries: None, fits: false }
    }
}

/// Where an entry of a name may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Spot {
    /// In the directory itself.
    Flat,
    /// In that bucket, which may not be there yet.
    In(BucketName),
}

/// An entry, with where it is: the spot, and the directory below that it stands for.
pub(crate) type Found = (Spot, Arc<dyn Vnode>, Entry);

/// A managed directory, as long as its vnode lives.
#[derive(Debug)]
pub(crate) struct Managed {
    pub(crate) record: Record,
    pub(crate) buckets: BTreeMap<BucketName, Bucket>,
    /// Subdirectories as users see them, once somebody had to know.
    pub(crate) subdirs: Option<u32>,
    /// How often users have changed its entries.
    pub(crate) changes: u64,
    /// Buckets that may have changes that were not made durable.
    pub(crate) dirty: BTreeSet<BucketName>,
    pub(crate) listing: Mutex<Option<Arc<Listing>>>,
    /// Entries that the conversion has moved since it was begun, turned round or loaded.
    pub(crate) moved: u64,
}

impl Managed {
    /// Finds out what there is. `cx` is the server's.
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
        // Whoever served before may have been killed before these were made durable.
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

    /// Where buckets may lie; new ones are made in the first.
    pub(crate) fn bases(&self) -> &'static [Base] {
        match (self.record.scheme, self.record.phase) {
            (Scheme::Hash { .. }, _) | (_, Phase::Filling | Phase::Emptying) => &[Base::Store],
            (_, Phase::Stable) => &[Base::Directory],
            (_, Phase::Raising) => &[Base::Directory, Base::Store],
            (_, Phase::Lowering) => &[Base::Store, Base::Directory],
        }
    }

    /// May any entry lie in the directory itself because it is not converted yet, or converted already?
    pub(crate) fn is_split(&self) -> bool {
        matches!(self.record.phase, Phase::Filling | Phase::Emptying)
    }

    /// Where an entry of that name may be, the place for a new one first.
    pub(crate) fn spots(&self, name: &[u8]) -> Vec<Spot> {
        let mut spots = match self.record.scheme {
            Scheme::Digits => match bucket_of_number(name) {
                Some(bucket) => vec![Spot::In(bucket.to_vec())],
                None => return vec![Spot::Flat],
            },
            Scheme::Hash { key, .. } => self.hash_spots(&hash_digits(&key, name)),
        };
        match self.record.phase {
            Phase::Filling => spots.push(Spot::Flat),
            Phase::Emptying => spots.insert(0, Spot::Flat),
            Phase::Stable | Phase::Raising | Phase::Lowering => {}
        }
        spots
    }

    /// The bucket for new entries is the first on the way down that has none below it. One above it may still be about to be split.
    pub(crate) fn hash_spots(&self, digits: &[u8]) -> Vec<Spot> {
        let prefix = |len: usize| digits.get(..len).unwrap_or(digits);
        let mut len = 1;
        while len < DEEPEST && self.is_divided(prefix(len)) {
            len += 1;
        }
        let above = (1..len).rev().map(prefix).filter(|name| self.buckets.contains_key(*name));
        core::iter::once(prefix(len)).chain(above).map(|name| Spot::In(name.to_vec())).collect()
    }

    /// Are there buckets below that one?
    pub(crate) fn is_divided(&self, name: &[u8]) -> bool {
        let after = self.buckets.range::<[u8], _>((Bound::Excluded(name), Bound::Unbounded)).next();
        after.is_some_and(|(next, _)| next.starts_with(name))
    }

    /// The directory that a spot stands for; `None`: it isn't there.
    pub(crate) fn directory(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, spot: &Spot) -> Result<Option<Arc<dyn Vnode>>> {
        match spot {
            Spot::Flat => Ok(Some(Arc::clone(dir))),
            Spot::In(name) if self.buckets.contains_key(name) => self.bucket(cx, dir, name).map(Some),
            Spot::In(_) => Ok(None),
        }
    }

    /// A bucket that is there.
    pub(crate) fn bucket(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<Arc<dyn Vnode>> {
        let bucket = self.buckets.get(name).ok_or(Errno::IO)?;
        if let Some(vnode) = bucket.vnode.get() {
            return Ok(Arc::clone(vnode));
        }
        let base = self.base(cx, dir, bucket.base)?;
        let found = base.lookup(cx, Name::new(name)?)?.filter(|entry| entry.vnode.kind() == Kind::Directory);
        let found = found.ok_or_else(|| {
            tracing::error!("directory {}: its bucket {} is gone", dir.id(), name.escape_ascii());
            Errno::IO
        })?;
        Ok(Arc::clone(bucket.vnode.get_or_init(|| found.vnode)))
    }

    /// The directory that buckets lie in.
    pub(crate) fn base(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, base: Base) -> Result<Arc<dyn Vnode>> {
        match base {
            Base::Directory => Ok(Arc::clone(dir)),
            Base::Store => Ok(dir.lookup(cx, Name::new(STORE)?)?.ok_or(Errno::IO)?.vnode),
        }
    }

    /// The same, made if it isn't there. `cx` is the server's.
    pub(crate) fn make_base(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, base: Base) -> Result<Arc<dyn Vnode>> {
        match base {
            Base::Directory => Ok(Arc::clone(dir)),
            Base::Store => made(cx, dir, STORE),
        }
    }

    /// A bucket, made if it isn't there. `cx` is the server's.
    pub(crate) fn make_bucket(&mut self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<Arc<dyn Vnode>> {
        if self.buckets.contains_key(name) {
            return self.bucket(cx, dir, name);
        }
        let base = self.bases().first().copied().ok_or(Errno::IO)?;
        let vnode = made(cx, &self.make_base(cx, dir, base)?, name)?;
        let bucket = Bucket { entries: Some(0), ..Bucket::at(base) };
        let _ = bucket.vnode.set(Arc::clone(&vnode));
        self.buckets.insert(name.to_vec(), bucket);
        Ok(vnode)
    }

    /// The entry of that name, and the directory below that it is in.
    pub(crate) fn find(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: Name<'_>) -> Result<Option<Found>> {
        for spot in self.spots(name.as_bytes()) {
            if let Some(place) = self.directory(cx, dir, &spot)?
                && let Some(entry) = place.lookup(cx, name)?
            {
                return Ok(Some((spot, place, entry)));
            }
        }
        Ok(None)
    }

    /// Does an entry of a directory below show above? `spot` says which.
    pub(crate) fn shows(&self, spot: &Spot, name: &[u8]) -> bool {
        !is_reserved(name) && self.spots(name).contains(spot)
    }

    /// Users have added (or taken) an entry.
    pub(crate) fn count(&mut self, spot: &Spot, kind: Kind, change: Change) {
        let by = |count: u32| match change {
            Change::Added => count.saturating_add(1),
            Change::Removed => count.saturating_sub(1),
        };
        self.changes += 1;
        if kind == Kind::Directory {
            self.subdirs = self.subdirs.map(by);
        }
        if let Spot::In(name) = spot {
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

/// A directory of the layer's own, made if it isn't there.
fn made(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<Arc<dyn Vnode>> {
    let name = Name::new(name)?;
    match dir.mkdir(cx, name, PRIVATE) {
        Err(Errno::EXIST) => {}
        done => return Ok(done?.vnode),
    }
    let found = dir.lookup(cx, name)?.ok_or(Errno::IO)?.vnode;
    if found.kind() == Kind::Directory {
        return Ok(found);
    }
    tracing::error!("directory {}: {name} should be a directory of this layer's, and is none", dir.id());
    Err(Errno::IO)
}
