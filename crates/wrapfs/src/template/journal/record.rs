//! Records of the journal (docs/formats/format-journal.md).

use super::super::data::is_zero;
use crate::hooks::Layout;
use std::ops::Range;

/// Size of the part of a record before its data, in bytes.
pub(crate) const PREFIX: usize = 128;

/// First bytes of a record.
pub(super) const MAGIC: [u8; 8] = *b"STRAREC2";

/// First bytes of the journal, without the digit of its version.
const FILE_MAGIC: [u8; 7] = *b"STRAJNL";

/// Largest size of a slot that is read, in bytes.
const MOST_SLOT: u64 = 64 << 20;

/// Length of the journal's own header in bytes.
pub(super) const FILE_HEADER: usize = 32;

/// Number of bytes of a file's header that a record holds.
const HEADER_BYTES: usize = 32;

/// Stored bytes are marked in segments that end at multiples of this many bytes: a killed server
/// leaves no old and new bytes in one page.
pub(crate) const PAGE: u64 = 4096;

/// The same for power failures: each sector is old or new.
pub(crate) const SECTOR: u64 = 512;

/// Size of a [`Mark`] in bytes.
const MARK: usize = 8;

/// The version of a journal's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// Records have no marks, but the time of the change. It is only read.
    One,
    Two,
}

impl Version {
    pub(super) const fn has_marks(self) -> bool {
        matches!(self, Self::Two)
    }

    const fn digit(self) -> u8 {
        match self {
            Self::One => b'1',
            Self::Two => b'2',
        }
    }
}

/// A change of a file that is under way. All sizes and offsets are those of the stored file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Number and generation of the file in the layer below.
    pub(crate) number: u64,
    pub(crate) generation: u32,
    /// Identifies the file's header.
    pub(crate) header: HeaderId,
    /// The size before and after the change. While it is under way, the size is between the two.
    pub(crate) before: u64,
    pub(crate) after: u64,
    /// The size that recovery sets.
    pub(crate) size: u64,
    /// Length of the data that follows the marks.
    pub(crate) len: u32,
    /// How many bytes of the data are the header that the file gets: all of it or none.
    pub(crate) head: u32,
    /// Where the rest of the data belongs.
    pub(crate) offset: u64,
    /// How many bytes the change concerns from there on: those of the data, and of new blocks.
    pub(crate) total: u32,
    /// Segments end at multiples of this: [`PAGE`] or [`SECTOR`].
    pub(crate) segment: u32,
    /// In a record of version 1: when the change began, in seconds since 1970.
    pub(crate) time: Option<u64>,
}

/// What a segment contains before and after a change: checksums. That of no bytes is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) old: u32,
    pub(crate) new: u32,
}

/// The stored bytes of a change, where they begin, and the size of their blocks. Only the last
/// block can be shorter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'a> {
    pub(crate) offset: u64,
    pub(crate) block: u64,
    /// Segments end at multiples of this.
    pub(crate) segment: u64,
    /// Their old bytes, up to the end of the file.
    pub(crate) old: &'a [u8],
    /// What replaces them. Old bytes beyond it remain.
    pub(crate) new: &'a [u8],
}

/// Returns the segments of `len` bytes at `offset`, in file offsets. A segment belongs to one block
/// and does not cross `before`, the end of the file.
pub(super) fn segments(
    (offset, len): (u64, u64),
    block: u64,
    segment: u64,
    before: u64,
) -> impl Iterator<Item = Range<u64>> {
    let end = offset.saturating_add(len);
    let mut at = offset;
    core::iter::from_fn(move || {
        let start = at;
        let in_block = (start - offset) % block;
        let stops = [end, (start / segment + 1) * segment, start + (block - in_block)];
        let stop = stops.into_iter().chain((before > start).then_some(before)).min()?;
        at = stop;
        (start < end).then_some(start..stop)
    })
}

/// Returns the largest number of segments of `len` bytes.
pub(super) fn most_segments(len: u64, block: u64) -> u64 {
    len / SECTOR + len.div_ceil(block) + 3
}

