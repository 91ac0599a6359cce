//! Sealed headers, of bound volumes: they bind the blocks of a file to each other and to its
//! length. docs/formats/cryptfs.md describes them.

use crate::content::{self, HEADER, ID, SEALED_HEADER, SEALED_VERSION, place};
use crate::error::BlockDamage;
use crate::flags::{ContentCipher, NONCE_MAX};
use crate::keys::Keys;
use cryptsys::TAG;
use zeroize::Zeroizing;

/// Number of sums in a seal.
pub const SEGMENTS: usize = 250;
/// [`Seal::shift`] of a new file: segments of 1 MiB.
pub const SEGMENT_SHIFT: u32 = 8;

/// Largest [`Seal::shift`]: one segment would be larger than a file can be.
const SHIFT_MAX: u32 = 52;
/// The number of no block, which stands for the header in additional authenticated data.
const NUMBER: u64 = u64::MAX;
/// Offset of the sums in the body.
const SUMS: usize = 16;

/// What binds the blocks of a file to each other and to its length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seal {
    /// Plain size of the file in bytes.
    pub size: u64,
    /// Number of blocks in a segment, as a power of two: [`SEGMENT_SHIFT`] or more.
    pub shift: u32,
    /// For each segment, the sum of the [weights](Keys::weigh) of its blocks, modulo 2^128; at most
    /// [`SEGMENTS`]. Missing sums are 0.
    pub sums: Vec<u128>,
}

impl Keys {
    fn body_len(&self) -> usize {
        SEALED_HEADER - HEADER - self.nonce_len() - TAG
    }

    /// Writes the sealed header of the file `id`, [`SEALED_HEADER`] bytes, with a random nonce.
    ///
    /// # Errors
    /// `header` has another size, the seal has too many sums or an impossible shift, or a library
    /// failed. `header` must not be used then.
    pub fn seal_header(&self, id: &[u8; ID], seal: &Seal, header: &mut [u8]) -> Result<(), BlockDamage> {
        if header.len() != SEALED_HEADER || seal.sums.len() > SEGMENTS || !seal.is_possible() {
            return Err(BlockDamage::Buffer);
        }
        let mut body = Zeroizing::new(vec![0; self.body_len()]);
        let sums = seal.sums.iter().flat_map(|sum| sum.to_le_bytes());
        let shift = u8::try_from(seal.shift).map_err(|_| BlockDamage::Buffer)?;
        let fields = seal.size.to_le_bytes().into_iter().chain([shift]).chain([0; SUMS - 9]).chain(sums);
        body.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
        let (start, sealed) = header.split_at_mut(HEADER);
        let (version, name) = start.split_at_mut(SEALED_VERSION.len());
        version.copy_from_slice(&SEALED_VERSION);
        name.copy_from_slice(id);
        self.seal(&place(id, NUMBER), &body, sealed)
    }

    /// Reads the sealed header of the file `id`, which is untrusted.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn open_header(&self, id: &[u8; ID], header: &[u8]) -> Result<Seal, BlockDamage> {
        if header.len() != SEALED_HEADER {
            return Err(BlockDamage::TooShort);
        }
        let mut body = Zeroizing::new(vec![0; self.body_len()]);
        self.open(&place(id, NUMBER), header.get(HEADER..).unwrap_or_default(), &mut body)?;
        parse(&body).ok_or(BlockDamage::Encoding)
    }

    /// Returns the weight of block `number` of the file `id`: a number that nobody can compute
    /// without the key, and that is another one for each version of each block. That of a hole
    /// is 0. `stored` is untrusted, and must decrypt before its content is used.
    ///
    /// On a volume that is not bound, all weights are 0.
    #[must_use]
    pub fn weigh(&self, id: &[u8; ID], number: u64, stored: &[u8]) -> u128 {
        let Some((nonce, rest)) = stored.split_at_checked(self.nonce_len()) else { return 0 };
        let tag = match self.cipher {
            ContentCipher::AesSiv => rest.first_chunk::<TAG>(),
            ContentCipher::AesGcm | ContentCipher::XChaCha => rest.last_chunk::<TAG>(),
        };
        match tag {
            Some(tag) if self.bound && !(content::is_zero(nonce) && content::is_zero(tag)) => {
                self.weights.of(id, number, nonce, tag)
            }
            _ => 0,
        }
    }
}

impl Seal {
    /// Returns the number of segments. `None` if it is impossible for this size and shift.
    fn count(&self) -> Option<usize> {
        i64::try_from(self.size).ok()?;
        (SEGMENT_SHIFT..=SHIFT_MAX).contains(&self.shift).then_some(())?;
        let blocks = self.size.div_ceil(content::BLOCK_PLAIN as u64);
        usize::try_from(blocks.div_ceil(1 << self.shift)).ok().filter(|&count| count <= SEGMENTS)
    }

    /// Whether a file can have this seal: sums behind its end are 0.
    fn is_possible(&self) -> bool {
        self.count().is_some_and(|count| self.sums.iter().skip(count).all(|&sum| sum == 0))
    }
}

/// Parses the decrypted body. Its author had the key; other versions may write other bodies.
fn parse(body: &[u8]) -> Option<Seal> {
    let (size, rest) = body.split_first_chunk()?;
    let (&shift, rest) = rest.split_first()?;
    let (zeros, rest) = rest.split_at_checked(SUMS - 9)?;
    let (sums, padding) = rest.split_at_checked(SEGMENTS * 16)?;
    if !content::is_zero(zeros) || !content::is_zero(padding) {
        return None;
    }
    let (chunks, _) = sums.as_chunks::<16>();
    let sums = chunks.iter().map(|sum| u128::from_le_bytes(*sum)).collect();
    let mut seal = Seal { size: u64::from_le_bytes(*size), shift: shift.into(), sums };
    let count = seal.count().filter(|_| seal.is_possible())?;
    seal.sums.truncate(count);
    Some(seal)
}

