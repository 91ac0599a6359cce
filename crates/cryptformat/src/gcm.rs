//! AES-256-GCM with nonces of 12 or 16 bytes.
//!
//! OpenSSL's is 1.6 times as fast as the one of RustCrypto for blocks of 4 KiB (version 3.0;
//! `examples/throughput.rs` measures both), and most other libraries take 12-byte nonces only.

use crate::content::TAG;
use crate::contexts::Contexts;
use openssl::cipher::Cipher;
use openssl::cipher_ctx::CipherCtx;
use openssl::error::ErrorStack;
use zeroize::Zeroizing;

/// The cipher under one key.
pub(crate) struct Gcm {
    /// For contexts that are created later.
    key: Zeroizing<[u8; 32]>,
    nonce: usize,
    contexts: Contexts,
}

impl Gcm {
    /// Creates the cipher for nonces of `nonce` bytes. Fails if OpenSSL does not provide it.
    pub(crate) fn new(key: &[u8; 32], nonce: usize) -> Result<Self, ErrorStack> {
        let gcm = Self { key: Zeroizing::new(*key), nonce, contexts: Contexts::new() };
        gcm.contexts.with(|| gcm.context(), |_| Ok(()))?;
        Ok(gcm)
    }

    fn context(&self) -> Result<CipherCtx, ErrorStack> {
        let mut context = CipherCtx::new()?;
        context.encrypt_init(Some(Cipher::aes_256_gcm()), None, None)?;
        context.set_iv_length(self.nonce)?;
        context.encrypt_init(None, Some(&*self.key), None)?;
        Ok(context)
    }

    /// Encrypts `plain` to `sealed`, which has the same size. `nonce` has the size given to
    /// [`Self::new`].
    pub(crate) fn seal(
        &self,
        nonce: &[u8],
        associated: &[u8],
        plain: &[u8],
        sealed: &mut [u8],
        tag: &mut [u8; TAG],
    ) -> Result<(), ErrorStack> {
        self.contexts.with(
            || self.context(),
            |context| {
                context.encrypt_init(None, None, Some(nonce))?;
                seal(context, associated, plain, sealed, tag)
            },
        )
    }

    /// Decrypts `sealed` to `plain`, which has the same size. After an error, the content of
    /// `plain` must not be used.
    pub(crate) fn open(
        &self,
        nonce: &[u8],
        associated: &[u8],
        sealed: &[u8],
        tag: &[u8; TAG],
        plain: &mut [u8],
    ) -> Result<(), ErrorStack> {
        self.contexts.with(
            || self.context(),
            |context| {
                context.decrypt_init(None, None, Some(nonce))?;
                open(context, associated, sealed, tag, plain)
            },
        )
    }
}

/// Encrypts with a context that has its key and nonce.
pub(crate) fn seal(
    context: &mut CipherCtx,
    associated: &[u8],
    plain: &[u8],
    sealed: &mut [u8],
    tag: &mut [u8; TAG],
) -> Result<(), ErrorStack> {
    context.cipher_update(associated, None)?;
    context.cipher_update(plain, Some(sealed))?;
    // Nothing is left to be written: these are stream ciphers.
    context.cipher_final(&mut [])?;
    context.tag(tag)
}

/// Decrypts with a context that has its key and nonce.
pub(crate) fn open(
    context: &mut CipherCtx,
    associated: &[u8],
    sealed: &[u8],
    tag: &[u8; TAG],
    plain: &mut [u8],
) -> Result<(), ErrorStack> {
    context.cipher_update(associated, None)?;
    context.cipher_update(sealed, Some(plain))?;
    context.set_tag(tag)?;
    context.cipher_final(&mut [])?;
    Ok(())
}
