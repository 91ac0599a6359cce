//! Handles arbitrary bytes as a request: the first eight are the agreed flags, the rest is what the
//! device would deliver.

#![no_main]

#[path = "../../tests/it/common/dummy.rs"]
mod dummy;

use fuse::{Filesystem, offline};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;

fuzz_target!(|data: &[u8]| {
    let Some((flags, message)) = data.split_first_chunk::<8>() else { return };
    let mut message = message.to_vec();
    // The device's own length is always right, so fix it: most inputs should pass that check.
    let len = (message.len() as u32).to_ne_bytes();
    if let Some(place) = message.first_chunk_mut::<4>() {
        *place = len;
    }
    let fs: Arc<dyn Filesystem> = Arc::new(dummy::Dummy::default());
    let _reply = offline::handle(&fs, u64::from_le_bytes(*flags), &message);
});
