//! The master key of a volume.

use crate::error::{ConfigError, RandomError};
use core::fmt::{self, Write as _};
use zeroize::{Zeroize as _, ZeroizeOnDrop, Zeroizing};

/// Size of a master key in bytes.
pub(crate) const MASTER: usize = 32;

/// The key that all others of a volume are derived from. Its memory is overwritten when it is
/// dropped.
///
/// It is boxed, because a value that is moved leaves a copy where it was.
#[derive(Clone)]
pub struct MasterKey(Box<[u8; MASTER]>);

impl Drop for MasterKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl ZeroizeOnDrop for MasterKey {}

impl MasterKey {
    /// Returns a key of zeros, to be filled in.
    pub(crate) fn zeros() -> Self {
        Self(Box::new([0; MASTER]))
    }

    /// Returns the bytes of the key, to be filled in.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8; MASTER] {
        &mut self.0
    }

    /// Creates a random key.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub fn random() -> Result<Self, RandomError> {
        let mut key = Self::zeros();
        getrandom::fill(&mut *key.0).map_err(|_| RandomError)?;
        Ok(key)
    }

    /// Returns the key that consists of `bytes`.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; MASTER]) -> Self {
        let mut key = Self::zeros();
        key.0.copy_from_slice(bytes);
        key
    }

    /// Returns the bytes of the key.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; MASTER] {
        &self.0
    }

    /// Returns the key for a printout, from which [`Self::from_paper`] restores it: 64 hexadecimal
    /// digits in groups of eight, as gocryptfs prints them.
    #[must_use]
    pub fn to_paper(&self) -> Zeroizing<String> {
        // Large enough, so that no copy remains where it was before it grew.
        let mut text = Zeroizing::new(String::with_capacity(3 * MASTER));
        for (at, byte) in self.0.iter().enumerate() {
            if at > 0 && at % 4 == 0 {
                text.push('-');
            }
            // Writing to a string can't fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// Reads the key from a printout: 64 hexadecimal digits, with or without dashes, spaces and
    /// line ends.
    ///
    /// # Errors
    /// Other characters, or another number of digits.
    pub fn from_paper(text: &str) -> Result<Self, ConfigError> {
        let mut key = Self::zeros();
        let mut digits = 0;
        for character in text.chars().filter(|&c| c != '-' && !c.is_ascii_whitespace()) {
            let value = character.to_digit(16).and_then(|value| u8::try_from(value).ok());
            let byte = key.0.get_mut(digits / 2);
            let (Some(value), Some(byte)) = (value, byte) else { return Err(ConfigError::MasterKeyText) };
            *byte = *byte << 4 | value;
            digits += 1;
        }
        if digits == 2 * MASTER { Ok(key) } else { Err(ConfigError::MasterKeyText) }
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printout_restores_the_key() {
        let key = MasterKey::random().unwrap();
        let paper = key.to_paper();
        assert_eq!(paper.len(), 71);
        assert_eq!(paper.split('-').map(str::len).collect::<Vec<_>>(), [8; 8]);
        assert_eq!(MasterKey::from_paper(&paper).unwrap().as_bytes(), key.as_bytes());
        let upper = format!(" {}\n", paper.replace('-', " ").to_uppercase());
        assert_eq!(MasterKey::from_paper(&upper).unwrap().as_bytes(), key.as_bytes());
        for wrong in [&paper[1..], &format!("{}0", *paper), &paper.replace('-', "_"), ""] {
            assert!(MasterKey::from_paper(wrong).is_err());
        }
        assert_eq!(format!("{key:?}"), "MasterKey(..)");
    }
}
