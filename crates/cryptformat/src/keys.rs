//! The keys of a volume: what encrypts and decrypts everything but the configuration.

use crate::eme::Eme;
use crate::error::ConfigError;
use crate::flags::{ContentCipher, Flags, NameFlags};
use crate::master::MasterKey;
use crate::siv::Siv;
use crate::weights::Weights;
use core::fmt;
use cryptsys::{AuthCipher, Failed};
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

/// Every key of a mounted volume, as one value without references: a caller may place it in locked
/// memory. All keys are overwritten when it is dropped.
///
/// A volume does not use all of them. Still all have a value: a move of `None` would copy what was
/// on the stack there before.
pub struct Keys {
    pub(crate) cipher: ContentCipher,
    /// AES-GCM or XChaCha20-Poly1305.
    pub(crate) auth: AuthCipher,
    pub(crate) siv: Siv,
    pub(crate) eme: Eme,
    names: Option<NameFlags>,
    /// For bound volumes.
    pub(crate) weights: Weights,
    pub(crate) bound: bool,
    fingerprint: [u8; 8],
}

impl Keys {
    /// Derives the keys of a volume with these flags.
    ///
    /// # Errors
    /// The cryptographic library refuses a key. It refuses none.
    pub fn new(flags: &Flags, master: &MasterKey) -> Result<Self, ConfigError> {
        let eme = if flags.hkdf { derive(master, EME_INFO) } else { Zeroizing::new(*master.as_bytes()) };
        Ok(Self {
            cipher: flags.cipher,
            auth: match flags.cipher {
                ContentCipher::AesGcm | ContentCipher::AesSiv => gcm_of(flags.hkdf, master)?,
                ContentCipher::XChaCha => AuthCipher::xchacha20_poly1305(&derive(master, XCHACHA_INFO))?,
            },
            siv: siv_of(flags.hkdf, master),
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
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", data_encoding::HEXLOWER.encode(&self.fingerprint))
    }
}

fn siv_of(hkdf: bool, master: &MasterKey) -> Siv {
    if hkdf {
        return Siv::new(&derive(master, SIV_INFO));
    }
    let mut key = Zeroizing::new([0; 64]);
    key.copy_from_slice(&Sha512::digest(master.as_bytes()));
    Siv::new(&key)
}

/// Returns AES-GCM for content, or for wrapping a key.
pub(crate) fn gcm_of(hkdf: bool, key: &MasterKey) -> Result<AuthCipher, Failed> {
    if hkdf { AuthCipher::aes_256_gcm(&derive(key, GCM_INFO)) } else { AuthCipher::aes_256_gcm(key.as_bytes()) }
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
