//! Records of the audit log, and the segments that contain them (docs/formats/audit-log.md).

use crate::version::Who;
use crate::wire::{Reader, Writer};
use vnode::Time;

/// In the store of the root: the directory with the segments of the audit log.
pub const LOG: &[u8] = b";log";

/// The first bytes of a segment.
const MAGIC: &[u8; 8] = b"VERSLOG1";

/// Bytes before the first record of a segment: magic, number of the first record, checksum.
pub const SEGMENT_START: usize = 20;

/// Largest record in bytes, with its length and checksum.
pub const MAX_AUDIT_RECORD: usize = 16 * 1024;

/// Longest path of a directory in bytes. Of a longer one, only the number is recorded.
const MAX_PATH: usize = 4096;

/// Longest text in bytes; a longer one is cut.
const MAX_AUDIT_TEXT: usize = 4096;

/// Most versions that a record names.
const MAX_VERSIONS: usize = 8;

/// Bytes whose checksums are computed while the next record behind damage is searched.
const SEARCH_BUDGET: usize = 64 * 1024 * 1024;

/// What a record of the audit log is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "each is the operation of that name")]
pub enum Audited {
    Create = 1,
    Write = 2,
    Truncate = 3,
    Unlink = 4,
    Rmdir = 5,
    Rename = 6,
    Link = 7,
    Symlink = 8,
    Mkdir = 9,
    Mknod = 10,
    Chmod = 11,
    Chown = 12,
    Setxattr = 13,
    Removexattr = 14,
    /// The times were set.
    Times = 15,
    Fallocate = 16,
    /// A control command that changes versions, tags or policies.
    Command = 17,
    /// The segment before this one ends with an incomplete record.
    Torn = 18,
    /// Operations were not recorded, because there was no space.
    Lost = 19,
    Tmpfile = 20,
    /// The oldest segments were discarded.
    Discarded = 21,
}

impl Audited {
    /// All operations with the words for them in replies.
    pub const ALL: [(Self, &'static str); 21] = [
        (Self::Create, "create"),
        (Self::Write, "write"),
        (Self::Truncate, "truncate"),
        (Self::Unlink, "unlink"),
        (Self::Rmdir, "rmdir"),
        (Self::Rename, "rename"),
        (Self::Link, "link"),
        (Self::Symlink, "symlink"),
        (Self::Mkdir, "mkdir"),
        (Self::Mknod, "mknod"),
        (Self::Chmod, "chmod"),
        (Self::Chown, "chown"),
        (Self::Setxattr, "setxattr"),
        (Self::Removexattr, "removexattr"),
        (Self::Times, "times"),
        (Self::Fallocate, "fallocate"),
        (Self::Command, "command"),
        (Self::Torn, "torn"),
        (Self::Lost, "lost"),
        (Self::Tmpfile, "tmpfile"),
        (Self::Discarded, "discarded"),
    ];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().map(|(one, _)| one).find(|one| *one as u8 == byte)
    }

    /// Returns the word for the operation.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::ALL.into_iter().find(|(one, _)| *one == self).map_or("", |(_, word)| word)
    }
}

/// A name at the time of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditPlace {
    /// The number of the directory; 0 if the object had no name.
    pub dir: u64,
    /// The path of the directory from the root of the mount: empty for the root, otherwise it
    /// begins with a slash.
    pub path: Box<[u8]>,
    /// The name in the directory; empty for the directory itself.
    pub name: Box<[u8]>,
}

impl AuditPlace {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.dir);
        out.bytes(if self.path.len() > MAX_PATH { b"" } else { &self.path });
        out.bytes(self.name.get(..255).unwrap_or(&self.name));
    }

    fn decode(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self { dir: from.u64()?, path: from.bytes()?.into(), name: from.bytes()?.into() })
    }

    /// Returns the path of the object; empty if it had no name.
    #[must_use]
    pub fn shown(&self) -> Vec<u8> {
        match (self.dir, self.path.is_empty() && self.name.is_empty()) {
            (0, _) => Vec::new(),
            (_, true) => b"/".to_vec(),
            _ if self.name.is_empty() => self.path.to_vec(),
            _ => [&*self.path, b"/", &self.name].concat(),
        }
    }
}

/// A record: an operation that changed something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    /// Its number, from 1 upward without gaps.
    pub number: u64,
    /// When the operation ended.
    pub time: Time,
    /// The operation.
    pub operation: Audited,
    /// The error number; 0 if the operation succeeded. Only failures that may have changed
    /// something are recorded.
    pub errno: u32,
    /// The number of the object; 0 if unknown.
    pub inode: u64,
    /// The object's name.
    pub place: AuditPlace,
    /// The new name, of a rename or link.
    pub new_place: Option<AuditPlace>,
    /// Offset and length in bytes, of a write or fallocate. For others: docs/formats/audit-log.md.
    pub range: (u64, u64),
    /// Further arguments.
    pub text: Box<[u8]>,
    /// The numbers of the versions that the operation made, and whether each is of the new name.
    pub versions: Vec<(u64, bool)>,
    /// Who did it.
    pub who: Who,
    /// The group of who did it.
    pub gid: u32,
}

