//! The history of a name: which content it had at which time, whatever set keeps it.

use crate::convert::is_content;
use crate::core::Core;
use crate::set::{Locked, Set};
use std::sync::Arc;
use versionset::{Birth, Cause, Departure, Gap, LinkPeriod, Version};
use vnode::{Attr, Cx, Entry, Kind, Name, Result, Time, Vnode};

/// A time before all others.
pub(crate) const BEGINNING: Time = Time { sec: i64::MIN, nsec: 0 };

/// A name in a lower directory.
#[derive(Clone, Debug)]
pub(crate) struct At {
    pub(crate) dir: Arc<dyn Vnode>,
    pub(crate) name: Box<[u8]>,
}

/// A version of a name.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// The version. Its interval is the part in which it had this name.
    pub(crate) version: Version,
    /// The set that keeps it: the name's or the inode's.
    pub(crate) set: Arc<Set>,
    pub(crate) note: Box<[u8]>,
    /// When the version ended in its set. After the removal of a set, a version of the next one can
    /// have the same number, but not the same end.
    pub(crate) ended: Time,
    /// When it began in its set.
    began: Time,
}

impl Seen {
    /// Returns the version as it is now. `None` if it is gone.
    pub(crate) fn find<'a>(&self, locked: &'a Locked<'_>) -> Option<&'a Version> {
        locked.index().versions.get(&self.version.number).filter(|version| version.died == self.ended)
    }
}

/// The history of a name.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) own: Arc<Set>,
    /// The head, if there is one.
    pub(crate) head: Option<Entry>,
    /// The versions, by number.
    pub(crate) versions: Vec<Seen>,
    /// How heads got this name, and the number of the last version of each; `None` for the present
    /// one.
    pub(crate) births: Vec<(Option<u64>, Birth)>,
    /// When the name was one of several names of an inode.
    pub(crate) links: Vec<LinkPeriod>,
    /// When the name had what is not in the history any more.
    gaps: Vec<Gap>,
    birth: Option<Birth>,
    /// When the last version ended, even if it is discarded.
    last_end: Option<Time>,
    /// The same of the inode, if the name is one of several.
    link_end: Option<Time>,
    /// The number of the next version.
    pub(crate) next: u64,
}

/// What a name had at a time.
#[derive(Clone, Debug)]
pub(crate) enum Moment {
    /// The version with this position in [`History::versions`].
    Version(usize),
    /// The head.
    Head,
    /// The content that the inode with this stem had at this time, which is kept under another
    /// name.
    Inode(Box<[u8]>, Time),
}

impl At {
    pub(crate) fn new(dir: &Arc<dyn Vnode>, name: &[u8]) -> Self {
        Self { dir: Arc::clone(dir), name: name.into() }
    }

    /// Returns a version that has a content of its own, if the name was never one of several: then
    /// neither its interval nor its place depends on the rest of the history, which may be long.
    pub(crate) fn content(&self, core: &Core, cx: &Cx<'_>, number: u64) -> Result<Option<Seen>> {
        let own = core.set_of_name(&self.dir, &self.name);
        let locked = own.lock(core, &core.server(cx))?;
        let index = locked.index();
        let found = index.versions.get(&number).filter(|version| index.links.is_empty() && is_content(version.letter));
        Ok(found.map(|version| seen(version, &own, index)))
    }

    /// Reads the history of the name.
    pub(crate) fn history(&self, core: &Core, cx: &Cx<'_>) -> Result<History> {
        let server = core.server(cx);
        let found = self.dir.lookup(&server, Name::new(&self.name)?)?;
        let head = found.map(|head| Entry { attr: Attr { btime: core.birth(&head.attr), ..head.attr }, ..head });
        let own = core.set_of_name(&self.dir, &self.name);
        let locked = own.lock(core, &server)?;
        let is_other = head.as_ref().is_some_and(|head| !locked.is_linked(&crate::set::link_stem(&*head.vnode)));
        let of_copy = if is_other { locked.index_of_copy(core, &server)? } else { None };
        let index = of_copy.as_ref().unwrap_or(locked.index());
        let mut history = History {
            head,
            versions: index.versions.values().map(|version| seen(version, &own, index)).collect(),
            births: births(index),
            links: index.links.clone(),
            gaps: index.gaps.clone(),
            birth: index.birth.clone(),
            last_end: index.last_end,
            link_end: None,
            next: index.next(),
            own: Arc::clone(&own),
        };
        let is_copy = index.is_new_copy();
        drop(locked);
        history.imply_link(is_copy);
        for period in history.links.clone() {
            history.add_linked(core, &server, &period)?;
        }
        history.versions.sort_by_key(|seen| seen.version.number);
        history.versions.dedup_by_key(|seen| seen.version.number);
        Ok(history)
    }
}

