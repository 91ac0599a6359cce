//! The on-disk format of packs: docs/formats/block-store.md. All input is untrusted.

use crate::name::{BlockName, NAME_LEN};
use vnode::{Errno, Result};

/// Magic number at the start of a pack.
const MAGIC: [u8; 8] = *b"\x93strblk\n";

/// Version of the format.
const VERSION: u32 = 1;

/// Size of a pack's header in bytes.
pub(crate) const HEADER: u64 = 64;

/// Maximum number of plain bytes of a block.
pub(crate) const PLAIN_MAX: usize = 1 << 20;

/// Maximum number of bytes of an entry's body.
pub(crate) const BODY_MAX: usize = 16 << 20;

/// Maximum number of bytes of an entry before its body: kind, length, checksum.
pub(crate) const FRAME_MAX: usize = 1 + 4 + 4;

/// Maximum number of bytes of a block's entry before its data.
pub(crate) const BLOCK_HEAD_MAX: usize = FRAME_MAX + NAME_LEN + 3 + 1 + 1 + NAME_LEN;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Block,
    Recipe,
    /// The recipe with this id is deleted.
    Tombstone,
    /// Everything before was durable when this was written.
    Mark,
}

impl Kind {
    const fn byte(self) -> u8 {
        match self {
            Self::Block => 1,
            Self::Recipe => 2,
            Self::Tombstone => 3,
            Self::Mark => 4,
        }
    }

    const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Block,
            2 => Self::Recipe,
            3 => Self::Tombstone,
            4 => Self::Mark,
            _ => return None,
        })
    }
}

/// Reads fields from untrusted bytes.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        let (&byte, rest) = self.0.split_first().ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(byte)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a number of up to 64 bits, 7 bits in a byte, lowest first.
    pub(crate) fn number(&mut self) -> Result<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            number |= bits.checked_shl(shift).filter(|shifted| shifted >> shift == bits).ok_or(Errno::IO)?;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Errno::IO)
    }

    /// Reads a number that must not be larger than `limit`.
    pub(crate) fn length(&mut self, limit: usize) -> Result<usize> {
        usize::try_from(self.number()?).ok().filter(|&len| len <= limit).ok_or(Errno::IO)
    }
}

/// Appends a number as [`Fields::number`] reads it.
pub(crate) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The start of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    /// Where the body begins, from the start of the entry.
    pub(crate) body_at: usize,
    /// Size of the whole entry in bytes.
    pub(crate) len: usize,
    sum: u32,
}

/// The checksum also covers where the entry is, so that bytes of another place are no entry.
fn sum(pack: u32, offset: u64, kind: Kind, body: &[u8]) -> u32 {
    let mut place = [0; 17];
    place[..4].copy_from_slice(&pack.to_le_bytes());
    place[4..12].copy_from_slice(&offset.to_le_bytes());
    place[12] = kind.byte();
    place[13..].copy_from_slice(&(body.len() as u32).to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&place), body)
}

impl Frame {
    /// Parses the start of an entry, without its checksum.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let mut fields = Fields::new(bytes);
        let kind = Kind::from_byte(fields.byte()?).ok_or(Errno::IO)?;
        let body = fields.length(BODY_MAX)?;
        let sum = fields.u32()?;
        let body_at = bytes.len() - fields.rest().len();
        Ok(Self { kind, body_at, len: body_at + body, sum })
    }

    /// Returns the body if `bytes`, which begin with the entry, have its checksum.
    pub(crate) fn verify<'a>(&self, bytes: &'a [u8], pack: u32, offset: u64) -> Result<&'a [u8]> {
        let body = bytes.get(self.body_at..self.len).ok_or(Errno::IO)?;
        if sum(pack, offset, self.kind, body) == self.sum { Ok(body) } else { Err(Errno::IO) }
    }
}

/// Appends an entry that will be at `offset` of the pack.
pub(crate) fn put_entry(out: &mut Vec<u8>, (pack, offset): (u32, u64), kind: Kind, body: &[u8]) {
    out.push(kind.byte());
    put_number(out, body.len() as u64);
    out.extend_from_slice(&sum(pack, offset, kind, body).to_le_bytes());
    out.extend_from_slice(body);
}

/// What the header of a pack says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackHeader {
    pub(crate) number: u32,
    /// All recipes stored later have this id or a larger one.
    pub(crate) next_id: u64,
}

impl PackHeader {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&self.next_id.to_le_bytes());
        bytes.resize(HEADER as usize - 4, 0);
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// # Errors
    /// `EMEDIUMTYPE` for a later version of the format; `EIO` for a damaged header.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let (covered, end) = bytes.split_at_checked(HEADER as usize - 4).ok_or(Errno::IO)?;
        if Fields::new(end).u32()? != crc32c::crc32c(covered) {
            return Err(Errno::IO);
        }
        let mut fields = Fields::new(covered);
        if fields.array()? != MAGIC {
            return Err(Errno::IO);
        }
        if fields.u32()? != VERSION {
            return Err(Errno::MEDIUMTYPE);
        }
        Ok(Self { number: fields.u32()?, next_id: fields.u64()? })
    }
}

