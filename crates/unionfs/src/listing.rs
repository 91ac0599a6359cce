//! Merged listings, and how they are kept up to date while entries change through the union.
//!
//! A directory is merged once, and the listing is kept for readers that continue and for new ones.
//! A change of an entry through the union only marks its name in the listing: as gone, or as one to
//! look up when a reader reaches it. So listing a directory while its entries change costs time
//! linear in their number.

use crate::branch::Stack;
use crate::inode_number::mix;
use crate::readers::Readers;
use crate::shortname::ShortName;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Deref;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use vnode::{Errno, Kind, Result, Time};

/// Number of listings of large directories that are kept, and of others in any case.
const KEPT: usize = 32;
/// More listings of other directories are kept, up to this number, while they were merged from at
/// most [`MOST_WORK`] lower entries. One takes about 40 bytes.
const MOST_KEPT: usize = 1024;
const MOST_WORK: usize = 1 << 17;
/// A listing accepts this many new names, plus half the number that it was merged with.
const MOST_ADDED: usize = 1024;
/// Maximum number of changes noted during a merge.
const MOST_NOTED: usize = 1 << 16;
/// A directory with fewer lower entries, hidden ones and whiteouts included, is merged again
/// whenever it may have changed out of band.
const LARGE: usize = 4096;
/// Changes through the union change a directory's stamps too, so an additional out-of-band change
/// can't be detected. A large directory is then merged again, but only after this time per entry,
/// or four times the duration of the last merge if that is longer. During a merge the kernel makes
/// writers to the directory wait, and readers must not be able to keep it in that state.
const GRACE: Duration = Duration::from_micros(5);

/// The values that change with each change of an entry of one directory: its times, and the stamp
/// that its layer reports.
pub(crate) type Stamp = (Time, Time, Option<u64>);

/// The stamps of all parts of a directory, or the error of reading one.
#[derive(Debug, Default)]
pub(crate) struct PartStamps {
    all: Box<[Result<Stamp>]>,
    digest: OnceLock<u64>,
}

/// The stamps of all parts. The same object as long as they are unchanged.
pub(crate) type Stamps = Arc<PartStamps>;

impl PartStamps {
    /// Returns the digest of the stamps and their parts, which `compute` returns the first time.
    pub(crate) fn digest(&self, compute: impl FnOnce() -> u64) -> u64 {
        *self.digest.get_or_init(compute)
    }
}

impl Deref for PartStamps {
    type Target = [Result<Stamp>];

    fn deref(&self) -> &[Result<Stamp>] {
        &self.all
    }
}

impl FromIterator<Result<Stamp>> for PartStamps {
    fn from_iter<I: IntoIterator<Item = Result<Stamp>>>(stamps: I) -> Self {
        Self { all: stamps.into_iter().collect(), digest: OnceLock::new() }
    }
}

/// How an entry changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryChange {
    /// The name was removed.
    Gone,
    /// The name has to be looked up.
    Unknown,
}

/// State of a name in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Known,
    Gone,
    Unknown,
}

#[derive(Debug)]
struct Item {
    cookie: u64,
    ino: u64,
    start: u32,
    len: u8,
    kind: Kind,
    state: State,
}

/// A name that was added after the merge.
#[derive(Debug)]
struct Added {
    name: Box<[u8]>,
    state: State,
    ino: u64,
    kind: Kind,
}

/// The merged entries of a directory, in the order of their cookies.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    names: Vec<u8>,
    items: Vec<Item>,
    added: BTreeMap<u64, Added>,
    /// Number of lower entries that were merged, whiteouts included.
    pub(crate) work: usize,
    /// Number of changes.
    version: u64,
    /// Whether positions have 31 bits.
    narrow: bool,
    /// Whether the positions of new names remain taken after their removal.
    keeps_removed: bool,
}

/// A name with its cookie, and what is known of it.
pub(crate) type Placed<T> = (u64, Box<[u8]>, T);

/// The place of a name in a listing.
enum Spot {
    Item(usize),
    Added(u64),
    /// Not there; this would be its cookie.
    Free(u64),
}

