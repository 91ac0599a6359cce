//! Names of blocks.

use core::fmt;

/// Number of bytes of a block's name.
pub(crate) const NAME_LEN: usize = 24;

/// The name of a block: the first 192 bits of the BLAKE3 hash of its plain bytes. Finding two
/// blocks with one name takes about 2^96 attempts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockName([u8; NAME_LEN]);

impl BlockName {
    pub(crate) fn of(plain: &[u8]) -> Self {
        let mut name = [0; NAME_LEN];
        name.copy_from_slice(blake3::hash(plain).as_bytes().split_at(NAME_LEN).0);
        Self(name)
    }

    pub(crate) const fn as_bytes(&self) -> &[u8; NAME_LEN] {
        &self.0
    }

    /// Returns the first 64 bits, the key of the index in memory.
    pub(crate) fn tag(&self) -> u64 {
        self.0.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

impl From<[u8; NAME_LEN]> for BlockName {
    fn from(bytes: [u8; NAME_LEN]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for BlockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.tag().swap_bytes())
    }
}
