//! Blocks and headers: every plain block comes back, and nothing else is accepted.
#![allow(clippy::unwrap_used)]

use cryptformat::{BLOCK_PLAIN, BlockDamage, ContentCipher, Flags, HeaderDamage, Keys, MasterKey, is_hole};
use proptest::prelude::*;

const CIPHERS: [ContentCipher; 3] = [ContentCipher::AesGcm, ContentCipher::AesSiv, ContentCipher::XChaCha];

fn keys(cipher: ContentCipher) -> Keys {
    Keys::new(&Flags { cipher, ..Flags::default() }, &MasterKey::from_bytes(&[9; 32])).unwrap()
}

fn seal(keys: &Keys, id: &[u8; 16], number: u64, plain: &[u8]) -> Vec<u8> {
    let mut stored = vec![0; plain.len() + keys.layout().overhead()];
    keys.seal_block(id, number, plain, &mut stored).unwrap();
    stored
}

fn open(keys: &Keys, id: &[u8; 16], number: u64, stored: &[u8]) -> Result<Vec<u8>, BlockDamage> {
    let mut plain = vec![0xaa; stored.len().saturating_sub(keys.layout().overhead())];
    let opened = keys.open_block(id, number, stored, &mut plain);
    assert!(opened.is_ok() || plain.iter().all(|&byte| byte == 0), "unauthenticated data was returned");
    opened.map(|()| plain)
}

proptest! {
    #[test]
    fn blocks_come_back(
        cipher in 0..3usize,
        id in any::<[u8; 16]>(),
        number in any::<u64>(),
        plain in proptest::collection::vec(any::<u8>(), 1..=BLOCK_PLAIN),
    ) {
        let keys = keys(CIPHERS[cipher]);
        let stored = seal(&keys, &id, number, &plain);
        prop_assert_eq!(open(&keys, &id, number, &stored), Ok(plain.clone()));
        // A second time has another nonce.
        prop_assert_ne!(seal(&keys, &id, number, &plain), stored);
    }

    #[test]
    fn arbitrary_bytes_are_refused(cipher in 0..3usize, stored in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(open(&keys(CIPHERS[cipher]), &[1; 16], 0, &stored).is_err());
    }
}

#[test]
fn every_altered_bit_is_refused() {
    for cipher in CIPHERS {
        let keys = keys(cipher);
        let stored = seal(&keys, &[1; 16], 7, b"some plain bytes");
        for bit in 0..stored.len() * 8 {
            let mut altered = stored.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(&keys, &[1; 16], 7, &altered), Err(BlockDamage::Forged), "{cipher:?} {bit}");
        }
        // The last byte of a whole block is covered too.
        let mut whole = seal(&keys, &[1; 16], 7, &[5; BLOCK_PLAIN]);
        *whole.last_mut().unwrap() ^= 1;
        assert_eq!(open(&keys, &[1; 16], 7, &whole), Err(BlockDamage::Forged));
    }
}

#[test]
fn a_block_is_valid_only_at_its_place() {
    for cipher in CIPHERS {
        let keys = keys(cipher);
        let stored = seal(&keys, &[1; 16], 7, b"some plain bytes");
        assert!(open(&keys, &[1; 16], 8, &stored).is_err());
        assert!(open(&keys, &[2; 16], 7, &stored).is_err());
        let other = Keys::new(&Flags { cipher, ..Flags::default() }, &MasterKey::from_bytes(&[8; 32])).unwrap();
        assert!(open(&other, &[1; 16], 7, &stored).is_err());
        assert!(open(&keys, &[1; 16], 7, &stored[..stored.len() - 1]).is_err());
    }
}

#[test]
fn wrong_sizes_and_zeros_are_refused() {
    for cipher in CIPHERS {
        let keys = keys(cipher);
        let layout = keys.layout();
        assert_eq!(open(&keys, &[1; 16], 0, &[]), Err(BlockDamage::TooShort));
        assert_eq!(open(&keys, &[1; 16], 0, &vec![1; layout.overhead()]), Err(BlockDamage::TooShort));
        assert_eq!(open(&keys, &[1; 16], 0, &vec![1; layout.stored + 1]), Err(BlockDamage::TooLong));
        assert_eq!(open(&keys, &[1; 16], 0, &vec![0; layout.stored]), Err(BlockDamage::ZeroNonce));
        let mut zero_nonce = seal(&keys, &[1; 16], 0, b"x");
        let nonce = layout.overhead() - 16;
        zero_nonce[..nonce].fill(0);
        assert_eq!(open(&keys, &[1; 16], 0, &zero_nonce), Err(BlockDamage::ZeroNonce));
        assert!(is_hole(&layout, &vec![0; layout.stored]));
        assert!(!is_hole(&layout, &vec![0; layout.stored - 1]));
        let stored = seal(&keys, &[1; 16], 0, b"xy");
        for size in [0, 1, 3] {
            assert_eq!(keys.open_block(&[1; 16], 0, &stored, &mut vec![0; size]), Err(BlockDamage::Buffer));
        }
        for (plain, out) in [(0, layout.overhead()), (1, layout.overhead()), (4097, layout.stored + 1)] {
            assert_eq!(
                keys.seal_block(&[1; 16], 0, &vec![1; plain], &mut vec![0; out]),
                Err(BlockDamage::Buffer),
                "{plain} {out}"
            );
        }
    }
}

#[test]
fn headers_are_checked() {
    let keys = keys(ContentCipher::AesGcm);
    let header = keys.new_header().unwrap();
    assert_eq!(keys.check_header(&header).unwrap(), header[2..]);
    assert_ne!(keys.new_header().unwrap(), header);
    assert_eq!(keys.check_header(&[0; 18]), Err(HeaderDamage::Zeros));
    assert_eq!(keys.check_header(&header[..17]), Err(HeaderDamage::Length));
    assert_eq!(keys.check_header(&[&header[..], &[0]].concat()), Err(HeaderDamage::Length));
    let mut zero_id = [0; 18];
    zero_id[1] = 2;
    assert_eq!(keys.check_header(&zero_id), Err(HeaderDamage::ZeroId));
    for bit in 0..18 * 8 {
        let mut altered = header;
        altered[bit / 8] ^= 1 << (bit % 8);
        // An altered id is another file's: its blocks don't open.
        match keys.check_header(&altered) {
            Ok(id) => assert!(
                bit >= 16 && open(&keys, &id, 0, &seal(&keys, &header[2..].try_into().unwrap(), 0, b"x")).is_err()
            ),
            Err(damage) => assert!(bit < 16 && damage == HeaderDamage::Version),
        }
    }
}

#[test]
fn sizes_correspond() {
    for cipher in CIPHERS {
        let layout = keys(cipher).layout();
        for plain in (0..20_000).chain([1 << 40, (1 << 40) + 1, (1 << 62) + 4095]) {
            let stored = layout.stored_size(plain).unwrap();
            assert_eq!(layout.plain_size(stored), plain);
        }
        assert_eq!(layout.stored_size(i64::MAX as u64), None);
        assert_eq!(layout.stored_size(u64::MAX), None);
        // What no writer leaves: incomplete headers and blocks.
        for stored in 0..=layout.header + layout.overhead() {
            assert_eq!(layout.plain_size(stored as u64), 0);
        }
        assert!(layout.plain_size(u64::MAX) > 1 << 63);
    }
}