/// Entries taken from a listing.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) entries: Vec<BatchEntry>,
    names: Vec<u8>,
    version: u64,
}

/// An entry of a [`Batch`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchEntry {
    pub(crate) cookie: u64,
    pub(crate) ino: u64,
    pub(crate) kind: Kind,
    /// Whether kind, number and existence are unknown.
    pub(crate) unknown: bool,
    start: usize,
    end: usize,
}

impl Batch {
    /// Returns the name of an entry of this batch.
    pub(crate) fn name(&self, entry: &BatchEntry) -> &[u8] {
        self.names.get(entry.start..entry.end).unwrap_or_default()
    }

    fn push(&mut self, name: &[u8], (cookie, ino, kind): (u64, u64, Kind), state: State) {
        let start = self.names.len();
        self.names.extend_from_slice(name);
        let (end, unknown) = (self.names.len(), state == State::Unknown);
        self.entries.push(BatchEntry { cookie, ino, kind, unknown, start, end });
    }
}

/// As [`position`], in 31 bits. The last million of values is reserved for names with equal
/// positions, whose cookies are consecutive.
fn narrow_position(name: &[u8]) -> u64 {
    (position(name) % ((1 << 31) - (1 << 20))).max(1)
}

/// Returns the position of a name in a merged listing: a 62-bit hash that never changes and is
/// never 0.
pub(crate) fn position(name: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for &byte in name {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    (mix(hash) >> 2).max(1)
}

impl Listing {
    /// Returns an empty listing with room for `entries`; `narrow`: positions have 31 bits.
    pub(crate) fn with_capacity(entries: usize, narrow: bool) -> Self {
        Self { items: Vec::with_capacity(entries), narrow, ..Self::default() }
    }

    /// Returns the position of a name in this listing.
    pub(crate) fn position(&self, name: &[u8]) -> u64 {
        if self.narrow { narrow_position(name) } else { position(name) }
    }

    /// Appends an entry. The caller appends in the order of cookies.
    pub(crate) fn push(&mut self, cookie: u64, name: &[u8], ino: u64, kind: Kind) -> Result<()> {
        self.push_item((cookie, State::Known), name, (ino, kind))
    }

    /// Appends a name that was removed, whose cookie remains taken.
    pub(crate) fn push_gone(&mut self, cookie: u64, name: &[u8]) -> Result<()> {
        self.push_item((cookie, State::Gone), name, (0, Kind::Regular))
    }

    fn push_item(&mut self, (cookie, state): (u64, State), name: &[u8], (ino, kind): (u64, Kind)) -> Result<()> {
        let start = u32::try_from(self.names.len()).map_err(|_| Errno::OVERFLOW)?;
        let len = u8::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)?;
        self.names.extend_from_slice(name);
        self.items.push(Item { cookie, ino, start, len, kind, state });
        Ok(())
    }

    /// Whether names can have equal positions. That two of 62 bits are equal is too improbable to
    /// matter.
    pub(crate) fn is_narrow(&self) -> bool {
        self.narrow
    }

    /// Returns the cookies of these names, in their order: their positions, or the next ones if
    /// these are taken. Names that the listing `old` has keep their cookies, for its readers. The
    /// second list has the removed names whose cookies have to remain taken.
    pub(crate) fn place<T>(&self, old: Option<&Self>, names: Vec<(Box<[u8]>, T)>) -> (Vec<Placed<T>>, Vec<Placed<()>>) {
        let (mut placed, mut new) = (Vec::with_capacity(names.len()), Vec::new());
        let mut taken = HashSet::new();
        for (name, what) in names {
            match old.and_then(|old| old.cookie_of(&name)) {
                Some(cookie) => {
                    taken.insert(cookie);
                    placed.push((cookie, name, what));
                }
                None => new.push((self.position(&name), name, what)),
            }
        }
        let mut gone = old.map(Self::followed).unwrap_or_default();
        gone.retain(|(cookie, ..)| taken.insert(*cookie));
        new.sort_unstable_by(|(a, one, _), (b, other, _)| (a, one).cmp(&(b, other)));
        let mut last = 0;
        for (position, name, what) in new {
            last = position.max(last + 1);
            while taken.contains(&last) {
                last += 1;
            }
            placed.push((last, name, what));
        }
        if old.is_some() {
            placed.sort_unstable_by_key(|(cookie, ..)| *cookie);
            gone.sort_unstable_by_key(|(cookie, ..)| *cookie);
        }
        (placed, gone)
    }

    fn cookie_of(&self, name: &[u8]) -> Option<u64> {
        match self.find(name) {
            Spot::Item(index) => self.items.get(index).map(|item| item.cookie),
            Spot::Added(cookie) => Some(cookie),
            Spot::Free(_) => None,
        }
    }

    fn all(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let items = self.items.iter().map(|item| (item.cookie, self.name_of(item)));
        items.chain(self.added.iter().map(|(cookie, added)| (*cookie, &*added.name)))
    }

    /// Returns the names whose next cookie is taken too: another name may have it because of them.
    fn followed(&self) -> Vec<Placed<()>> {
        let followed = self.all().filter(|(cookie, _)| self.is_taken(cookie + 1));
        followed.map(|(cookie, name)| (cookie, name.into(), ())).collect()
    }

    /// Returns what has to remain of this listing so that names with equal positions keep their
    /// cookies in the next one.
    fn collisions(&self) -> Option<Self> {
        if !self.narrow {
            return None;
        }
        let mut all: Vec<_> =
            self.all().filter(|(cookie, _)| self.is_taken(cookie + 1) || self.is_taken(cookie - 1)).collect();
        all.sort_unstable_by_key(|(cookie, _)| *cookie);
        let mut collisions = Self::with_capacity(all.len(), true);
        let pushed = all.into_iter().try_for_each(|(cookie, name)| collisions.push_gone(cookie, name));
        pushed.is_ok().then_some(collisions).filter(|collisions| !collisions.items.is_empty())
    }

    fn name_of(&self, item: &Item) -> &[u8] {
        let start = item.start as usize;
        self.names.get(start..start + usize::from(item.len)).unwrap_or_default()
    }

    /// Finds a name. Names with equal positions have consecutive cookies, all of which remain
    /// taken.
    fn find(&self, name: &[u8]) -> Spot {
        let mut cookie = self.position(name);
        let mut index = self.items.partition_point(|item| item.cookie < cookie);
        loop {
            match self.items.get(index).filter(|item| item.cookie == cookie) {
                Some(item) if self.name_of(item) == name => return Spot::Item(index),
                Some(_) => index += 1,
                None => match self.added.get(&cookie) {
                    Some(added) if *added.name == *name => return Spot::Added(cookie),
                    Some(_) => {}
                    None => return Spot::Free(cookie),
                },
            }
            cookie += 1;
        }
    }

    /// Whether a name has this cookie, or had it until it was removed.
    pub(crate) fn is_taken(&self, cookie: u64) -> bool {
        self.added.contains_key(&cookie) || self.items.binary_search_by_key(&cookie, |item| item.cookie).is_ok()
    }

    /// Returns the positions of all names, also of those that were removed since.
    fn positions(&self) -> impl Iterator<Item = u64> + '_ {
        self.items.iter().map(|item| item.cookie).chain(self.added.keys().copied())
    }

    /// Notes a change. Returns false after too many new names: the listing must be dropped then.
    fn change(&mut self, name: &[u8], change: EntryChange) -> bool {
        self.version += 1;
        let state = if change == EntryChange::Gone { State::Gone } else { State::Unknown };
        match (self.find(name), change) {
            (Spot::Item(index), _) => self.items.get_mut(index).map_or((), |item| item.state = state),
            (Spot::Added(cookie), EntryChange::Gone) if !self.keeps_removed && !self.is_taken(cookie + 1) => {
                self.added.remove(&cookie);
            }
            (Spot::Added(cookie), _) => self.added.get_mut(&cookie).map_or((), |added| added.state = state),
            (Spot::Free(_), EntryChange::Gone) => {}
            (Spot::Free(cookie), EntryChange::Unknown) => {
                self.added.insert(cookie, Added { name: name.into(), state, ino: 0, kind: Kind::Regular });
            }
        }
        self.added.len() <= MOST_ADDED + self.items.len() / 2
    }

    /// Stores the result of looking up an unknown entry of a batch, unless something has changed
    /// since.
    pub(crate) fn resolve(&mut self, batch: &Batch, entry: &BatchEntry, found: Option<(u64, Kind)>) {
        if self.version != batch.version {
            return;
        }
        let (state, (ino, kind)) = found.map_or((State::Gone, (0, entry.kind)), |found| (State::Known, found));
        match self.find(batch.name(entry)) {
            Spot::Item(index) => {
                if let Some(item) = self.items.get_mut(index) {
                    (item.state, item.ino, item.kind) = (state, ino, kind);
                }
            }
            Spot::Added(cookie) => {
                if let Some(added) = self.added.get_mut(&cookie) {
                    (added.state, added.ino, added.kind) = (state, ino, kind);
                }
            }
            Spot::Free(_) => {}
        }
    }

    /// Returns up to `most` entries after a cookie.
    pub(crate) fn after(&self, cookie: u64, most: usize) -> Batch {
        let first = self.items.partition_point(|item| item.cookie <= cookie);
        let mut items = self.items.get(first..).unwrap_or_default().iter().peekable();
        let mut added = self.added.range(cookie.saturating_add(1)..).peekable();
        let mut batch = Batch { version: self.version, ..Batch::default() };
        while batch.entries.len() < most {
            let next = match (items.peek(), added.peek()) {
                (Some(item), Some((cookie, _))) if **cookie < item.cookie => None,
                (Some(_), _) => items.next(),
                (None, Some(_)) => None,
                (None, None) => break,
            };
            match next {
                Some(item) if item.state != State::Gone => {
                    batch.push(self.name_of(item), (item.cookie, item.ino, item.kind), item.state);
                }
                Some(_) => {}
                None => match added.next() {
                    Some((&cookie, new)) if new.state != State::Gone => {
                        batch.push(&new.name, (cookie, new.ino, new.kind), new.state);
                    }
                    _ => {}
                },
            }
        }
        batch
    }
}

