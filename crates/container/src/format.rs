//! The bytes of a container: docs/formats/container.md. Everything is little-endian, and nothing here trusts a byte.

use crate::geometry::{Geometry, UNIT};
use vnode::{Errno, Result};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of a container.
const MAGIC: [u8; 8] = *b"\x93strata\n";

/// The format's version.
const VERSION: u32 = 1;

/// Bytes that are read of the beginning of a file.
pub(crate) const HEADER: usize = 1024;

/// What arrives as a whole at a power failure or not at all, in bytes.
pub(crate) const SECTOR: usize = 512;

/// Where the two records of the state are: each in a sector of its own.
pub(crate) const STATES: [u64; 2] = [64, 512];

/// Written once.
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

/// What a file is from its making to its emptying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fixed {
    pub(crate) geometry: Geometry,
    pub(crate) codec: [u8; 8],
    pub(crate) file: [u8; 16],
}

/// What changes of the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// The newer record is the one with the larger stamp.
    pub(crate) stamp: u64,
    /// Plain bytes of the file.
    pub(crate) size: u64,
    /// No version has a larger number.
    pub(crate) limit: u64,
    /// Versions up to this number are durable, but for those in doubt.
    pub(crate) durable: u64,
    /// Versions with larger numbers than this, up to `doubt_to`, were not made durable by the session that wrote them.
    pub(crate) doubt_after: u64,
    pub(crate) doubt_to: u64,
    /// Was it ever asked to be durable? Then later sessions must not lose anything.
    pub(crate) promised: bool,
    /// Bytes of versions that were superseded and whose space was perhaps not given back. Holds only if `counted`.
    pub(crate) dead: u64,
    /// Did the last session end with `dead` up to date?
    pub(crate) counted: bool,
}

impl State {
    /// Is a version of this number durable for certain?
    pub(crate) fn is_durable(&self, seq: u64) -> bool {
        seq <= self.durable && !(seq > self.doubt_after && seq <= self.doubt_to)
    }
}

/// The stored form of a block at some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Version {
    /// Later versions of a block have larger numbers.
    pub(crate) seq: u64,
    /// Where it begins in the group's data area.
    pub(crate) unit: u32,
    /// Encoded bytes; 0: the block is a hole.
    pub(crate) len: u32,
    /// Plain bytes that it is decoded to; the rest of the block is zeros.
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

    /// Units in use.
    pub(crate) fn units(&self) -> u32 {
        self.len.div_ceil(UNIT as u32)
    }

    /// The unit after it.
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

/// One of the two places for a version in an index entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Slot {
    #[default]
    Empty,
    /// Neither empty nor right.
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

/// The sum of an index slot holds for one block of one file only.
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

    /// `None`: not a container. `EMEDIUMTYPE`: of a later version.
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
        bytes.sum = bytes.wanted_sum(file).into();
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
        let right = bytes.wanted_sum(&fixed.file) == bytes.sum.get();
        (right && state.stamp > 0 && state.size <= fixed.geometry.max_size()).then_some(state)
    }
}

impl StateBytes {
    fn wanted_sum(&self, file: &[u8; 16]) -> u32 {
        let covered = self.as_bytes();
        crc32c::crc32c_append(crc32c::crc32c(covered.get(..covered.len() - 4).unwrap_or(covered)), file)
    }
}

/// Takes a header apart: what is fixed, the newer state, and in which of the two records it is. `None`: not a container.
/// `EIO`: one, but damaged.
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

/// Is one of the two records of the state neither empty nor right?
pub(crate) fn damaged_state(header: &[u8]) -> bool {
    let Ok(Some(fixed)) = Fixed::parse(header) else { return true };
    STATES.iter().any(|&at| {
        let bytes = header.get(at as usize..at as usize + size_of::<StateBytes>()).unwrap_or_default();
        State::parse(bytes, &fixed).is_none() && bytes.iter().any(|&byte| byte != 0)
    })
}

/// The header of a new file: its state is in the first record.
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
    fn records_have_the_sizes_of_the_format() {
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
        // The newer record is torn: the older one counts.
        header[520] ^= 1;
        assert_eq!(parse_header(&header), Ok(Some((fixed(), state(), 0))));
        header[70] ^= 1;
        assert_eq!(parse_header(&header), Err(Errno::IO));
    }

    #[test]
    fn each_byte_of_what_is_fixed_counts() {
        let header = new_header(&fixed(), &state());
        for at in 0..64 {
            let mut bad = header.clone();
            bad[at] ^= 0x40;
            let expected = if at < 8 { Ok(None) } else { Err(Errno::IO) };
            assert_eq!(parse_header(&bad), expected, "byte {at}");
        }
    }

    #[test]
    fn a_slot_counts_at_its_block_only() {
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
