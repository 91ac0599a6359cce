//! When versions and heads began and ended whose records are lost.
//!
//! A power failure can take the end of an index, or all of it, although the changes that the
//! records describe are durable: file systems write names and attributes before the data of files.
//! Then these say what happened: the time at which a file was created, that of its last move, the
//! place that a renamed file left, and whether the name had a file when its index was made.

use crate::header::Header;
use crate::index::{Birth, Gap, Index, Record};
use crate::names::Letter;
use crate::version::{Cause, Flags, Version, Who, just_after, nanos};
use core::fmt;
use std::collections::BTreeMap;
use vnode::{Attr, Cx, Entry, Kind, Result, Time};

/// The permission bits of an index that is made for a name without a file.
pub const OF_NEW_NAME: u32 = 0o700;

/// The permission bits of other files of a store.
pub const OF_STORE: u32 = 0o600;

/// Longest time in which a copy of a head is made and gets its name, in seconds.
const SLOWEST_COPY: i64 = 10;

/// How much the clock of a file system may be behind, in nanoseconds.
const TICK: i128 = 20_000_000;

/// What is known of a set besides its records and version files.
#[derive(Clone, Copy)]
pub struct Traces<'a> {
    /// The attributes of the index; `None` if there is none.
    pub index: Option<Attr>,
    /// Whether it is the set of an inode with several names.
    pub is_link: bool,
    /// The attributes of the head, with the time of birth that counts; `None` if there is none.
    pub head: Option<Attr>,
    /// Returns when the object came to be to which the text of a version `r` refers.
    pub came_to_be: &'a dyn Fn(&[u8]) -> Option<Time>,
}

impl fmt::Debug for Traces<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traces").field("index", &self.index).field("head", &self.head).finish_non_exhaustive()
    }
}

impl Traces<'_> {
    /// Whether a power failure may have taken records: it leaves the index, and nothing changed
    /// its times since.
    pub(crate) fn may_be_torn(&self) -> bool {
        // That of a copy of the directory is younger than its content.
        self.index.is_some_and(|index| !is_later(index.btime, index.mtime))
    }

    /// Returns the attributes of the index of a name, if its times are those of the changes of the
    /// name.
    fn made(&self) -> Option<Attr> {
        self.index.filter(|_| !self.is_link && self.may_be_torn())
    }
}

/// A version without a record.
#[derive(Debug)]
pub(crate) struct Unrecorded {
    pub(crate) version: Version,
    /// Whether the times of the version are its own, and not to be inferred.
    is_dated: bool,
    /// Whether it may be a copy that lacks bytes: reading it fails.
    is_doubtful: bool,
    /// When the object came to be that ended with the version.
    origin: Option<Time>,
}

impl Unrecorded {
    /// Describes a version by its header, if it can be read, or by its file.
    ///
    /// # Errors
    /// Those of the layer below.
    pub(crate) fn new(
        cx: &Cx<'_>,
        (number, letter): (u64, Letter),
        (entry, header): (&Entry, Option<&Header>),
        traces: &Traces<'_>,
    ) -> Result<Self> {
        if let Some(header) = header.filter(|header| header.version.number == number) {
            let version = Version { letter, ..header.version.clone() };
            return Ok(Self { version, is_dated: true, is_doubtful: false, origin: None });
        }
        let attr = &entry.attr;
        let is_doubtful = letter == Letter::Full && attr.kind() == Kind::Regular && !is_whole(attr, None, traces);
        let version = from_attributes((number, letter), attr);
        let origin = match letter {
            Letter::Renamed if attr.kind() == Kind::Symlink => (traces.came_to_be)(&entry.vnode.readlink(cx)?),
            // What can't be read may begin early. A copy has the head's time of modification.
            Letter::Full if is_doubtful => Some(version.born),
            Letter::Full | Letter::Directory | Letter::Special if traces.may_be_torn() => attr.btime,
            // Times of birth may be those of a copy.
            Letter::Full | Letter::Directory | Letter::Special => Some(version.born),
            _ => None,
        };
        // Opened as what it is not, it can't be read.
        let letter = if is_doubtful { Letter::Sparse } else { letter };
        Ok(Self { version: Version { letter, ..version }, is_dated: false, is_doubtful, origin })
    }
}