fn seen(version: &Version, set: &Arc<Set>, index: &versionset::Index) -> Seen {
    let note = index.notes.get(&version.number).cloned().unwrap_or_default();
    Seen { version: version.clone(), set: Arc::clone(set), note, ended: version.died, began: version.born }
}

fn births(index: &versionset::Index) -> Vec<(Option<u64>, Birth)> {
    let earlier = index.earlier_births.iter().map(|(last, birth)| (Some(*last), birth.clone()));
    earlier.chain(index.birth.clone().map(|birth| (None, birth))).collect()
}

impl History {
    /// Adds the period of a name that was one of several before the layer saw it, or is in a copy
    /// of its directory.
    fn imply_link(&mut self, is_copy: bool) {
        let Some(head) = &self.head else { return };
        let is_open = self.links.last().is_some_and(|period| period.until.is_none());
        if head.attr.kind() != Kind::Regular || head.attr.nlink < 2 || is_open {
            return;
        }
        let left = self.left().unwrap_or(BEGINNING);
        let from = self.versions.last().map_or(left, |newest| newest.version.died.max(left));
        let from = self.birth.as_ref().map_or(from, |birth| birth.time.max(from));
        let stem = crate::set::link_stem(&*head.vnode).into();
        let first = if is_copy { self.next } else { 0 };
        self.links.push(LinkPeriod { from, until: None, stem, first, departure: None });
    }

    /// Adds the versions that the inode had while it had this name.
    fn add_linked(&mut self, core: &Core, cx: &Cx<'_>, period: &LinkPeriod) -> Result<()> {
        let from = period.from;
        let until = period.until.unwrap_or(Time { sec: i64::MAX, nsec: 0 });
        for other in &mut self.versions {
            let version = &mut other.version;
            let is_later = if period.first > 0 { version.number >= period.first } else { version.died > until };
            if is_later {
                version.born = version.born.max(until);
                version.died = version.died.max(version.born);
            } else if version.died > from {
                version.died = from.max(version.born);
            }
        }
        let link = core.set_of_link(&period.stem);
        let locked = link.lock(core, cx)?;
        let index = locked.index();
        for version in index.versions.values().filter(|version| period.has(version)) {
            let mut seen = seen(version, &link, index);
            // The first one is what the inode was when the name joined it.
            let is_first = period.first > 0 && version.number == period.first;
            seen.version.born = if is_first { from } else { version.born.max(from) };
            seen.version.died = version.died.min(until).max(seen.version.born);
            let is_last = |departure: &Departure| departure.last == version.number && version.cause == Cause::Link;
            if let Some(departure) = period.departure.filter(is_last) {
                // The inode goes on under its other names.
                seen.version.cause = departure.cause;
            }
            self.versions.push(seen);
        }
        if period.until.is_none() {
            self.next = self.next.max(index.next());
            self.link_end = index.last_end;
        }
        Ok(())
    }

    /// Returns when the name left an inode with several names for the last time.
    fn left(&self) -> Option<Time> {
        self.links.iter().filter_map(|period| period.until).max()
    }

    /// Returns since when the head has its content and attributes under this name.
    pub(crate) fn head_since(&self) -> Option<Time> {
        let head = &self.head.as_ref()?.attr;
        // The name may belong to its inode for less time than the inode has its content.
        let joined = self.links.last().filter(|period| period.until.is_none() && period.first > 0);
        let left = self
            .left()
            .max(joined.map(|period| period.from))
            .max(self.last_end.max(self.link_end))
            .unwrap_or(BEGINNING);
        let newest = self.versions.last().map(|seen| &seen.version);
        if let Some(newest) = newest
            && !newest.cause.ends_head()
            && newest.died >= left
        {
            return Some(newest.died);
        }
        let named = self.birth.as_ref().map(|birth| birth.time).filter(|time| *time >= left);
        let earliest = newest.map_or(left, |newest| newest.died.max(left));
        Some(named.or(head.btime).unwrap_or(if newest.is_none() { head.mtime } else { earliest }).max(earliest))
    }

