//! Random nonces.
//!
//! Each block needs 12 to 24 random bytes. A system call for each would cost a tenth of the
//! encryption, so every thread fetches 4 KiB at a time.

use crate::error::RandomError;
use core::cell::RefCell;
use core::num::NonZeroU64;
use cryptsys::process_token;
use zeroize::Zeroize;

/// Bytes fetched at once.
const POOL: usize = 4096;

/// Random bytes of one thread.
struct Pool {
    bytes: [u8; POOL],
    /// Bytes before this index are used up, and zero.
    next: usize,
    /// The [process](process_token) that fetched them. A child of fork(2) has a copy of the pool:
    /// using it would repeat the nonces of its parent.
    process: Option<NonZeroU64>,
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

thread_local! {
    static POOLED: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; POOL], next: POOL, process: None }) };
}

/// Fills `out`, at most 4 KiB, with random bytes that are used nowhere else.
pub(crate) fn fill(out: &mut [u8]) -> Result<(), RandomError> {
    let taken = POOLED.try_with(|pool| {
        let mut pool = pool.try_borrow_mut().ok()?;
        pool.take(process_token()?, out)
    });
    match taken {
        Ok(Some(())) => Ok(()),
        // The thread is ending, a child of fork(2) would not be noticed, or the request is larger
        // than the pool.
        _ => getrandom::fill(out).map_err(|_| RandomError),
    }
}

impl Pool {
    fn take(&mut self, process: NonZeroU64, out: &mut [u8]) -> Option<()> {
        if self.process != Some(process) || self.next + out.len() > POOL {
            // Invalid until it is full again.
            self.process = None;
            getrandom::fill(&mut self.bytes).ok()?;
            (self.next, self.process) = (0, Some(process));
        }
        let bytes = self.bytes.get_mut(self.next..self.next + out.len())?;
        out.copy_from_slice(bytes);
        bytes.zeroize();
        self.next += out.len();
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_bytes_are_returned_twice() {
        let draw = || (0..2000).map(|_| draw_one()).collect::<Vec<[u8; 16]>>();
        let all: Vec<[u8; 16]> =
            [std::thread::spawn(draw), std::thread::spawn(draw)].into_iter().flat_map(|t| t.join().unwrap()).collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), 4000);
        assert!(!all.contains(&[0; 16]));
    }

    fn draw_one() -> [u8; 16] {
        let mut bytes = [0; 16];
        fill(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_child_process_does_not_repeat_its_parents_bytes() {
        let parent = process_token().unwrap();
        let mut pool = Pool { bytes: [0; POOL], next: POOL, process: None };
        let mut first = [0; 16];
        pool.take(parent, &mut first).unwrap();
        let mut copy = Pool { bytes: pool.bytes, next: pool.next, process: pool.process };
        let (mut in_parent, mut in_child) = ([0; 16], [0; 16]);
        pool.take(parent, &mut in_parent).unwrap();
        copy.take(NonZeroU64::new(!parent.get()).unwrap(), &mut in_child).unwrap();
        assert_ne!(in_parent, in_child);
    }

    #[test]
    fn a_large_request_is_filled_too() {
        let mut large = vec![0; 3 * POOL];
        fill(&mut large).unwrap();
        assert!(large.chunks(32).all(|chunk| chunk.iter().any(|&byte| byte != 0)));
    }
}
