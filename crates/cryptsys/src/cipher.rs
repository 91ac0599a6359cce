//! Authenticated ciphers.
//!
//! AWS-LC's AES-256-GCM uses the vector AES instructions of newer processors, and takes nonces of
//! any size; most libraries take 12 bytes only. `examples/cipher_speed.rs` of `cryptformat`
//! compares it with RustCrypto's.

use aws_lc_sys::{
    EVP_AEAD, EVP_AEAD_CTX, EVP_AEAD_CTX_init, EVP_AEAD_CTX_open_gather, EVP_AEAD_CTX_seal_scatter,
    EVP_aead_aes_256_gcm, EVP_aead_xchacha20_poly1305,
};
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr;

/// Size of a key in bytes.
pub const KEY: usize = 32;
/// Size of an authentication tag in bytes.
pub const TAG: usize = 16;

/// What AWS-LC returns on success.
const DONE: i32 = 1;

/// A buffer has the wrong size, or, when a message is opened, it was not sealed with this key,
/// nonce and additional data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AWS-LC refused a key, buffer or message")
    }
}

impl core::error::Error for Failed {}

/// An authenticated cipher under one key, for any number of threads at once.
///
/// The value contains the whole state, so it may be placed in locked memory: nothing else keeps the
/// key. It is overwritten when it is dropped.
pub struct AuthCipher {
    context: EVP_AEAD_CTX,
}

// SAFETY: the context consists of the key's schedule and pointers to constants and functions of
// the library. Nothing in it belongs to a thread.
unsafe impl Send for AuthCipher {}

// SAFETY: sealing and opening take the context as a constant, and include/openssl/aead.h permits
// them on several threads at once.
unsafe impl Sync for AuthCipher {}

impl AuthCipher {
    /// AES-256-GCM (SP 800-38D). Nonces have 1 byte or more; the format of files uses 12 and 16.
    ///
    /// # Errors
    /// AWS-LC refuses the key. It refuses none.
    pub fn aes_256_gcm(key: &[u8; KEY]) -> Result<Self, Failed> {
        // SAFETY: the function only returns the address of a constant.
        Self::new(unsafe { EVP_aead_aes_256_gcm() }, key)
    }

    /// XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha). Nonces have 24 bytes.
    ///
    /// # Errors
    /// AWS-LC refuses the key. It refuses none.
    pub fn xchacha20_poly1305(key: &[u8; KEY]) -> Result<Self, Failed> {
        // SAFETY: the function only returns the address of a constant.
        Self::new(unsafe { EVP_aead_xchacha20_poly1305() }, key)
    }

    /// `kind` is the constant of one of the two ciphers above. Others need not be safe to move.
    fn new(kind: *const EVP_AEAD, key: &[u8; KEY]) -> Result<Self, Failed> {
        // Zeros also give a value to the bytes that the library leaves alone. Otherwise a move
        // would copy what was on the stack there before.
        //
        // SAFETY: zeros are a value of this structure, of pointers and integers; it is what the
        // library's own EVP_AEAD_CTX_zero writes.
        let mut cipher = Self { context: unsafe { MaybeUninit::zeroed().assume_init() } };
        // SAFETY: the context is zeroed, the key has as many bytes as the call is told, and the
        // engine may be null. The state of these two ciphers has no pointer to itself or to the
        // heap, so that it may be moved: EVP_AEAD_CTX_copy copies it byte by byte
        // (aead_ctx_copy_state_trivial in crypto/fipsmodule/cipher/aead.c).
        let done = unsafe { EVP_AEAD_CTX_init(&raw mut cipher.context, kind, key.as_ptr(), KEY, TAG, ptr::null_mut()) };
        if done == DONE { Ok(cipher) } else { Err(Failed) }
    }

    /// Encrypts `plain` to `sealed`, which has the same size, and authenticates it and
    /// `associated`. A nonce must never be used twice under a key.
    ///
    /// # Errors
    /// The nonce or `sealed` has the wrong size.
    pub fn seal(
        &self,
        nonce: &[u8],
        associated: &[u8],
        plain: &[u8],
        sealed: &mut [u8],
        tag: &mut [u8; TAG],
    ) -> Result<(), Failed> {
        if sealed.len() != plain.len() {
            return Err(Failed);
        }
        let mut tag_len = 0;
        // SAFETY: every pointer belongs to a slice, and the call is told its size; `sealed` has as
        // many bytes as `plain`, and `tag` has room for a whole tag. Borrows make sure that no
        // output overlaps an input. The extra input is empty, so it may be null.
        let done = unsafe {
            EVP_AEAD_CTX_seal_scatter(
                &raw const self.context,
                sealed.as_mut_ptr(),
                tag.as_mut_ptr(),
                &raw mut tag_len,
                TAG,
                nonce.as_ptr(),
                nonce.len(),
                plain.as_ptr(),
                plain.len(),
                ptr::null(),
                0,
                associated.as_ptr(),
                associated.len(),
            )
        };
        scrub_stack();
        if done == DONE && tag_len == TAG { Ok(()) } else { Err(Failed) }
    }