/// Whether a file without a header may be a version. That of a recorded version has its size; a
/// copy whose record a power failure took may lack bytes that were not written yet.
pub(crate) fn is_whole(attr: &Attr, known: Option<&Version>, traces: &Traces<'_>) -> bool {
    let may_be_whole = || !traces.may_be_torn() || !is_copy(attr);
    attr.kind() == Kind::Regular && known.map_or_else(may_be_whole, |known| known.size == attr.size)
}

/// Whether an ordinary file of a store is a copy of the head: its content is as old as itself or
/// older, and it got its name when it was made. A removed file is the head itself. If it was
/// written and removed within seconds, it looks like a copy.
fn is_copy(attr: &Attr) -> bool {
    let is_quick = |born: Time| attr.ctime.sec.saturating_sub(born.sec) <= SLOWEST_COPY;
    attr.btime.is_some_and(|born| !is_later(Some(attr.mtime), born) && is_quick(born))
}

/// Returns a version of which only the file is known.
fn from_attributes((number, letter): (u64, Letter), attr: &Attr) -> Version {
    // A removed file was moved to the store then. Other files were made then, and may have changed.
    let moved = matches!(letter, Letter::Full | Letter::Directory | Letter::Special);
    let died = if moved { attr.ctime } else { attr.btime.unwrap_or(attr.ctime) };
    let cause = match letter {
        Letter::Full | Letter::Special => Cause::Unlink,
        Letter::Directory => Cause::Rmdir,
        Letter::Renamed => Cause::Rename,
        _ => Cause::Write,
    };
    Version {
        number,
        letter,
        kind: attr.kind(),
        size: attr.size,
        mode: attr.perm(),
        uid: attr.uid,
        gid: attr.gid,
        mtime: attr.mtime,
        born: attr.mtime.min(died),
        died,
        cause,
        who: Who { uid: attr.uid, ..Who::default() },
        flags: Flags::default(),
    }
}

/// Gives an index these versions. The intervals of those without records follow from the versions
/// before them, the births of their heads, and the times at which these came to be.
pub(crate) fn date(
    index: &mut Index,
    mut versions: BTreeMap<u64, Version>,
    unrecorded: &BTreeMap<u64, Unrecorded>,
    traces: &Traces<'_>,
) {
    let last_known = index.versions.keys().next_back().copied();
    if let Some(birth) = birth_of_new_name(index, traces) {
        index.birth = Some(birth);
    }
    let origins = origins(&mut versions, unrecorded, traces);
    let mut before: Option<(Time, bool)> = None;
    for (number, version) in &mut versions {
        if let Some(found) = unrecorded.get(number) {
            let birth = index.birth.as_ref().filter(|_| Some(*number) > last_known).map(|birth| birth.time);
            let origin = origins.get(number).copied();
            let since = match birth {
                // Another file came meanwhile, nobody knows when.
                Some(birth) if is_later(origin, birth) || index.open_link().is_some() => None,
                Some(birth) => Some(birth),
                None => origin.filter(|origin| before.is_none_or(|(end, _)| end <= *origin)),
            };
            version.born = match before {
                Some((end, _)) if found.is_dated => version.born.max(end),
                Some((end, false)) if found.is_doubtful || !is_later(origin, end) => end,
                None if found.is_dated => version.born,
                _ => since.unwrap_or(version.died),
            };
            version.died = version.died.max(just_after(version.born));
            if version.cause.ends_head()
                && Some(*number) > last_known
                && let Some(birth) = index.birth.take()
            {
                index.earlier_births.insert(*number, birth);
            }
        }
        let end = before.map_or(version.died, |(end, _)| end.max(version.died));
        before = Some((end, version.cause.ends_head()));
    }
    index.last_end = index.last_end.max(before.map(|(end, _)| end));
    if versions.is_empty()
        && let Some(gap) = lost_head(index, traces)
    {
        index.apply(Record::Gone(gap));
    }
    index.notes.retain(|number, _| versions.contains_key(number));
    index.versions = versions;
}

/// Returns the gap that a head left of which nothing is known but that it was there when the index
/// was made.
fn lost_head(index: &Index, traces: &Traces<'_>) -> Option<Gap> {
    let made = traces.made().filter(|made| has_nothing(index) && made.perm() != OF_NEW_NAME)?;
    let end = made.btime?;
    let is_there = traces.head.is_some_and(|head| !is_later(head.btime, end));
    let born = Time { sec: 0, nsec: 0 };
    (!is_there).then(|| Gap { born, died: end, cause: Cause::Unlink, who: Who::default() })
}

