//! Extended attributes: names and values.

use crate::base64;
use crate::error::{BlockDamage, NameDamage};
use crate::keys::Keys;

/// Prefix of the names of encrypted attributes.
pub const XATTR_PREFIX: &[u8] = b"user.gocryptfs.";

/// The tweak of the names of attributes.
const IV: [u8; 16] = *b"xattr_name_iv_xx";

/// Largest number of bytes of a value, in Linux.
const VALUE_MAX: usize = 65536;

/// Whether a name of an extended attribute begins with a namespace, as all do on Linux (xattr(7)).
#[must_use]
pub fn is_namespaced(name: &[u8]) -> bool {
    [&b"user."[..], b"security.", b"trusted.", b"system."].iter().any(|space| name.starts_with(space))
}

impl Keys {
    /// Encrypts the whole name of an attribute, such as `user.comment`.
    ///
    /// # Errors
    /// The name is empty, has a NUL, or is too long.
    pub fn encrypt_xattr_name(&self, name: &[u8]) -> Result<Vec<u8>, NameDamage> {
        check(name)?;
        let mut stored = XATTR_PREFIX.to_vec();
        stored.append(&mut self.encrypt_padded(name, &IV)?);
        Ok(stored)
    }

    /// Decrypts the name of an attribute, which is untrusted.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decrypt_xattr_name(&self, stored: &[u8]) -> Result<Vec<u8>, NameDamage> {
        let encrypted = stored.strip_prefix(XATTR_PREFIX).ok_or(NameDamage::Prefix)?;
        let name = self.decrypt_padded(encrypted, &IV)?;
        check(&name)?;
        Ok(name)
    }

    /// Encrypts the value of an attribute. An empty one stays empty.
    ///
    /// # Errors
    /// It is too long, or a library failed.
    pub fn seal_xattr(&self, value: &[u8]) -> Result<Vec<u8>, BlockDamage> {
        match value.len() {
            0 => Ok(Vec::new()),
            1..=VALUE_MAX => self.seal_value(value),
            _ => Err(BlockDamage::TooLong),
        }
    }

    /// Decrypts the value of an attribute, which is untrusted.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn open_xattr(&self, stored: &[u8]) -> Result<Vec<u8>, BlockDamage> {
        match stored.len() {
            0 => Ok(Vec::new()),
            1..=VALUE_MAX => self.open_value(stored).or_else(|damage| self.open_in_base64(stored).ok_or(damage)),
            _ => Err(BlockDamage::TooLong),
        }
    }

    /// Decrypts a value of gocryptfs 1.5 to 1.6, which stored them in base64.
    fn open_in_base64(&self, stored: &[u8]) -> Option<Vec<u8>> {
        self.open_value(&base64::decode_name(self.raw64(), stored)?).ok()
    }
}

fn check(name: &[u8]) -> Result<(), NameDamage> {
    if name.is_empty() || name.contains(&0) { Err(NameDamage::Invalid) } else { Ok(()) }
}
