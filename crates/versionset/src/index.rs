//! The index of a version set, `foo;i`: a log of records (docs/formats/version-set.md).
//!
//! A record is appended before the change that it describes. The log is a cache: it can be rebuilt
//! from the names and headers of the version files, except for notes and flags.

use crate::names::{Letter, may_follow};
use crate::version::{Cause, Flags, Version, Who};
use crate::wire::{Reader, Writer};
use std::collections::BTreeMap;
use vnode::Time;

/// The first bytes of an index.
pub const MAGIC: &[u8; 8] = b"VERSIDX1";

/// Largest record in bytes, without its length and checksum.
const MAX_RECORD: usize = 4096;

/// Gaps that an index remembers; older ones count as one.
const MAX_GAPS: usize = 16;

/// Longest note in bytes.
pub const MAX_NOTE: usize = 2048;

/// Where a file was renamed from or to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of the directory.
    pub dir: u64,
    /// The name in it.
    pub name: Box<[u8]>,
    /// The version there that refers to the new place; 0 if none does, or it was not recorded.
    pub number: u64,
}

/// How the current head got its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Birth {
    /// When.
    pub time: Time,
    /// By which operation.
    pub cause: Cause,
    /// By whom.
    pub who: Who,
    /// Its previous name, if it was renamed.
    pub from: Option<Place>,
    /// The smallest number that a version of this head can have; 0 if it was not recorded.
    pub first: u64,
}

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The name of the file, if its stem is not the name.
    Name(Box<[u8]>),
    /// Versions have been numbered below this number, even if no version with the last one exists.
    Next(u64),
    /// A version was made.
    Made(Version),
    /// A version is stored in another way.
    Converted {
        /// Its number.
        number: u64,
        /// How it is stored now.
        letter: Letter,
    },
    /// A version was discarded.
    Discarded(u64),
    /// The flags of a version were set.
    Flags(u64, Flags),
    /// The note of a version was set; empty: removed.
    Note(u64, Box<[u8]>),
    /// A new head got this name.
    Born(Birth),
    /// A version is older or younger than recorded: it became the head at this time.
    BornAt(u64, Time),
    /// The owner of every version was set; `u32::MAX` keeps it.
    Owner(u32, u32),
    /// The permission bits of every version were set.
    Mode(u32),
    /// From this time on, until the name is born again, it is one of several names of an inode,
    /// whose versions are in the set with this stem in the root's store. Those from the number on
    /// are the name's; 0 if that was not recorded.
    Linked(Time, Box<[u8]>, u64),
    /// The name left the inode at this time.
    Unlinked(Time, Option<Departure>),
    /// How the head began whose last version has this number.
    BornBefore(u64, Birth),
    /// The last version, which is discarded, ended at this time.
    Ended(Time),
    /// The newest version, or the last one that had no room, was not made after all: its head goes
    /// on.
    Retracted(u64),
    /// The name had something that is not in the history any more.
    Gone(Gap),
}

/// A time at which a name had something that is not in the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Its begin, as far as is known.
    pub born: Time,
    /// Its end.
    pub died: Time,
    /// The operation at the end.
    pub cause: Cause,
    /// Who did that.
    pub who: Who,
}

impl Gap {
    /// Returns the gap that a version leaves.
    #[must_use]
    pub fn of(version: &Version) -> Self {
        let Version { born, died, cause, .. } = *version;
        Self { born, died, cause, who: version.who.clone() }
    }

    /// Whether the time is in the gap.
    #[must_use]
    pub fn has(&self, time: Time) -> bool {
        self.born <= time && time < self.died
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.time(self.born);
        out.time(self.died);
        out.u8(self.cause as u8);
        self.who.encode(out);
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Option<Self> {
        let (born, died, cause) = (from.time()?, from.time()?, Cause::from_byte(from.u8()?)?);
        Some(Self { born, died, cause, who: Who::decode(from)? })
    }
}

/// How a name left an inode that has other names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The last version of the inode that is the name's: it was made for that, unless there was no
    /// room for it.
    pub last: u64,
    /// What took the name from the inode.
    pub cause: Cause,
}