/// The block that another one is a difference to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// In the same pack, at this offset.
    Near(u64),
    /// Anywhere.
    Far(BlockName),
}

/// How the data of a block is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    Raw,
    Frame,
    /// A frame with another block as prefix, and the number of blocks that must be decoded before.
    Difference {
        base: Base,
        depth: u8,
    },
}

impl Coding {
    pub(crate) const fn depth(&self) -> u8 {
        match self {
            Self::Raw | Self::Frame => 0,
            Self::Difference { depth, .. } => *depth,
        }
    }
}

/// The fields of a block's body before its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockHead {
    pub(crate) name: BlockName,
    /// Plain size in bytes.
    pub(crate) plain: u32,
    pub(crate) coding: Coding,
}

const RAW: u8 = 0;
const FRAME: u8 = 1;
const NEAR: u8 = 2;
const FAR: u8 = 3;

impl BlockHead {
    /// Appends the body of an entry that will be at `offset`.
    pub(crate) fn put(&self, out: &mut Vec<u8>, offset: u64, data: &[u8]) {
        out.extend_from_slice(self.name.as_bytes());
        put_number(out, u64::from(self.plain));
        match self.coding {
            Coding::Raw => out.push(RAW),
            Coding::Frame => out.push(FRAME),
            Coding::Difference { base, depth } => {
                match base {
                    Base::Near(at) => {
                        out.push(NEAR);
                        put_number(out, offset.saturating_sub(at));
                    }
                    Base::Far(name) => {
                        out.push(FAR);
                        out.extend_from_slice(name.as_bytes());
                    }
                }
                out.push(depth);
            }
        }
        out.extend_from_slice(data);
    }

    /// Parses the start of the body of the entry at `offset`. Returns the data, too, as far as it
    /// is there.
    pub(crate) fn parse(body: &[u8], offset: u64) -> Result<(Self, &[u8])> {
        let mut fields = Fields::new(body);
        let name = BlockName::from(fields.array()?);
        let plain = fields.length(PLAIN_MAX)? as u32;
        let coding = match fields.byte()? {
            RAW => Coding::Raw,
            FRAME => Coding::Frame,
            NEAR => {
                let back = fields.number()?;
                let at = offset.checked_sub(back).filter(|&at| back > 0 && at >= HEADER).ok_or(Errno::IO)?;
                Coding::Difference { base: Base::Near(at), depth: fields.byte()? }
            }
            FAR => Coding::Difference { base: Base::Far(BlockName::from(fields.array()?)), depth: fields.byte()? },
            _ => return Err(Errno::IO),
        };
        Ok((Self { name, plain, coding }, fields.rest()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_were_written() {
        for number in [0, 1, 127, 128, 300, 1 << 21, u64::MAX >> 1, u64::MAX] {
            let mut bytes = Vec::new();
            put_number(&mut bytes, number);
            let mut fields = Fields::new(&bytes);
            assert_eq!((fields.number(), fields.rest()), (Ok(number), &[][..]));
        }
        assert_eq!(Fields::new(&[0xff; 9]).number(), Err(Errno::IO));
        assert_eq!(Fields::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]).number(), Err(Errno::IO));
    }

    #[test]
    fn entries_are_valid_at_their_place_only() {
        let mut bytes = Vec::new();
        put_entry(&mut bytes, (3, 64), Kind::Recipe, b"body");
        let frame = Frame::parse(&bytes).unwrap();
        assert_eq!((frame.kind, frame.len), (Kind::Recipe, bytes.len()));
        assert_eq!(frame.verify(&bytes, 3, 64), Ok(&b"body"[..]));
        assert_eq!(frame.verify(&bytes, 3, 65), Err(Errno::IO));
        assert_eq!(frame.verify(&bytes, 2, 64), Err(Errno::IO));
        assert_eq!(frame.verify(&bytes[..bytes.len() - 1], 3, 64), Err(Errno::IO));
    }

    #[test]
    fn headers_and_heads_are_read_as_they_were_written() {
        let header = PackHeader { number: 7, next_id: 99 };
        let mut bytes = header.bytes();
        assert_eq!((bytes.len() as u64, PackHeader::parse(&bytes)), (HEADER, Ok(header)));
        bytes[9] ^= 1;
        assert_eq!(PackHeader::parse(&bytes), Err(Errno::IO));
        let name = BlockName::of(b"x");
        for coding in [
            Coding::Raw,
            Coding::Frame,
            Coding::Difference { base: Base::Near(100), depth: 3 },
            Coding::Difference { base: Base::Far(BlockName::of(b"y")), depth: 1 },
        ] {
            let head = BlockHead { name, plain: 500, coding };
            let mut body = Vec::new();
            head.put(&mut body, 1000, b"data");
            assert_eq!(BlockHead::parse(&body, 1000), Ok((head, &b"data"[..])));
        }
    }
}