/// A listing, and the parts that it was merged from.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) listing: Listing,
    stack: Stack,
    stamps: Stamps,
    merged: Instant,
    /// How long after the merge it may be used in spite of own changes.
    grace: Duration,
    /// Whether entries were changed through the union since (own changes).
    own: bool,
}

/// Whether a kept listing may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Validity {
    Yes,
    /// Yes, until this time: there were own changes since, and perhaps out-of-band ones.
    Until(Instant),
    No,
}

/// Whether a part with these stamps is unchanged. A part that hangs counts as unchanged.
fn is_same((was, now): (&Result<Stamp>, &Result<Stamp>)) -> bool {
    was == now || *now == Err(Errno::TIMEDOUT)
}

impl Kept {
    /// Returns a listing that was merged from parts with these stamps. In spite of own changes, it
    /// may be used for the time `least`, and longer if it is large.
    pub(crate) fn new(listing: Listing, stack: Stack, stamps: Stamps, begun: Instant, least: Duration) -> Self {
        let (merged, entries) = (Instant::now(), listing.work);
        let grace = match u32::try_from(entries) {
            _ if entries < LARGE => least,
            Ok(entries) => (GRACE * entries).max((merged - begun) * 4).max(least),
            Err(_) => Duration::MAX,
        };
        Self { listing, stack, stamps, merged, grace, own: false }
    }

