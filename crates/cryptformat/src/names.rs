//! The encryption of names: padding to 16 bytes, AES-EME with the directory's initialization vector
//! as tweak, then base64 for URLs.

use crate::base64;
use crate::eme::BLOCK;
use crate::error::NameDamage;
use crate::keys::Keys;

/// Largest number of bytes of a plain name.
pub const NAME_MAX: usize = 255;

/// The tweak of volumes without initialization vectors in their directories.
pub const ZERO_IV: [u8; BLOCK] = [0; BLOCK];

impl Keys {
    /// Encrypts `name` in the directory with the initialization vector `iv`, or [`ZERO_IV`]. The
    /// result has at most 344 bytes, more than most file systems store in a name:
    /// [`NameStore::long_name`](crate::NameStore::long_name) tells how it is stored then. Without
    /// encryption of names, returns the name.
    ///
    /// # Errors
    /// The name is empty, `.` or `..`, has a slash or NUL, or more than 255 bytes.
    pub fn encrypt_name(&self, name: &[u8], iv: &[u8; BLOCK]) -> Result<Vec<u8>, NameDamage> {
        check(name)?;
        if self.names().is_none() {
            return Ok(name.to_vec());
        }
        self.encrypt_padded(name, iv)
    }

    /// Decrypts a name that [`Self::encrypt_name`] returned, which is untrusted. Exactly one text
    /// decrypts to each name.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decrypt_name(&self, encrypted: &[u8], iv: &[u8; BLOCK]) -> Result<Vec<u8>, NameDamage> {
        let name = if self.names().is_none() { encrypted.to_vec() } else { self.decrypt_padded(encrypted, iv)? };
        check(&name)?;
        Ok(name)
    }

    /// Encrypts at most 255 bytes.
    pub(crate) fn encrypt_padded(&self, name: &[u8], iv: &[u8; BLOCK]) -> Result<Vec<u8>, NameDamage> {
        if name.len() > NAME_MAX {
            return Err(NameDamage::TooLong);
        }
        let mut padded = pad(name);
        if !self.eme.encrypt(iv, &mut padded) {
            return Err(NameDamage::TooLong);
        }
        Ok(base64::encode_name(self.raw64(), &padded))
    }

    /// Decrypts at most 255 bytes.
    pub(crate) fn decrypt_padded(&self, encrypted: &[u8], iv: &[u8; BLOCK]) -> Result<Vec<u8>, NameDamage> {
        if encrypted.len() > base64::encoded_len(self.raw64(), NAME_MAX + 1) {
            return Err(NameDamage::Length);
        }
        let mut padded = base64::decode_name(self.raw64(), encrypted).ok_or(NameDamage::Encoding)?;
        if !self.eme.decrypt(iv, &mut padded) {
            return Err(NameDamage::Length);
        }
        let length = unpadded(&padded).ok_or(NameDamage::Forged)?;
        padded.truncate(length);
        Ok(padded)
    }
}

/// Checks a plain name.
fn check(name: &[u8]) -> Result<(), NameDamage> {
    if name.len() > NAME_MAX {
        return Err(NameDamage::TooLong);
    }
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|byte| matches!(byte, b'/' | 0)) {
        return Err(NameDamage::Invalid);
    }
    Ok(())
}

/// Returns `name` with PKCS#7 padding: 1 to 16 bytes, each of which is their number.
fn pad(name: &[u8]) -> Vec<u8> {
    let size = (name.len() / BLOCK + 1) * BLOCK;
    let mut padded = Vec::with_capacity(size);
    padded.extend_from_slice(name);
    let padding = u8::try_from(size - name.len()).unwrap_or_default();
    padded.resize(size, padding);
    padded
}

/// Returns the length without the padding, or `None` if that is invalid.
fn unpadded(padded: &[u8]) -> Option<usize> {
    let &padding = padded.last()?;
    let length = padded.len().checked_sub(usize::from(padding))?;
    let valid =
        (1..=BLOCK).contains(&usize::from(padding)) && padded.get(length..)?.iter().all(|&byte| byte == padding);
    valid.then_some(length)
}