impl AuditRecord {
    /// Appends the record as it is in a segment, at most [`MAX_AUDIT_RECORD`] bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut payload = Writer::default();
        payload.u64(self.number);
        payload.time(self.time);
        payload.u8(self.operation as u8);
        payload.u32(self.errno);
        payload.u64(self.inode);
        self.place.encode(&mut payload);
        payload.u8(u8::from(self.new_place.is_some()));
        if let Some(place) = &self.new_place {
            place.encode(&mut payload);
        }
        payload.u64(self.range.0);
        payload.u64(self.range.1);
        payload.bytes(self.text.get(..MAX_AUDIT_TEXT).unwrap_or(&self.text));
        let count = self.versions.len().min(MAX_VERSIONS);
        payload.u8(u8::try_from(count).unwrap_or(0));
        for (number, is_new) in self.versions.iter().take(count) {
            payload.u64(*number);
            payload.u8(u8::from(*is_new));
        }
        payload.u32(self.who.uid);
        payload.u32(self.gid);
        payload.u32(self.who.pid);
        payload.u32(self.who.sid);
        payload.bytes(self.who.comm.get(..255).unwrap_or(&self.who.comm));
        let mut framed = Writer::default();
        framed.bytes(&payload.0);
        framed.u32(crc32c::crc32c(&payload.0));
        out.extend_from_slice(&framed.0);
    }

    fn decode(payload: &[u8]) -> Option<Self> {
        let mut from = Reader(payload);
        let (number, time, operation) = (from.u64()?, from.time()?, Audited::from_byte(from.u8()?)?);
        let (errno, inode, place) = (from.u32()?, from.u64()?, AuditPlace::decode(&mut from)?);
        let new_place = if flag(&mut from)? { Some(AuditPlace::decode(&mut from)?) } else { None };
        let range = (from.u64()?, from.u64()?);
        let text = from.bytes()?.into();
        let count = from.u8().map(usize::from).filter(|count| *count <= MAX_VERSIONS)?;
        let versions = (0..count).map(|_| Some((from.u64()?, flag(&mut from)?))).collect::<Option<_>>()?;
        let (uid, gid, pid, sid) = (from.u32()?, from.u32()?, from.u32()?, from.u32()?);
        let who = Who { uid, pid, sid, comm: from.bytes()?.into() };
        let is_all = from.0.is_empty();
        is_all.then_some(Self {
            number,
            time,
            operation,
            errno,
            inode,
            place,
            new_place,
            range,
            text,
            versions,
            who,
            gid,
        })
    }
}

fn flag(from: &mut Reader<'_>) -> Option<bool> {
    match from.u8()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Returns the bytes that a segment begins with, whose first record has the number `first`.
#[must_use]
pub fn segment_start(first: u64) -> Vec<u8> {
    let mut out = Writer::default();
    out.0.extend_from_slice(MAGIC);
    out.u64(first);
    let sum = crc32c::crc32c(&out.0);
    out.u32(sum);
    out.0
}

/// Returns the name of the segment whose first record has the number `first`.
#[must_use]
pub fn segment_name(first: u64) -> Vec<u8> {
    first.to_string().into_bytes()
}

/// Returns the number of the first record of the segment with this name; `None` if it is no name of
/// a segment.
#[must_use]
pub fn segment_of(name: &[u8]) -> Option<u64> {
    crate::names::number_of(name)
}

/// A part of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SegmentPart {
    /// A record, and the offset behind it.
    Record(Box<AuditRecord>, usize),
    /// Bytes that are no record: the offset and the length.
    Damage(usize, usize),
}

/// The parts of a segment in order.
#[derive(Debug)]
pub struct SegmentParts<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The number that the next record has at least.
    next: u64,
    budget: usize,
    /// The record behind damage that was just returned, and the offset behind it.
    ready: Option<(AuditRecord, usize)>,
}

impl<'a> SegmentParts<'a> {
    /// Returns the parts of the segment with these bytes, whose name says that its first record has
    /// the number `first`.
    #[must_use]
    pub fn of(bytes: &'a [u8], first: u64) -> Self {
        let is_intact = bytes.get(..SEGMENT_START) == Some(&*segment_start(first));
        Self { bytes, at: if is_intact { SEGMENT_START } else { 0 }, next: first, budget: SEARCH_BUDGET, ready: None }
    }

    /// Returns the record at an offset, and the offset behind it.
    fn record(&mut self, at: usize) -> Option<(AuditRecord, usize)> {
        let mut from = Reader(self.bytes.get(at..)?);
        let payload = from.bytes().filter(|payload| payload.len() + 6 <= MAX_AUDIT_RECORD)?;
        let number = Reader(payload).u64().filter(|number| *number >= self.next)?;
        self.budget = self.budget.checked_sub(payload.len())?;
        let sum = from.u32()?;
        let record = AuditRecord::decode(payload).filter(|_| crc32c::crc32c(payload) == sum)?;
        self.next = number.checked_add(1)?;
        // Intact segments need no search: their size is bounded.
        self.budget = SEARCH_BUDGET;
        Some((record, at + payload.len() + 6))
    }
}

