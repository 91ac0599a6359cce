//! Records of the journal (docs/formats/format-journal.md).

use crate::hooks::Layout;
use std::time::{SystemTime, UNIX_EPOCH};

/// Size of the part of a record before its data, in bytes.
pub(crate) const PREFIX: usize = 128;

/// First bytes of a record.
pub(super) const MAGIC: [u8; 8] = *b"STRAREC1";

/// First bytes of the journal.
const FILE_MAGIC: [u8; 8] = *b"STRAJNL1";

/// Length of the journal's own header in bytes.
pub(super) const FILE_HEADER: usize = 32;

/// Number of bytes of a file's header that a record holds.
const HEADER_BYTES: usize = 32;

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
    /// Length of the data that follows the record.
    pub(crate) len: u32,
    /// How many bytes of the data are the header that the file gets: all of it or none.
    pub(crate) head: u32,
    /// Where the rest of the data belongs.
    pub(crate) offset: u64,
    /// When the change began, or when recovery began to apply it, in seconds since 1970.
    pub(crate) time: u64,
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
    /// Writes the record to the start of `buffer`, which holds its data after [`PREFIX`] bytes.
    pub(crate) fn write_to(&self, buffer: &mut [u8]) {
        let (prefix, data) = buffer.split_at_mut(PREFIX.min(buffer.len()));
        prefix.fill(0);
        let mut fields = Fields(prefix);
        fields.put(&MAGIC);
        fields.put(&[0; 4]);
        fields.put(&self.len.to_le_bytes());
        fields.put(&self.number.to_le_bytes());
        fields.put(&self.generation.to_le_bytes());
        fields.put(&self.header.sum.to_le_bytes());
        fields.put(&self.header.start);
        for field in [self.before, self.after, self.size, self.offset, self.time] {
            fields.put(&field.to_le_bytes());
        }
        fields.put(&self.head.to_le_bytes());
        let sum = checksum(prefix, data.get(..self.len as usize).unwrap_or_default());
        if let Some(field) = prefix.get_mut(8..12) {
            field.copy_from_slice(&sum.to_le_bytes());
        }
    }

    /// Parses the part of a record before its data, which is untrusted, and returns the checksum
    /// that it claims. `None` if there is no record.
    pub(super) fn parse(prefix: &[u8]) -> Option<(Self, u32)> {
        let mut source = Source(prefix.get(..PREFIX)?);
        if source.take::<8>()? != MAGIC {
            return None;
        }
        let (sum, len, number, generation) = (source.u32()?, source.u32()?, source.u64()?, source.u32()?);
        let header = HeaderId { sum: source.u32()?, start: source.take()? };
        let [before, after, size, offset, time] =
            [source.u64()?, source.u64()?, source.u64()?, source.u64()?, source.u64()?];
        let head = source.u32()?;
        Some((Self { number, generation, header, before, after, size, len, head, offset, time }, sum))
    }

    /// Whether a change of a file with a header of `header` bytes can look like this.
    pub(super) fn is_possible(&self, header: u64) -> bool {
        let Some(len) = self.len.checked_sub(self.head) else { return false };
        let end = self.offset.checked_add(len.into());
        let has_room = len == 0 || (self.offset >= header && end.is_some_and(|end| end <= self.size));
        let has_head = self.head == 0 || (u64::from(self.head) == header && self.size >= header);
        has_room && has_head && self.explains(self.size) && self.before.max(self.after) <= i64::MAX.cast_unsigned()
    }

    /// Whether a file of this size may be in the middle of the change.
    pub(super) fn explains(&self, size: u64) -> bool {
        (self.before.min(self.after)..=self.before.max(self.after)).contains(&size)
    }
}

/// Returns the present time for [`Record::time`].
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Returns the checksum of a record: CRC-32C of everything after the checksum.
pub(super) fn checksum(prefix: &[u8], data: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(prefix.get(12..PREFIX).unwrap_or_default()), data)
}

/// Returns the journal's own header for files of this layout.
pub(super) fn file_header(layout: Layout, slot: u64) -> [u8; FILE_HEADER] {
    let mut header = [0; FILE_HEADER];
    let mut fields = Fields(&mut header);
    fields.put(&FILE_MAGIC);
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
            time: 1_700_000_000,
        }
    }

    /// The record format must not change: a journal may have been written by an older version.
    #[test]
    fn the_format_is_fixed() {
        let mut buffer = [0xee; PREFIX + 5];
        buffer[PREFIX..].copy_from_slice(b"block");
        example().write_to(&mut buffer);
        let hex: String = buffer.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            concat!(
                "5354524152454331b5c71f860500000008070605040302010900000042e15f1c6865616465720000",
                "00000000000000000000000000000000000000000000000032100000000000005220000000000000",
                "3210000000000000120000000000000000f153650000000000000000000000000000000000000000",
                "0000000000000000626c6f636b",
            )
        );
        assert_eq!(&buffer[PREFIX..], b"block");
        let layout = Layout::new(18, 4096, 4128).unwrap();
        let hex: String = file_header(layout, 270_336).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "535452414a4e4c311200000000100000201000000020040001850be900000000");
    }

    #[test]
    fn every_byte_is_checked() {
        let mut buffer = [0; PREFIX + 5];
        buffer[PREFIX..].copy_from_slice(b"block");
        example().write_to(&mut buffer);
        let valid =
            |buffer: &[u8]| Record::parse(buffer).is_some_and(|(_, sum)| sum == checksum(buffer, &buffer[PREFIX..]));
        assert!(valid(&buffer) && Record::parse(&buffer).map(|(record, _)| record) == Some(example()));
        for at in 0..buffer.len() {
            let mut damaged = buffer;
            damaged[at] ^= 0x40;
            assert!(!valid(&damaged), "byte {at}");
        }
        assert_eq!(Record::parse(&buffer[..PREFIX - 1]), None);
        assert!(example().explains(4146) && example().explains(8274));
        assert!(!example().explains(4145) && !example().explains(8275));
        assert!(example().is_possible(18) && !example().is_possible(19));
        let wrong = [
            Record { size: 4145, ..example() },
            Record { offset: 4142, ..example() },
            Record { offset: u64::MAX, ..example() },
            Record { after: u64::MAX, ..example() },
            Record { head: 6, ..example() },
            Record { head: 5, ..example() },
        ];
        assert!(wrong.iter().all(|record| !record.is_possible(18)));
        let sealed = Record { len: 18 + 5, head: 18, ..example() };
        assert!(sealed.is_possible(18) && !Record { offset: 4142, ..sealed }.is_possible(18));
        assert!(!Record { before: 9, size: 9, len: 18, ..sealed }.is_possible(18));
    }
}
