//! The mapping of names to buckets.

use sha2::{Digest as _, Sha256};
use vnode::{Errno, Result};

/// Maximum number of hash digits in the name of a bucket. Deeper buckets are not split.
pub(crate) const MAX_HASH_DIGITS: usize = 12;
/// Default for the maximum number of entries of a bucket in the hash scheme.
pub(crate) const LIMIT: u32 = 1000;

/// The rule that distributes a directory's entries over buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Numeric names by their second to fourth lowest digits, 000 to 999. Non-numeric names stay in
    /// the directory itself.
    Digits,
    /// All names by a keyed hash. Buckets with more than `limit` entries are split.
    Hash {
        /// A secret key, which prevents attackers from choosing names that fall into one bucket.
        key: [u8; 16],
        /// Maximum number of entries of a bucket; at least 2.
        limit: u32,
    },
}

impl Scheme {
    /// Returns the hash scheme with a new random key.
    ///
    /// # Errors
    /// `EIO` if the system provides no random bytes.
    pub fn hash(limit: Option<u32>) -> Result<Self> {
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(|_| Errno::IO)?;
        Ok(Self::Hash { key, limit: limit.unwrap_or(LIMIT).max(2) })
    }

    /// Returns the position of a name in listings: 62 bits, never 0, in the order of buckets. It
    /// must not change between versions.
    pub(crate) fn position(&self, name: &[u8]) -> u64 {
        match self {
            Self::Digits => {
                let group = bucket_of_number(name).map_or(0, |[a, b, c]| {
                    1 + u64::from(a - b'0') * 100 + u64::from(b - b'0') * 10 + u64::from(c - b'0')
                });
                ((group << DIGITS_SHIFT) | (mixed(name) >> (64 - DIGITS_SHIFT))).max(1)
            }
            Self::Hash { key, .. } => (hash(key, name) >> 2).max(1),
        }
    }

    /// Whether the name is valid for a bucket.
    pub(crate) fn is_bucket(&self, name: &[u8]) -> bool {
        match self {
            Self::Digits => name.len() == 3 && name.iter().all(u8::is_ascii_digit),
            Self::Hash { .. } => {
                (1..=MAX_HASH_DIGITS).contains(&name.len())
                    && name.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
            }
        }
    }
}

/// The scheme for directories that become managed.
#[derive(Clone, Copy, Debug, Default)]
pub struct SchemeChoice {
    /// Whether to use the hash scheme instead of the digits scheme.
    pub hash: bool,
    /// Maximum number of entries of a bucket; `None` selects the default.
    pub limit: Option<u32>,
}

impl SchemeChoice {
    pub(crate) fn scheme(self) -> Result<Scheme> {
        if self.hash { Scheme::hash(self.limit) } else { Ok(Scheme::Digits) }
    }
}

/// Number of bits of a position that order the names within a bucket of the digits scheme.
pub(crate) const DIGITS_SHIFT: u32 = 52;

/// Returns the second to fourth lowest digits of a number, or `None` for a non-numeric name.
pub(crate) fn bucket_of_number(name: &[u8]) -> Option<[u8; 3]> {
    if name.is_empty() || !name.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |from_end: usize| name.len().checked_sub(from_end).and_then(|i| name.get(i)).copied().unwrap_or(b'0');
    Some([digit(4), digit(3), digit(2)])
}

/// Returns the keyed hash of a name: the first 64 bits of SHA-256 over key and name.
fn hash(key: &[u8; 16], name: &[u8]) -> u64 {
    let digest = Sha256::new().chain_update(key).chain_update(name).finalize();
    digest.iter().take(8).fold(0, |hash, &byte| (hash << 8) | u64::from(byte))
}

/// Returns the hexadecimal digits of a name's hash, the highest first.
pub(crate) fn hash_digits(key: &[u8; 16], name: &[u8]) -> [u8; 16] {
    let hash = hash(key, name);
    core::array::from_fn(|i| hex(hash >> (60 - 4 * i)))
}

/// Returns the lowest four bits as a hexadecimal digit.
pub(crate) const fn hex(bits: u64) -> u8 {
    let bits = (bits & 15) as u8;
    if bits < 10 { b'0' + bits } else { b'a' + bits - 10 }
}

/// Returns the FNV-1a hash of a name, with its bits mixed once more.
fn mixed(name: &[u8]) -> u64 {
    let hash = name
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash ^ (hash >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_buckets_of_the_paper() {
        for (name, bucket) in
            [("123456", "345"), ("7", "000"), ("17", "001"), ("345", "034"), ("007", "000"), ("9999", "999")]
        {
            assert_eq!(bucket_of_number(name.as_bytes()).unwrap(), bucket.as_bytes(), "{name}");
        }
        for name in ["", "a", "12a", "-1", " 1", "1.tmp"] {
            assert_eq!(bucket_of_number(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn positions_are_stable_and_in_the_order_of_buckets() {
        let digits = Scheme::Digits;
        assert!(digits.position(b"overview") >> DIGITS_SHIFT == 0 && digits.position(b"overview") > 0);
        assert_eq!(digits.position(b"123456") >> DIGITS_SHIFT, 346);
        assert!(digits.position(b"99999") >> 62 == 0);
        let scheme = Scheme::Hash { key: [7; 16], limit: 2 };
        assert_eq!(scheme.position(b"README"), 3_527_453_493_400_296_514);
        assert_eq!(digits.position(b"README"), 1_856_847_851_259_629);
    }
}
