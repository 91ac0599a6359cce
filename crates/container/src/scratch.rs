//! Per-thread buffers: allocating a megabyte of fresh memory for each request costs more than
//! reading that much.

use std::cell::Cell;

/// Maximum size of a kept buffer in bytes.
const KEPT: usize = 4 << 20;

thread_local! {
    static ENCODED: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Runs `work` with a buffer of arbitrary content. A nested use (a container on top of a container)
/// gets another buffer.
pub(crate) fn with_buffer<R>(work: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    let mut buffer = ENCODED.take();
    let result = work(&mut buffer);
    if buffer.capacity() <= KEPT {
        ENCODED.set(buffer);
    }
    result
}