    /// Whether the listing may be used for a new reader, given the directory's current stack and
    /// stamps.
    pub(crate) fn validity(&self, stack: &Stack, stamps: &Stamps) -> Validity {
        if !Arc::ptr_eq(&self.stack, stack) && !crate::branch::same_stack(&self.stack, stack) {
            return Validity::No;
        }
        if Arc::ptr_eq(&self.stamps, stamps) || self.stamps.iter().zip(stamps.iter()).all(is_same) {
            return Validity::Yes;
        }
        match self.merged.checked_add(self.grace) {
            Some(until) if self.own && Instant::now() < until => Validity::Until(until),
            _ => Validity::No,
        }
    }
}

/// The kept listing of a directory, and the changes noted while it is being merged.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    kept: Option<Arc<Mutex<Kept>>>,
    /// Without a kept listing: the names of the last one whose positions were equal.
    collisions: Option<Arc<Listing>>,
    merging: Option<Box<Merging>>,
    /// When a listing that was used after own changes becomes invalid.
    pub(crate) until: Option<Instant>,
    /// Number of times that `until` has passed.
    pub(crate) epoch: u64,
    pub(crate) readers: Readers,
}

#[derive(Debug, Default)]
struct Merging {
    count: u32,
    changes: Vec<(ShortName, EntryChange)>,
    lost: bool,
}

