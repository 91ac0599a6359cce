//! Feeds arbitrary bytes as a pack, or as the index file of one. The first byte selects which, and
//! whether checksums are corrected.

#![no_main]

#[path = "../../tests/it/common/mod.rs"]
mod common;

use common::untrusted::{add_file, exercise, fix_checksums, with_pack};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&choice, bytes)) = data.split_first() else { return };
    let mut pack = b"\x93strblk\n\x01\0\0\0\x01\0\0\0\x01\0\0\0\0\0\0\0".to_vec();
    pack.resize(64, 0);
    pack.extend(bytes);
    if choice & 1 == 0 {
        fix_checksums(&mut pack);
    }
    let fs = with_pack(&pack);
    if choice & 2 != 0 {
        add_file(&fs, b"p-00000002", b"");
    }
    if choice & 4 != 0 {
        add_file(&fs, b"x-00000001", bytes);
    }
    exercise(&fs);
});
