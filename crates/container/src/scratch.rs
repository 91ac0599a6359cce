//! Buffers that threads keep: making a megabyte of fresh memory for each request costs more than reading it.

use std::cell::Cell;

/// A thread keeps no more than this.
const KEPT: usize = 4 << 20;

thread_local! {
    static ENCODED: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Runs `work` with a buffer of any contents. A use within a use (a container over a container) gets a buffer of its own.
pub(crate) fn with_buffer<R>(work: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    let mut buffer = ENCODED.take();
    let result = work(&mut buffer);
    if buffer.capacity() <= KEPT {
        ENCODED.set(buffer);
    }
    result
}
