//! Case-folded names: stored as created, and found in any spelling with the same folding
//! ([`Matching::Folded`]).
//!
//! An exact spelling costs one lookup below. For other spellings, the directory's listing tells
//! which name the entry is stored under. A listing is cached, updated with changes made through
//! this layer, and trusted for a moment while the directory's timestamps do not change. Only
//! negative results depend on it: a positive result is always verified by a lookup below.
//!
//! Operations that create, remove or rename entries hold the directory's lock from the search to
//! the update, so that two spellings never become two entries.

use super::guard::guard;
use super::long::{Held, Locks};
use super::node::TemplateVnode;
use crate::hooks::Matching;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::time::{Duration, Instant};
use vnode::{Attr, Cx, Entry, Errno, Name, NumberMap, Result, Time};

/// An out-of-band change is noticed within this time.
const TRUST_TIME: Duration = Duration::from_secs(1);
/// A listing is trusted for this multiple of the time it took, if that is longer.
const TRUST_FACTOR: u32 = 10;
/// Maximum number of cached names of all directories together. A larger directory is listed every
/// time.
const NAMES_MAX: usize = 1 << 18;

/// Cached listings of directories.
#[derive(Debug, Default)]
pub(crate) struct Folded {
    locks: Locks,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    listings: NumberMap<Listing>,
    /// Number of names in all listings.
    names: usize,
}

/// The entries of a directory, keyed by folded name.
#[derive(Debug)]
struct Listing {
    stored: HashMap<Box<[u8]>, Box<[u8]>>,
    /// Whether out-of-band entries with the same folding exist. The listing has the first of them
    /// in byte order.
    has_duplicates: bool,
    stamp: Stamp,
    listed: Instant,
    trusted_for: Duration,
}

/// The timestamps of a directory that change when entries are added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp(Time, Time);

impl Stamp {
    const fn of(attr: &Attr) -> Self {
        Self(attr.mtime, attr.ctime)
    }
}

/// The result of looking up a folded name in a listing.
enum Cached {
    /// The listing is stale.
    Stale,
    /// No such entry exists.
    Missing,
    /// The entry is stored under this name.
    Stored(Vec<u8>),
}

impl Listing {
    fn new(stamp: Stamp) -> Self {
        let (stored, listed) = (HashMap::new(), Instant::now());
        Self { stored, has_duplicates: false, stamp, listed, trusted_for: TRUST_TIME }
    }

    fn is_trusted(&self, stamp: Stamp) -> bool {
        self.stamp == stamp && self.listed.elapsed() < self.trusted_for
    }

    fn insert(&mut self, folding: Vec<u8>, name: &[u8]) {
        match self.stored.entry(folding.into()) {
            Slot::Vacant(slot) => {
                slot.insert(name.into());
            }
            Slot::Occupied(mut slot) if &**slot.get() != name => {
                self.has_duplicates = true;
                if name < &**slot.get() {
                    slot.insert(name.into());
                }
            }
            Slot::Occupied(_) => {}
        }
    }

    fn find(&self, folding: &[u8]) -> Cached {
        self.stored.get(folding).map_or(Cached::Missing, |name| Cached::Stored(name.to_vec()))
    }
}

impl Known {
    fn forget(&mut self, dir: u64) -> Option<Listing> {
        let listing = self.listings.remove(&dir)?;
        self.names -= listing.stored.len();
        Some(listing)
    }

    fn keep(&mut self, dir: u64, listing: Listing) {
        self.forget(dir);
        if listing.stored.len() > NAMES_MAX {
            return;
        }
        while self.names + listing.stored.len() > NAMES_MAX {
            let oldest = self.listings.iter().min_by_key(|(_, listing)| listing.listed).map(|(dir, _)| *dir);
            let Some(oldest) = oldest else { break };
            self.forget(oldest);
        }
        self.names += listing.stored.len();
        self.listings.insert(dir, listing);
    }
}

impl Folded {
    fn find(&self, dir: u64, folding: &[u8], stamp: Stamp) -> Cached {
        let known = self.known.lock();
        match known.listings.get(&dir) {
            Some(listing) if listing.is_trusted(stamp) => listing.find(folding),
            _ => Cached::Stale,
        }
    }

    fn is_known(&self, dir: u64, stamp: Stamp) -> bool {
        self.known.lock().listings.get(&dir).is_some_and(|listing| listing.is_trusted(stamp))
    }

    /// Locks one or two directories. If the thread must not block, the request is retried on
    /// another one.
    fn hold(&self, cx: &Cx<'_>, a: u64, b: u64) -> Result<Held<'_>> {
        if cx.may_block { Ok(self.locks.hold(a, b)) } else { self.locks.try_hold(a, b).ok_or(vnode::MAY_BLOCK) }
    }
}

/// Where an entry is stored, or would be.
pub(crate) struct Stored<'a> {
    pub(crate) name: Cow<'a, [u8]>,
    /// The object's number, if it exists and names are folded.
    pub(crate) id: Option<u64>,
}

