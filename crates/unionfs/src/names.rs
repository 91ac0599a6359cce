//! The name index of a merged directory: which of its parts may have a name. Lookups ask only
//! these. See "The name index" in docs/design/unionfs.md.
//!
//! The index is a filter. It may say that a part has a name which it has not, which costs a lookup
//! there, but never the reverse. So names are kept as hashes, and a name that is removed stays.
//!
//! A part that has changed since it was read is *open*: it may have any name.

use crate::branch::{BranchId, Stack};
use crate::listing::{Stamp, position};
use crate::watched::Watched;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use vnode::{Errno, NumberMap, Result};

/// A directory changed more recently than this can change again without new times: some file
/// systems store whole seconds.
const MIN_AGE: Duration = Duration::from_secs(2);
/// Number of lookups in open parts that cost as much as reading a part: this many for each part,
/// and one for each [`NAMES_PER_LOOKUP`] names.
const LOOKUPS_PER_PART: usize = 8;
const NAMES_PER_LOOKUP: usize = 16;
/// The index is dropped after this many names were changed through the union.
const MOST_CHANGED: usize = 1 << 14;

/// Returns the hash by which the index knows a lower name.
pub(crate) fn hash(name: &[u8]) -> u64 {
    position(name)
}

/// Consecutive parts: the first one and their number.
type Run = (u16, u16);

/// The parts that may have a name.
#[derive(Debug)]
enum Places {
    One(Run),
    Many(Vec<Run>),
}

impl Places {
    fn runs(&self) -> &[Run] {
        match self {
            Self::One(run) => std::slice::from_ref(run),
            Self::Many(runs) => runs,
        }
    }

    fn has(&self, part: u16) -> bool {
        self.runs().iter().any(|&(first, count)| part >= first && part - first < count)
    }

    fn add(&mut self, part: u16) {
        if self.has(part) {
            return;
        }
        let last = match self {
            Self::One(run) => run,
            Self::Many(runs) => match runs.last_mut() {
                Some(run) => run,
                None => return runs.push((part, 1)),
            },
        };
        if last.0.checked_add(last.1) == Some(part) {
            last.1 += 1;
            return;
        }
        match self {
            Self::One(run) => *self = Self::Many(vec![*run, (part, 1)]),
            Self::Many(runs) => runs.push((part, 1)),
        }
    }
}

/// The result of reading the names of a part.
#[derive(Debug)]
pub(crate) enum PartNames {
    Read {
        /// Hashes of the names.
        names: Vec<u64>,
        /// The part's stamp before it was read.
        stamp: Stamp,
    },
    /// Lookups may find other names than those listed.
    Inexact,
    /// It could not be read this time.
    Failed,
}

/// What is known of one part.
#[derive(Debug)]
struct Part {
    /// The stamp by which a change is noticed. `None` if the part may change without a new stamp,
    /// or is open.
    stamp: Option<Stamp>,
    /// Number of names when it was last read.
    names: u32,
    open: bool,
    /// It can't be indexed, and remains open.
    opaque: bool,
}

/// The name index of a directory.
#[derive(Debug)]
pub(crate) struct NameIndex {
    /// The parts that it describes.
    pub(crate) stack: Stack,
    parts: Vec<Part>,
    places: NumberMap<Places>,
    /// Names that were changed through the union: any writable part may have them.
    changed: HashSet<u64>,
    /// The positions of the writable parts.
    writable: Vec<u16>,
    /// The positions of the open parts.
    open: Vec<u16>,
    /// Number of lookups in open parts since they are open.
    asked: usize,
    /// When the parts were last verified.
    verified: Instant,
    /// Which parts reported all their changes since they were read or verified. `None` if the
    /// stamps have to be read next time.
    watched: Option<Arc<Watched>>,
}

/// Whether each change since `begun` gives the directory another stamp than this one.
fn is_old(stamp: &Stamp, begun: Instant) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = now.saturating_sub(begun.elapsed()).as_secs().cast_signed();
    [stamp.0, stamp.1].iter().all(|time| now.saturating_sub(time.sec) > MIN_AGE.as_secs().cast_signed())
}

impl NameIndex {
    /// Builds the index of these parts. `begun`, `watched`: before the first one was read.
    pub(crate) fn new(
        stack: Stack,
        writable: Vec<u16>,
        read: Vec<PartNames>,
        (begun, watched): (Instant, Arc<Watched>),
    ) -> Self {
        let mut this = Self {
            parts: Vec::with_capacity(read.len()),
            stack,
            places: NumberMap::default(),
            changed: HashSet::new(),
            writable,
            open: Vec::new(),
            asked: 0,
            verified: begun,
            watched: Some(watched),
        };
        for (at, part) in (0..).zip(read) {
            this.parts.push(Part { stamp: None, names: 0, open: true, opaque: false });
            this.fill(at, part, begun);
        }
        this.list_open();
        this
    }