impl Slot {
    /// Returns the kept listing, if there is one.
    pub(crate) fn kept(&self) -> Option<Arc<Mutex<Kept>>> {
        self.kept.clone()
    }

    /// Returns what remains of a listing that is not kept any more: see [`Listing::place`].
    pub(crate) fn collisions(&self) -> Option<Arc<Listing>> {
        self.collisions.clone()
    }

    /// Removes the listing and returns it, to be dropped without the lock.
    #[must_use]
    pub(crate) fn forget(&mut self) -> Option<Arc<Mutex<Kept>>> {
        if let Some(merging) = &mut self.merging {
            merging.lost = true;
        }
        self.lose_kept()
    }

    /// Removes the listing, and remembers its positions.
    fn lose_kept(&mut self) -> Option<Arc<Mutex<Kept>>> {
        let kept = self.kept.take();
        if let Some(kept) = &kept {
            let listing = &kept.lock().listing;
            self.readers.lose_merged(listing.positions());
            self.collisions = listing.collisions().map(Arc::new);
        }
        kept
    }

    /// Notes a change of an entry. Returns a listing that is not kept any more, to be dropped
    /// without the lock.
    #[must_use]
    pub(crate) fn change(&mut self, name: &[u8], change: EntryChange) -> Option<Arc<Mutex<Kept>>> {
        if let Some(merging) = &mut self.merging {
            if merging.changes.len() < MOST_NOTED {
                merging.changes.push((ShortName::new(name), change));
            } else {
                merging.lost = true;
            }
        }
        let room = self.kept.as_ref().is_none_or(|kept| {
            let mut kept = kept.lock();
            kept.own = true;
            kept.listing.keeps_removed = self.readers.are_mixed();
            kept.listing.change(name, change)
        });
        if room { None } else { self.lose_kept() }
    }

    /// Begins a merge, which [`Self::end_merge`] must end. Returns the number of changes noted
    /// before.
    pub(crate) fn begin_merge(&mut self) -> usize {
        let merging = self.merging.get_or_insert_default();
        merging.count += 1;
        merging.changes.len()
    }

    /// Ends a merge, with a listing or after an error. Returns the listing and whether it is kept.
    /// The one that was kept before must be dropped without the lock.
    pub(crate) fn end_merge(&mut self, missed: usize, kept: Option<Kept>) -> Option<Ended> {
        let mut merging = self.merging.take()?;
        let keeps_removed = self.readers.are_mixed();
        let ended = kept.map(|mut kept| {
            let work = kept.listing.work;
            kept.listing.keeps_removed = keeps_removed;
            for (name, change) in merging.changes.get(missed..).unwrap_or_default() {
                kept.own = true;
                kept.listing.change(name.as_bytes(), *change);
            }
            let listing = Arc::new(Mutex::new(kept));
            let is_kept = !merging.lost;
            let old = if is_kept { self.lose_kept() } else { None };
            if is_kept {
                self.kept = Some(listing.clone());
                self.collisions = None;
            } else {
                // Its reader goes on with positions that no kept listing explains.
                self.readers.lose_merged(listing.lock().listing.positions());
            }
            Ended { listing, work, is_kept, _old: old }
        });
        merging.count -= 1;
        if merging.count > 0 {
            self.merging = Some(merging);
        }
        ended
    }
}