    /// Returns what the name had at `time`. `None` if it did not exist.
    pub(crate) fn at(&self, time: Time) -> Option<Moment> {
        let covers = |seen: &Seen| seen.version.born <= time && time < seen.version.died;
        if let Some(position) = self.versions.iter().rposition(covers) {
            return Some(Moment::Version(position));
        }
        if self.head_since().is_some_and(|since| since <= time) {
            return Some(Moment::Head);
        }
        // Where the end has a number, the versions are complete.
        let was = |period: &&LinkPeriod| period.departure.is_none() && period.until.is_some() && period.covers(time);
        self.links.iter().find(was).map(|period| Moment::Inode(period.stem.clone(), time))
    }

    /// Whether the name had something at `time`, at which [`Self::at`] finds nothing: that is not
    /// in the history any more.
    pub(crate) fn was_lost(&self, time: Time) -> bool {
        self.links.iter().any(|period| period.covers(time)) || self.gaps.iter().any(|gap| gap.has(time))
    }

    /// Returns what a removed name had last, if that is not in the history.
    pub(crate) fn last_gap(&self) -> Option<Gap> {
        let end = self.versions.last().map_or(BEGINNING, |newest| newest.version.died);
        let of_link = self.lost_link().map(LinkPeriod::gap);
        let gaps = self.gaps.iter().filter(|gap| gap.cause.ends_head() && gap.cause != Cause::Rename).cloned();
        gaps.chain(of_link).filter(|gap| self.head.is_none() && gap.died > end).max_by_key(|gap| gap.died)
    }

    /// Returns the last period of a removed name whose last version is discarded.
    fn lost_link(&self) -> Option<&LinkPeriod> {
        let period = self.links.last().filter(|_| self.head.is_none())?;
        let departure = period.departure.filter(|departure| departure.cause != Cause::Rename)?;
        let is_last = self.versions.last().is_none_or(|newest| newest.version.number < departure.last);
        (is_last && self.version(departure.last).is_none()).then_some(period)
    }

    /// Whether no version of the name was discarded, and it was never one of several.
    pub(crate) fn is_complete(&self) -> bool {
        self.links.is_empty() && self.versions.len() as u64 + 1 == self.next
    }

    /// Returns what a head was at its birth, if the birth has a number. `last` is the number of its
    /// last version. `None` if that is gone.
    pub(crate) fn at_birth(&self, (last, birth): &(Option<u64>, Birth)) -> Option<Moment> {
        let numbers = birth.first..=last.unwrap_or(u64::MAX);
        let first = self.versions.iter().position(|seen| numbers.contains(&seen.version.number));
        let Some(position) = first else {
            // A version of the inode that ended just then is later: it had one name before.
            let is_first = self.next == birth.first || self.link_end < Some(birth.time);
            let is_unchanged = is_first && self.head_since().is_some_and(|since| since <= birth.time);
            return (is_unchanged && last.is_none()).then_some(Moment::Head);
        };
        // If the first one was discarded, a later one is another content. Numbers are passed over
        // when other names join the inode: then the version is older than the birth.
        let seen = self.versions.get(position)?;
        let is_first = seen.version.number == birth.first || seen.began < birth.time;
        is_first.then_some(Moment::Version(position))
    }

    /// Returns the version with this number.
    pub(crate) fn version(&self, number: u64) -> Option<&Seen> {
        self.versions
            .binary_search_by_key(&number, |seen| seen.version.number)
            .ok()
            .and_then(|at| self.versions.get(at))
    }

    /// Returns the kind of what the name had.
    pub(crate) fn kind(&self, moment: &Moment) -> Option<Kind> {
        match moment {
            Moment::Version(position) => self.versions.get(*position).map(|seen| seen.version.kind),
            Moment::Head => self.head.as_ref().map(|head| head.attr.kind()),
            Moment::Inode(..) => Some(Kind::Regular),
        }
    }
}