impl Record {
    fn encode_payload(&self, out: &mut Writer) {
        match self {
            Self::Name(name) => {
                out.u8(1);
                out.bytes(name);
            }
            Self::Next(number) => {
                out.u8(2);
                out.u64(*number);
            }
            Self::Made(version) => {
                out.u8(3);
                version.encode(out);
            }
            Self::Converted { number, letter } => {
                out.u8(4);
                out.u64(*number);
                out.u8(*letter as u8);
            }
            Self::Discarded(number) => {
                out.u8(5);
                out.u64(*number);
            }
            Self::Flags(number, flags) => {
                out.u8(6);
                out.u64(*number);
                out.u8(flags.to_byte());
            }
            Self::Note(number, text) => {
                out.u8(7);
                out.u64(*number);
                out.bytes(text.get(..MAX_NOTE).unwrap_or(text));
            }
            Self::Born(birth) => {
                out.u8(8);
                birth.encode(out);
            }
            Self::BornAt(number, time) => {
                out.u8(9);
                out.u64(*number);
                out.time(*time);
            }
            Self::Owner(uid, gid) => {
                out.u8(10);
                out.u32(*uid);
                out.u32(*gid);
            }
            Self::Mode(mode) => {
                out.u8(11);
                out.u32(*mode);
            }
            Self::Linked(time, stem, first) => {
                out.u8(12);
                out.time(*time);
                out.bytes(stem);
                if *first > 0 {
                    out.u64(*first);
                }
            }
            Self::Unlinked(time, departure) => {
                out.u8(13);
                out.time(*time);
                if let Some(Departure { last, cause }) = departure {
                    out.u64(*last);
                    out.u8(*cause as u8);
                }
            }
            Self::BornBefore(last, birth) => {
                out.u8(14);
                out.u64(*last);
                birth.encode(out);
            }
            Self::Ended(time) => {
                out.u8(15);
                out.time(*time);
            }
            Self::Retracted(number) => {
                out.u8(16);
                out.u64(*number);
            }
            Self::Gone(gap) => {
                out.u8(17);
                gap.encode(out);
            }
        }
    }

    fn decode_payload(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        let record = match from.u8()? {
            1 => Self::Name(from.bytes()?.into()),
            2 => Self::Next(from.u64()?),
            3 => Self::Made(Version::decode(&mut from)?),
            4 => Self::Converted { number: from.u64()?, letter: Letter::from_byte(from.u8()?)? },
            5 => Self::Discarded(from.u64()?),
            6 => Self::Flags(from.u64()?, Flags::from_byte(from.u8()?)),
            7 => Self::Note(from.u64()?, from.bytes()?.into()),
            8 => Self::Born(Birth::decode(&mut from)?),
            9 => Self::BornAt(from.u64()?, from.time()?),
            10 => Self::Owner(from.u32()?, from.u32()?),
            11 => Self::Mode(from.u32().filter(|mode| *mode <= 0o7777)?),
            12 => Self::Linked(from.time()?, from.bytes()?.into(), if from.0.is_empty() { 0 } else { from.u64()? }),
            13 => {
                Self::Unlinked(from.time()?, if from.0.is_empty() { None } else { Some(Departure::decode(&mut from)?) })
            }
            14 => Self::BornBefore(from.u64()?, Birth::decode(&mut from)?),
            15 => Self::Ended(from.time()?),
            16 => Self::Retracted(from.u64()?),
            17 => Self::Gone(Gap::decode(&mut from)?),
            _ => return None,
        };
        from.0.is_empty().then_some(record)
    }

    /// Appends the record to a log.
    pub fn encode(&self, log: &mut Vec<u8>) {
        let mut payload = Writer::default();
        self.encode_payload(&mut payload);
        let mut framed = Writer(core::mem::take(log));
        framed.framed(&payload.0);
        *log = framed.0;
    }
}

impl Departure {
    fn decode(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self { last: from.u64()?, cause: Cause::from_byte(from.u8()?)? })
    }
}

