//! Key derivation functions: from a passphrase to the key that encrypts the master key.
//!
//! The parameters come from a file that an attacker may have written. They are bounded on both
//! sides: too weak is refused, and so is more memory than the caller allows.

use crate::error::ConfigError;
use argon2::{Algorithm, Argon2, Block, Params, Version};
use core::ops::RangeInclusive;
use zeroize::Zeroizing;

/// A key that was derived from a passphrase.
pub(crate) type PassphraseKey = Zeroizing<[u8; 32]>;

/// Sizes of salts in bytes.
pub(crate) const SALT: RangeInclusive<usize> = 32..=256;

/// What a key derivation may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Memory in bytes.
    pub memory: u64,
}

impl Default for Limits {
    /// 2 GiB. scrypt needs this for `-scryptn 21`; the default of gocryptfs needs 64 MiB.
    fn default() -> Self {
        Self { memory: 2 << 30 }
    }
}

/// Parameters of scrypt (RFC 7914).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scrypt {
    /// Binary logarithm of N, the cost: 10 to 28.
    pub log_n: u8,
    /// Block size: 8 to 64.
    pub r: u32,
    /// Parallelism: 1 to 16.
    pub p: u32,
}

impl Default for Scrypt {
    /// The default of gocryptfs: 64 MiB.
    fn default() -> Self {
        Self { log_n: 16, r: 8, p: 1 }
    }
}

/// Parameters of Argon2id, version 1.3 (RFC 9106).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argon2id {
    /// Memory in KiB: 8 MiB to 4 GiB.
    pub memory_kib: u32,
    /// Passes over the memory: 1 to 32.
    pub passes: u32,
    /// Lanes: 1 to 16.
    pub lanes: u32,
}

impl Default for Argon2id {
    /// The second recommended option of RFC 9106, for interactive use: 64 MiB, three passes, four
    /// lanes.
    fn default() -> Self {
        Self { memory_kib: 64 << 10, passes: 3, lanes: 4 }
    }
}

/// A key derivation function with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kdf {
    /// The one of gocryptfs.
    Scrypt(Scrypt),
    /// Only in volumes with key slots.
    Argon2id(Argon2id),
}

impl Kdf {
    /// Returns the memory that a derivation needs, in bytes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        match self {
            Self::Scrypt(Scrypt { log_n, r, p }) => {
                let blocks = 1u64.checked_shl(u32::from(*log_n)).unwrap_or(u64::MAX).saturating_add(u64::from(*p));
                blocks.saturating_mul(128 * u64::from(*r))
            }
            Self::Argon2id(argon2) => u64::from(argon2.memory_kib) << 10,
        }
    }

    /// Checks the bounds of all parameters.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        match self {
            Self::Scrypt(scrypt) => {
                bounded("N of scrypt, as a power of 2", u32::from(scrypt.log_n), 10..=28)?;
                bounded("R of scrypt", scrypt.r, 8..=64)?;
                bounded("P of scrypt", scrypt.p, 1..=16)
            }
            Self::Argon2id(argon2) => {
                bounded("MemoryKiB of Argon2id", argon2.memory_kib, 8 << 10..=4 << 20)?;
                bounded("Passes of Argon2id", argon2.passes, 1..=32)?;
                bounded("Lanes of Argon2id", argon2.lanes, 1..=16)
            }
        }
    }

    /// Derives a key. Takes about a second with the defaults.
    pub(crate) fn derive(&self, passphrase: &[u8], salt: &[u8], limits: Limits) -> Result<PassphraseKey, ConfigError> {
        self.check()?;
        let (needs, limit) = (self.memory(), limits.memory);
        // The libraries end the process if the memory can't be allocated, so try that first.
        let size = usize::try_from(needs).unwrap_or(usize::MAX);
        if needs > limit || Vec::<u8>::new().try_reserve_exact(size).is_err() {
            return Err(ConfigError::Memory { needs, limit });
        }
        match self {
            Self::Scrypt(parameters) => scrypt(*parameters, passphrase, salt),
            Self::Argon2id(parameters) => argon2id(*parameters, passphrase, salt),
        }
        .map_err(|problem| ConfigError::Field { field: "key derivation", problem })
    }
}

fn bounded(field: &'static str, value: u32, range: RangeInclusive<u32>) -> Result<(), ConfigError> {
    if range.contains(&value) {
        return Ok(());
    }
    let problem = format!("{value} is not between {} and {}", range.start(), range.end());
    Err(ConfigError::Field { field, problem })
}

fn scrypt(parameters: Scrypt, passphrase: &[u8], salt: &[u8]) -> Result<PassphraseKey, String> {
    let mut key = PassphraseKey::default();
    let Scrypt { log_n, r, p } = parameters;
    let parameters = scrypt::Params::new(log_n, r, p).map_err(|error| error.to_string())?;
    scrypt::scrypt(passphrase, salt, &parameters, &mut *key).map_err(|error| error.to_string())?;
    Ok(key)
}

