//! XChaCha20-Poly1305: ChaCha20-Poly1305 (RFC 8439) under a key that HChaCha20 derives from the key
//! and the first 16 bytes of the nonce (draft-irtf-cfrg-xchacha).
//!
//! ChaCha20-Poly1305 is OpenSSL's, which is three times as fast as RustCrypto's.

use crate::content::TAG;
use crate::contexts::Contexts;
use crate::gcm;
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
        let key = hchacha::<R20>(&(*self.key).into(), &derive.into());
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
