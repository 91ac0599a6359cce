//! The format of the identity log: docs/formats/union-branch.md.

use std::sync::Arc;
use vnode::{Cx, Errno, Name, OpenFile, Result, Time};

/// The first 16 bytes of a log.
pub(crate) const HEADER: &[u8; 16] = b"strata-ident 2\n\0";
/// The first 16 bytes of a log of version 1, which counted the names of a whole union.
pub(crate) const HEADER_1: &[u8; 16] = b"strata-ident 1\n\0";

/// Maximum number of bytes read from a log: some twenty million records.
const LIMIT: u64 = 1 << 30;
/// Number of bytes read at a time.
const CHUNK: usize = 64 * 1024;
/// Number of bytes of a record without its payload.
const FRAME: usize = 8;

/// The number by which a lower file is known, in place of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alias {
    /// The lower file's time of birth: another file may get its lower number later.
    pub(crate) born: Time,
    pub(crate) number: u64,
    /// The generation of the object whose number this was first; 0 in logs of earlier versions.
    pub(crate) generation: u32,
}

/// The path of a branch, with the fingerprint of its layer ([`vnode::Layer::fingerprint`]), if that
/// is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tagged {
    pub(crate) path: Vec<u8>,
    pub(crate) fingerprint: Option<u64>,
}

/// The original of a copy that the index has, as it was when it was copied. In a copy of its branch
/// it is found again by its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Original {
    pub(crate) size: u64,
    pub(crate) mtime: Time,
    /// One of its paths on its branch.
    pub(crate) path: Vec<u8>,
}

/// A record of the log. `by` is the tag of the branch on which the record lies; the log does not
/// store it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// The branch with this path has this tag.
    Tag { tag: u16, branch: Tagged },
    /// The lower file has this alias.
    Alias { tag: u16, lower: u64, alias: Alias },
    /// The lower file has no alias any more.
    Unalias { tag: u16, lower: u64 },
    /// The number of names that a file had on branches to the right when it was copied to this one,
    /// and of those that this branch hides (both 0: drop the record).
    Names { by: u16, number: u64, first: u32, used: u32 },
    /// The name at this path of the union, which leads to a lower file of `first` names on the
    /// branch with this tag, is about to be hidden by this branch, or removed from it. The next
    /// [`Record::Names`] of the number ends this.
    Using { by: u16, tag: u16, number: u64, first: u32, path: Vec<u8> },
    /// This branch has the copy of a file in its index.
    Original { by: u16, number: u64, original: Original },
}