// The body has room with every cipher.
const _: () = assert!(SUMS + SEGMENTS * 16 <= SEALED_HEADER - HEADER - NONCE_MAX - TAG);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::check_sealed_header;
    use crate::flags::{ContentCipher, Flags};
    use crate::master::MasterKey;

    const ID_A: &[u8; ID] = b"the id of a file";
    const CIPHERS: [ContentCipher; 3] = [ContentCipher::AesGcm, ContentCipher::AesSiv, ContentCipher::XChaCha];

    fn keys(cipher: ContentCipher) -> Keys {
        let flags = Flags { cipher, key_slots: true, bound: true, ..Flags::default() };
        Keys::new(&flags, &MasterKey::from_bytes(&[7; 32])).unwrap()
    }

    fn seal() -> Seal {
        Seal { size: 3 << 20, shift: 8, sums: vec![u128::MAX, 0, 1 << 100] }
    }

    #[test]
    fn headers_are_opened_and_every_byte_counts() {
        for cipher in CIPHERS {
            let keys = keys(cipher);
            let mut header = vec![0xee; SEALED_HEADER];
            keys.seal_header(ID_A, &seal(), &mut header).unwrap();
            assert_eq!(check_sealed_header(&header), Ok(*ID_A));
            assert_eq!(keys.open_header(ID_A, &header), Ok(seal()));
            for at in 0..header.len() {
                let mut damaged = header.clone();
                damaged[at] ^= 0x10;
                let opened = check_sealed_header(&damaged).ok().and_then(|id| keys.open_header(&id, &damaged).ok());
                assert_eq!(opened, None, "byte {at} of {cipher:?}");
            }
            assert!(keys.open_header(ID_A, &header[1..]).is_err() && keys.open_header(ID_A, &[]).is_err());
        }
    }

    /// What was stored must remain readable.
    #[test]
    fn the_format_is_fixed() {
        let mut body = vec![0; 4046];
        body[..16].copy_from_slice(&[0, 0, 0x30, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
        body[16..32].fill(0xff);
        body[60] = 0x10;
        for cipher in CIPHERS {
            let keys = keys(cipher);
            body.resize(keys.body_len(), 0);
            let mut header = [&SEALED_VERSION[..], ID_A, &vec![0; SEALED_HEADER - HEADER]].concat();
            let nonce = vec![9; keys.nonce_len()];
            keys.seal_with(&nonce, &place(ID_A, u64::MAX), &body, &mut header[HEADER..]).unwrap();
            assert_eq!(keys.open_header(ID_A, &header), Ok(seal()), "{cipher:?}");
        }
        let block: Vec<u8> = (1..=50).collect();
        let weights = CIPHERS.map(|cipher| format!("{:032x}", keys(cipher).weigh(ID_A, 5, &block)));
        // Computed with Python's HMAC and `openssl mac`.
        let known = [
            "629aed360caa17a355b047b48a60c0ef",
            "039cee4a806131b6935049d6b1d0e950",
            "47e3fbe9034e6b2b4f8fb7158e2f7f48",
        ];
        assert_eq!(weights, known);
    }

    #[test]
    fn weights_differ_and_those_of_holes_are_zero() {
        for cipher in CIPHERS {
            let keys = keys(cipher);
            let layout = keys.layout();
            assert_eq!(layout.header, SEALED_HEADER);
            let mut blocks = [vec![0; layout.stored], vec![0; layout.stored]];
            for block in &mut blocks {
                assert_eq!(keys.weigh(ID_A, 5, block), 0);
                keys.seal_block(ID_A, 5, &[1; 4096], block).unwrap();
            }
            let [one, two] = blocks;
            let mut all = vec![keys.weigh(ID_A, 5, &one), keys.weigh(ID_A, 5, &two), keys.weigh(ID_A, 6, &one)];
            all.push(keys.weigh(b"the id of a file", 5, &one));
            all.push(keys.weigh(b"the id of A file", 5, &one));
            assert!(all[0] == all[3] && all[0] != 0);
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), 4);
            assert_eq!(keys.weigh(ID_A, 0, &[1; 3]), 0);
        }
    }

    #[test]
    fn impossible_bodies_are_refused() {
        let body = |edit: fn(&mut [u8])| {
            let mut body = vec![0; 4038];
            body[2] = 0x30;
            body[8] = 8;
            edit(&mut body);
            parse(&body).is_some()
        };
        assert!(body(|_| {}) && body(|body| body[60] = 1));
        assert!(!body(|body| body[8] = 7) && !body(|body| body[8] = 53) && !body(|body| body[9] = 1));
        assert!(!body(|body| body[64] = 1), "a sum beyond the end");
        assert!(!body(|body| body[4030] = 1) && !body(|body| body[7] = 0x80) && !body(|body| body[5] = 1));
        assert!(body(|body| (body[5], body[8]) = (1, 24)), "a large file has larger segments");
        let keys = keys(ContentCipher::AesGcm);
        for seal in [
            Seal { shift: 7, ..seal() },
            Seal { shift: 53, ..seal() },
            Seal { sums: vec![1; 251], ..seal() },
            Seal { sums: vec![1; 4], ..seal() },
            Seal { size: 1 << 40, ..seal() },
            Seal { size: u64::MAX, ..seal() },
        ] {
            assert_eq!(keys.seal_header(ID_A, &seal, &mut [0; SEALED_HEADER]), Err(BlockDamage::Buffer));
        }
        assert_eq!(keys.seal_header(ID_A, &seal(), &mut [0; 4095]), Err(BlockDamage::Buffer));
    }
}