    /// Decrypts `sealed` to `plain`, which has the same size. After an error, `plain` consists of
    /// zeros.
    ///
    /// # Errors
    /// The message was not sealed with this key, nonce and `associated`, or a size is wrong.
    pub fn open(
        &self,
        nonce: &[u8],
        associated: &[u8],
        sealed: &[u8],
        tag: &[u8; TAG],
        plain: &mut [u8],
    ) -> Result<(), Failed> {
        if sealed.len() != plain.len() {
            plain.fill(0);
            return Err(Failed);
        }
        // SAFETY: every pointer belongs to a slice, and the call is told its size; `plain` has as
        // many bytes as `sealed`. Borrows make sure that the output overlaps no input.
        let done = unsafe {
            EVP_AEAD_CTX_open_gather(
                &raw const self.context,
                plain.as_mut_ptr(),
                nonce.as_ptr(),
                nonce.len(),
                sealed.as_ptr(),
                sealed.len(),
                tag.as_ptr(),
                TAG,
                associated.as_ptr(),
                associated.len(),
            )
        };
        scrub_stack();
        if done == DONE { Ok(()) } else { Err(Failed) }
    }
}

/// Bytes of the stack that a call of the library uses for keys that it derives, with a margin.
const SCRUBBED: usize = 3072;

/// Overwrites the stack below the caller. The library leaves there the key that XChaCha20-Poly1305
/// derives for a message, and the hash key of GCM, with which messages can be forged.
#[inline(never)]
fn scrub_stack() {
    core::hint::black_box(&mut [0_u8; SCRUBBED]);
}

impl Drop for AuthCipher {
    /// The library's EVP_AEAD_CTX_cleanup is not needed: it frees what other ciphers allocate.
    fn drop(&mut self) {
        // SAFETY: zeros are a value of this structure, see `new`. A volatile write is not left
        // out, although nothing reads it.
        unsafe { ptr::write_volatile(&raw mut self.context, MaybeUninit::zeroed().assume_init()) };
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    }
}