impl Record {
    /// Returns the record's bytes. `ENAMETOOLONG` for a path of more than 65,533 bytes.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let mut payload = Vec::new();
        let kind = match self {
            Self::Tag { tag, branch: Tagged { path, fingerprint } } => {
                payload.extend(tag.to_le_bytes());
                if let Some(fingerprint) = fingerprint {
                    payload.extend(fingerprint.to_le_bytes());
                }
                payload.extend(path);
                if fingerprint.is_some() { 7 } else { 1 }
            }
            Self::Alias { tag, lower, alias: Alias { born, number, generation } } => {
                payload.extend(tag.to_le_bytes());
                payload.extend(lower.to_le_bytes());
                put_time(&mut payload, *born);
                payload.extend(number.to_le_bytes());
                if *generation == 0 {
                    2
                } else {
                    payload.extend(generation.to_le_bytes());
                    6
                }
            }
            Self::Unalias { tag, lower } => {
                payload.extend(tag.to_le_bytes());
                payload.extend(lower.to_le_bytes());
                3
            }
            Self::Names { by: _, number, first, used } => {
                payload.extend(number.to_le_bytes());
                payload.extend(first.to_le_bytes());
                payload.extend(used.to_le_bytes());
                4
            }
            Self::Using { by: _, tag, number, first, path } => {
                payload.extend(tag.to_le_bytes());
                payload.extend(number.to_le_bytes());
                payload.extend(first.to_le_bytes());
                payload.extend(path);
                5
            }
            Self::Original { by: _, number, original: Original { size, mtime, path } } => {
                payload.extend(number.to_le_bytes());
                payload.extend(size.to_le_bytes());
                put_time(&mut payload, *mtime);
                payload.extend(path);
                8
            }
        };
        frame(kind, &payload)
    }

    /// Decodes the first record of `bytes` and advances past it. `None` if it is cut off, damaged,
    /// or of an unknown type.
    pub(crate) fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let mut rest = *bytes;
        let (kind, mut payload) = unframe(&mut rest)?;
        let record = Self::decode_payload(kind, &mut payload).filter(|_| payload.is_empty())?;
        *bytes = rest;
        Some(record)
    }

    /// Whether the bytes can begin with a record of a known type, by its first four bytes.
    pub(crate) fn may_begin(bytes: &[u8]) -> bool {
        let Some(&[low, high, kind, zero]) = bytes.first_chunk() else { return false };
        let len = u16::from_le_bytes([low, high]);
        zero == 0
            && match kind {
                1 => len >= 2,
                2 => len == 30,
                3 => len == 10,
                4 => len == 16,
                5 => len >= 14,
                6 => len == 34,
                7 => len >= 10,
                8 => len >= 28,
                _ => false,
            }
    }

    /// Whether the bytes begin with a complete record of any type, also of later versions, with the
    /// right checksum.
    pub(crate) fn is_intact(bytes: &[u8]) -> bool {
        let Some(&[low, high]) = bytes.first_chunk() else { return false };
        let end = usize::from(u16::from_le_bytes([low, high])) + 4;
        let sum = bytes.get(end..).and_then(<[u8]>::first_chunk);
        sum.is_some_and(|sum| bytes.get(..end).map(crc32c) == Some(u32::from_le_bytes(*sum)))
    }

    /// Whether a server can have written this record. One with an invalid path is forged.
    pub(crate) fn is_plausible(&self) -> bool {
        let is_path = |path: &[u8]| {
            path.strip_prefix(b"/").is_some_and(|path| path.split(|&b| b == b'/').all(|name| Name::new(name).is_ok()))
        };
        match self {
            Self::Using { path, .. } => path.is_empty() || is_path(path),
            Self::Original { original, .. } => is_path(&original.path),
            Self::Tag { .. } | Self::Alias { .. } | Self::Unalias { .. } | Self::Names { .. } => true,
        }
    }

    fn decode_payload(kind: u8, payload: &mut &[u8]) -> Option<Self> {
        Some(match kind {
            1 | 7 => Self::Tag {
                tag: u16::from_le_bytes(take(payload)?),
                branch: Tagged {
                    fingerprint: if kind == 7 { Some(u64::from_le_bytes(take(payload)?)) } else { None },
                    path: std::mem::take(payload).to_vec(),
                },
            },
            2 | 6 => Self::Alias {
                tag: u16::from_le_bytes(take(payload)?),
                lower: u64::from_le_bytes(take(payload)?),
                alias: Alias {
                    born: take_time(payload)?,
                    number: u64::from_le_bytes(take(payload)?),
                    generation: if kind == 6 { u32::from_le_bytes(take(payload)?) } else { 0 },
                },
            },
            3 => Self::Unalias { tag: u16::from_le_bytes(take(payload)?), lower: u64::from_le_bytes(take(payload)?) },
            4 => Self::Names {
                by: 0,
                number: u64::from_le_bytes(take(payload)?),
                first: u32::from_le_bytes(take(payload)?),
                used: u32::from_le_bytes(take(payload)?),
            },
            5 => Self::Using {
                by: 0,
                tag: u16::from_le_bytes(take(payload)?),
                number: u64::from_le_bytes(take(payload)?),
                first: u32::from_le_bytes(take(payload)?),
                path: std::mem::take(payload).to_vec(),
            },
            8 => Self::Original {
                by: 0,
                number: u64::from_le_bytes(take(payload)?),
                original: Original {
                    size: u64::from_le_bytes(take(payload)?),
                    mtime: take_time(payload)?,
                    path: std::mem::take(payload).to_vec(),
                },
            },
            _ => return None,
        })
    }
}

fn put_time(bytes: &mut Vec<u8>, time: Time) {
    bytes.extend(time.sec.to_le_bytes());
    bytes.extend(time.nsec.to_le_bytes());
}

fn take_time(bytes: &mut &[u8]) -> Option<Time> {
    Some(Time { sec: i64::from_le_bytes(take(bytes)?), nsec: u32::from_le_bytes(take(bytes)?) })
}

