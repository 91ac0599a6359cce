//! Tests both codecs in containers: random changes compared with a copy in memory, and manipulated
//! stored bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../container/tests/it/common/mod.rs"]
mod common;

use blockcodecs::{XChaCha, Zstd};
use common::{CX, contents, lower, open, random_change};
use container::{BlockAt, BlockCodec};
use memfs::MemFs;
use std::sync::Arc;
use testkit::Rng;
use vnode::Errno;

const KEY: [u8; 32] = [0x5c; 32];

fn codecs(block: u32) -> [Arc<dyn BlockCodec>; 4] {
    [
        Arc::new(Zstd::new(1, block).unwrap()),
        Arc::new(Zstd::new(-5, block).unwrap()),
        Arc::new(Zstd::new(9, block).unwrap()),
        Arc::new(XChaCha::new(&KEY, block)),
    ]
}

#[test]
fn random_changes() {
    for bits in [9, 12, 16, 20] {
        for codec in codecs(1 << bits) {
            let fs = MemFs::new();
            let mut file = open(&codec, &fs).unwrap();
            let (mut bytes, mut random) = (Vec::new(), Rng::new(bits));
            for step in 0..24 {
                let change = random_change(&mut random, 1 << bits, 1 << 21);
                change.apply(&file).unwrap();
                change.apply_to(&mut bytes);
                if step % 8 == 7 {
                    file = open(&codec, &fs).unwrap();
                    assert!(contents(&file).unwrap() == bytes, "{codec:?}, step {step}");
                }
            }
        }
    }
}

#[test]
fn every_length_is_encoded_and_decoded() {
    let mut random = Rng::new(4);
    let at = BlockAt { file: [1; 16], block: 9 };
    for codec in codecs(4096) {
        for len in (1..200).chain([4095, 4096, 65536, 1 << 20]) {
            for plain in [vec![7; len], (0..len).map(|_| random.bits() as u8 | 1).collect()] {
                let mut encoded = vec![0xee; 3];
                codec.encode(&at, &plain, &mut encoded).unwrap();
                assert_eq!(encoded[..3], [0xee; 3]);
                let encoded = &encoded[3..];
                assert!(encoded.len() <= codec.max_encoded(len), "{} of {len}", encoded.len());
                let mut out = vec![0; len];
                codec.decode(&at, encoded, &mut out).unwrap();
                assert!(out == plain);
                // A wrong length is refused.
                assert_eq!(codec.decode(&at, encoded, &mut vec![0; len + 1]), Err(Errno::IO));
                assert_eq!(codec.decode(&at, encoded, &mut vec![0; len - 1]), Err(Errno::IO));
                assert_eq!(codec.decode(&at, &encoded[..encoded.len() - 1], &mut out), Err(Errno::IO));
            }
        }
        for len in [0, 1, 5, 39, 40, 100] {
            let bytes: Vec<u8> = (0..len).map(|_| random.bits() as u8).collect();
            let mut out = vec![0; 64];
            if let Ok(()) = codec.decode(&at, &bytes, &mut out) {
                panic!("{codec:?} accepts noise");
            }
        }
    }
}

#[test]
fn compressed_files_are_smaller() {
    let text = b"All work and no play makes Jack a dull boy. ".repeat(50_000);
    let fs = MemFs::new();
    let codec: Arc<dyn BlockCodec> = Arc::new(Zstd::new(3, 1 << 17).unwrap());
    open(&codec, &fs).unwrap().write(&CX, &text, 0).unwrap();
    let stored = lower(&fs).0.getattr(&CX).unwrap().blocks * 512;
    assert!(stored < text.len() as u64 / 50, "{stored}");
}

#[test]
fn unsupported_levels_are_refused() {
    assert_eq!(Zstd::new(23, 4096).map(|_| ()), Err(Errno::INVAL));
    assert_eq!(Zstd::new(i32::MIN, 4096).map(|_| ()), Err(Errno::INVAL));
}

/// An encrypted block is valid only unmodified, at its own place, and with its own key.
#[test]
fn blocks_are_bound_to_place_and_key() {
    let codec = XChaCha::new(&KEY, 4096);
    let at = BlockAt { file: [1; 16], block: 9 };
    let (mut a, mut b) = (Vec::new(), Vec::new());
    codec.encode(&at, b"attack at dawn", &mut a).unwrap();
    codec.encode(&at, b"attack at dawn", &mut b).unwrap();
    assert!(a[..24] != b[..24] && a[24..] != b[24..], "a nonce was reused");
    let mut out = [0; 14];
    let elsewhere = [BlockAt { block: 8, ..at }, BlockAt { file: [2; 16], ..at }];
    for place in elsewhere {
        assert_eq!(codec.decode(&place, &a, &mut out), Err(Errno::IO));
    }
    assert_eq!(XChaCha::new(&[1; 32], 4096).decode(&at, &a, &mut out), Err(Errno::IO));
    for bit in 0..a.len() * 8 {
        let mut bad = a.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!((codec.decode(&at, &bad, &mut out), out), (Err(Errno::IO), [0; 14]));
    }
    assert_eq!((codec.decode(&at, &a, &mut out), &out), (Ok(()), b"attack at dawn"));
}

/// Blocks of one file are moved into another, together with the index.
#[test]
fn blocks_of_another_file_are_refused() {
    let codec: Arc<dyn BlockCodec> = Arc::new(XChaCha::new(&KEY, 512));
    let bytes = |text: &[u8]| {
        let fs = MemFs::new();
        open(&codec, &fs).unwrap().write(&CX, text, 0).unwrap();
        let (vnode, file) = lower(&fs);
        let mut bytes = vec![0; vnode.getattr(&CX).unwrap().size as usize];
        file.read(&CX, &mut bytes, 0).unwrap();
        bytes
    };
    let (a, b) = (bytes(b"one hundred"), bytes(b"two hundred"));
    // The data and index of one file, under the header of the other.
    let mut mixed = a.clone();
    mixed[1024..].copy_from_slice(&b[1024..]);
    let fs = MemFs::new();
    lower(&fs).1.write(&CX, &mixed, 0).unwrap();
    assert_eq!(contents(&open(&codec, &fs).unwrap()), Err(Errno::IO));
    // Another key can't decrypt it.
    let fs = MemFs::new();
    lower(&fs).1.write(&CX, &a, 0).unwrap();
    let other: Arc<dyn BlockCodec> = Arc::new(XChaCha::new(&[9; 32], 512));
    assert_eq!(contents(&open(&other, &fs).unwrap()), Err(Errno::IO));
    assert_eq!(contents(&open(&codec, &fs).unwrap()), Ok(b"one hundred".to_vec()));
}