/// Returns the maximum length of the marks for a header of `head` bytes and `len` bytes of blocks.
pub(crate) fn most_marks(head: u64, len: u64, block: u64) -> usize {
    let of_head = if head > 0 { most_segments(head, head) } else { 0 };
    (of_head + most_segments(len, block)) as usize * MARK
}

impl Span<'_> {
    /// Returns the number of bytes that it concerns.
    pub(crate) fn len(&self) -> usize {
        self.old.len().max(self.new.len())
    }

    /// Appends the marks of the segments.
    fn mark(&self, marks: &mut Vec<u8>) {
        let part = |bytes: &[u8], range: &Range<usize>| {
            crc32c::crc32c(bytes.get(range.start.min(bytes.len())..range.end.min(bytes.len())).unwrap_or_default())
        };
        let (bytes, before) = ((self.offset, self.len() as u64), self.offset + self.old.len() as u64);
        for segment in segments(bytes, self.block, self.segment, before) {
            let range = (segment.start - self.offset) as usize..(segment.end - self.offset) as usize;
            let rest = range.start.max(self.new.len()).min(range.end)..range.end;
            let kept = self.old.get(rest).unwrap_or_default();
            let new = crc32c::crc32c_append(part(self.new, &range), kept);
            marks.extend(part(self.old, &range).to_le_bytes());
            marks.extend(new.to_le_bytes());
        }
    }
}

/// Returns the marks of the header and of the blocks.
pub(crate) fn marks_of(head: Option<&Span<'_>>, blocks: &Span<'_>) -> Vec<u8> {
    let mut marks =
        Vec::with_capacity(most_marks(head.map_or(0, |head| head.len() as u64), blocks.len() as u64, blocks.block));
    head.into_iter().for_each(|head| head.mark(&mut marks));
    blocks.mark(&mut marks);
    marks
}

/// Parses marks, as many as there are.
pub(super) fn parse_marks(bytes: &[u8]) -> Vec<Mark> {
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_le_bytes);
    let mark = |bytes: &[u8; MARK]| {
        let (old, new) = bytes.split_at(MARK / 2);
        Mark { old: number(old), new: number(new) }
    };
    bytes.as_chunks().0.iter().map(mark).collect()
}

/// The start and a checksum of the part of a file's header that does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeaderId {
    start: [u8; HEADER_BYTES],
    sum: u32,
}

impl HeaderId {
    pub(crate) fn of(header: &[u8]) -> Self {
        let mut start = [0; HEADER_BYTES];
        start.iter_mut().zip(header).for_each(|(to, from)| *to = *from);
        Self { start, sum: crc32c::crc32c(header) }
    }
}

/// Appends fields to a buffer of fixed size.
struct Fields<'a>(&'a mut [u8]);

impl Fields<'_> {
    fn put(&mut self, bytes: &[u8]) {
        if let Some((to, rest)) = std::mem::take(&mut self.0).split_at_mut_checked(bytes.len()) {
            to.copy_from_slice(bytes);
            self.0 = rest;
        }
    }
}

/// Takes fields from the start of a buffer.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

impl Record {
    /// Writes the record to `prefix`, which has [`PREFIX`] bytes. Marks follow it, and then the
    /// data.
    pub(crate) fn write_to(&self, prefix: &mut [u8], marks: &[u8]) {
        prefix.fill(0);
        let mut fields = Fields(prefix);
        fields.put(&MAGIC);
        fields.put(&[0; 4]);
        fields.put(&self.len.to_le_bytes());
        fields.put(&self.number.to_le_bytes());
        fields.put(&self.generation.to_le_bytes());
        fields.put(&self.header.sum.to_le_bytes());
        fields.put(&self.header.start);
        for field in [self.before, self.after, self.size, self.offset] {
            fields.put(&field.to_le_bytes());
        }
        fields.put(&self.total.to_le_bytes());
        fields.put(&self.head.to_le_bytes());
        fields.put(&self.segment.to_le_bytes());
        let sum = checksum(prefix, marks);
        if let Some(field) = prefix.get_mut(8..12) {
            field.copy_from_slice(&sum.to_le_bytes());
        }
    }

