//! The on-disk format of a container: docs/formats/container.md. All numbers are little-endian, and
//! all input is untrusted.

use crate::geometry::{Geometry, UNIT};
use vnode::{Errno, Result};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Magic number at the start of a container.
const MAGIC: [u8; 8] = *b"\x93strata\n";

/// Version of the format.
const VERSION: u32 = 1;

/// Size of the header in bytes.
pub(crate) const HEADER: usize = 1024;

/// Size of a sector in bytes: in a power failure a sector is written as a whole or not at all.
pub(crate) const SECTOR: usize = 512;

/// Offsets of the two state records, each in its own sector.
pub(crate) const STATES: [u64; 2] = [64, 512];

/// The part of the header that never changes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct FixedBytes {
    magic: [u8; 8],
    version: U32,
    block: U32,
    max_encoded: U32,
    zero: U32,
    codec: [u8; 8],
    file: [u8; 16],
    zeros: [u8; 12],
    sum: U32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct StateBytes {
    stamp: U64,
    size: U64,
    limit: U64,
    durable: U64,
    doubt_after: U64,
    doubt_to: U64,
    flags: U32,
    dead: U64,
    sum: U32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct SlotBytes {
    seq: U64,
    unit: U32,
    len: U32,
    plain: U32,
    zero: U32,
    data_sum: U32,
    sum: U32,
}

const PROMISED: u32 = 1;
const COUNTED: u32 = 2;

/// The properties of a container, constant until it is truncated to zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fixed {
    pub(crate) geometry: Geometry,
    pub(crate) codec: [u8; 8],
    pub(crate) file: [u8; 16],
}

/// The part of the header that changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// The record with the larger stamp is the newer one.
    pub(crate) stamp: u64,
    /// Plain size of the file in bytes.
    pub(crate) size: u64,
    /// Upper limit of all version numbers.
    pub(crate) limit: u64,
    /// Versions up to this number are durable, except those in doubt.
    pub(crate) durable: u64,
    /// Versions with larger numbers than this, up to `doubt_to`, were not made durable by the
    /// session that wrote them.
    pub(crate) doubt_after: u64,
    pub(crate) doubt_to: u64,
    /// Whether a sync was ever requested. Later sessions must then preserve durable data.
    pub(crate) promised: bool,
    /// Bytes of superseded versions whose space may not have been reclaimed. Valid only if
    /// `counted`.
    pub(crate) dead: u64,
    /// Whether the last session ended with `dead` up to date.
    pub(crate) counted: bool,
}

impl State {
    /// Whether a version with this number is known to be durable.
    pub(crate) fn is_durable(&self, seq: u64) -> bool {
        seq <= self.durable && !(seq > self.doubt_after && seq <= self.doubt_to)
    }
}

/// A stored version of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Version {
    /// Later versions of a block have larger numbers.
    pub(crate) seq: u64,
    /// First unit in the group's data area.
    pub(crate) unit: u32,
    /// Encoded size in bytes; 0 for a hole.
    pub(crate) len: u32,
    /// Decoded size in bytes; the rest of the block is zeros.
    pub(crate) plain: u32,
    /// CRC-32C of the encoded bytes.
    pub(crate) sum: u32,
}

impl Version {
    pub(crate) fn hole(seq: u64) -> Self {
        Self { seq, ..Self::default() }
    }

    pub(crate) fn is_hole(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of units it occupies.
    pub(crate) fn units(&self) -> u32 {
        self.len.div_ceil(UNIT as u32)
    }

    /// Returns the unit after its last one.
    pub(crate) fn end(&self) -> u32 {
        self.unit.saturating_add(self.units())
    }

    fn is_sane(&self, geometry: Geometry) -> bool {
        if self.is_hole() {
            return *self == Self::hole(self.seq) && self.seq > 0;
        }
        let fits = u64::from(self.unit) + u64::from(self.units()) <= u64::from(geometry.capacity_units());
        self.seq > 0
            && fits
            && self.len <= geometry.max_encoded()
            && (1..=geometry.block()).contains(&u64::from(self.plain))
    }
}

/// One of the two version slots of an index entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Slot {
    #[default]
    Empty,
    /// Neither empty nor valid.
    Damaged,
    Version(Version),
}

impl Slot {
    pub(crate) fn version(&self) -> Option<&Version> {
        match self {
            Self::Version(version) => Some(version),
            Self::Empty | Self::Damaged => None,
        }
    }
}

/// Returns the checksum of an index slot, which is valid for one block of one file only.
fn slot_sum(bytes: &SlotBytes, file: &[u8; 16], block: u64) -> u32 {
    let covered = bytes.as_bytes();
    let sum = crc32c::crc32c(covered.get(..covered.len() - 4).unwrap_or(covered));
    crc32c::crc32c_append(crc32c::crc32c_append(sum, file), &block.to_le_bytes())
}