impl Birth {
    fn encode(&self, out: &mut Writer) {
        out.time(self.time);
        out.u8(self.cause as u8);
        self.who.encode(out);
        out.u64(self.from.as_ref().map_or(0, |from| from.dir));
        out.bytes(self.from.as_ref().map_or(&[], |from| &from.name));
        if self.first > 0 {
            out.u64(self.from.as_ref().map_or(0, |from| from.number));
            out.u64(self.first);
        }
    }

    fn decode(from: &mut Reader<'_>) -> Option<Self> {
        let (time, cause) = (from.time()?, Cause::from_byte(from.u8()?)?);
        let who = Who::decode(from)?;
        let (dir, name) = (from.u64()?, from.bytes()?);
        let (number, first) = if from.0.is_empty() { (0, 0) } else { (from.u64()?, from.u64()?) };
        let from = (!name.is_empty()).then(|| Place { dir, name: name.into(), number });
        Some(Self { time, cause, who, from, first })
    }
}

/// A period during which a name was one of several names of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkPeriod {
    /// Its begin.
    pub from: Time,
    /// Its end; `None` if the name still belongs to the inode.
    pub until: Option<Time>,
    /// The stem of the inode's set.
    pub stem: Box<[u8]>,
    /// The first version of the inode that is the name's; 0 if it was not recorded.
    pub first: u64,
    /// How the name left; `None` if it did not, or it was not recorded.
    pub departure: Option<Departure>,
}

impl LinkPeriod {
    /// Whether the name was one of the inode's at this time.
    #[must_use]
    pub fn covers(&self, time: Time) -> bool {
        self.from <= time && self.until.is_none_or(|until| time < until)
    }

    /// Returns the gap that the period leaves once it has ended and its versions are gone.
    #[must_use]
    pub fn gap(&self) -> Gap {
        let cause = self.departure.map_or(Cause::Unlink, |departure| departure.cause);
        Gap { born: self.from, died: self.until.unwrap_or(self.from), cause, who: Who::default() }
    }

    /// Whether a version of the inode is one of the name. Their order is that of their numbers:
    /// clocks may be set back. The times say it for periods that were recorded without numbers.
    #[must_use]
    pub fn has(&self, version: &Version) -> bool {
        let is_after = if self.first > 0 { version.number >= self.first } else { version.died > self.from };
        let is_before = match self.departure {
            Some(departure) => version.number <= departure.last,
            None => self.until.is_none_or(|until| version.born < until),
        };
        is_after && is_before
    }
}

/// A version set in memory: what the records of its index amount to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// The file's name, if it is not the stem.
    pub name: Option<Box<[u8]>>,
    /// The versions by number.
    pub versions: BTreeMap<u64, Version>,
    /// Notes by number.
    pub notes: BTreeMap<u64, Box<[u8]>>,
    /// How the current head got its name, if it is known.
    pub birth: Option<Birth>,
    /// Births of the heads of earlier versions, by the number of the last version of each.
    pub earlier_births: BTreeMap<u64, Birth>,
    /// The periods during which the name was one of several.
    pub links: Vec<LinkPeriod>,
    /// When the name had what is not in the history any more, the gap that was found first coming
    /// first.
    pub gaps: Vec<Gap>,
    /// When the last version ended, even if it is discarded: what came after it is another content.
    pub last_end: Option<Time>,
    /// The number of the newest version, or of the one that had no room after it, and the last end
    /// before that.
    end_before: (u64, Option<Time>),
    next: u64,
    /// Records in the log, for the decision when to rewrite it.
    records: u64,
}

/// What [`Index::parse`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Every byte is part of a valid record.
    Complete,
    /// The log ends before its last byte, at this offset: an interrupted append, or damage.
    EndsAt(usize),
    /// It does not begin as an index does.
    NotAnIndex,
}

