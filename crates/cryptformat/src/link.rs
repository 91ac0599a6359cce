//! Targets of symbolic links: one encrypted block, in base64.

use crate::base64;
use crate::error::BlockDamage;
use crate::flags::Flags;
use crate::keys::Keys;
use cryptsys::TAG;

/// Additional authenticated data of everything that is not in a file.
pub(crate) const NO_PLACE: [u8; 8] = [0; 8];

/// Largest number of bytes of an encrypted target: what Linux stores.
const STORED_MAX: usize = 4095;

impl Flags {
    /// Returns the length of the target of a link that stores `stored` bytes. `None` if the length
    /// does not tell: padding is not known, and no target has such a length.
    #[must_use]
    pub fn link_size(&self, stored: u64) -> Option<u64> {
        let Some(names) = self.names else { return Some(stored) };
        if !names.raw64 || stored % 4 == 1 || stored > STORED_MAX as u64 {
            return None;
        }
        (stored * 3 / 4).checked_sub((self.cipher.nonce_len() + TAG) as u64).filter(|&size| size > 0)
    }
}

impl Keys {
    /// Returns the largest number of bytes of a target that can be stored.
    #[must_use]
    pub fn link_max(&self) -> usize {
        if self.names().is_none() {
            return STORED_MAX;
        }
        let bytes = if self.raw64() { STORED_MAX * 3 / 4 } else { STORED_MAX / 4 * 3 };
        bytes - self.nonce_len() - TAG
    }

    /// Encrypts a target. Without encryption of names, returns it.
    ///
    /// # Errors
    /// The target is empty or longer than [`Self::link_max`], or a library failed.
    pub fn seal_link(&self, target: &[u8]) -> Result<Vec<u8>, BlockDamage> {
        if target.len() > self.link_max() {
            return Err(BlockDamage::TooLong);
        }
        if self.names().is_none() {
            return Ok(target.to_vec());
        }
        Ok(base64::encode_name(self.raw64(), &self.seal_value(target)?))
    }

    /// Decrypts a target, which is untrusted.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn open_link(&self, stored: &[u8]) -> Result<Vec<u8>, BlockDamage> {
        if stored.len() > STORED_MAX {
            return Err(BlockDamage::TooLong);
        }
        if self.names().is_none() {
            return Ok(stored.to_vec());
        }
        self.open_value(&base64::decode_name(self.raw64(), stored).ok_or(BlockDamage::Encoding)?)
    }

    /// Encrypts bytes that are in no file.
    pub(crate) fn seal_value(&self, plain: &[u8]) -> Result<Vec<u8>, BlockDamage> {
        let mut sealed = vec![0; self.nonce_len() + plain.len() + TAG];
        self.seal(&NO_PLACE, plain, &mut sealed)?;
        Ok(sealed)
    }

    /// Decrypts bytes that are in no file.
    pub(crate) fn open_value(&self, stored: &[u8]) -> Result<Vec<u8>, BlockDamage> {
        let mut plain = vec![0; stored.len().saturating_sub(self.nonce_len() + TAG)];
        self.open(&NO_PLACE, stored, &mut plain)?;
        Ok(plain)
    }
}
