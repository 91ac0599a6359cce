//! XChaCha20-Poly1305: ChaCha20-Poly1305 (RFC 8439) under a key that HChaCha20 derives from the key
//! and the first 16 bytes of the nonce (draft-irtf-cfrg-xchacha).
//!
//! ChaCha20-Poly1305 is OpenSSL's, which is three times as fast as RustCrypto's.

use crate::contexts::Contexts;
use crate::gcm;
use crate::gcm::TAG;
use chacha20::{R20, hchacha};
use openssl::cipher::Cipher;
use openssl::cipher_ctx::CipherCtx;
use openssl::error::ErrorStack;
use zeroize::Zeroizing;

/// Size of a nonce in bytes.
pub(crate) const NONCE: usize = 24;

/// The cipher under one key.
pub(crate) struct XChaCha {
    key: Zeroizing<[u8; 32]>,
    contexts: Contexts,
}

impl XChaCha {
    /// Creates the cipher. Fails if OpenSSL does not provide it.
    pub(crate) fn new(key: &[u8; 32]) -> Result<Self, ErrorStack> {
        let cipher = Self { key: Zeroizing::new(*key), contexts: Contexts::new() };
        cipher.contexts.with(context, |_| Ok(()))?;
        Ok(cipher)
    }

    /// Returns the key and the nonce for ChaCha20-Poly1305.
    fn inner(&self, nonce: &[u8; NONCE]) -> (Zeroizing<[u8; 32]>, [u8; 12]) {
        let (mut derive, mut rest) = ([0; 16], [0; 12]);
        let (first, last) = nonce.split_at(16);
        derive.copy_from_slice(first);
        rest[4..].copy_from_slice(last);
        let key = hchacha::<R20>((&*self.key).into(), &derive.into());
        (Zeroizing::new(key.into()), rest)
    }

    /// Encrypts `plain` to `sealed`, which has the same size.
    pub(crate) fn seal(
        &self,
        nonce: &[u8; NONCE],
        associated: &[u8],
        plain: &[u8],
        sealed: &mut [u8],
        tag: &mut [u8; TAG],
    ) -> Result<(), ErrorStack> {
        let (key, nonce) = self.inner(nonce);
        self.contexts.with(context, |context| {
            context.encrypt_init(None, Some(&*key), Some(&nonce))?;
            gcm::seal(context, associated, plain, sealed, tag)
        })
    }

    /// Decrypts `sealed` to `plain`, which has the same size. After an error, the content of
    /// `plain` must not be used.
    pub(crate) fn open(
        &self,
        nonce: &[u8; NONCE],
        associated: &[u8],
        sealed: &[u8],
        tag: &[u8; TAG],
        plain: &mut [u8],
    ) -> Result<(), ErrorStack> {
        let (key, nonce) = self.inner(nonce);
        self.contexts.with(context, |context| {
            context.decrypt_init(None, Some(&*key), Some(&nonce))?;
            gcm::open(context, associated, sealed, tag, plain)
        })
    }
}

fn context() -> Result<CipherCtx, ErrorStack> {
    let mut context = CipherCtx::new()?;
    context.encrypt_init(Some(Cipher::chacha20_poly1305()), None, None)?;
    Ok(context)
}

#[cfg(test)]
mod tests {
    use super::*;
    use data_encoding::HEXLOWER;

    /// draft-irtf-cfrg-xchacha-03, A.3.1.
    #[test]
    fn known_answer() {
        let key: [u8; 32] = core::array::from_fn(|at| 0x80 + at as u8);
        let nonce: [u8; NONCE] = core::array::from_fn(|at| 0x40 + at as u8);
        let associated = HEXLOWER.decode(b"50515253c0c1c2c3c4c5c6c7").unwrap();
        let plain: &[u8] = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the \
                             future, sunscreen would be it.";
        let cipher = XChaCha::new(&key).unwrap();
        let (mut sealed, mut tag) = (vec![0; plain.len()], [0; TAG]);
        cipher.seal(&nonce, &associated, plain, &mut sealed, &mut tag).unwrap();
        assert_eq!(
            HEXLOWER.encode(&sealed),
            "bd6d179d3e83d43b9576579493c0e939572a1700252bfaccbed2902c21396cbb731c7f1b0b4aa6440bf3a82f4eda7e39\
             ae64c6708c54c216cb96b72e1213b4522f8c9ba40db5d945b11b69b982c1bb9e3f3fac2bc369488f76b2383565d3fff9\
             21f9664c97637da9768812f615c68b13b52e"
        );
        assert_eq!(HEXLOWER.encode(&tag), "c0875924c1c7987947deafd8780acf49");
        let mut back = vec![0; plain.len()];
        cipher.open(&nonce, &associated, &sealed, &tag, &mut back).unwrap();
        assert_eq!(back, plain);
        tag[15] ^= 0x80;
        assert!(cipher.open(&nonce, &associated, &sealed, &tag, &mut back).is_err());
    }
}