impl SlotBytes {
    pub(crate) fn parse(&self, fixed: &Fixed, block: u64) -> Slot {
        if self.as_bytes().iter().all(|&byte| byte == 0) {
            return Slot::Empty;
        }
        let version = Version {
            seq: self.seq.get(),
            unit: self.unit.get(),
            len: self.len.get(),
            plain: self.plain.get(),
            sum: self.data_sum.get(),
        };
        if slot_sum(self, &fixed.file, block) == self.sum.get()
            && self.zero.get() == 0
            && version.is_sane(fixed.geometry)
        {
            Slot::Version(version)
        } else {
            Slot::Damaged
        }
    }

    pub(crate) fn of(version: &Version, file: &[u8; 16], block: u64) -> Self {
        let mut bytes = Self {
            seq: version.seq.into(),
            unit: version.unit.into(),
            len: version.len.into(),
            plain: version.plain.into(),
            zero: 0.into(),
            data_sum: version.sum.into(),
            sum: 0.into(),
        };
        bytes.sum = slot_sum(&bytes, file, block).into();
        bytes
    }
}

impl Fixed {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = FixedBytes {
            magic: MAGIC,
            version: VERSION.into(),
            block: (self.geometry.block() as u32).into(),
            max_encoded: self.geometry.max_encoded().into(),
            zero: 0.into(),
            codec: self.codec,
            file: self.file,
            zeros: [0; 12],
            sum: 0.into(),
        };
        let covered = bytes.as_bytes();
        bytes.sum = crc32c::crc32c(covered.get(..covered.len() - 4).unwrap_or(covered)).into();
        bytes.as_bytes().to_vec()
    }

    /// Parses the fixed part. `None` if it is not a container; `EMEDIUMTYPE` for a later version.
    fn parse(header: &[u8]) -> Result<Option<Self>> {
        let Ok((bytes, _)) = FixedBytes::read_from_prefix(header) else { return Ok(None) };
        if bytes.magic != MAGIC {
            return Ok(None);
        }
        let covered = bytes.as_bytes();
        if crc32c::crc32c(covered.get(..covered.len() - 4).unwrap_or(covered)) != bytes.sum.get() {
            return Err(Errno::IO);
        }
        if bytes.version.get() != VERSION {
            return Err(Errno::MEDIUMTYPE);
        }
        let max_encoded = usize::try_from(bytes.max_encoded.get()).map_err(|_| Errno::IO)?;
        let geometry = Geometry::new(bytes.block.get(), max_encoded).map_err(|_| Errno::IO)?;
        Ok(Some(Self { geometry, codec: bytes.codec, file: bytes.file }))
    }
}

impl State {
    pub(crate) fn bytes(&self, file: &[u8; 16]) -> Vec<u8> {
        let mut bytes = StateBytes {
            stamp: self.stamp.into(),
            size: self.size.into(),
            limit: self.limit.into(),
            durable: self.durable.into(),
            doubt_after: self.doubt_after.into(),
            doubt_to: self.doubt_to.into(),
            flags: ((u32::from(self.promised) * PROMISED) | (u32::from(self.counted) * COUNTED)).into(),
            dead: self.dead.into(),
            sum: 0.into(),
        };
        bytes.sum = bytes.expected_sum(file).into();
        bytes.as_bytes().to_vec()
    }

    fn parse(bytes: &[u8], fixed: &Fixed) -> Option<Self> {
        let (bytes, _) = StateBytes::read_from_prefix(bytes).ok()?;
        let state = Self {
            stamp: bytes.stamp.get(),
            size: bytes.size.get(),
            limit: bytes.limit.get(),
            durable: bytes.durable.get(),
            doubt_after: bytes.doubt_after.get(),
            doubt_to: bytes.doubt_to.get(),
            promised: bytes.flags.get() & PROMISED != 0,
            dead: bytes.dead.get(),
            counted: bytes.flags.get() & COUNTED != 0,
        };
        let intact = bytes.expected_sum(&fixed.file) == bytes.sum.get();
        (intact && state.stamp > 0 && state.size <= fixed.geometry.max_size()).then_some(state)
    }
}

impl StateBytes {
    fn expected_sum(&self, file: &[u8; 16]) -> u32 {
        let covered = self.as_bytes();
        crc32c::crc32c_append(crc32c::crc32c(covered.get(..covered.len() - 4).unwrap_or(covered)), file)
    }
}