    /// Adds the names of a part that was read, which is not open any more.
    fn fill(&mut self, at: u16, read: PartNames, begun: Instant) {
        let Some(part) = self.parts.get_mut(usize::from(at)) else { return };
        let (names, stamp) = match read {
            PartNames::Read { names, stamp } => (names, stamp),
            PartNames::Inexact => {
                part.opaque = true;
                return;
            }
            PartNames::Failed => return,
        };
        part.stamp = Some(stamp).filter(|stamp| is_old(stamp, begun));
        part.names = u32::try_from(names.len()).unwrap_or(u32::MAX);
        part.open = false;
        for name in names {
            self.places.entry(name).and_modify(|places| places.add(at)).or_insert(Places::One((at, 1)));
        }
    }

    fn list_open(&mut self) {
        self.open = (0..).zip(&self.parts).filter(|(_, part)| part.open).map(|(at, _)| at).collect();
        self.asked = 0;
    }

    /// Number of names, to limit memory.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether the parts were verified less than `interval` ago.
    pub(crate) fn is_fresh(&self, interval: Duration) -> bool {
        self.verified.elapsed() < interval
    }

    /// Makes the next lookup verify the stamps.
    pub(crate) fn expire(&mut self, interval: Duration) {
        self.watched = None;
        if let Some(past) = Instant::now().checked_sub(interval) {
            self.verified = self.verified.min(past);
        }
    }

    /// Returns which parts reported all their changes, unless the stamps have to be read.
    pub(crate) fn watched(&self) -> Option<&Arc<Watched>> {
        self.watched.as_ref()
    }

    /// Notes that all changes of the parts in `watched` that were complete at `at` were reported.
    /// The others must have been verified. Has no effect if the stamps have to be read by now.
    pub(crate) fn renew(&mut self, watched: &Arc<Watched>, at: Instant) {
        if self.watched.as_ref().is_some_and(|own| Arc::ptr_eq(own, watched)) {
            self.verified = self.verified.max(at);
        }
    }

    /// Compares the stamps of all parts, which were read after `begun`. From then on, those in
    /// `watched` report their changes.
    pub(crate) fn verify(&mut self, stamps: &[Result<Stamp>], begun: Instant, watched: Arc<Watched>) {
        self.compare(0..u16::MAX, stamps);
        self.verified = begun;
        self.watched = Some(watched);
    }

    /// Compares the stamps of these parts. Those that have changed are open from now on. A part
    /// that hangs counts as unchanged.
    pub(crate) fn compare(&mut self, which: impl IntoIterator<Item = u16>, stamps: &[Result<Stamp>]) {
        let mut opened = false;
        for at in which {
            let (Some(part), Some(stamp)) = (self.parts.get_mut(usize::from(at)), stamps.get(usize::from(at))) else {
                break;
            };
            let unchanged = match stamp {
                Ok(stamp) => part.stamp.as_ref() == Some(stamp),
                Err(errno) => *errno == Errno::TIMEDOUT,
            };
            if !part.open && !unchanged {
                part.open = true;
                opened = true;
            }
        }
        if opened {
            self.list_open();
        }
    }

    /// Notes that the part on this branch has changed: it is open from now on.
    pub(crate) fn open_part(&mut self, branch: BranchId) {
        let Some(at) = self.stack.iter().position(|part| part.branch == branch) else { return };
        if let Some(part) = self.parts.get_mut(at).filter(|part| !part.open) {
            part.open = true;
            self.list_open();
        }
    }

    /// Notes that a name was or will be changed through the union. Returns false if the index has
    /// to be dropped.
    pub(crate) fn change(&mut self, name: u64) -> bool {
        self.changed.insert(name);
        self.changed.len() <= MOST_CHANGED
    }

    /// Returns the positions of the parts that may have one of these names, in order. `None` if
    /// these are most parts.
    pub(crate) fn candidates(&mut self, names: &[u64], most: usize) -> Option<Vec<u16>> {
        let mut found = self.open.clone();
        if names.iter().any(|name| self.changed.contains(name)) {
            found.extend(&self.writable);
        }
        for places in names.iter().filter_map(|name| self.places.get(name)) {
            for &(first, count) in places.runs() {
                if usize::from(count) >= most {
                    return None;
                }
                found.extend((0..count).map(|n| first + n));
            }
        }
        self.asked += self.open.len();
        found.sort_unstable();
        found.dedup();
        if found.len() >= most { None } else { Some(found) }
    }

    /// Whether a part may have this name; `plain`: the name in the union that it belongs to.
    pub(crate) fn may_have(&self, part: u16, name: u64, plain: Option<u64>) -> bool {
        self.parts.get(usize::from(part)).is_none_or(|part| part.open)
            || plain.is_some_and(|plain| self.changed.contains(&plain))
            || self.places.get(&name).is_some_and(|places| places.has(part))
    }

    /// Returns the positions of the open parts if it pays to read them again.
    pub(crate) fn worth_reading(&self) -> Option<Vec<u16>> {
        let readable = self.open.iter().filter_map(|&at| Some((at, self.parts.get(usize::from(at))?)));
        let readable: Vec<_> = readable.filter(|(_, part)| !part.opaque).collect();
        let names: usize = readable.iter().map(|(_, part)| part.names as usize).sum();
        let price = LOOKUPS_PER_PART * readable.len() + names / NAMES_PER_LOOKUP;
        (!readable.is_empty() && self.asked >= price).then(|| readable.into_iter().map(|(at, _)| at).collect())
    }