/// Returns a record: length of the payload, type, zero, payload, checksum. `ENAMETOOLONG` for a
/// payload of more than 65,535 bytes.
pub(crate) fn frame(kind: u8, payload: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = u16::try_from(payload.len()).map_err(|_| Errno::NAMETOOLONG)?.to_le_bytes().to_vec();
    bytes.extend([kind, 0]);
    bytes.extend(payload);
    bytes.extend(crc32c(&bytes).to_le_bytes());
    Ok(bytes)
}

/// Returns type and payload of the first record of `bytes`, and advances past it. `None` if it is
/// cut off or damaged.
pub(crate) fn unframe<'a>(bytes: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let whole: &'a [u8] = bytes;
    let mut rest = whole;
    let len = usize::from(u16::from_le_bytes(take(&mut rest)?));
    let [kind, zero] = take(&mut rest)?;
    let payload = rest.get(..len)?;
    rest = rest.get(len..)?;
    let sum = u32::from_le_bytes(take(&mut rest)?);
    if zero != 0 || crc32c(whole.get(..len + 4)?) != sum {
        return None;
    }
    *bytes = rest;
    Some((kind, payload))
}

/// Returns the first `N` bytes, and advances past them.
pub(crate) fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = bytes.split_first_chunk::<N>()?;
    *bytes = tail;
    Some(*head)
}

/// Returns the CRC-32C (Castagnoli, reflected), as in RFC 3720.
fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = crc_table();
    let step = |sum: u32, &byte: &u8| {
        let index = usize::from(sum.to_le_bytes()[0] ^ byte);
        TABLE.get(index).copied().unwrap_or(0) ^ (sum >> 8)
    };
    !bytes.iter().fold(!0, step)
}

const fn crc_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let mut sum = n as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 { 0x82f6_3b78 ^ (sum >> 1) } else { sum >> 1 };
            bit += 1;
        }
        table[n] = sum;
        n += 1;
    }
    table
}

/// Reads a log in pieces, up to its first record that is cut off or damaged.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// Bytes not yet decoded.
    rest: Vec<u8>,
    /// Number of good bytes at the beginning of the log.
    pub(crate) good: u64,
    /// Number of intact records that no server can have written.
    pub(crate) skipped: u64,
    /// The log is of version 1.
    pub(crate) is_old: bool,
}

impl Reader {
    /// Adds bytes; passes complete records to `take`. Returns false at the end of the good part.
    fn feed(&mut self, bytes: &[u8], take: &mut dyn FnMut(Record)) -> bool {
        self.rest.extend(bytes);
        let mut rest = self.rest.as_slice();
        if self.good == 0 {
            if rest.len() < HEADER.len() {
                return true;
            }
            let (header, records) = rest.split_at(HEADER.len());
            self.is_old = header == HEADER_1;
            if header != HEADER && !self.is_old {
                return false;
            }
            rest = records;
        }
        while let Some(record) = Record::decode(&mut rest) {
            if record.is_plausible() {
                take(record);
            } else {
                self.skipped += 1;
            }
        }
        // A complete record that could not be decoded is damaged.
        let damaged = rest.first_chunk().is_some_and(|len| rest.len() >= usize::from(u16::from_le_bytes(*len)) + FRAME);
        let used = self.rest.len() - rest.len();
        self.good += used as u64;
        self.rest.drain(..used);
        !damaged
    }

    /// Reads a log from its start. Needs memory for its longest record only, whatever size the file
    /// reports.
    pub(crate) fn read(file: &dyn OpenFile, cx: &Cx<'_>, take: &mut dyn FnMut(Record)) -> Result<Self> {
        let mut this = Self::default();
        let mut chunk = vec![0; CHUNK];
        let mut at = 0;
        while at < LIMIT {
            let got = file.read(cx, &mut chunk, at)?;
            at += got as u64;
            if got == 0 || !this.feed(chunk.get(..got).unwrap_or_default(), take) {
                break;
            }
        }
        this.rest = Vec::new();
        Ok(this)
    }
}

/// An open log.
#[derive(Debug)]
pub(crate) struct Log {
    file: Arc<dyn OpenFile>,
    end: u64,
}

impl Log {
    /// Returns a log whose good bytes end at `end`.
    pub(crate) fn new(file: Arc<dyn OpenFile>, end: u64) -> Self {
        Self { file, end }
    }