/// A change of a directory's entries, for its listing.
#[derive(Clone, Copy)]
enum Change<'a> {
    Inserted(Name<'a>),
    Removed(Name<'a>),
}

impl TemplateVnode {
    /// Takes the locks for a change of entries. Returns `None` if names are not folded.
    pub(crate) fn hold_names(&self, cx: &Cx<'_>, other: &Self) -> Result<Option<Held<'_>>> {
        if self.core.matching != Matching::Folded {
            return Ok(None);
        }
        self.core.folded.hold(cx, self.lower.id(), other.lower.id()).map(Some)
    }

    fn fold(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Vec<u8>> {
        match &self.core.names {
            Some(hook) => guard("fold_filename", || hook.fold_filename(cx, &self.object(), name.as_bytes())),
            None => Ok(name.as_bytes().to_vec()),
        }
    }

    fn stamp(&self, cx: &Cx<'_>) -> Result<Stamp> {
        Ok(Stamp::of(&self.lower.getattr(cx)?))
    }

    /// Returns the entry that `name` refers to if it is stored in another spelling, with the stored
    /// name. The caller has already looked up `name` itself. `held`: the caller holds the
    /// directory's lock.
    pub(crate) fn find_respelled(&self, cx: &Cx<'_>, name: Name<'_>, held: bool) -> Result<Option<(Vec<u8>, Entry)>> {
        if self.core.matching != Matching::Folded {
            return Ok(None);
        }
        let folding = self.fold(cx, name)?;
        // Try a second time if the entry was renamed or removed below.
        for _ in 0..2 {
            let stored = match self.core.folded.find(self.lower.id(), &folding, self.stamp(cx)?) {
                Cached::Stale => self.list_for(cx, &folding, held)?,
                Cached::Missing => None,
                Cached::Stored(stored) => Some(stored),
            };
            let Some(stored) = stored else { return Ok(None) };
            if let Some(entry) = self.find_exactly(cx, Name::new(&stored)?)? {
                return Ok(Some((stored, entry)));
            }
            self.core.folded.known.lock().forget(self.lower.id());
        }
        Ok(None)
    }

    /// Lists the directory, unless another thread has just done so. Returns the stored name with
    /// this folding.
    fn list_for(&self, cx: &Cx<'_>, folding: &[u8], held: bool) -> Result<Option<Vec<u8>>> {
        cx.require_blocking()?;
        let id = self.lower.id();
        // No entries change during the listing.
        let _held = if held { None } else { Some(self.core.folded.hold(cx, id, id)?) };
        let stamp = self.stamp(cx)?;
        match self.core.folded.find(id, folding, stamp) {
            Cached::Stored(stored) => return Ok(Some(stored)),
            Cached::Missing => return Ok(None),
            Cached::Stale => {}
        }
        let mut listing = Listing::new(stamp);
        let mut failed = Ok(());
        self.list(cx, 0, &mut |entry| {
            let folded = cx.check().and_then(|()| self.fold(cx, entry.name));
            failed = folded.map(|folding| listing.insert(folding, entry.name.as_bytes()));
            failed.is_ok()
        })?;
        failed?;
        listing.trusted_for = TRUST_TIME.max(listing.listed.elapsed() * TRUST_FACTOR);
        let found = listing.find(folding);
        // The listing of one caller says nothing about the names that another one sees.
        if !self.core.differs_by_caller() {
            self.core.folded.known.lock().keep(id, listing);
        }
        Ok(if let Cached::Stored(stored) = found { Some(stored) } else { None })
    }

    /// Returns the name that the entry is stored under and its number, or `name` itself if there is
    /// no entry. The caller holds the lock.
    pub(crate) fn stored<'a>(&self, cx: &Cx<'_>, name: Name<'a>) -> Result<Stored<'a>> {
        let as_given = Cow::Borrowed(name.as_bytes());
        if self.core.matching != Matching::Folded {
            return Ok(Stored { name: as_given, id: None });
        }
        if let Some(entry) = self.find_exactly(cx, name)? {
            return Ok(Stored { name: as_given, id: Some(entry.vnode.id()) });
        }
        Ok(match self.find_respelled(cx, name, true)? {
            Some((name, entry)) => Stored { name: name.into(), id: Some(entry.vnode.id()) },
            None => Stored { name: as_given, id: None },
        })
    }

    /// Fails if an entry exists in another spelling. The caller holds the lock.
    pub(crate) fn must_be_new(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        match self.find_respelled(cx, name, true)? {
            Some(_) => Err(Errno::EXIST),
            None => Ok(()),
        }
    }

    /// Creates an entry with the lock held, and updates the listing.
    pub(crate) fn inserting<T>(&self, cx: &Cx<'_>, name: Name<'_>, make: impl FnOnce() -> Result<T>) -> Result<T> {
        self.updating(cx, Change::Inserted(name), make)
    }

    /// Removes a stored name with the lock held, and updates the listing.
    pub(crate) fn removing<T>(&self, cx: &Cx<'_>, name: Name<'_>, remove: impl FnOnce() -> Result<T>) -> Result<T> {
        self.updating(cx, Change::Removed(name), remove)
    }

    /// Updates a valid listing with a change. A listing that cannot be updated is dropped; the
    /// change still succeeds.
    fn updating<T>(&self, cx: &Cx<'_>, change: Change<'_>, act: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.core.matching != Matching::Folded {
            return act();
        }
        let id = self.lower.id();
        let was_right = self.stamp(cx).is_ok_and(|stamp| self.core.folded.is_known(id, stamp));
        let done = act()?;
        let (Change::Inserted(name) | Change::Removed(name)) = change;
        let now = if was_right {
            self.fold(cx, name).and_then(|folding| Ok((folding, self.stamp(cx)?)))
        } else {
            Err(Errno::STALE)
        };
        let mut known = self.core.folded.known.lock();
        let listing = known.forget(id);
        if let (Some(mut listing), Ok((folding, stamp))) = (listing, now) {
            match change {
                Change::Inserted(name) => listing.insert(folding, name.as_bytes()),
                Change::Removed(_) => {
                    listing.stored.remove(&*folding);
                }
            }
            listing.stamp = stamp;
            // When one of several duplicates is removed, the listing does not know the next one.
            if !(listing.has_duplicates && matches!(change, Change::Removed(_))) {
                known.keep(id, listing);
            }
        }
        Ok(done)
    }
}
