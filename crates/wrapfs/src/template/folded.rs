//! Names that are stored as they were created and found in any spelling with the same folding ([`Matching::Folded`]).
//!
//! An exact spelling is one look-up below. For another one the directory's listing says under which name the entry is stored. A
//! listing is kept, updated with what this layer changes, and believed for a moment while the directory's times stay as they were. Only
//! "there is no such entry" depends on it: an entry is always looked up below before it is answered.
//!
//! Whoever creates, removes or renames entries holds the lock of the directory from the search to the update, so that two
//! spellings never become two entries.

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

/// What is changed below is seen after this long at the latest.
const BELIEVED: Duration = Duration::from_secs(1);
/// A listing is believed for this many times as long as it took, if that is longer.
const SHARE: u32 = 10;
/// How many names are kept of all directories. A directory with more is listed each time.
const NAMES_MAX: usize = 1 << 18;

/// What is known of directories.
#[derive(Debug, Default)]
pub(crate) struct Folded {
    locks: Locks,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    listings: NumberMap<Listing>,
    /// How many names all of them have.
    names: usize,
}

/// The entries of a directory by the folding of their names.
#[derive(Debug)]
struct Listing {
    stored: HashMap<Box<[u8]>, Box<[u8]>>,
    /// There were entries with the same folding, made below: of these it has the first in the order of bytes.
    has_twins: bool,
    stamp: Stamp,
    listed: Instant,
    believed: Duration,
}

/// The times of a directory that move when an entry comes or goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp(Time, Time);

impl Stamp {
    const fn of(attr: &Attr) -> Self {
        Self(attr.mtime, attr.ctime)
    }
}

/// What a listing says of a folding.
enum Said {
    /// It can't be relied on any more.
    Nothing,
    /// There is no such entry.
    Missing,
    /// It is stored under this name.
    Stored(Vec<u8>),
}

impl Listing {
    fn new(stamp: Stamp) -> Self {
        let (stored, listed) = (HashMap::new(), Instant::now());
        Self { stored, has_twins: false, stamp, listed, believed: BELIEVED }
    }

    fn is_believed(&self, stamp: Stamp) -> bool {
        self.stamp == stamp && self.listed.elapsed() < self.believed
    }

    fn insert(&mut self, folding: Vec<u8>, name: &[u8]) {
        match self.stored.entry(folding.into()) {
            Slot::Vacant(slot) => {
                slot.insert(name.into());
            }
            Slot::Occupied(mut slot) if &**slot.get() != name => {
                self.has_twins = true;
                if name < &**slot.get() {
                    slot.insert(name.into());
                }
            }
            Slot::Occupied(_) => {}
        }
    }