/// The outcome of a merge.
pub(crate) struct Ended {
    pub(crate) listing: Arc<Mutex<Kept>>,
    /// Number of lower entries that were merged.
    pub(crate) work: usize,
    pub(crate) is_kept: bool,
    _old: Option<Arc<Mutex<Kept>>>,
}

/// The directories whose merged listings are kept, the oldest first.
///
/// Large and small directories are separate. Otherwise a program that enters all subdirectories
/// while it lists their large parent would evict the parent's listing, which would be merged again
/// for each page.
#[derive(Debug)]
pub(crate) struct Listings<V> {
    small: Mutex<Recent<V>>,
    large: Mutex<Recent<V>>,
}

/// Directories with a listing, the oldest first, each with the number of lower entries from which
/// its listing was merged.
#[derive(Debug)]
struct Recent<V> {
    all: VecDeque<(Weak<V>, usize)>,
    /// The sum of those numbers.
    work: usize,
}

impl<V> Default for Listings<V> {
    fn default() -> Self {
        let recent = || Mutex::new(Recent { all: VecDeque::new(), work: 0 });
        Self { small: recent(), large: recent() }
    }
}

impl<V> Recent<V> {
    fn remove(&mut self, this: &Arc<V>) {
        if let Some(at) = self.all.iter().position(|(weak, _)| std::ptr::eq(weak.as_ptr(), Arc::as_ptr(this))) {
            let removed = self.all.remove(at);
            self.work -= removed.map_or(0, |(_, work)| work);
        }
    }

    /// Removes the oldest directory if there are too many.
    fn pop_excess(&mut self) -> Option<Weak<V>> {
        let most = if self.work <= MOST_WORK { MOST_KEPT } else { KEPT };
        let (oldest, work) = if self.all.len() > most { self.all.pop_front() } else { None }?;
        self.work -= work;
        Some(oldest)
    }
}

/// A vnode that may have a listing.
pub(crate) trait Listable {
    /// Returns the slot for the listing, if this is a directory.
    fn slot(&self) -> Option<&Mutex<Slot>>;
}

