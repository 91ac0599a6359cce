use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// Maximum number of buffers kept per thread. A template over a template uses two or three each.
const POOL_BUFFERS: usize = 6;
/// Maximum size of a kept buffer in bytes.
const POOL_BUFFER_BYTES: usize = 1 << 20;

thread_local! {
    static POOL: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer with arbitrary contents, taken from a pool of the thread.
pub(crate) struct Scratch {
    bytes: Vec<u8>,
    len: usize,
}

impl Scratch {
    pub(crate) fn take(len: usize) -> Self {
        let fits = |pool: &mut Vec<Vec<u8>>| {
            let found = pool.iter().position(|buffer| buffer.len() >= len)?;
            Some(pool.swap_remove(found))
        };
        let bytes = if len > 0 { POOL.try_with(|pool| fits(&mut pool.borrow_mut())).ok().flatten() } else { None };
        Self { bytes: bytes.unwrap_or_else(|| vec![0; len]), len }
    }

    /// Shortens the buffer to its first `len` bytes.
    pub(crate) fn shorten(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if bytes.is_empty() || bytes.len() > POOL_BUFFER_BYTES {
            return;
        }
        // Fails while the thread exits; the buffer is then freed.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() >= POOL_BUFFERS {
                pool.remove(0);
            }
            pool.push(bytes);
        });
    }
}

impl Deref for Scratch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(..self.len).unwrap_or_default()
    }
}