impl Index {
    /// Parses the bytes of an index. The records before any damage count.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> (Self, Condition) {
        let mut index = Self::default();
        let Some(log) = bytes.strip_prefix(MAGIC) else { return (index, Condition::NotAnIndex) };
        let mut rest = log;
        while !rest.is_empty() {
            let Some((record, after)) = next_record(rest) else {
                return (index, Condition::EndsAt(bytes.len() - rest.len()));
            };
            index.apply(record);
            rest = after;
        }
        (index, Condition::Complete)
    }

    /// Returns the bytes of a new log with this content.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut log = MAGIC.to_vec();
        for record in self.to_records() {
            record.encode(&mut log);
        }
        log
    }

    fn to_records(&self) -> Vec<Record> {
        let mut records: Vec<_> = self.name.iter().cloned().map(Record::Name).collect();
        let is_discarded = self.last_end > self.newest().map(|newest| newest.died);
        records.extend(self.last_end.filter(|_| is_discarded).map(Record::Ended));
        records.extend(self.versions.values().cloned().map(Record::Made));
        records.extend(self.earlier_births.iter().map(|(last, birth)| Record::BornBefore(*last, birth.clone())));
        records.extend(self.notes.iter().map(|(number, note)| Record::Note(*number, note.clone())));
        records.extend(self.gaps.iter().cloned().map(Record::Gone));
        records.push(Record::Next(self.next()));
        for period in &self.links {
            records.push(Record::Linked(period.from, period.stem.clone(), period.first));
            records.extend(period.until.map(|until| Record::Unlinked(until, period.departure)));
        }
        // Behind the periods, whose ends are ends of heads.
        records.extend(self.birth.clone().map(Record::Born));
        records
    }

    /// Returns the period in which the name is one of several names of an inode. `None` if it is
    /// none now, as far as is recorded.
    #[must_use]
    pub fn open_link(&self) -> Option<&LinkPeriod> {
        self.links.last().filter(|period| period.until.is_none())
    }

    /// Whether the name was found in a copy of its directory, and has no version since: its head
    /// was born by no operation.
    #[must_use]
    pub fn is_new_copy(&self) -> bool {
        let birth = self.birth.as_ref();
        birth.is_some_and(|birth| birth.cause == Cause::Link && birth.from.is_none() && birth.first == self.next())
    }

    /// Applies a record. One about a version that does not exist has no effect.
    pub fn apply(&mut self, record: Record) {
        self.records += 1;
        match record {
            Record::Name(name) => self.name = Some(name),
            Record::Next(number) if !may_follow(number, self.next) => {}
            Record::Next(number) => self.next = self.next.max(number),
            Record::Made(version) if !may_follow(version.number, self.next) => {}
            Record::Made(version) => {
                if let Some(birth) = self.birth.take() {
                    if version.cause.ends_head() {
                        self.earlier_births.insert(version.number, birth);
                    } else {
                        self.birth = Some(birth);
                    }
                }
                self.next = self.next.max(version.number.saturating_add(1));
                self.end_before = (version.number, self.last_end);
                self.last_end = self.last_end.max(Some(version.died));
                self.versions.insert(version.number, version);
            }
            Record::Converted { number, letter } => self.change(number, |version| version.letter = letter),
            Record::Retracted(number) => {
                if self.end_before.0 == number {
                    self.last_end = self.end_before.1;
                }
                if self.newest().is_some_and(|newest| newest.number == number) {
                    self.birth = self.birth.take().or(self.earlier_births.remove(&number));
                }
                // The head has no version with this number.
                if let Some(birth) = self.birth.as_mut().filter(|birth| birth.first == number) {
                    birth.first = number.saturating_add(1);
                }
                self.forget(number);
            }
            Record::Discarded(number) => {
                if let Some(version) = self.versions.get(&number) {
                    self.add_gap(Gap::of(version));
                }
                self.forget(number);
            }
            Record::Flags(number, flags) => self.change(number, |version| version.flags = flags),
            Record::Note(number, text) if text.is_empty() => drop(self.notes.remove(&number)),
            Record::Note(number, text) => {
                if self.versions.contains_key(&number) {
                    self.notes.insert(number, text);
                }
            }
            Record::Born(birth) => self.birth = Some(birth),
            Record::BornAt(number, time) => self.change(number, |version| version.born = time),
            Record::Owner(uid, gid) => {
                for version in self.versions.values_mut() {
                    version.uid = if uid == u32::MAX { version.uid } else { uid };
                    version.gid = if gid == u32::MAX { version.gid } else { gid };
                }
            }
            Record::Mode(mode) => self.versions.values_mut().for_each(|version| version.mode = mode),
            Record::Linked(from, stem, first) => {
                let first = if may_follow(first, self.next) { first } else { 0 };
                self.links.push(LinkPeriod { from, until: None, stem, first, departure: None });
            }
            Record::Unlinked(time, departure) => {
                // The next head of the name is another file.
                let birth = self.birth.take();
                let Some(period) = self.links.last_mut().filter(|period| period.until.is_none()) else { return };
                (period.until, period.departure) = (Some(time), departure);
                if let Some((Departure { last, .. }, birth)) = departure.zip(birth) {
                    // If the head had no version, this is the last version of an earlier one.
                    self.earlier_births.entry(last).or_insert(birth);
                }
            }
            Record::Ended(time) => {
                self.end_before = (self.next(), self.last_end);
                self.last_end = self.last_end.max(Some(time));
            }
            Record::BornBefore(last, birth) => drop(self.earlier_births.insert(last, birth)),
            Record::Gone(gap) => self.add_gap(gap),
        }
    }

    /// Forgets a version.
    fn forget(&mut self, number: u64) {
        self.versions.remove(&number);
        self.notes.remove(&number);
        // The births of heads that have no version any more.
        let oldest = self.versions.first_key_value().map_or(number.saturating_add(1), |(oldest, _)| *oldest);
        let links = &self.links;
        let is_link = |last: u64| links.iter().any(|it| it.departure.is_some_and(|it| it.last == last));
        self.earlier_births.retain(|last, _| *last >= oldest || is_link(*last));
    }

    /// Notes when the name had what is not in the history any more.
    fn add_gap(&mut self, gap: Gap) {
        match self.gaps.last_mut().filter(|last| last.died == gap.born) {
            Some(last) => *last = Gap { born: last.born, ..gap },
            None => self.gaps.push(gap),
        }
        if self.gaps.len() > MAX_GAPS {
            let oldest = self.gaps.remove(0);
            if let Some(next) = self.gaps.first_mut() {
                next.born = next.born.min(oldest.born);
                next.died = next.died.max(oldest.died);
            }
        }
    }

    fn change(&mut self, number: u64, change: impl FnOnce(&mut Version)) {
        if let Some(version) = self.versions.get_mut(&number) {
            change(version);
        }
    }

    /// Returns the number for the next version.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next.max(1)
    }

    /// Takes back the version after `number`, the newest one with a file, if it is the only one.
    /// Its record was written before a kill, and its file never made: the head has its content.
    /// Only a power failure loses more files.
    pub fn retract_after(&mut self, number: u64) {
        let mut after = self.versions.range(number.saturating_add(1)..).map(|(number, _)| *number);
        if let (Some(newest), None) = (after.next(), after.next()) {
            drop(after);
            self.apply(Record::Retracted(newest));
        }
    }

    /// Returns the newest version.
    #[must_use]
    pub fn newest(&self) -> Option<&Version> {
        self.versions.last_key_value().map(|(_, version)| version)
    }

    /// Whether the log should be written anew: most of its records no longer count.
    #[must_use]
    pub fn wants_rewrite(&self) -> bool {
        let counts = 2
            + self.versions.len()
            + self.notes.len()
            + self.earlier_births.len()
            + self.gaps.len()
            + 2 * self.links.len();
        self.records > 64 && self.records / 3 > counts as u64
    }

    /// Resets the count of records after the log was written anew.
    pub fn rewritten(&mut self) {
        self.records = self.to_records().len() as u64;
    }
}