impl<V: Listable> Listings<V> {
    /// Notes that a listing is kept which was merged from `work` lower entries. Evicts the oldest
    /// if there are too many.
    pub(crate) fn remember(&self, this: &Arc<V>, work: usize) {
        let is_large = work >= LARGE;
        let (recent, others) = if is_large { (&self.large, &self.small) } else { (&self.small, &self.large) };
        others.lock().remove(this);
        // These must be dropped without the lock.
        let mut forgotten = Vec::new();
        {
            let mut recent = recent.lock();
            recent.remove(this);
            // Large ones are limited by number.
            let work = if is_large { MOST_WORK + 1 } else { work };
            recent.all.push_back((Arc::downgrade(this), work));
            recent.work += work;
            while let Some(oldest) = recent.pop_excess() {
                forgotten.extend(oldest.upgrade());
            }
        }
        for slot in forgotten.iter().filter_map(|old| old.slot()) {
            let listing = slot.lock().forget();
            drop(listing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoDir;

    impl Listable for NoDir {
        fn slot(&self) -> Option<&Mutex<Slot>> {
            None
        }
    }

    #[test]
    fn listings_are_limited_by_number_and_size() {
        let kept = |works: &[usize]| {
            let (listings, dirs) = (Listings::default(), works.iter().map(|_| Arc::new(NoDir)).collect::<Vec<_>>());
            dirs.iter().zip(works).for_each(|(dir, &work)| listings.remember(dir, work));
            // The last one again.
            dirs.last().into_iter().for_each(|dir| listings.remember(dir, works[0]));
            (listings.small.lock().all.len(), listings.large.lock().all.len())
        };
        assert_eq!(kept(&[10; 40]), (40, 0));
        assert_eq!(kept(&[10; 2 * MOST_KEPT]), (MOST_KEPT, 0));
        assert_eq!(kept(&[LARGE - 1; 200]), (KEPT, 0));
        assert_eq!(kept(&[LARGE; 200]), (0, KEPT));
        // It has grown.
        let (listings, dir) = (Listings::default(), Arc::new(NoDir));
        listings.remember(&dir, 1);
        listings.remember(&dir, LARGE);
        assert_eq!((listings.small.lock().work, listings.large.lock().all.len()), (0, 1));
    }

    fn listing(names: &[&str]) -> Listing {
        let mut sorted: Vec<&str> = names.to_vec();
        sorted.sort_by_key(|name| position(name.as_bytes()));
        let mut listing = Listing::with_capacity(names.len(), false);
        for (ino, name) in (1..).zip(sorted) {
            listing.push(position(name.as_bytes()), name.as_bytes(), ino, Kind::Regular).unwrap();
        }
        listing
    }

    fn shown(listing: &Listing) -> Vec<(String, bool)> {
        let (mut shown, mut after) = (Vec::new(), 0);
        loop {
            let batch = listing.after(after, 2);
            let Some(last) = batch.entries.last() else { break };
            after = last.cookie;
            for entry in &batch.entries {
                shown.push((String::from_utf8(batch.name(entry).to_vec()).unwrap(), entry.unknown));
            }
        }
        shown.sort();
        shown
    }

    fn entries(names: &[(&str, bool)]) -> Vec<(String, bool)> {
        names.iter().map(|(name, unknown)| ((*name).to_owned(), *unknown)).collect()
    }

    #[test]
    fn positions_never_change() {
        // Programs keep positions across a remount.
        assert_eq!(position(b"a"), position(b"a"));
        assert_ne!(position(b"a"), position(b"b"));
        assert!(position(b"whatever") >> 62 == 0);
        assert_eq!(position(b"README"), 4_214_858_096_351_549_375);
    }

    #[test]
    fn changes_are_listed_without_a_merge() {
        let mut listing = listing(&["a", "b", "c", "d"]);
        assert!(listing.change(b"b", EntryChange::Gone) && listing.change(b"none", EntryChange::Gone));
        assert!(listing.change(b"c", EntryChange::Unknown) && listing.change(b"new", EntryChange::Unknown));
        assert_eq!(shown(&listing), entries(&[("a", false), ("c", true), ("d", false), ("new", true)]));
        let batch = listing.after(0, 9);
        for entry in batch.entries.iter().filter(|entry| entry.unknown) {
            let found = (batch.name(entry) == b"new").then_some((9, Kind::Directory));
            listing.resolve(&batch, entry, found);
        }
        assert_eq!(shown(&listing), entries(&[("a", false), ("d", false), ("new", false)]));
        assert!(listing.change(b"new", EntryChange::Gone) && listing.change(b"b", EntryChange::Unknown));
        assert_eq!(shown(&listing), entries(&[("a", false), ("b", true), ("d", false)]));
        assert!(listing.added.is_empty());
    }

    #[test]
    fn an_entry_that_changes_during_its_lookup_remains_unknown() {
        let mut listing = listing(&["a"]);
        listing.change(b"a", EntryChange::Unknown);
        let batch = listing.after(0, 9);
        listing.change(b"a", EntryChange::Unknown);
        listing.resolve(&batch, &batch.entries[0], None);
        assert_eq!(shown(&listing), entries(&[("a", true)]));
    }

    #[test]
    fn names_with_equal_positions_keep_their_cookies() {
        let mut listing = listing(&["a"]);
        let at = position(b"x");
        // Pretend that two other names have the position of this one.
        for (cookie, name) in [(at, "y"), (at + 1, "z")] {
            let added = Added { name: name.as_bytes().into(), state: State::Known, ino: 1, kind: Kind::Regular };
            listing.added.insert(cookie, added);
        }
        listing.change(b"x", EntryChange::Unknown);
        assert!(matches!(listing.find(b"x"), Spot::Added(cookie) if cookie == at + 2));
        assert_eq!(shown(&listing), entries(&[("a", false), ("x", true), ("y", false), ("z", false)]));
        listing.change(b"x", EntryChange::Gone);
        assert!(matches!(listing.find(b"x"), Spot::Free(cookie) if cookie == at + 2));
    }

    /// These have equal positions of 31 bits.
    const EQUAL: [&str; 2] = ["n3131", "n331633"];

    fn merged(names: &[&str], old: Option<&Listing>) -> Listing {
        let mut listing = Listing::with_capacity(names.len(), true);
        let (placed, gone) = listing.place(old, names.iter().map(|name| (name.as_bytes().into(), ())).collect());
        let placed = placed.into_iter().map(|name| (name, State::Known));
        let mut all: Vec<_> = placed.chain(gone.into_iter().map(|name| (name, State::Gone))).collect();
        all.sort_by_key(|((cookie, ..), _)| *cookie);
        for ((cookie, name, ()), state) in all {
            listing.push_item((cookie, state), &name, (1, Kind::Regular)).unwrap();
        }
        listing
    }

    #[test]
    fn names_with_equal_positions_keep_their_cookies_in_another_merge() {
        let [one, other] = EQUAL;
        let at = narrow_position(one.as_bytes());
        assert_eq!(at, narrow_position(other.as_bytes()));
        let cookies = |listing: &Listing| EQUAL.map(|name| listing.cookie_of(name.as_bytes()));
        let both = merged(&[one, other, "x"], None);
        assert_eq!(cookies(&both), [Some(at), Some(at + 1)]);
        // The first one is removed, and comes back.
        let without = merged(&[other, "x"], Some(&both));
        assert_eq!(without.cookie_of(other.as_bytes()), Some(at + 1));
        assert_eq!(shown(&without), entries(&[(other, false), ("x", false)]));
        assert_eq!(cookies(&merged(&[one, other], Some(&without))), [Some(at), Some(at + 1)]);
        // A new name does not move the one that was there.
        let later = merged(&[other], None);
        assert_eq!(cookies(&merged(&[one, other], Some(&later))), [Some(at + 1), Some(at)]);
        // Nor if the listing was dropped meanwhile.
        let collisions = both.collisions().unwrap();
        assert_eq!(collisions.items.len(), 2);
        let again = merged(&[other, "x"], Some(&collisions));
        assert_eq!((again.cookie_of(other.as_bytes()), shown(&again)), (Some(at + 1), shown(&without)));
        assert!(merged(&["x", "y"], None).collisions().is_none());
        // Nor does one that was added without a merge.
        let mut added = merged(&[other], None);
        added.change(one.as_bytes(), EntryChange::Unknown);
        assert_eq!(cookies(&merged(&EQUAL, Some(&added))), [Some(at + 1), Some(at)]);
    }

    #[test]
    fn the_number_of_new_names_is_limited() {
        let mut listing = listing(&["a"]);
        let most =
            (0..10 * MOST_ADDED).take_while(|n| listing.change(n.to_string().as_bytes(), EntryChange::Unknown)).count();
        assert_eq!(most, MOST_ADDED);
    }

    #[test]
    fn a_merge_applies_changes_made_meanwhile() {
        let mut slot = Slot::default();
        let kept =
            |names| Kept::new(listing(names), Vec::new().into(), Stamps::default(), Instant::now(), Duration::ZERO);
        let first = slot.begin_merge();
        assert!(slot.change(b"a", EntryChange::Gone).is_none());
        let second = slot.begin_merge();
        assert!(slot.change(b"b", EntryChange::Unknown).is_none());
        let ended = slot.end_merge(first, Some(kept(&["a", "b"]))).unwrap();
        assert!(ended.is_kept && ended.listing.lock().own);
        assert_eq!(shown(&ended.listing.lock().listing), entries(&[("b", true)]));
        let ended = slot.end_merge(second, Some(kept(&["a", "b"]))).unwrap();
        assert_eq!(shown(&ended.listing.lock().listing), entries(&[("a", false), ("b", true)]));
        assert!(slot.merging.is_none());
        let third = slot.begin_merge();
        drop(slot.forget());
        assert!(!slot.end_merge(third, Some(kept(&["a"]))).unwrap().is_kept);
        assert!(slot.kept.is_none() && slot.merging.is_none());
    }
}
