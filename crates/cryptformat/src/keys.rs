//! The keys of a volume: what encrypts and decrypts everything but the configuration.

use crate::eme::Eme;
use crate::error::ConfigError;
use crate::flags::{ContentCipher, Flags, NameFlags};
use crate::gcm::{self, Gcm};
use crate::master::MasterKey;
use crate::siv::Siv;
use crate::weights::Weights;
use crate::xchacha::XChaCha;
use core::fmt;
use hkdf::Hkdf;
use sha2::{Digest as _, Sha256, Sha512};
use zeroize::Zeroizing;

/// Purposes of derived keys, as the format names them.
const GCM_INFO: &[u8] = b"AES-GCM file content encryption";
const SIV_INFO: &[u8] = b"AES-SIV file content encryption";
const XCHACHA_INFO: &[u8] = b"XChaCha20-Poly1305 file content encryption";
const EME_INFO: &[u8] = b"EME filename encryption";
/// Purpose of the key of weights, of this project.
const WEIGHTS_INFO: &[u8] = b"strata weights of blocks";
/// Purpose of the fingerprint, of this project.
const FINGERPRINT: &[u8] = b"strata master key fingerprint";

/// The cipher of content, with its key.
pub(crate) enum Content {
    Gcm(Gcm),
    Siv(Siv),
    XChaCha(XChaCha),
}

/// Every key of a mounted volume, as one value without references: a caller may place it in locked
/// memory. All keys are overwritten when it is dropped.
///
/// One exception: OpenSSL keeps a copy of the content key in each of its contexts, in memory that
/// it allocates, and overwrites it when the context is freed, at the latest when this value is
/// dropped. Only AES-SIV has no such copy. [`Self::key_copies_elsewhere`] tells.
pub struct Keys {
    pub(crate) content: Content,
    pub(crate) eme: Eme,
    names: Option<NameFlags>,
    /// Used on bound volumes only. It always has a value: a move of `None` would copy what was on
    /// the stack there before.
    pub(crate) weights: Weights,
    pub(crate) bound: bool,
    fingerprint: [u8; 8],
}

impl Keys {
    /// Derives the keys of a volume with these flags.
    ///
    /// # Errors
    /// OpenSSL does not provide a cipher, as in a configuration for certified ones only.
    pub fn new(flags: &Flags, master: &MasterKey) -> Result<Self, ConfigError> {
        let eme = if flags.hkdf { derive(master, EME_INFO) } else { Zeroizing::new(*master.as_bytes()) };
        Ok(Self {
            content: content(flags, master).map_err(|error| ConfigError::Library(error.to_string()))?,
            eme: Eme::new(&eme),
            names: flags.names,
            weights: Weights::new(&derive(master, WEIGHTS_INFO)),
            bound: flags.bound,
            fingerprint: *derive(master, FINGERPRINT),
        })
    }

    /// Returns a short, public value that identifies the master key.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 8] {
        self.fingerprint
    }

    /// Returns how names are encrypted, or `None` if they are not.
    #[must_use]
    pub fn names(&self) -> Option<&NameFlags> {
        self.names.as_ref()
    }

    /// Whether names in base64 have no padding. Volumes without encryption of names have encrypted
    /// names of extended attributes, with padding.
    pub(crate) fn raw64(&self) -> bool {
        self.names.is_some_and(|names| names.raw64)
    }

    /// Whether OpenSSL keeps copies of the content key in memory of its own.
    #[must_use]
    pub fn key_copies_elsewhere(&self) -> bool {
        !matches!(self.content, Content::Siv(_))
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", data_encoding::HEXLOWER.encode(&self.fingerprint))
    }
}

fn content(flags: &Flags, master: &MasterKey) -> Result<Content, openssl::error::ErrorStack> {
    Ok(match flags.cipher {
        ContentCipher::AesGcm => Content::Gcm(gcm_of(flags.hkdf, master, gcm::NONCE)?),
        ContentCipher::AesSiv if flags.hkdf => Content::Siv(Siv::new(&derive(master, SIV_INFO))),
        ContentCipher::AesSiv => {
            let mut key = Zeroizing::new([0; 64]);
            key.copy_from_slice(&Sha512::digest(master.as_bytes()));
            Content::Siv(Siv::new(&key))
        }
        ContentCipher::XChaCha => Content::XChaCha(XChaCha::new(&derive(master, XCHACHA_INFO))?),
    })
}

/// Returns AES-GCM for content, or for wrapping a key.
pub(crate) fn gcm_of(hkdf: bool, key: &MasterKey, nonce: usize) -> Result<Gcm, openssl::error::ErrorStack> {
    if hkdf { Gcm::new(&derive(key, GCM_INFO), nonce) } else { Gcm::new(key.as_bytes(), nonce) }
}

/// Derives a key of `N` bytes, at most 8160, with HKDF-SHA256 without salt (RFC 5869).
pub(crate) fn derive<const N: usize>(master: &MasterKey, info: &[u8]) -> Zeroizing<[u8; N]> {
    const { assert!(N <= 255 * 32) };
    let mut key = Zeroizing::new([0; N]);
    let expanded = Hkdf::<Sha256>::new(None, master.as_bytes()).expand(info, &mut *key);
    debug_assert!(expanded.is_ok(), "only longer keys fail");
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 5869, test case 3: without salt. Its key has 22 bytes, so this is a test of the library.
    #[test]
    fn known_answer_of_hkdf() {
        let mut key = [0; 42];
        Hkdf::<Sha256>::new(None, &[0x0b; 22]).expand(b"", &mut key).unwrap();
        assert_eq!(
            data_encoding::HEXLOWER.encode(&key),
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
        );
    }

    #[test]
    fn nothing_secret_is_printed() {
        let master = MasterKey::from_bytes(&[1; 32]);
        let keys = Keys::new(&Flags::default(), &master).unwrap();
        let fingerprint = data_encoding::HEXLOWER.encode(&keys.fingerprint());
        assert_eq!(format!("{keys:?}"), format!("Keys({fingerprint})"));
        assert_ne!(
            keys.fingerprint(),
            Keys::new(&Flags::default(), &MasterKey::from_bytes(&[2; 32])).unwrap().fingerprint()
        );
    }

    #[test]
    fn keys_can_be_shared_by_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Keys>();
    }
}
