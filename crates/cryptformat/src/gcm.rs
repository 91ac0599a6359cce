//! AES-256-GCM with nonces of 12 or 16 bytes.
//!
//! OpenSSL's is 1.6 times as fast as the one of RustCrypto for blocks of 4 KiB (version 3.0;
//! `examples/throughput.rs` measures both), and most other libraries take 12-byte nonces only.

use crate::contexts::Contexts;
use openssl::cipher::Cipher;
use openssl::cipher_ctx::CipherCtx;
use openssl::error::ErrorStack;
use zeroize::Zeroizing;

/// Size of an authentication tag in bytes, in all ciphers of content.
pub(crate) const TAG: usize = 16;

/// Size of a nonce in bytes. Only the wrapped master key of volumes without HKDF has one of 12
/// bytes.
pub(crate) const NONCE: usize = 16;

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

#[cfg(test)]
mod tests {
    use super::*;
    use data_encoding::HEXLOWER;

    fn hex(text: &str) -> Vec<u8> {
        HEXLOWER.decode(text.as_bytes()).unwrap()
    }

    /// Checks a vector in both directions, three times in a context that was used before.
    fn check(key: &str, nonce: &str, associated: &str, plain: &str, sealed: &str, tag: &str) {
        let (nonce, associated, plain) = (hex(nonce), hex(associated), hex(plain));
        let gcm = Gcm::new(&hex(key).try_into().unwrap(), nonce.len()).unwrap();
        for _ in 0..3 {
            let (mut out, mut out_tag) = (vec![0; plain.len()], [0; TAG]);
            gcm.seal(&nonce, &associated, &plain, &mut out, &mut out_tag).unwrap();
            assert_eq!((HEXLOWER.encode(&out), HEXLOWER.encode(&out_tag)), (sealed.to_owned(), tag.to_owned()));
            let mut back = vec![0; plain.len()];
            gcm.open(&nonce, &associated, &out, &out_tag, &mut back).unwrap();
            assert_eq!(back, plain);
            out_tag[0] ^= 1;
            assert!(gcm.open(&nonce, &associated, &out, &out_tag, &mut back).is_err());
        }
    }

    /// Test cases 14 and 18 of the revised specification of GCM that SP 800-38D refers to.
    #[test]
    fn known_answers() {
        check(
            &"00".repeat(32),
            &"00".repeat(12),
            "",
            &"00".repeat(16),
            "cea7403d4d606b6e074ec5d3baf39d18",
            "d0d1c8a799996bf0265b98b5d48ab919",
        );
        check(
            &"feffe9928665731c6d6a8f9467308308".repeat(2),
            "9313225df88406e555909c5aff5269aa6a7a9538534f7da1e4c303d2a318a728\
             c3c0c95156809539fcf0e2429a6b525416aedbf5a0de6a57a637b39b",
            "feedfacedeadbeeffeedfacedeadbeefabaddad2",
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
             1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
            "5a8def2f0c9e53f1f75d7853659e2a20eeb2b22aafde6419a058ab4f6f746bf4\
             0fc0c3b780f244452da3ebf1c5d82cdea2418997200ef82e44ae7e3f",
            "a44a8266ee1c8eb0c8b5d4cf5ae9f19a",
        );
    }
}
