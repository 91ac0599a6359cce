//! AES-EME: a cipher whose block is a whole name. Each bit of the result depends on each bit of the
//! name and of the tweak.
//!
//! EME (ECB-Mix-ECB) is by Halevi and Rogaway, "A Parallelizable Enciphering Mode", 2003; IEEE
//! 1619.2 standardises a successor. In the comments, `L` is what the paper calls `L`.

use aes::Aes256;
use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit, consts::U16};
use core::fmt;

/// Size of a block of AES in bytes.
pub(crate) const BLOCK: usize = 16;
/// Largest number of blocks for which EME is secure.
const BLOCKS_MAX: usize = 128;

type Block = Array<u8, U16>;

/// AES-256-EME under one key. The key schedule is overwritten when it is dropped.
pub struct Eme {
    cipher: Aes256,
}

impl Eme {
    /// Creates the cipher.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Self {
        Self { cipher: Aes256::new(key.into()) }
    }

    /// Encrypts `data` in place. Returns false, with `data` unchanged, unless it has 1 to 128
    /// blocks of 16 bytes.
    #[must_use]
    pub fn encrypt(&self, tweak: &[u8; BLOCK], data: &mut [u8]) -> bool {
        let Some(blocks) = whole_blocks(data) else { return false };
        let zeroth = self.offset();
        self.transform(zeroth, tweak, blocks, BlockCipherEncrypt::encrypt_blocks);
        true
    }

    /// Decrypts `data` in place. Returns false, with `data` unchanged, unless it has 1 to 128
    /// blocks of 16 bytes.
    #[must_use]
    pub fn decrypt(&self, tweak: &[u8; BLOCK], data: &mut [u8]) -> bool {
        let Some(blocks) = whole_blocks(data) else { return false };
        let zeroth = self.offset();
        self.transform(zeroth, tweak, blocks, BlockCipherDecrypt::decrypt_blocks);
        true
    }

    /// Returns `L`, the offset of the first block: the encryption of zeros, doubled. Decryption
    /// uses the same.
    fn offset(&self) -> Block {
        let mut block = Block::default();
        self.cipher.encrypt_block(&mut block);
        double(&mut block);
        block
    }

    /// Encrypts or decrypts: `aes` is the direction. The two differ in nothing else.
    fn transform(&self, l: Block, tweak: &[u8; BLOCK], blocks: &mut [Block], aes: impl Fn(&Aes256, &mut [Block])) {
        add_offsets(l, blocks);
        aes(&self.cipher, blocks);

        // Mix: the first block takes the sum of all and the tweak through the cipher. The
        // difference that this makes is spread over the other blocks.
        let tweak = Block::from(*tweak);
        let mut mixed = tweak;
        for block in blocks.iter() {
            add(&mut mixed, block);
        }
        let before = mixed;
        aes(&self.cipher, core::slice::from_mut(&mut mixed));
        let mut spread = before;
        add(&mut spread, &mixed);
        let mut first = mixed;
        add(&mut first, &tweak);
        if let Some((head, rest)) = blocks.split_first_mut() {
            for block in rest {
                double(&mut spread);
                add(block, &spread);
                add(&mut first, block);
            }
            *head = first;
        }

        aes(&self.cipher, blocks);
        add_offsets(l, blocks);
    }
}

impl fmt::Debug for Eme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Eme(..)")
    }
}

fn whole_blocks(data: &mut [u8]) -> Option<&mut [Block]> {
    let (blocks, rest) = Block::slice_as_chunks_mut(data);
    (rest.is_empty() && !blocks.is_empty() && blocks.len() <= BLOCKS_MAX).then_some(blocks)
}

/// Adds `l`, twice `l`, four times `l` and so on to the blocks.
fn add_offsets(mut l: Block, blocks: &mut [Block]) {
    for block in blocks {
        add(block, &l);
        double(&mut l);
    }
}

fn add(to: &mut Block, other: &Block) {
    for (to, other) in to.iter_mut().zip(other) {
        *to ^= other;
    }
}

/// Doubles in GF(2^128), little-endian, modulo x^128 + x^7 + x^2 + x + 1. Takes the same time for
/// each value.
fn double(block: &mut Block) {
    let value = u128::from_le_bytes((*block).into());
    let carry = (value >> 127) * 0x87;
    *block = (value << 1 ^ carry).to_le_bytes().into();
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest as _, Sha256};

    fn hex(bytes: &[u8]) -> String {
        data_encoding::HEXLOWER.encode(bytes)
    }

    #[test]
    fn known_answers_of_one_block() {
        let mut data = [0; 16];
        assert!(Eme::new(&[0; 32]).encrypt(&[0; 16], &mut data));
        assert_eq!(hex(&data), "f1b9ce8ca15a4ba9fb476905434b9fd3");
    }

    #[test]
    fn known_answers_of_32_blocks() {
        // The vectors of EME-32-AES: 512 zeros under a key and a tweak of zeros.
        let mut data = [0; 512];
        assert!(Eme::new(&[0; 32]).encrypt(&[0; 16], &mut data));
        assert_eq!(hex(&data[..16]), "9f2e6c3daecae79e8839b0588ff378cd");
        assert_eq!(hex(&data[496..]), "ac209c2cd3cc577c28eedaafcedd89a6");
        let mut data = [0; 512];
        assert!(Eme::new(&[0; 32]).decrypt(&[0; 16], &mut data));
        assert_eq!(hex(&data[..16]), "080905dee8ebcc89f68bd1af635db3f5");
        assert_eq!(hex(&data[496..]), "3af804a5c9dab3442 0f260e4bd840829".replace(' ', ""));
    }

    #[test]
    fn known_answers_of_the_most_blocks() {
        let mut data = [0; 2048];
        assert!(Eme::new(&[0; 32]).encrypt(&[0; 16], &mut data));
        assert_eq!(hex(&data[..16]), "630500884158a8d41216aaa6351e92ea");
        assert_eq!(hex(&data[2032..]), "2e4eb93771340ed9e323d09e4256b7e5ac"[2..].to_owned());
        let _ = Sha256::digest(data);
    }

    #[test]
    fn only_whole_blocks() {
        let eme = Eme::new(&[1; 32]);
        for length in [0, 1, 15, 17, 2064] {
            let mut data = vec![7; length];
            assert!(!eme.encrypt(&[0; 16], &mut data) && !eme.decrypt(&[0; 16], &mut data));
            assert_eq!(data, vec![7; length]);
        }
    }

    #[test]
    fn every_bit_of_data_and_tweak_matters() {
        let eme = Eme::new(&[1; 32]);
        let encrypt = |tweak: &[u8; 16], data: &[u8; 48]| {
            let mut data = *data;
            assert!(eme.encrypt(tweak, &mut data));
            data
        };
        let base = encrypt(&[0; 16], &[0; 48]);
        let distance = |other: [u8; 48]| base.iter().zip(other).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
        for bit in 0..48 * 8 {
            let mut data = [0; 48];
            data[bit / 8] = 1 << (bit % 8);
            assert!(distance(encrypt(&[0; 16], &data)) > 100);
        }
        for bit in 0..16 * 8 {
            let mut tweak = [0; 16];
            tweak[bit / 8] = 1 << (bit % 8);
            assert!(distance(encrypt(&tweak, &[0; 48])) > 100);
        }
    }
}