    /// Parses the part of a record before its marks, which is untrusted, and returns the checksum
    /// that it claims. `None` if there is no record.
    pub(super) fn parse(prefix: &[u8], version: Version) -> Option<(Self, u32)> {
        let mut source = Source(prefix.get(..PREFIX)?);
        let [magic @ .., digit] = source.take::<8>()?;
        if magic != MAGIC[..7] || digit != version.digit() {
            return None;
        }
        let (sum, len, number, generation) = (source.u32()?, source.u32()?, source.u64()?, source.u32()?);
        let header = HeaderId { sum: source.u32()?, start: source.take()? };
        let [before, after, size, offset] = [source.u64()?, source.u64()?, source.u64()?, source.u64()?];
        let (total, head, segment, time) = match version {
            Version::One => {
                let (time, head) = (source.u64()?, source.u32()?);
                (len.saturating_sub(head), head, PAGE as u32, Some(time))
            }
            Version::Two => (source.u32()?, source.u32()?, source.u32()?, None),
        };
        Some((Self { number, generation, header, before, after, size, len, head, offset, total, segment, time }, sum))
    }

    /// Whether the machine may have lost bytes that a write has added, so that zeros are in their
    /// place: a power failure does that, a kill does not.
    pub(super) fn loses_writes(&self) -> bool {
        u64::from(self.segment) == SECTOR
    }

    /// Whether the data is what the file had before the change, not what it gets.
    pub(super) fn undoes(&self) -> bool {
        self.after < self.before && self.size == self.before
    }

    /// Whether this is the undo of a failed change that had made the file longer, and the data has
    /// its old end.
    pub(super) fn is_undo(&self) -> bool {
        let end = self.offset.saturating_add((self.len - self.head.min(self.len)).into());
        self.size == self.after && self.after < self.before && end == self.size
    }

    /// Returns the segments of the header that the file gets.
    pub(super) fn head_segments(&self) -> impl Iterator<Item = Range<u64>> {
        let head = u64::from(self.head);
        segments((0, head), head.max(1), self.segment.into(), head)
    }

    /// Returns the segments of the blocks.
    pub(super) fn segments(&self, block: u64) -> impl Iterator<Item = Range<u64>> {
        segments((self.offset, self.total.into()), block, self.segment.into(), self.before)
    }

    /// Whether a change of a file with a header of `header` bytes can look like this.
    pub(super) fn is_possible(&self, header: u64) -> bool {
        let Some(len) = self.len.checked_sub(self.head) else { return false };
        let end = self.offset.checked_add(len.into());
        let has_room = len == 0 || (self.offset >= header && end.is_some_and(|end| end <= self.size));
        let has_head = self.head == 0 || (u64::from(self.head) == header && self.size >= header);
        let has_segments = [PAGE, SECTOR].contains(&self.segment.into());
        has_room
            && has_head
            && has_segments
            && len <= self.total
            && self.explains(self.size)
            && self.before.max(self.after) <= i64::MAX.cast_unsigned()
    }

    /// Whether a file of this size may be in the middle of the change.
    pub(super) fn explains(&self, size: u64) -> bool {
        (self.before.min(self.after)..=self.before.max(self.after)).contains(&size)
    }
}

/// Returns the checksum of a record: CRC-32C of what follows it up to the data. The marks contain
/// checksums of the data. In version 1, the data takes their place.
pub(super) fn checksum(prefix: &[u8], marks: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(prefix.get(12..PREFIX).unwrap_or_default()), marks)
}

/// Returns the journal's own header for files of this layout.
pub(super) fn file_header(version: Version, layout: Layout, slot: u64) -> [u8; FILE_HEADER] {
    let mut header = [0; FILE_HEADER];
    let mut fields = Fields(&mut header);
    fields.put(&FILE_MAGIC);
    fields.put(&[version.digit()]);
    fields.put(&(layout.header() as u32).to_le_bytes());
    fields.put(&(layout.plain() as u32).to_le_bytes());
    fields.put(&(layout.stored() as u32).to_le_bytes());
    fields.put(&(slot as u32).to_le_bytes());
    let sum = crc32c::crc32c(header.get(..24).unwrap_or_default());
    if let Some(field) = header.get_mut(24..28) {
        field.copy_from_slice(&sum.to_le_bytes());
    }
    header
}

