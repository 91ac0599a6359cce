use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// How many buffers a thread keeps. A template over a template takes two or three for each.
const KEPT: usize = 6;
/// The largest that it keeps, in bytes.
const KEPT_SIZE: usize = 1 << 20;

thread_local! {
    static POOL: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer with any bytes in it, which the thread uses again.
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
        let bytes = POOL.try_with(|pool| fits(&mut pool.borrow_mut())).ok().flatten();
        Self { bytes: bytes.unwrap_or_else(|| vec![0; len]), len }
    }

    /// Only the first `len` bytes are used from here on.
    pub(crate) fn shorten(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if bytes.len() > KEPT_SIZE {
            return;
        }
        // A thread that ends keeps nothing.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() >= KEPT {
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