impl fmt::Debug for AuthCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthCipher")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aes_gcm::aead::consts::{U12, U16};
    use aes_gcm::aead::{AeadInOut, KeyInit, Nonce};
    use aes_gcm::{AesGcm, aes::Aes256};
    use chacha20poly1305::XChaCha20Poly1305;
    use data_encoding::HEXLOWER;
    use proptest::prelude::*;

    fn hex(text: &str) -> Vec<u8> {
        HEXLOWER.decode(text.as_bytes()).unwrap()
    }

    /// Checks a vector in both directions, also after a move.
    fn check(cipher: AuthCipher, nonce: &str, associated: &str, plain: &str, sealed: &str, tag: &str) {
        let (nonce, associated, plain) = (hex(nonce), hex(associated), hex(plain));
        let moved = Box::new(std::hint::black_box(cipher));
        let (mut out, mut out_tag) = (vec![0; plain.len()], [0; TAG]);
        moved.seal(&nonce, &associated, &plain, &mut out, &mut out_tag).unwrap();
        assert_eq!((HEXLOWER.encode(&out), HEXLOWER.encode(&out_tag)), (sealed.to_owned(), tag.to_owned()));
        let mut back = vec![0; plain.len()];
        moved.open(&nonce, &associated, &out, &out_tag, &mut back).unwrap();
        assert_eq!(back, plain);
        for bit in 0..8 * TAG {
            let mut forged = out_tag;
            forged[bit / 8] ^= 1 << (bit % 8);
            back.fill(1);
            assert_eq!(moved.open(&nonce, &associated, &out, &forged, &mut back), Err(Failed));
            assert!(back.iter().all(|&byte| byte == 0));
        }
    }

    /// Test cases 14 and 18 of the revised specification of GCM that SP 800-38D refers to.
    #[test]
    fn known_answers_of_gcm() {
        check(
            AuthCipher::aes_256_gcm(&[0; KEY]).unwrap(),
            &"00".repeat(12),
            "",
            &"00".repeat(16),
            "cea7403d4d606b6e074ec5d3baf39d18",
            "d0d1c8a799996bf0265b98b5d48ab919",
        );
        check(
            AuthCipher::aes_256_gcm(&hex(&"feffe9928665731c6d6a8f9467308308".repeat(2)).try_into().unwrap()).unwrap(),
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

    /// draft-irtf-cfrg-xchacha-03, A.3.1.
    #[test]
    fn known_answer_of_xchacha() {
        let key: [u8; KEY] = core::array::from_fn(|at| 0x80 + at as u8);
        let plain: &[u8] = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the \
                             future, sunscreen would be it.";
        check(
            AuthCipher::xchacha20_poly1305(&key).unwrap(),
            "404142434445464748494a4b4c4d4e4f5051525354555657",
            "50515253c0c1c2c3c4c5c6c7",
            &HEXLOWER.encode(plain),
            "bd6d179d3e83d43b9576579493c0e939572a1700252bfaccbed2902c21396cbb731c7f1b0b4aa6440bf3a82f4eda7e39\
             ae64c6708c54c216cb96b72e1213b4522f8c9ba40db5d945b11b69b982c1bb9e3f3fac2bc369488f76b2383565d3fff9\
             21f9664c97637da9768812f615c68b13b52e",
            "c0875924c1c7987947deafd8780acf49",
        );
    }

    #[test]
    fn buffers_of_the_wrong_size_are_refused() {
        let (mut tag, mut small, mut large) = ([0; TAG], [1; 15], [1; 17]);
        for cipher in [AuthCipher::aes_256_gcm(&[1; KEY]).unwrap(), AuthCipher::xchacha20_poly1305(&[1; KEY]).unwrap()]
        {
            let nonce = [1; 24];
            for nonce in [&nonce[..], &[]] {
                assert_eq!(cipher.seal(nonce, &[], &[0; 16], &mut small, &mut tag), Err(Failed));
                assert_eq!(cipher.open(nonce, &[], &[0; 16], &tag, &mut large), Err(Failed));
                assert_eq!(large, [0; 17]);
            }
            assert_eq!(cipher.seal(&[], &[], &[0; 15], &mut small, &mut tag), Err(Failed));
            assert_eq!(cipher.open(&[], &[], &[0; 15], &tag, &mut small), Err(Failed));
        }
        let cipher = AuthCipher::xchacha20_poly1305(&[1; KEY]).unwrap();
        assert_eq!(cipher.seal(&[1; 16], &[], &[0; 15], &mut small, &mut tag), Err(Failed));
        assert_eq!(cipher.open(&[1; 16], &[], &[0; 15], &tag, &mut small), Err(Failed));
    }

    /// Sizes around those at which the library changes from one loop to another.
    fn message() -> impl Strategy<Value = Vec<u8>> {
        (0..5000_usize).prop_flat_map(|size| prop::collection::vec(any::<u8>(), size))
    }

    /// Encrypts with RustCrypto's cipher: returns the message and the tag.
    fn sealed_by<C: AeadInOut + KeyInit>(
        key: &[u8],
        nonce: &[u8],
        associated: &[u8],
        plain: &[u8],
    ) -> (Vec<u8>, Vec<u8>) {
        let mut sealed = plain.to_vec();
        let (cipher, nonce) = (C::new_from_slice(key).unwrap(), Nonce::<C>::try_from(nonce).unwrap());
        let tag = cipher.encrypt_inout_detached(&nonce, associated, sealed.as_mut_slice().into()).unwrap();
        (sealed, tag.to_vec())
    }

    proptest! {
        #[test]
        fn agrees_with_another_implementation(
            key: [u8; KEY],
            nonce: [u8; 24],
            associated in prop::collection::vec(any::<u8>(), 0..40),
            plain in message(),
        ) {
            let (mut sealed, mut tag) = (vec![0; plain.len()], [0; TAG]);
            let gcm = AuthCipher::aes_256_gcm(&key).unwrap();
            gcm.seal(&nonce[..16], &associated, &plain, &mut sealed, &mut tag).unwrap();
            let theirs = sealed_by::<AesGcm<Aes256, U16>>(&key, &nonce[..16], &associated, &plain);
            prop_assert_eq!((&sealed, &tag[..]), (&theirs.0, &theirs.1[..]));
            gcm.seal(&nonce[..12], &associated, &plain, &mut sealed, &mut tag).unwrap();
            let theirs = sealed_by::<AesGcm<Aes256, U12>>(&key, &nonce[..12], &associated, &plain);
            prop_assert_eq!((&sealed, &tag[..]), (&theirs.0, &theirs.1[..]));
            let chacha = AuthCipher::xchacha20_poly1305(&key).unwrap();
            chacha.seal(&nonce, &associated, &plain, &mut sealed, &mut tag).unwrap();
            let theirs = sealed_by::<XChaCha20Poly1305>(&key, &nonce, &associated, &plain);
            prop_assert_eq!((&sealed, &tag[..]), (&theirs.0, &theirs.1[..]));
            let mut back = vec![0; plain.len()];
            chacha.open(&nonce, &associated, &sealed, &tag, &mut back).unwrap();
            prop_assert_eq!(back, plain);
        }
    }
}
