//! Feeds arbitrary bytes as a version file of each format, and as an index. The first byte selects
//! the format, and whether the checksums of the rest are corrected.

#![no_main]

#[path = "../../tests/it/common/mod.rs"]
mod common;

use common::untrusted::{FORMATS, correct, exercise, exercise_index};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((choice, bytes)) = data.split_first() else { return };
    let mut bytes = bytes.to_vec();
    let Some((letter, magic)) = FORMATS.get(usize::from(choice >> 1)) else {
        exercise_index(&bytes);
        return;
    };
    if choice & 1 == 0 {
        correct(magic, &mut bytes);
    }
    exercise(*letter, &bytes, &[1, 4096, 9_999, u64::MAX]);
});