impl Iterator for SegmentParts<'_> {
    type Item = SegmentPart;

    fn next(&mut self) -> Option<SegmentPart> {
        let start = self.at;
        if let Some((record, end)) = self.ready.take().or_else(|| self.record(start)) {
            self.at = end;
            return Some(SegmentPart::Record(Box::new(record), end));
        }
        let found = (start + 1..self.bytes.len()).find_map(|at| self.record(at).map(|found| (at, found)));
        self.at = found.as_ref().map_or(self.bytes.len(), |(at, _)| *at);
        self.ready = found.map(|(_, found)| found);
        (start < self.at).then_some(SegmentPart::Damage(start, self.at - start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example(number: u64) -> AuditRecord {
        let place = AuditPlace { dir: 2, path: b"/a"[..].into(), name: b"f\n"[..].into() };
        AuditRecord {
            number,
            time: Time { sec: -1, nsec: 5 },
            operation: Audited::Rename,
            errno: 0,
            inode: 77,
            place: place.clone(),
            new_place: Some(AuditPlace { path: Box::default(), ..place }),
            range: (1, u64::MAX),
            text: b"exchange"[..].into(),
            versions: vec![(3, false), (9, true)],
            who: Who { uid: 1000, pid: 7, sid: 6, comm: b"mv"[..].into() },
            gid: 100,
        }
    }

    fn segment(records: &[AuditRecord]) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = segment_start(records.first().map_or(1, |record| record.number));
        let mut ends = vec![bytes.len()];
        for record in records {
            record.encode(&mut bytes);
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    fn records(bytes: &[u8], first: u64) -> (Vec<u64>, usize) {
        let (mut numbers, mut damaged) = (Vec::new(), 0);
        for part in SegmentParts::of(bytes, first) {
            match part {
                SegmentPart::Record(record, _) => numbers.push(record.number),
                SegmentPart::Damage(_, len) => damaged += len,
            }
        }
        (numbers, damaged)
    }

    #[test]
    fn every_operation_is_decoded_as_it_was_encoded() {
        for (at, (operation, _)) in Audited::ALL.into_iter().enumerate() {
            let new_place = example(1).new_place.filter(|_| at % 2 == 0);
            let record = AuditRecord { operation, new_place, ..example(5) };
            let (bytes, ends) = segment(std::slice::from_ref(&record));
            let parts: Vec<_> = SegmentParts::of(&bytes, 5).collect();
            assert_eq!(parts, [SegmentPart::Record(Box::new(record), ends[1])]);
        }
    }

    #[test]
    fn the_largest_record_is_within_the_bound() {
        let place = AuditPlace { dir: 1, path: vec![b'x'; MAX_PATH].into(), name: vec![b'y'; 300].into() };
        let new_place = Some(place.clone());
        let text = vec![b'z'; 100_000].into();
        let record = AuditRecord { place, new_place, text, versions: vec![(1, true); 20], ..example(1) };
        let (bytes, _) = segment(&[record]);
        assert!(bytes.len() <= SEGMENT_START + MAX_AUDIT_RECORD, "{}", bytes.len());
        assert_eq!(records(&bytes, 1), (vec![1], 0));
    }

    #[test]
    fn a_segment_that_is_cut_has_the_records_before_the_cut() {
        let (bytes, ends) = segment(&[example(10), example(11), example(12)]);
        for len in 0..=bytes.len() {
            let whole = ends.iter().filter(|end| **end <= len).count().saturating_sub(1);
            let expected: Vec<u64> = (10..).take(whole).collect();
            let tail = len - ends.iter().filter(|end| **end <= len).max().copied().unwrap_or(0);
            assert_eq!(records(&bytes[..len], 10), (expected, tail), "{len}");
        }
    }

    #[test]
    fn records_behind_damage_are_found() {
        let (bytes, ends) = segment(&[example(10), example(11), example(12)]);
        for at in SEGMENT_START..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x55;
            let lost = ends.iter().filter(|end| **end <= at).count() - 1;
            let expected: Vec<u64> = (10..13).filter(|number| *number != 10 + lost as u64).collect();
            assert_eq!(records(&bytes, 10), (expected, ends[lost + 1] - ends[lost]), "{at}");
        }
        for at in 0..SEGMENT_START {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x55;
            assert_eq!(records(&bytes, 10), (vec![10, 11, 12], SEGMENT_START), "{at}");
        }
    }

    proptest! {
        #[test]
        fn hostile_segments_are_no_problem(bytes in prop::collection::vec(any::<u8>(), 0..400), first in any::<u64>()) {
            let covered: usize = SegmentParts::of(&bytes, first).map(|part| match part {
                SegmentPart::Record(..) => 1,
                SegmentPart::Damage(_, len) => len,
            }).sum();
            prop_assert!(covered <= bytes.len());
            let _ = AuditRecord::decode(&bytes);
        }
    }
}
