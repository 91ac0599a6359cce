//! AES-SIV (RFC 5297) with 512-bit keys. Its associated data is a vector: the place of a block, and
//! the nonce.

use crate::flags::ContentCipher;
use aes_siv::KeyInit;
use aes_siv::siv::Aes256Siv;
use cryptsys::TAG;
use zeroize::Zeroizing;

/// Size of a nonce in bytes.
const NONCE: usize = ContentCipher::AesSiv.nonce_len();

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
        let mut cipher = Aes256Siv::new((&*self.key).into());
        cipher.encrypt_inout_detached([associated, nonce], data.into()).ok().map(Into::into)
    }

    /// Decrypts `data` in place. Returns false if it is not authentic; its content must not be used
    /// then.
    pub(crate) fn open(&self, nonce: &[u8; NONCE], associated: &[u8], vector: &[u8; TAG], data: &mut [u8]) -> bool {
        let mut cipher = Aes256Siv::new((&*self.key).into());
        cipher.decrypt_inout_detached([associated, nonce], data.into(), &(*vector).into()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aes_siv::siv::Aes128Siv;
    use data_encoding::HEXLOWER;

    fn hex(text: &str) -> Vec<u8> {
        HEXLOWER.decode(text.as_bytes()).unwrap()
    }

    /// RFC 5297, A.2. It has keys of 256 bits, so this is a test of the library.
    #[test]
    fn known_answer_of_the_rfc() {
        let key: [u8; 32] = hex("7f7e7d7c7b7a79787776757473727170404142434445464748494a4b4c4d4e4f").try_into().unwrap();
        let headers = [
            hex("00112233445566778899aabbccddeeffdeaddadadeaddadaffeeddccbbaa99887766554433221100"),
            hex("102030405060708090a0"),
            hex("09f911029d74e35bd84156c5635688c0"),
        ];
        let mut data = b"this is some plaintext to encrypt using SIV-AES".to_vec();
        let vector = Aes128Siv::new(&key.into()).encrypt_inout_detached(&headers, data.as_mut_slice().into()).unwrap();
        assert_eq!(HEXLOWER.encode(&vector), "7bdb6e3b432667eb06f4d14bff2fbd0f");
        assert_eq!(
            HEXLOWER.encode(&data),
            "cb900f2fddbe404326601965c889bf17dba77ceb094fa663b7a3f748ba8af829ea64ad544a272e9c485b62a3fd5c0d"
        );
    }

    #[test]
    fn every_input_is_authenticated() {
        let siv = Siv::new(&[7; 64]);
        let mut sealed = *b"twelve bytes";
        let vector = siv.seal(&[1; NONCE], b"place", &mut sealed).unwrap();
        let open = |nonce, place: &[u8], vector, data| {
            let mut data: [u8; 12] = data;
            siv.open(nonce, place, vector, &mut data).then_some(data)
        };
        assert_eq!(open(&[1; NONCE], b"place", &vector, sealed), Some(*b"twelve bytes"));
        assert_eq!(open(&[2; NONCE], b"place", &vector, sealed), None);
        assert_eq!(open(&[1; NONCE], b"Place", &vector, sealed), None);
        assert_eq!(open(&[1; NONCE], b"place", &[0; TAG], sealed), None);
        assert_eq!(open(&[1; NONCE], b"place", &vector, *b"other  bytes"), None);
    }
}
