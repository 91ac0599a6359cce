//! Sealed headers: every seal comes back, and an authentic header with another body does no harm.
#![allow(clippy::unwrap_used)]

use cryptformat::{BLOCK_PLAIN, BlockDamage, ContentCipher, Flags, Keys, MasterKey, SEALED_HEADER, SEGMENTS, Seal};
use proptest::prelude::*;

const CIPHERS: [ContentCipher; 3] = [ContentCipher::AesGcm, ContentCipher::AesSiv, ContentCipher::XChaCha];
const ID: &[u8; 16] = b"the id of a file";
/// Where the encryption of the body begins.
const BODY: usize = 18;

fn keys(cipher: usize) -> Keys {
    let flags = Flags { cipher: CIPHERS[cipher], key_slots: true, bound: true, ..Flags::default() };
    Keys::new(&flags, &MasterKey::from_bytes(&[9; 32])).unwrap()
}

/// An authentic header with a body of the first bytes of `body`, which zeros follow.
fn header(keys: &Keys, body: &[u8]) -> Vec<u8> {
    let mut header = [&[0, 3][..], ID, &[0; SEALED_HEADER - BODY]].concat();
    let mut plain = body.to_vec();
    plain.resize(SEALED_HEADER - BODY - keys.layout().overhead(), 0);
    keys.seal_block(ID, u64::MAX, &plain, &mut header[BODY..]).unwrap();
    header
}

/// Number of segments of a file.
fn segments(size: u64, shift: u32) -> usize {
    usize::try_from(size.div_ceil(BLOCK_PLAIN as u64).div_ceil(1 << shift)).unwrap()
}

/// Seals of files of each size, with fewer sums than segments, or as many.
fn seals() -> impl Strategy<Value = Seal> {
    let shift = prop_oneof![Just(8), 8..=52u32];
    shift.prop_flat_map(|shift| {
        // A segment of 2^52 blocks has more bytes than fit in an integer.
        let segment = (BLOCK_PLAIN as u64).saturating_mul(1 << shift);
        let largest = (SEGMENTS as u64).saturating_mul(segment).min(i64::MAX as u64);
        let size = prop_oneof![0..=largest, 0..=largest.min(segment.saturating_mul(4)), Just(largest)];
        size.prop_flat_map(move |size| {
            let count = segments(size, shift);
            proptest::collection::vec(any::<u128>(), 0..=count).prop_map(move |sums| Seal { size, shift, sums })
        })
    })
}

proptest! {
    #[test]
    fn seals_come_back(cipher in 0..3usize, seal in seals()) {
        let keys = keys(cipher);
        let mut header = vec![0; SEALED_HEADER];
        keys.seal_header(ID, &seal, &mut header).unwrap();
        let opened = keys.open_header(ID, &header).unwrap();
        let count = segments(seal.size, seal.shift);
        prop_assert_eq!(opened.sums.len(), count);
        let mut expected = seal;
        expected.sums.resize(count, 0);
        prop_assert_eq!(opened, expected);
        prop_assert_eq!(keys.open_header(b"the id of b file", &header), Err(BlockDamage::Forged));
    }

    /// Most bodies are impossible. Those that are not have one meaning.
    #[test]
    fn authentic_bodies_do_no_harm(
        cipher in 0..3usize,
        size in prop_oneof![any::<u64>(), 0..=1u64 << 28],
        shift in prop_oneof![Just(8), any::<u8>()],
        rest in prop_oneof![Just(Vec::new()), proptest::collection::vec(any::<u8>(), 0..100)],
    ) {
        let keys = keys(cipher);
        let body = [&size.to_le_bytes()[..], &[shift], &[0; 7], &rest].concat();
        if let Ok(seal) = keys.open_header(ID, &header(&keys, &body)) {
            prop_assert_eq!((seal.size, seal.shift), (size, u32::from(shift)));
            let mut again = vec![0; SEALED_HEADER];
            keys.seal_header(ID, &seal, &mut again).unwrap();
            prop_assert_eq!(keys.open_header(ID, &again), Ok(seal));
        }
    }

    #[test]
    fn arbitrary_headers_are_refused(cipher in 0..3usize, bytes in proptest::collection::vec(any::<u8>(), SEALED_HEADER)) {
        prop_assert_eq!(keys(cipher).open_header(ID, &bytes), Err(BlockDamage::Forged));
    }
}
