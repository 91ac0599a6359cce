//! The master key, encrypted with a key that was derived from a passphrase.

use crate::error::ConfigError;
use crate::flags::ContentCipher;
use crate::kdf::PassphraseKey;
use crate::keys;
use crate::link::NO_PLACE;
use crate::master::{MASTER, MasterKey};
use crate::random;
use cryptsys::{AuthCipher, Failed, TAG};

/// Purpose of a slot's key. It differs from the purpose that gocryptfs uses, so that a slot can't
/// be copied to where gocryptfs keeps its only key, which nothing authenticates.
const SLOT_INFO: &[u8] = b"strata key slot";

/// How a master key is encrypted: always with AES-256-GCM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrap {
    /// As gocryptfs does. Without HKDF, the nonce has 12 bytes.
    Gocryptfs { hkdf: bool },
    /// In a slot of this project.
    Slot,
}

impl Wrap {
    fn nonce_len(self) -> usize {
        if self == (Self::Gocryptfs { hkdf: false }) { 12 } else { ContentCipher::AesGcm.nonce_len() }
    }

    /// Returns the size of an encrypted master key in bytes.
    pub(crate) fn size(self) -> usize {
        self.nonce_len() + MASTER + TAG
    }

    fn cipher(self, key: &PassphraseKey) -> Result<AuthCipher, Failed> {
        let key = MasterKey::from_bytes(key);
        match self {
            Self::Gocryptfs { hkdf } => keys::gcm_of(hkdf, &key),
            Self::Slot => AuthCipher::aes_256_gcm(&keys::derive(&key, SLOT_INFO)),
        }
    }

    /// Encrypts the master key with a random nonce.
    pub(crate) fn seal(self, key: &PassphraseKey, master: &MasterKey) -> Result<Vec<u8>, ConfigError> {
        let cipher = self.cipher(key)?;
        let mut nonce = vec![0; self.nonce_len()];
        random::fill(&mut nonce)?;
        let (mut sealed, mut tag) = ([0; MASTER], [0; TAG]);
        cipher.seal(&nonce, &NO_PLACE, master.as_bytes(), &mut sealed, &mut tag)?;
        Ok([&nonce[..], &sealed, &tag].concat())
    }

    /// Decrypts a master key. Returns `None` if the passphrase is not the one, or if the key is
    /// damaged.
    pub(crate) fn open(self, key: &PassphraseKey, wrapped: &[u8]) -> Result<Option<MasterKey>, ConfigError> {
        let cipher = self.cipher(key)?;
        let parts = wrapped.split_at_checked(self.nonce_len()).and_then(|(nonce, rest)| {
            let (sealed, tag) = rest.split_last_chunk::<TAG>()?;
            Some((nonce, <&[u8; MASTER]>::try_from(sealed).ok()?, tag))
        });
        let Some((nonce, sealed, tag)) = parts else { return Ok(None) };
        let mut master = MasterKey::zeros();
        let opened = cipher.open(nonce, &NO_PLACE, sealed, tag, master.bytes_mut());
        Ok(opened.is_ok().then_some(master))
    }
}