fn argon2id(parameters: Argon2id, passphrase: &[u8], salt: &[u8]) -> Result<PassphraseKey, String> {
    let mut key = PassphraseKey::default();
    let Argon2id { memory_kib, passes, lanes } = parameters;
    let parameters = Params::new(memory_kib, passes, lanes, Some(32)).map_err(|error| error.to_string())?;
    let mut memory = Zeroizing::new(vec![Block::default(); parameters.block_count()]);
    Argon2::new(Algorithm::Argon2id, Version::V0x13, parameters)
        .hash_password_into_with_memory(passphrase, salt, &mut *key, &mut *memory)
        .map_err(|error| error.to_string())?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_bounded_on_both_sides() {
        let scrypt = Scrypt::default();
        let argon2 = Argon2id::default();
        for wrong in [
            Kdf::Scrypt(Scrypt { log_n: 9, ..scrypt }),
            Kdf::Scrypt(Scrypt { log_n: 29, ..scrypt }),
            Kdf::Scrypt(Scrypt { r: 7, ..scrypt }),
            Kdf::Scrypt(Scrypt { r: 65, ..scrypt }),
            Kdf::Scrypt(Scrypt { p: 0, ..scrypt }),
            Kdf::Scrypt(Scrypt { p: 17, ..scrypt }),
            Kdf::Argon2id(Argon2id { memory_kib: 8191, ..argon2 }),
            Kdf::Argon2id(Argon2id { memory_kib: (4 << 20) + 1, ..argon2 }),
            Kdf::Argon2id(Argon2id { passes: 0, ..argon2 }),
            Kdf::Argon2id(Argon2id { passes: 33, ..argon2 }),
            Kdf::Argon2id(Argon2id { lanes: 0, ..argon2 }),
            Kdf::Argon2id(Argon2id { lanes: 17, ..argon2 }),
        ] {
            assert!(
                matches!(wrong.derive(b"x", &[0; 32], Limits::default()), Err(ConfigError::Field { .. })),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn memory_is_bounded_by_the_caller() {
        let huge = Kdf::Scrypt(Scrypt { log_n: 28, r: 64, p: 1 });
        assert_eq!(
            huge.derive(b"x", &[0; 32], Limits::default()),
            Err(ConfigError::Memory { needs: ((1 << 28) + 1) * 128 * 64, limit: 2 << 30 })
        );
        let small = Kdf::Scrypt(Scrypt { log_n: 10, r: 8, p: 1 });
        assert!(small.derive(b"x", &[0; 32], Limits { memory: small.memory() }).is_ok());
        assert!(small.derive(b"x", &[0; 32], Limits { memory: small.memory() - 1 }).is_err());
    }

    /// RFC 7914, section 12: the first half of the result for 64 bytes.
    #[test]
    fn known_answer_of_scrypt() {
        let kdf = Kdf::Scrypt(Scrypt { log_n: 10, r: 8, p: 16 });
        let key = kdf.derive(b"password", b"NaCl", Limits::default()).unwrap();
        assert_eq!(
            data_encoding::HEXLOWER.encode(&*key),
            "fdbabe1c9d3472007856e7190d01e9fe7c6ad7cbc8237830e77376634b373162"
        );
    }

    /// RFC 9106, 5.3. It has a secret, additional data and less memory than volumes may have, so
    /// this is a test of the library.
    #[test]
    fn known_answer_of_argon2id() {
        let data = argon2::AssociatedData::new(&[4; 12]).unwrap();
        let parameters = argon2::ParamsBuilder::new().m_cost(32).t_cost(3).p_cost(4).data(data).build().unwrap();
        let argon2 = Argon2::new_with_secret(&[3; 8], Algorithm::Argon2id, Version::V0x13, parameters).unwrap();
        let mut key = [0; 32];
        argon2.hash_password_into(&[1; 32], &[2; 16], &mut key).unwrap();
        assert_eq!(
            data_encoding::HEXLOWER.encode(&key),
            "0d640df58d78766c08c037a34a8b53c9d01ef0452d75b65eb52520e96b01e659"
        );
    }

    #[test]
    fn every_parameter_of_argon2id_matters() {
        let base = Argon2id { memory_kib: 8 << 10, passes: 1, lanes: 1 };
        let derive = |argon2, passphrase: &[u8], salt: &[u8]| {
            Kdf::Argon2id(argon2).derive(passphrase, salt, Limits::default()).unwrap()
        };
        let key = derive(base, b"passphrase", &[1; 32]);
        assert_eq!(key, derive(base, b"passphrase", &[1; 32]));
        assert_ne!(key, derive(base, b"Passphrase", &[1; 32]));
        assert_ne!(key, derive(base, b"passphrase", &[2; 32]));
        assert_ne!(key, derive(Argon2id { memory_kib: 9 << 10, ..base }, b"passphrase", &[1; 32]));
        assert_ne!(key, derive(Argon2id { passes: 2, ..base }, b"passphrase", &[1; 32]));
        assert_ne!(key, derive(Argon2id { lanes: 2, ..base }, b"passphrase", &[1; 32]));
    }
}
