//! The seal of a version that lacks bytes of the head: what the head looked like when the layer
//! saw its last change.
//!
//! Programs that change the lower directory itself change heads unseen, and the newest version
//! would then reconstruct to bytes that never were. The seal tells: a head of another size or
//! modification time is another content.

use crate::wire::{Reader, Writer};
use vnode::{Attr, Time};

/// Length of a seal in bytes.
pub(crate) const SEAL_LEN: usize = 24;

/// The size of a seal that says [`Seal::Changed`].
const CHANGED: u64 = u64::MAX;

/// What a content is recognised by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Its size in bytes.
    pub size: u64,
    /// Its modification time.
    pub mtime: Time,
}

/// Whether the bytes that a version lacks are those of the head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Seal {
    /// Nothing is known: programs are writing to the head through the layer, or were when it was
    /// killed.
    #[default]
    Open,
    /// If the head has this stamp.
    Sealed(Stamp),
    /// They are lost: the head was changed unseen, and after that through the layer.
    Changed,
}

impl Stamp {
    /// Returns the stamp of a file.
    #[must_use]
    pub fn of(attr: &Attr) -> Self {
        Self { size: attr.size, mtime: attr.mtime }
    }

    /// Whether a file with the stamp `now` is what this one was made of. Backup tools and file
    /// systems may have cut off digits of the nanoseconds.
    #[must_use]
    pub fn is(&self, now: &Self) -> bool {
        let (old, new) = (self.mtime, now.mtime);
        let cut = |unit: u32| old.nsec / unit * unit == new.nsec;
        self.size == now.size && old.sec == new.sec && [1, 100, 1000, 1_000_000, 1_000_000_000].into_iter().any(cut)
    }
}

impl Seal {
    /// Whether bytes may come from a head with this stamp.
    #[must_use]
    pub fn admits(&self, head: &Stamp) -> bool {
        match self {
            Self::Open => true,
            Self::Sealed(stamp) => stamp.is(head),
            Self::Changed => false,
        }
    }

    /// Returns the seal as bytes.
    pub(crate) fn encode(self) -> Vec<u8> {
        let (size, mtime) = match self {
            Self::Open => return vec![0; SEAL_LEN],
            Self::Sealed(stamp) => (stamp.size, stamp.mtime),
            Self::Changed => (CHANGED, Time::default()),
        };
        let mut out = Writer::default();
        out.u64(size);
        out.time(mtime);
        let sum = crc32c::crc32c(&out.0);
        out.u32(sum);
        out.0
    }

    /// Parses a seal. A damaged one says nothing.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let mut from = Reader(bytes);
        let (Some(size), Some(mtime)) = (from.u64(), from.time()) else { return Self::Open };
        let seal = if size == CHANGED { Self::Changed } else { Self::Sealed(Stamp { size, mtime }) };
        if seal.encode() == bytes { seal } else { Self::Open }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn stamp(size: u64, sec: i64, nsec: u32) -> Stamp {
        Stamp { size, mtime: Time { sec, nsec } }
    }

    #[test]
    fn seals_are_decoded_as_they_were_encoded() {
        for seal in [Seal::Open, Seal::Changed, Seal::Sealed(stamp(0, 0, 0)), Seal::Sealed(stamp(7, -1, 999_999_999))] {
            let mut bytes = seal.encode();
            assert_eq!(bytes.len(), SEAL_LEN);
            assert_eq!(Seal::decode(&bytes), seal);
            for at in 0..bytes.len() {
                bytes[at] ^= 4;
                assert_eq!(Seal::decode(&bytes), Seal::Open, "byte {at} of {seal:?}");
                bytes[at] ^= 4;
            }
        }
        assert_eq!(Seal::decode(&[]), Seal::Open);
    }

    #[test]
    fn a_head_is_recognised_by_size_and_time() {
        let sealed = Seal::Sealed(stamp(5, 100, 123_456_789));
        for same in [123_456_789, 123_456_700, 123_456_000, 123_000_000, 0] {
            assert!(sealed.admits(&stamp(5, 100, same)), "{same}");
        }
        for other in [stamp(6, 100, 123_456_789), stamp(5, 101, 0), stamp(5, 100, 123_456_788), stamp(5, 100, 1)] {
            assert!(!sealed.admits(&other), "{other:?}");
        }
        assert!(Seal::Open.admits(&stamp(1, 2, 3)));
        assert!(!Seal::Changed.admits(&stamp(1, 2, 3)));
    }
}