    fn answer(&self, folding: &[u8]) -> Said {
        self.stored.get(folding).map_or(Said::Missing, |name| Said::Stored(name.to_vec()))
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
    fn answer(&self, dir: u64, folding: &[u8], stamp: Stamp) -> Said {
        let known = self.known.lock();
        match known.listings.get(&dir) {
            Some(listing) if listing.is_believed(stamp) => listing.answer(folding),
            _ => Said::Nothing,
        }
    }

    fn is_known(&self, dir: u64, stamp: Stamp) -> bool {
        self.known.lock().listings.get(&dir).is_some_and(|listing| listing.is_believed(stamp))
    }

    /// The locks of two directories, or of one. A thread that must not wait for them runs again on another.
    fn hold(&self, cx: &Cx<'_>, a: u64, b: u64) -> Result<Held<'_>> {
        if cx.may_block { Ok(self.locks.hold(a, b)) } else { self.locks.try_hold(a, b).ok_or(vnode::MAY_BLOCK) }
    }
}

/// Where an entry is, or would be.
pub(crate) struct Stored<'a> {
    pub(crate) name: Cow<'a, [u8]>,
    /// The object's number, if there is one and names are folded.
    pub(crate) id: Option<u64>,
}

/// A change of a directory's entries, for its listing.
#[derive(Clone, Copy)]
enum Change<'a> {
    Came(Name<'a>),
    Went(Name<'a>),
}

impl TemplateVnode {
    /// The locks for a change of entries; `None` where names are not folded.
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

    /// The entry that a name leads to though it is stored under another one, and that one. The caller has looked for the name itself, and holds
    /// the directory's lock or not.
    pub(crate) fn find_respelled(&self, cx: &Cx<'_>, name: Name<'_>, held: bool) -> Result<Option<(Vec<u8>, Entry)>> {
        if self.core.matching != Matching::Folded {
            return Ok(None);
        }
        let folding = self.fold(cx, name)?;
        // A second time if the entry was renamed or removed below.
        for _ in 0..2 {
            let stored = match self.core.folded.answer(self.lower.id(), &folding, self.stamp(cx)?) {
                Said::Nothing => self.list_for(cx, &folding, held)?,
                Said::Missing => None,
                Said::Stored(stored) => Some(stored),
            };
            let Some(stored) = stored else { return Ok(None) };
            if let Some(entry) = self.find_exactly(cx, Name::new(&stored)?)? {
                return Ok(Some((stored, entry)));
            }
            self.core.folded.known.lock().forget(self.lower.id());
        }
        Ok(None)
    }

    /// Lists the directory, unless another thread just has. Answers the name with that folding.
    fn list_for(&self, cx: &Cx<'_>, folding: &[u8], held: bool) -> Result<Option<Vec<u8>>> {
        cx.require_blocking()?;
        let id = self.lower.id();
        // Nobody changes entries meanwhile.
        let _held = if held { None } else { Some(self.core.folded.hold(cx, id, id)?) };
        let stamp = self.stamp(cx)?;
        match self.core.folded.answer(id, folding, stamp) {
            Said::Stored(stored) => return Ok(Some(stored)),
            Said::Missing => return Ok(None),
            Said::Nothing => {}
        }
        let mut listing = Listing::new(stamp);
        let mut failed = Ok(());
        self.list(cx, 0, &mut |entry| {
            let folded = cx.check().and_then(|()| self.fold(cx, entry.name));
            failed = folded.map(|folding| listing.insert(folding, entry.name.as_bytes()));
            failed.is_ok()
        })?;
        failed?;
        listing.believed = BELIEVED.max(listing.listed.elapsed() * SHARE);
        let said = listing.answer(folding);
        self.core.folded.known.lock().keep(id, listing);
        Ok(if let Said::Stored(stored) = said { Some(stored) } else { None })
    }

    /// The name that the entry of a name is stored under, and its number; the name itself if there is none. The lock is held.
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

    /// Refuses to create a name if there is an entry in another spelling. The lock is held.
    pub(crate) fn must_be_new(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        match self.find_respelled(cx, name, true)? {
            Some(_) => Err(Errno::EXIST),
            None => Ok(()),
        }
    }

    /// Makes an entry of that name with the lock held, and takes note of it.
    pub(crate) fn coming<T>(&self, cx: &Cx<'_>, name: Name<'_>, make: impl FnOnce() -> Result<T>) -> Result<T> {
        self.changing(cx, Change::Came(name), make)
    }

    /// The same for the removal of a stored name.
    pub(crate) fn going<T>(&self, cx: &Cx<'_>, name: Name<'_>, remove: impl FnOnce() -> Result<T>) -> Result<T> {
        self.changing(cx, Change::Went(name), remove)
    }

    /// A listing that was right before the change is right after it. One that can't be kept up is dropped; the change stays.
    fn changing<T>(&self, cx: &Cx<'_>, change: Change<'_>, act: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.core.matching != Matching::Folded {
            return act();
        }
        let id = self.lower.id();
        let was_right = self.stamp(cx).is_ok_and(|stamp| self.core.folded.is_known(id, stamp));
        let done = act()?;
        let (Change::Came(name) | Change::Went(name)) = change;
        let now = if was_right {
            self.fold(cx, name).and_then(|folding| Ok((folding, self.stamp(cx)?)))
        } else {
            Err(Errno::STALE)
        };
        let mut known = self.core.folded.known.lock();
        let listing = known.forget(id);
        if let (Some(mut listing), Ok((folding, stamp))) = (listing, now) {
            match change {
                Change::Came(name) => listing.insert(folding, name.as_bytes()),
                Change::Went(_) => {
                    listing.stored.remove(&*folding);
                }
            }
            listing.stamp = stamp;
            // Who takes the place of a twin that went is not known.
            if !(listing.has_twins && matches!(change, Change::Went(_))) {
                known.keep(id, listing);
            }
        }
        Ok(done)
    }
}