    /// Appends records with one write. The next write overwrites the remains of a failed one.
    pub(crate) fn append<'r>(&mut self, cx: &Cx<'_>, records: impl IntoIterator<Item = &'r Record>) -> Result<()> {
        let mut bytes = Vec::new();
        for record in records {
            bytes.extend(record.encode()?);
        }
        write_all(&*self.file, cx, &bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(())
    }
}

/// Writes all of `data`, or fails.
pub(crate) fn write_all(file: &dyn OpenFile, cx: &Cx<'_>, mut data: &[u8], mut offset: u64) -> Result<()> {
    while !data.is_empty() {
        let written = file.write(cx, data, offset)?;
        data = data.get(written..).filter(|_| written > 0).ok_or(Errno::IO)?;
        offset += written as u64;
    }
    Ok(())
}

/// Reads up to `limit` bytes from the start.
pub(crate) fn read_all(file: &dyn OpenFile, cx: &Cx<'_>, limit: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut chunk = vec![0; CHUNK];
    while (bytes.len() as u64) < limit {
        let room = usize::try_from(limit - bytes.len() as u64).unwrap_or(usize::MAX).min(chunk.len());
        let Some(out) = chunk.get_mut(..room) else { break };
        let got = file.read(cx, out, bytes.len() as u64)?;
        if got == 0 {
            break;
        }
        bytes.extend(out.get(..got).unwrap_or_default());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns all plausible records of a log read in pieces of `step` bytes, and the number of
    /// good bytes.
    fn parse_in(bytes: &[u8], step: usize) -> (Vec<Record>, usize) {
        let mut reader = Reader::default();
        let mut records = Vec::new();
        let feed = |piece: &&[u8]| reader.feed(piece, &mut |record| records.push(record));
        let _pieces = bytes.chunks(step).take_while(feed).count();
        (records, usize::try_from(reader.good).unwrap())
    }

    fn parse(bytes: &[u8]) -> (Vec<Record>, usize) {
        parse_in(bytes, bytes.len().max(1))
    }

    #[test]
    fn holes_and_oversized_records_end_a_log() {
        assert_eq!(parse(&[0; 100]), (vec![], 0));
        let mut log = HEADER.to_vec();
        let record = Record::Names { by: 0, number: 4, first: 5, used: 6 };
        log.extend(record.encode().unwrap());
        let end = log.len();
        log.extend([0; 1000]);
        assert_eq!(parse(&log), (vec![record.clone()], end));
        // An unalias with a byte too many.
        let mut long = vec![11, 0, 3, 0];
        long.extend([0; 11]);
        long.extend(crc32c(&long).to_le_bytes());
        log.splice(end.., long);
        assert_eq!(parse(&log), (vec![record], end));
    }

    #[test]
    fn records_with_invalid_paths_are_skipped() {
        let using = |path: &[u8]| Record::Using { by: 0, tag: 1, number: 2, first: 3, path: path.to_vec() };
        let long = [b"/".as_slice(), &[b'n'; 256]].concat();
        let bad: [&[u8]; 8] = [b"/../../etc/passwd", b"a", b"/", b"/a//b", b"/a/", b"/a/.", b"/a\0b", &long];
        for path in bad {
            let good = using(b"/a/b");
            let log = [HEADER.to_vec(), using(path).encode().unwrap(), good.encode().unwrap()].concat();
            assert_eq!(parse(&log), (vec![good], log.len()), "{}", path.escape_ascii());
        }
        let empty = [HEADER.to_vec(), using(b"").encode().unwrap()].concat();
        assert_eq!(parse(&empty).0.len(), 1);
    }

    #[test]
    fn checksum_is_crc32c() {
        // The check value of the catalogue of parametrised CRC algorithms.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn fixture_of_version_1() {
        let mut log = HEADER_1.to_vec();
        log.extend(
            Record::Tag { tag: 2, branch: Tagged { path: b"/b".to_vec(), fingerprint: None } }.encode().unwrap(),
        );
        let born = Time { sec: 1, nsec: 2 };
        let alias = Alias { born, number: 4, generation: 0 };
        log.extend(Record::Alias { tag: 1, lower: 3, alias }.encode().unwrap());
        log.extend(Record::Unalias { tag: 1, lower: 3 }.encode().unwrap());
        log.extend(Record::Names { by: 0, number: 4, first: 5, used: 6 }.encode().unwrap());
        let using = Record::Using { by: 0, tag: 7, number: 4, first: 5, path: b"/d/n".to_vec() };
        log.extend(using.encode().unwrap());
        assert_eq!(log, include_bytes!("../tests/fixtures/ident-1"));
        assert_eq!(parse(&log).0.len(), 5);
        assert_eq!(parse(&log).1, log.len());
        // With a generation, which earlier versions did not write.
        let alias = Alias { generation: 0x0102_0304, ..alias };
        log.extend(Record::Alias { tag: 1, lower: 3, alias }.encode().unwrap());
        assert_eq!(log, include_bytes!("../tests/fixtures/ident-1-generation"));
        assert_eq!(parse(&log), (parse(&log).0, log.len()));
        assert_eq!(parse(&log).0.last(), Some(&Record::Alias { tag: 1, lower: 3, alias }));
    }

    #[test]
    fn fixture_of_version_2() {
        let time = Time { sec: 1, nsec: 2 };
        let branch = Tagged { path: b"/b".to_vec(), fingerprint: Some(3) };
        let original = Original { size: 5, mtime: time, path: b"/d/n".to_vec() };
        let records = [Record::Tag { tag: 2, branch }, Record::Original { by: 0, number: 4, original }];
        let log = [HEADER.to_vec(), records[0].encode().unwrap(), records[1].encode().unwrap()].concat();
        assert_eq!(log, include_bytes!("../tests/fixtures/ident-2"));
        assert_eq!(parse(&log), (records.to_vec(), log.len()));
    }

    fn any_time() -> impl Strategy<Value = Time> {
        (any::<i64>(), any::<u32>()).prop_map(|(sec, nsec)| Time { sec, nsec })
    }

    fn any_record() -> impl Strategy<Value = Record> {
        prop_oneof![
            (any::<u16>(), proptest::collection::vec(any::<u8>(), 0..300), any::<Option<u64>>())
                .prop_map(|(tag, path, fingerprint)| Record::Tag { tag, branch: Tagged { path, fingerprint } }),
            (any::<u64>(), any::<u64>(), any_time(), proptest::collection::vec(any::<u8>(), 0..300)).prop_map(
                |(number, size, mtime, path)| Record::Original {
                    by: 0,
                    number,
                    original: Original { size, mtime, path }
                }
            ),
            (any::<u16>(), any::<u64>(), any::<i64>(), any::<u32>(), any::<u64>(), any::<u32>()).prop_map(
                |(tag, lower, sec, nsec, number, generation)| {
                    Record::Alias { tag, lower, alias: Alias { born: Time { sec, nsec }, number, generation } }
                }
            ),
            (any::<u16>(), any::<u64>()).prop_map(|(tag, lower)| Record::Unalias { tag, lower }),
            (any::<u16>(), any::<u64>(), any::<u32>(), proptest::collection::vec(any::<u8>(), 0..300))
                .prop_map(|(tag, number, first, path)| Record::Using { by: 0, tag, number, first, path }),
            (any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(number, first, used)| Record::Names {
                by: 0,
                number,
                first,
                used
            }),
        ]
    }

    proptest! {
        #[test]
        fn written_records_are_read_back(records in proptest::collection::vec(any_record(), 0..20), cut in 0_usize..2000, step in 1_usize..500) {
            let mut bytes = HEADER.to_vec();
            let mut ends = vec![bytes.len()];
            for record in &records {
                bytes.extend(record.encode().unwrap());
                ends.push(bytes.len());
            }
            let plausible: Vec<Record> = records.into_iter().filter(Record::is_plausible).collect();
            prop_assert_eq!(parse(&bytes), (plausible.clone(), bytes.len()));
            prop_assert_eq!(parse_in(&bytes, step), (plausible.clone(), bytes.len()));
            let cut = cut.min(bytes.len());
            let (got, good) = parse(&bytes[..cut]);
            prop_assert_eq!(&got[..], &plausible[..got.len()]);
            prop_assert!(good == 0 || ends.contains(&good));
        }

        #[test]
        fn parse_accepts_any_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), good in any::<bool>()) {
            if good {
                bytes.splice(0..0, HEADER.iter().copied());
            }
            let (records, end) = parse(&bytes);
            prop_assert!(end <= bytes.len());
            prop_assert_eq!(parse_in(&bytes, 1), (records, end));
        }
    }
}