impl Cause {
    /// Whether the operation took the name from the head: the next one is another file.
    #[must_use]
    pub const fn ends_head(self) -> bool {
        matches!(self, Self::Unlink | Self::Rmdir | Self::Rename | Self::Replace)
    }
}

fn next_record(bytes: &[u8]) -> Option<(Record, &[u8])> {
    let mut from = Reader(bytes);
    let payload = from.framed().filter(|payload| payload.len() <= MAX_RECORD)?;
    Some((Record::decode_payload(payload)?, from.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::tests::example;
    use proptest::prelude::*;

    fn birth(sec: i64) -> Birth {
        let from = Some(Place { dir: 7, name: b"old"[..].into(), number: 0 });
        Birth { time: Time { sec, nsec: 0 }, cause: Cause::Rename, who: Who::default(), from, first: 0 }
    }

    fn numbered(sec: i64) -> Birth {
        let from = Some(Place { dir: 7, name: b"old"[..].into(), number: 3 });
        Birth { from, first: 4, ..birth(sec) }
    }

    fn records() -> Vec<Record> {
        vec![
            Record::Name(b"long"[..].into()),
            Record::Born(birth(3)),
            Record::Made(example(1)),
            Record::Made(Version { cause: Cause::Replace, ..example(2) }),
            Record::Born(birth(4)),
            Record::Made(example(3)),
            Record::Converted { number: 1, letter: Letter::Compressed },
            Record::Flags(3, Flags { pinned: false, landmark: true }),
            Record::Note(2, b"before the talk"[..].into()),
            Record::Linked(Time { sec: 5, nsec: 0 }, b"1f.0"[..].into(), 0),
            Record::Unlinked(Time { sec: 6, nsec: 0 }, None),
            Record::Linked(Time { sec: 6, nsec: 0 }, b"2f.0"[..].into(), 4),
            Record::Born(numbered(6)),
            Record::Unlinked(Time { sec: 7, nsec: 0 }, Some(Departure { last: 5, cause: Cause::Replace })),
            Record::Born(birth(7)),
            Record::Discarded(1),
            Record::Made(Version { cause: Cause::Rename, ..example(4) }),
            Record::Retracted(4),
            Record::Owner(u32::MAX, 9),
            Record::Mode(0o600),
            Record::BornAt(3, Time { sec: 4, nsec: 1 }),
            Record::Ended(Time { sec: 1 << 40, nsec: 7 }),
            Record::Gone(Gap {
                born: Time { sec: 1, nsec: 0 },
                died: Time { sec: 2, nsec: 0 },
                ..Gap::of(&example(9))
            }),
            Record::Next(9),
        ]
    }

    fn log(records: &[Record]) -> Vec<u8> {
        let mut log = MAGIC.to_vec();
        records.iter().for_each(|record| record.encode(&mut log));
        log
    }

    #[test]
    fn what_is_discarded_leaves_gaps() {
        let mut index = Index::default();
        let time = |sec| Time { sec, nsec: 0 };
        let version = |number: u64, born, died| Version { born: time(born), died: time(died), ..example(number) };
        for number in 1_u64..60 {
            let n = number.cast_signed();
            // Those from 4 on do not follow each other.
            let died = if n < 4 { n * 10 + 10 } else { n * 10 + 5 };
            index.apply(Record::Made(version(number, n * 10, died)));
        }
        (1..4).for_each(|number| index.apply(Record::Discarded(number)));
        assert_eq!(index.gaps, [Gap::of(&version(3, 10, 40))]);
        index.apply(Record::Discarded(8));
        assert_eq!(index.gaps.len(), 2);
        assert!(index.gaps[1].has(time(80)) && !index.gaps[1].has(time(85)) && !index.gaps[1].has(time(79)));
        (9..60).for_each(|number| index.apply(Record::Discarded(number)));
        assert_eq!(index.gaps.len(), MAX_GAPS);
        assert_eq!(index.gaps[0].born, time(10));
        assert_eq!(index.gaps[MAX_GAPS - 1], Gap::of(&version(59, 590, 595)));
        assert_eq!(Index::parse(&index.to_bytes()).0.gaps, index.gaps);
        // A version that was taken back was nothing.
        index.apply(Record::Made(version(60, 600, 605)));
        index.apply(Record::Retracted(60));
        assert_eq!(index.gaps[MAX_GAPS - 1].died, time(595));
    }

    #[test]
    fn a_log_is_parsed_and_rewritten() {
        let (mut index, condition) = Index::parse(&log(&records()));
        assert_eq!(condition, Condition::Complete);
        assert_eq!(index.versions.keys().copied().collect::<Vec<_>>(), [2, 3]);
        assert_eq!(index.next(), 9);
        assert_eq!(index.last_end, Some(Time { sec: 1 << 40, nsec: 7 }));
        assert_eq!(index.earlier_births.get(&2), Some(&birth(3)));
        assert_eq!(index.earlier_births.get(&5), Some(&numbered(6)));
        assert_eq!(index.birth, Some(birth(7)));
        assert_eq!(index.links[1].departure, Some(Departure { last: 5, cause: Cause::Replace }));
        assert_eq!(index.links.iter().map(|period| period.first).collect::<Vec<_>>(), [0, 4]);
        assert_eq!(index.versions[&3].gid, 9);
        assert_eq!(index.versions[&3].uid, 1000);
        let (again, condition) = Index::parse(&index.to_bytes());
        assert_eq!(condition, Condition::Complete);
        index.rewritten();
        assert_eq!(Index { end_before: index.end_before, ..again }, index);
    }

    #[test]
    fn a_version_that_had_no_room_is_taken_back() {
        let end = |sec| Some(Time { sec, nsec: 0 });
        let mut index = Index::default();
        index.apply(Record::Made(example(1)));
        let first = index.last_end;
        let skip = [Record::Ended(Time { sec: 1 << 41, nsec: 0 }), Record::Next(3)];
        skip.iter().for_each(|record| index.apply(record.clone()));
        assert_eq!((index.last_end, index.next()), (end(1 << 41), 3));
        // Another one: the end of this one stays.
        let mut other = index.clone();
        other.apply(Record::Retracted(1));
        assert_eq!(other.last_end, end(1 << 41));
        for _ in 0..2 {
            index.apply(Record::Retracted(2));
            assert_eq!((index.last_end, index.next(), index.versions.len()), (first, 3, 1));
        }
    }

    #[test]
    fn numbers_are_counted_on_from_the_largest_that_may_be_passed_over_to() {
        let last = 1 << 62;
        let mut index = Index::default();
        let forged = [Record::Made(example(u64::MAX)), Record::Made(example(last << 1)), Record::Next(u64::MAX)];
        forged.iter().for_each(|record| index.apply(record.clone()));
        assert_eq!((index.versions.len(), index.next()), (0, 1));
        index.apply(Record::Next(last));
        for number in last..last + 20 {
            index.apply(Record::Made(example(number)));
        }
        (last + 1..last + 19).for_each(|number| index.apply(Record::Discarded(number)));
        let (again, _) = Index::parse(&index.to_bytes());
        assert_eq!((&again.versions, again.next()), (&index.versions, last + 20));
        (last..last + 20).for_each(|number| index.apply(Record::Discarded(number)));
        assert_eq!(Index::parse(&index.to_bytes()).0.next(), last + 20);
    }

    #[test]
    fn the_records_before_damage_count() {
        let whole = log(&records());
        let mut ends = vec![MAGIC.len()];
        for count in 1..=records().len() {
            ends.push(log(&records()[..count]).len());
        }
        for len in MAGIC.len()..whole.len() {
            let (_, condition) = Index::parse(&whole[..len]);
            let end = *ends.iter().rfind(|end| **end <= len).unwrap();
            let expected = if end == len { Condition::Complete } else { Condition::EndsAt(end) };
            assert_eq!(condition, expected, "{len}");
        }
        assert_eq!(Index::parse(b"VERSID").1, Condition::NotAnIndex);
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_no_problem(mut bytes in prop::collection::vec(any::<u8>(), 0..300), start in any::<bool>()) {
            if start {
                bytes.splice(0..0, *MAGIC);
            }
            let (index, _) = Index::parse(&bytes);
            prop_assert!(Index::parse(&index.to_bytes()).1 == Condition::Complete);
        }

        #[test]
        fn a_flipped_bit_never_changes_a_record(at in 0usize..400, bit in 0u8..8) {
            let mut bytes = log(&records());
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            let (_, condition) = Index::parse(&bytes);
            prop_assert!(condition != Condition::Complete);
        }
    }
}