/// Records that the present head is another one than that of the last version or birth: it is
/// younger.
pub(crate) fn note_other_head(index: &mut Index, traces: &Traces<'_>) {
    let Some(came) = traces.made().and(traces.head).and_then(|head| head.btime) else { return };
    let goes_on = index.newest().filter(|newest| !newest.cause.ends_head()).map(|newest| newest.died);
    let Some(since) = goes_on.max(index.birth.as_ref().map(|birth| birth.time)) else { return };
    if !is_later(Some(came), since) {
        return;
    }
    index.birth = None;
    index.apply(Record::Gone(Gap { born: since, died: came, cause: Cause::Replace, who: Who::default() }));
    index.apply(Record::Ended(came));
    index.apply(Record::Born(inferred(index, came)));
}

/// Returns a birth that no record tells of.
fn inferred(index: &Index, time: Time) -> Birth {
    Birth { time, cause: Cause::Rename, who: Who::default(), from: None, first: index.next() }
}

/// Whether an object came to be clearly later: clocks of file systems are coarse.
fn is_later(origin: Option<Time>, birth: Time) -> bool {
    origin.is_some_and(|origin| nanos(origin) > nanos(birth) + TICK)
}

/// Returns when the objects came to be of which versions without records were made. A copy that may
/// lack bytes looks like a removed file: it is none if what came next is older.
fn origins(
    versions: &mut BTreeMap<u64, Version>,
    unrecorded: &BTreeMap<u64, Unrecorded>,
    traces: &Traces<'_>,
) -> BTreeMap<u64, Time> {
    let mut origins = BTreeMap::new();
    let mut origin = traces.head.and_then(|head| head.btime);
    for (number, version) in versions.iter_mut().rev() {
        let found = unrecorded.get(number);
        let own = found.and_then(|found| found.origin);
        if found.is_some_and(|found| found.is_doubtful) {
            let goes_on = origin.zip(own).is_some_and(|(next, own)| !is_later(Some(next), own));
            version.cause = if goes_on { Cause::Write } else { Cause::Unlink };
        }
        if version.cause.ends_head() {
            origin = own;
        } else if let Some(own) = own {
            origin = origin.map_or(Some(own), |origin| Some(origin.min(own)));
        }
        origins.extend(found.and(origin).map(|origin| (*number, origin)));
    }
    origins
}

/// Returns the birth of the first head of a name whose index was made for it, if no record tells
/// of one.
fn birth_of_new_name(index: &Index, traces: &Traces<'_>) -> Option<Birth> {
    let made = traces.made().filter(|made| has_nothing(index) && made.perm() == OF_NEW_NAME)?;
    Some(inferred(index, made.btime.unwrap_or(made.mtime)))
}

/// Whether no record tells of a head or a version.
fn has_nothing(index: &Index) -> bool {
    index.versions.is_empty() && index.birth.is_none() && index.links.is_empty() && index.last_end.is_none()
}

/// Whether the index may lack the birth of a head.
#[must_use]
pub fn may_lack_birth(index: &Index) -> bool {
    index.birth.is_none() && index.open_link().is_none()
}

/// Returns the birth of the head if it came by a rename or link that is not recorded. A head that
/// was created under its name needs no record.
#[must_use]
pub fn lost_birth(index: &Index, traces: &Traces<'_>) -> Option<Birth> {
    let (made, head) = traces.made().zip(traces.head).filter(|_| may_lack_birth(index))?;
    let is_older = |than: Time| head.btime.is_none_or(|born| born <= than);
    if let Some(birth) = birth_of_new_name(index, traces) {
        return is_older(birth.time).then_some(birth);
    }
    let left = index.links.last().and_then(|period| period.until);
    let end = index.last_end.max(left)?;
    let newest = index.newest().filter(|newest| newest.died >= end);
    let is_ended = newest.map_or(left == Some(end), |newest| newest.cause.ends_head());
    if !is_ended || !is_older(end) {
        return None;
    }
    // Both changed when the head came, or later.
    let came = made.mtime.min(head.ctime).max(end);
    // A head that was created at once can seem older: the clock of the file system is behind.
    is_later(Some(came), end).then(|| inferred(index, came))
}
