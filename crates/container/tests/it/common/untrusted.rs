//! Untrusted lower files.

use super::{CX, lower, open, random_bytes, random_change};
use container::{BlockCodec, plain_size};
use memfs::MemFs;
use std::sync::Arc;
use testkit::Rng;
use vnode::Whence;

/// Creates a lower file with these bytes.
pub(crate) fn with_bytes(bytes: &[u8]) -> Arc<MemFs> {
    let fs = MemFs::new();
    lower(&fs).1.write(&CX, bytes, 0).unwrap();
    fs
}

/// Runs all operations on a file with these bytes.
pub(crate) fn exercise(codec: &Arc<dyn BlockCodec>, bytes: &[u8], seed: u64) {
    let fs = with_bytes(bytes);
    let _ = plain_size(&CX, &*lower(&fs).1);
    let Ok(file) = open(codec, &fs) else { return };
    let mut random = Rng::new(seed);
    let mut out = vec![0; 100_000];
    for _ in 0..12 {
        let offset = if random.below(2) == 0 { random.below(80_000) } else { random.bits() >> random.below(60) };
        if let Ok(n) = file.read(&CX, &mut out, offset) {
            assert_eq!(n as u64, file.size().saturating_sub(offset).min(out.len() as u64));
        }
        for whence in [Whence::Data, Whence::Hole] {
            if let Ok(found) = file.seek(&CX, offset, whence) {
                assert!(found >= offset && found <= file.size());
            }
        }
        // A successful write must be readable.
        let data = random_bytes(&mut random, 700);
        let offset = random.below(50_000);
        if file.write(&CX, &data, offset) == Ok(data.len()) {
            let mut seen = vec![0; data.len()];
            assert_eq!(file.read(&CX, &mut seen, offset), Ok(data.len()));
            assert!(seen == data);
        }
        let _ = random_change(&mut random, 512, 50_000).apply(&file);
    }
    let _ = file.close(&CX);
}

/// Corrects the checksums of the header and of the first index, as far as there are enough bytes.
pub(crate) fn fix_checksums(bytes: &mut [u8]) {
    let Some(file) = bytes.get(32..48).map(<[u8]>::to_vec) else { return };
    put_checksum(bytes, 0, 64, &[]);
    put_checksum(bytes, 64, 64, &file);
    put_checksum(bytes, 512, 64, &file);
    for slot in 0..96 {
        let at = 1024 + slot * 32;
        if bytes.get(at..at + 28).is_some_and(|slot| slot.iter().any(|&byte| byte != 0)) {
            put_checksum(bytes, at, 32, &[&file[..], &(slot as u64 / 2).to_le_bytes()].concat());
        }
    }
}

/// Sets the last four bytes of a record to the checksum of the others and of `more`.
fn put_checksum(bytes: &mut [u8], at: usize, len: usize, more: &[u8]) {
    if let Some((covered, sum)) = bytes.get_mut(at..at + len).and_then(|record| record.split_last_chunk_mut::<4>()) {
        *sum = crc32c::crc32c_append(crc32c::crc32c(covered), more).to_le_bytes();
    }
}
