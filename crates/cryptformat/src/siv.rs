//! AES-SIV (RFC 5297) with 512-bit keys. Its associated data is a vector: the place of a block, and
//! the nonce.

use crate::content::TAG;
use aes_siv::KeyInit;
use aes_siv::siv::Aes256Siv;
use zeroize::Zeroizing;

/// Size of a nonce in bytes.
pub(crate) const NONCE: usize = 16;

/// The cipher under one key. The library's needs exclusive access, so each block creates one.
pub(crate) struct Siv {
    key: Zeroizing<[u8; 64]>,
}

impl Siv {
    pub(crate) fn new(key: &[u8; 64]) -> Self {
        Self { key: Zeroizing::new(*key) }
    }

    /// Encrypts `data` in place and returns its synthetic initialization vector.
    pub(crate) fn seal(&self, nonce: &[u8; NONCE], associated: &[u8], data: &mut [u8]) -> Option<[u8; TAG]> {
        let mut cipher = Aes256Siv::new(&(*self.key).into());
        cipher.encrypt_inout_detached([associated, nonce], data.into()).ok().map(Into::into)
    }

    /// Decrypts `data` in place. Returns false if it is not authentic; its content must not be used
    /// then.
    pub(crate) fn open(&self, nonce: &[u8; NONCE], associated: &[u8], vector: &[u8; TAG], data: &mut [u8]) -> bool {
        let mut cipher = Aes256Siv::new(&(*self.key).into());
        cipher.decrypt_inout_detached([associated, nonce], data.into(), &(*vector).into()).is_ok()
    }
}