/// Parses a header: returns the fixed part, the newer state, and the index of its record. `None` if
/// it is not a container; `EIO` for a damaged container.
pub(crate) fn parse_header(header: &[u8]) -> Result<Option<(Fixed, State, usize)>> {
    let Some(fixed) = Fixed::parse(header)? else { return Ok(None) };
    let record = |at: usize| header.get(STATES[at] as usize..).and_then(|bytes| State::parse(bytes, &fixed));
    let (state, at) = match (record(0), record(1)) {
        (Some(a), Some(b)) if b.stamp > a.stamp => (b, 1),
        (Some(a), _) => (a, 0),
        (None, Some(b)) => (b, 1),
        (None, None) => return Err(Errno::IO),
    };
    Ok(Some((fixed, state, at)))
}

/// Whether one of the two state records is neither empty nor valid.
pub(crate) fn has_damaged_state(header: &[u8]) -> bool {
    let Ok(Some(fixed)) = Fixed::parse(header) else { return true };
    STATES.iter().any(|&at| {
        let bytes = header.get(at as usize..at as usize + size_of::<StateBytes>()).unwrap_or_default();
        State::parse(bytes, &fixed).is_none() && bytes.iter().any(|&byte| byte != 0)
    })
}

/// Returns the header of a new file, with the state in the first record.
pub(crate) fn new_header(fixed: &Fixed, state: &State) -> Vec<u8> {
    let mut header = fixed.bytes();
    header.extend(state.bytes(&fixed.file));
    header.resize(HEADER, 0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed() -> Fixed {
        Fixed { geometry: Geometry::new(4096, 4200).unwrap(), codec: *b"testtest", file: [7; 16] }
    }

    fn state() -> State {
        State {
            stamp: 3,
            size: 99,
            limit: 50,
            durable: 20,
            doubt_after: 5,
            doubt_to: 9,
            promised: true,
            dead: 64,
            counted: true,
        }
    }

    #[test]
    fn records_have_the_documented_sizes() {
        assert_eq!(size_of::<FixedBytes>(), 64);
        assert_eq!(size_of::<StateBytes>(), 64);
        assert_eq!(size_of::<SlotBytes>(), 32);
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let mut header = new_header(&fixed(), &state());
        assert_eq!(parse_header(&header), Ok(Some((fixed(), state(), 0))));
        let newer = State { stamp: 4, size: 100, ..state() };
        header[512..576].copy_from_slice(&newer.bytes(&[7; 16]));
        assert_eq!(parse_header(&header), Ok(Some((fixed(), newer, 1))));
        // The newer record is torn, so the older one is used.
        header[520] ^= 1;
        assert_eq!(parse_header(&header), Ok(Some((fixed(), state(), 0))));
        header[70] ^= 1;
        assert_eq!(parse_header(&header), Err(Errno::IO));
    }

    #[test]
    fn every_byte_of_the_fixed_part_is_checked() {
        let header = new_header(&fixed(), &state());
        for at in 0..64 {
            let mut bad = header.clone();
            bad[at] ^= 0x40;
            let expected = if at < 8 { Ok(None) } else { Err(Errno::IO) };
            assert_eq!(parse_header(&bad), expected, "byte {at}");
        }
    }

    #[test]
    fn a_slot_is_valid_only_for_its_block() {
        let version = Version { seq: 9, unit: 3, len: 100, plain: 200, sum: 77 };
        let bytes = SlotBytes::of(&version, &[7; 16], 5);
        assert_eq!(bytes.parse(&fixed(), 5), Slot::Version(version));
        assert_eq!(bytes.parse(&fixed(), 6), Slot::Damaged);
        assert_eq!(bytes.parse(&Fixed { file: [8; 16], ..fixed() }, 5), Slot::Damaged);
    }

    #[test]
    fn numbers_out_of_range_are_damage() {
        let good = Version { seq: 9, unit: 3, len: 100, plain: 200, sum: 77 };
        let bad = [
            Version { seq: 0, ..good },
            Version { unit: u32::MAX, ..good },
            Version { unit: fixed().geometry.capacity_units() - 1, ..good },
            Version { len: 4201, ..good },
            Version { len: u32::MAX, ..good },
            Version { plain: 4097, ..good },
            Version { plain: 0, ..good },
            Version { len: 0, ..good },
        ];
        for version in bad {
            assert_eq!(SlotBytes::of(&version, &[7; 16], 0).parse(&fixed(), 0), Slot::Damaged, "{version:?}");
        }
    }

    #[test]
    fn versions_in_doubt_are_not_durable() {
        let durable: Vec<u64> = (1..25).filter(|&seq| state().is_durable(seq)).collect();
        assert_eq!(durable, [1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]);
    }
}