    /// Replaces what is known of some open parts, which were read after `begun`. Names that these
    /// parts had before remain, which
    /// is harmless. Returns false if they make up most of the index, so that it has to be dropped.
    pub(crate) fn replace(&mut self, read: Vec<(u16, PartNames)>, begun: Instant) -> bool {
        for (at, names) in read {
            self.fill(at, names, begun);
        }
        self.list_open();
        let names: usize = self.parts.iter().map(|part| part.names as usize).sum();
        self.len() <= 2 * names + 1024
    }

    /// Whether so many parts can't be indexed that the index is of no use.
    pub(crate) fn is_useless(&self) -> bool {
        2 * self.parts.iter().filter(|part| part.opaque).count() > self.parts.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vnode::Time;

    const OLD: Stamp = (Time { sec: 5, nsec: 0 }, Time { sec: 6, nsec: 0 }, Some(0));
    const OTHER: Stamp = (Time { sec: 5, nsec: 1 }, Time { sec: 6, nsec: 1 }, Some(0));

    fn part(names: &[&str]) -> PartNames {
        PartNames::Read { names: names.iter().map(|name| hash(name.as_bytes())).collect(), stamp: OLD }
    }

    fn index(parts: &[&[&str]], writable: &[u16]) -> NameIndex {
        let read = parts.iter().map(|names| part(names)).collect();
        NameIndex::new(Vec::new().into(), writable.to_vec(), read, begun())
    }

    fn begun() -> (Instant, Arc<Watched>) {
        (Instant::now(), Arc::default())
    }

    fn at(index: &mut NameIndex, name: &str) -> Option<Vec<u16>> {
        index.candidates(&[hash(name.as_bytes())], 100)
    }

    #[test]
    fn names_lead_to_their_parts() {
        let mut index = index(&[&["a"], &["a", "b"], &["a"], &[], &["a", "b"]], &[0]);
        assert_eq!(at(&mut index, "a"), Some(vec![0, 1, 2, 4]));
        assert_eq!(at(&mut index, "b"), Some(vec![1, 4]));
        assert_eq!(at(&mut index, "c"), Some(vec![]));
        assert_eq!(index.candidates(&[hash(b"a")], 4), None);
    }

    #[test]
    fn changed_names_may_be_in_any_writable_part() {
        let mut index = index(&[&[], &["b"], &[], &[]], &[0, 2]);
        assert!(index.change(hash(b"b")));
        assert_eq!(at(&mut index, "b"), Some(vec![0, 1, 2]));
        assert_eq!(at(&mut index, "c"), Some(vec![]));
        assert!(!(0..=MOST_CHANGED as u64).all(|n| index.change(n)));
    }

    #[test]
    fn a_part_that_has_changed_may_have_any_name_until_it_is_read_again() {
        let mut index = index(&[&["a"], &["b"]], &[0]);
        index.verify(&[Err(Errno::TIMEDOUT), Ok(OTHER)], Instant::now(), Arc::default());
        assert_eq!(at(&mut index, "a"), Some(vec![0, 1]));
        assert_eq!(at(&mut index, "x"), Some(vec![1]));
        assert_eq!(index.worth_reading(), None);
        (0..LOOKUPS_PER_PART).for_each(|_| drop(at(&mut index, "x")));
        assert_eq!(index.worth_reading(), Some(vec![1]));
        assert!(index.replace(vec![(1, part(&["c"]))], Instant::now()));
        assert_eq!(at(&mut index, "c"), Some(vec![1]));
        assert_eq!(at(&mut index, "x"), Some(vec![]));
        assert_eq!(index.worth_reading(), None);
    }

    #[test]
    fn a_part_that_changed_just_now_is_not_trusted_when_it_is_verified() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().cast_signed();
        let recent: Stamp = (Time { sec: now, nsec: 0 }, Time { sec: now, nsec: 0 }, Some(0));
        let read = vec![PartNames::Read { names: vec![], stamp: recent }];
        let mut index = NameIndex::new(Vec::new().into(), vec![], read, begun());
        assert_eq!(at(&mut index, "x"), Some(vec![]));
        index.verify(&[Ok(recent)], Instant::now(), Arc::default());
        assert_eq!(at(&mut index, "x"), Some(vec![0]));
    }

    #[test]
    fn parts_that_list_inexactly_are_always_asked() {
        let read = vec![PartNames::Inexact, part(&["a"])];
        let mut index = NameIndex::new(Vec::new().into(), vec![], read, begun());
        assert_eq!(at(&mut index, "a"), Some(vec![0, 1]));
        (0..100).for_each(|_| drop(at(&mut index, "a")));
        assert_eq!(index.worth_reading(), None);
        assert!(!index.is_useless());
    }
}
