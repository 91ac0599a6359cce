//! The codec for encryption with XChaCha20-Poly1305.

use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{Key, Tag, XChaCha20Poly1305, XNonce};
use container::{BlockAt, BlockCodec};
use core::fmt;
use vnode::{Errno, Result};

/// Size in bytes of the nonce, at the start of a block.
const NONCE: usize = 24;
/// Size in bytes of the tag, at the end of a block.
const TAG: usize = 16;

/// Encrypts and authenticates each block with XChaCha20-Poly1305. The nonce is random; 24 bytes
/// suffice for any number of blocks under one key. The file's id and the block's number are
/// authenticated as well, so a block is valid only at its own place.
pub struct XChaCha {
    cipher: XChaCha20Poly1305,
    block: u32,
}

impl XChaCha {
    /// Creates a codec that uses blocks of `block` bytes in new files (a power of two, 512 to
    /// 1048576). The key must be uniformly random, or derived by a key derivation function. It must
    /// not be a passphrase.
    #[must_use]
    pub fn new(key: &[u8; 32], block: u32) -> Self {
        Self { cipher: XChaCha20Poly1305::new(&Key::from(*key)), block }
    }
}

/// Returns the additional authenticated data.
fn place(at: &BlockAt) -> [u8; 24] {
    let mut place = [0; 24];
    let (file, block) = place.split_at_mut(16);
    file.copy_from_slice(&at.file);
    block.copy_from_slice(&at.block.to_le_bytes());
    place
}

impl BlockCodec for XChaCha {
    fn id(&self) -> [u8; 8] {
        *b"xchacha\0"
    }

    fn block_size(&self) -> u32 {
        self.block
    }

    fn max_encoded(&self, plain: usize) -> usize {
        plain + NONCE + TAG
    }

    fn encode(&self, at: &BlockAt, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).map_err(|_| Errno::IO)?;
        out.extend_from_slice(&nonce);
        let start = out.len();
        out.extend_from_slice(plain);
        let data = out.get_mut(start..).ok_or(Errno::IO)?;
        let tag = self.cipher.encrypt_inout_detached(&XNonce::from(nonce), &place(at), data.into());
        out.extend_from_slice(&tag.map_err(|_| Errno::IO)?);
        Ok(())
    }

    fn decode(&self, at: &BlockAt, encoded: &[u8], out: &mut [u8]) -> Result<()> {
        let (nonce, rest) = encoded.split_first_chunk::<NONCE>().ok_or(Errno::IO)?;
        let (data, tag) = rest.split_last_chunk::<TAG>().ok_or(Errno::IO)?;
        if data.len() != out.len() {
            return Err(Errno::IO);
        }
        out.copy_from_slice(data);
        let (nonce, tag) = (XNonce::from(*nonce), Tag::from(*tag));
        self.cipher.decrypt_inout_detached(&nonce, &place(at), (&mut *out).into(), &tag).map_err(|_| {
            // Never expose unauthenticated data.
            out.fill(0);
            Errno::IO
        })
    }
}

impl fmt::Debug for XChaCha {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "XChaCha(blocks of {})", self.block)
    }
}
