//! Feeds arbitrary bytes as the journal of a previous server. The first selects whether the
//! checksums of the rest are corrected.

#![no_main]

#[path = "../../tests/it/common/untrusted.rs"]
mod untrusted;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some((corrected, bytes)) = data.split_first() {
        untrusted::recover(bytes, corrected & 1 == 0);
    }
});