/// Returns the version in the header of a journal, if it is known, and the size of its slots.
/// `None` if the header is damaged.
pub(super) fn parse_file_header(header: &[u8; FILE_HEADER]) -> Option<(Option<Version>, u64)> {
    let mut source = Source(header);
    let [magic @ .., digit] = source.take::<8>()?;
    let _layout = source.take::<12>()?;
    let (slot, sum) = (u64::from(source.u32()?), source.u32()?);
    let is_possible = slot.is_multiple_of(PAGE) && (PAGE..=MOST_SLOT).contains(&slot);
    if magic != FILE_MAGIC || !is_possible || sum != crc32c::crc32c(header.get(..24)?) {
        return None;
    }
    let version = [Version::One, Version::Two].into_iter().find(|version| version.digit() == digit);
    // A later version may use the rest, which the checksum does not cover.
    (version.is_none() || is_zero(header.get(28..)?)).then_some((version, slot))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Record {
        Record {
            number: 0x0102_0304_0506_0708,
            generation: 9,
            header: HeaderId::of(b"header"),
            before: 4146,
            after: 8274,
            size: 4146,
            len: 5,
            head: 0,
            offset: 18,
            total: 5,
            segment: 4096,
            time: None,
        }
    }

    /// The record format must not change: a journal may have been written by an older version.
    #[test]
    fn the_format_is_fixed() {
        let mut buffer = [0xee; PREFIX];
        let span = Span { offset: 18, block: 4128, segment: PAGE, old: b"block", new: b"BLOCK" };
        let marks = marks_of(None, &span);
        example().write_to(&mut buffer, &marks);
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(
            hex(&buffer),
            concat!(
                "535452415245433297fc59770500000008070605040302010900000042e15f1c6865616465720000",
                "00000000000000000000000000000000000000000000000032100000000000005220000000000000",
                "3210000000000000120000000000000005000000000000000010000000000000",
                "00000000000000000000000000000000",
            )
        );
        assert_eq!(hex(&marks), "4afbf8ce5ecc07bc");
        let layout = Layout::new(18, 4096, 4128).unwrap();
        assert_eq!(
            hex(&file_header(Version::Two, layout, 270_336)),
            "535452414a4e4c3212000000001000002010000000200400e0e1260900000000"
        );
        let one = file_header(Version::One, layout, 270_336);
        assert_eq!(hex(&one), "535452414a4e4c311200000000100000201000000020040001850be900000000");
        assert_eq!(parse_file_header(&one), Some((Some(Version::One), 270_336)));
        for at in 0..FILE_HEADER {
            let mut damaged = one;
            damaged[at] ^= 0x40;
            assert_eq!(parse_file_header(&damaged), None, "byte {at}");
        }
        let mut newer = one;
        newer[7] = b'3';
        let sum = crc32c::crc32c(&newer[..24]);
        newer[24..28].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(parse_file_header(&newer), Some((None, 270_336)));
    }

    /// A record that an older version wrote.
    #[test]
    fn version_1_can_be_read() {
        let hex = concat!(
            "5354524152454331b5c71f860500000008070605040302010900000042e15f1c6865616465720000",
            "00000000000000000000000000000000000000000000000032100000000000005220000000000000",
            "3210000000000000120000000000000000f153650000000000000000000000000000000000000000",
            "0000000000000000",
        );
        let prefix: Vec<u8> = (0..PREFIX).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect();
        let (record, sum) = Record::parse(&prefix, Version::One).unwrap();
        assert_eq!(record, Record { time: Some(1_700_000_000), ..example() });
        assert_eq!(sum, checksum(&prefix, b"block"));
        assert_eq!(Record::parse(&prefix, Version::Two), None);
    }

    /// Cut at each 512 bytes of the file, at blocks and at the old end.
    #[test]
    fn segments_have_one_origin() {
        let all = |offset, len, block, before| {
            segments((offset, len), block, SECTOR, before).map(|part| (part.start, part.end)).collect::<Vec<_>>()
        };
        assert_eq!(all(18, 5, 4128, 1000), [(18, 23)]);
        assert_eq!(all(18, 1000, 700, 1000), [(18, 512), (512, 718), (718, 1000), (1000, 1018)]);
        assert_eq!(all(512, 1024, 4096, 512), [(512, 1024), (1024, 1536)]);
        assert_eq!(all(18, 0, 700, 0), []);
        for (len, block) in [(0, 1), (1, 1), (5000, 1), (258_000, 4128), (2000, 700)] {
            for before in [0, 17, 518, 1 << 40] {
                assert!(
                    all(17, len, block, before).len() as u64 <= most_segments(len, block),
                    "{len} {block} {before}"
                );
            }
        }
    }

    #[test]
    fn marks_are_those_of_both_contents() {
        let sum = |bytes: &[u8]| crc32c::crc32c(bytes);
        // The block becomes longer: its end is new.
        let span = Span { offset: 0, block: 10, segment: PAGE, old: b"old", new: b"newer" };
        let longer = parse_marks(&marks_of(None, &span));
        assert_eq!(longer, [Mark { old: sum(b"old"), new: sum(b"new") }, Mark { old: 0, new: sum(b"er") }]);
        // It becomes shorter: until the file is cut, its old end remains.
        let span = Span { offset: 0, block: 10, segment: PAGE, old: b"older", new: b"new" };
        assert_eq!(parse_marks(&marks_of(None, &span)), [Mark { old: sum(b"older"), new: sum(b"newer") }]);
        let head = Span { offset: 0, block: 4, segment: PAGE, old: b"head", new: b"HEAD" };
        let both = parse_marks(&marks_of(Some(&head), &span));
        assert_eq!(both[0], Mark { old: sum(b"head"), new: sum(b"HEAD") });
        assert_eq!(both.len(), 2);
    }

    #[test]
    fn every_byte_is_checked() {
        let marks = marks_of(None, &Span { offset: 18, block: 4128, segment: PAGE, old: b"block", new: b"BLOCK" });
        let mut buffer = vec![0; PREFIX];
        example().write_to(&mut buffer, &marks);
        buffer.extend(&marks);
        let valid = |buffer: &[u8]| {
            Record::parse(buffer, Version::Two).is_some_and(|(_, sum)| sum == checksum(buffer, &buffer[PREFIX..]))
        };
        assert!(valid(&buffer) && Record::parse(&buffer, Version::Two).map(|(record, _)| record) == Some(example()));
        for at in 0..buffer.len() {
            let mut damaged = buffer.clone();
            damaged[at] ^= 0x40;
            assert!(!valid(&damaged), "byte {at}");
        }
        assert_eq!(Record::parse(&buffer[..PREFIX - 1], Version::Two), None);
        assert!(example().explains(4146) && example().explains(8274));
        assert!(!example().explains(4145) && !example().explains(8275));
        assert!(example().is_possible(18) && !example().is_possible(19));
        let wrong = [
            Record { size: 4145, ..example() },
            Record { offset: 4142, ..example() },
            Record { offset: u64::MAX, ..example() },
            Record { after: u64::MAX, ..example() },
            Record { segment: 0, ..example() },
            Record { head: 6, ..example() },
            Record { head: 5, ..example() },
        ];
        assert!(wrong.iter().all(|record| !record.is_possible(18)));
        assert!(!Record { total: 4, ..example() }.is_possible(18));
        let sealed = Record { len: 18 + 5, head: 18, ..example() };
        assert!(sealed.is_possible(18) && !Record { offset: 4142, ..sealed }.is_possible(18));
        assert!(!Record { before: 9, size: 9, len: 18, ..sealed }.is_possible(18));
    }
}
