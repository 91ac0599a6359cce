//! Feeds arbitrary bytes as a lower file. The first eight select the operations, and whether the
//! checksums of the rest are corrected.

#![no_main]

#[path = "../../tests/it/common/mod.rs"]
mod common;

use common::Runs;
use common::untrusted::{exercise, fix_checksums};
use container::BlockCodec;
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;

fuzz_target!(|data: &[u8]| {
    let Some((seed, bytes)) = data.split_first_chunk::<8>() else { return };
    let seed = u64::from_le_bytes(*seed);
    let mut bytes = bytes.to_vec();
    if seed & 1 == 0 {
        // Get past the first checks.
        if let Some(head) = bytes.first_chunk_mut::<32>() {
            head[..12].copy_from_slice(b"\x93strata\n\x01\0\0\0");
            head[24..].copy_from_slice(b"runs\0\0\0\0");
        }
        fix_checksums(&mut bytes);
    }
    let codec: Arc<dyn BlockCodec> = Arc::new(Runs(512));
    exercise(&codec, &bytes, seed);
});
