//! Untrusted lower files: no panic, bounded memory and time, and every success is consistent.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::untrusted::{exercise, fix_checksums, with_bytes};
use crate::common::{CX, Growing, Runs, lower, open, random_bytes, random_change};
use container::BlockCodec;
use memfs::MemFs;
use proptest::prelude::*;
use std::sync::Arc;
use testkit::Rng;
use vnode::Errno;

/// Creates a file of two groups with most kinds of entries.
fn sample(codec: &Arc<dyn BlockCodec>) -> (Arc<MemFs>, Vec<u8>) {
    let fs = MemFs::new();
    let file = open(codec, &fs).unwrap();
    let mut random = Rng::new(1);
    for change in (0..40).map(|_| random_change(&mut random, 512, 40_000)) {
        change.apply(&file).unwrap();
    }
    file.write(&CX, &vec![3; 30_000], 100).unwrap();
    file.write(&CX, &random_bytes(&mut random, 3000), 10_000).unwrap();
    let (vnode, file) = lower(&fs);
    let mut bytes = vec![0; vnode.getattr(&CX).unwrap().size as usize];
    file.read(&CX, &mut bytes, 0).unwrap();
    (fs, bytes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files(
        which: bool,
        seed: u64,
        edits in proptest::collection::vec((0usize..6000, any::<u8>(), 1usize..9), 1..12),
        cut in proptest::option::of(0usize..60_000),
    ) {
        let codec: Arc<dyn BlockCodec> = if which { Arc::new(Growing(512)) } else { Arc::new(Runs(512)) };
        let (_, mut bytes) = sample(&codec);
        for (at, value, len) in edits {
            // Mostly the header and the first index.
            let end = (at + len).min(bytes.len());
            bytes[at.min(end)..end].fill(value);
        }
        bytes.truncate(cut.unwrap_or(usize::MAX));
        exercise(&codec, &bytes, seed);
    }

    #[test]
    fn invalid_numbers_with_valid_checksums(
        seed: u64,
        edits in proptest::collection::vec((0usize..48, 0usize..2, 0usize..6, any::<u64>(), 0u32..64), 1..20),
        size in proptest::option::of(any::<u64>()),
    ) {
        let codec: Arc<dyn BlockCodec> = Arc::new(Runs(512));
        let (_, mut bytes) = sample(&codec);
        for (entry, slot, field, value, shift) in edits {
            let at = 1024 + entry * 64 + slot * 32;
            let value = value >> shift;
            match field {
                0 => bytes[at..at + 8].copy_from_slice(&value.to_le_bytes()),
                n => bytes[at + 4 + 4 * n..at + 8 + 4 * n].copy_from_slice(&(value as u32).to_le_bytes()),
            }
        }
        if let Some(size) = size {
            for at in [64, 512] {
                bytes[at + 8..at + 16].copy_from_slice(&(size >> 3).to_le_bytes());
            }
        }
        fix_checksums(&mut bytes);
        exercise(&codec, &bytes, seed);
    }

    #[test]
    fn any_bytes(seed: u64, bytes in proptest::collection::vec(any::<u8>(), 0..6000)) {
        exercise(&(Arc::new(Runs(512)) as Arc<dyn BlockCodec>), &bytes, seed);
    }
}

/// Damaged stored data is never returned as data.
#[test]
fn a_damaged_byte_is_an_error() {
    let codec: Arc<dyn BlockCodec> = Arc::new(Growing(512));
    let fs = MemFs::new();
    let file = open(&codec, &fs).unwrap();
    let data: Vec<u8> = (0..5000).map(|i| (i % 251) as u8 + 1).collect();
    file.write(&CX, &data, 0).unwrap();
    file.sync(&CX, false).unwrap();
    file.close(&CX).unwrap();
    let (vnode, lower_file) = lower(&fs);
    let mut bytes = vec![0; vnode.getattr(&CX).unwrap().size as usize];
    lower_file.read(&CX, &mut bytes, 0).unwrap();
    let mut errors = 0;
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 0x20;
        let mut out = vec![0; 6000];
        let answer = open(&codec, &with_bytes(&bad)).and_then(|file| {
            let n = file.read(&CX, &mut out, 0)?;
            // If the newer state record is damaged, the older one may have a smaller size.
            assert_eq!(n, data.len());
            Ok(n)
        });
        match answer {
            Ok(_) => assert!(out[..5000] == data, "byte {at}"),
            Err(errno) => {
                assert!(errno == Errno::IO || (errno == Errno::MEDIUMTYPE && at < 8), "byte {at}: {errno:?}");
                errors += 1;
            }
        }
    }
    assert!(errors > 5000, "{errors}");
}
