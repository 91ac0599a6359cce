//! Detection of fork(2), without a system call.

use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::LazyLock;

/// Size of a page in bytes, at most: 64 KiB on some ARM processors.
const PAGE: usize = 65536;

/// A number in memory that the kernel fills with zeros in a child of fork(2). `None` if the kernel
/// can't (Linux 4.14, `MADV_WIPEONFORK`).
static TOKEN: LazyLock<Option<&'static AtomicU64>> = LazyLock::new(map);

/// Returns a random number that identifies this process. A child of fork(2) gets another one, with
/// the same thread and the same memory otherwise. Costs a memory access.
///
/// Returns `None` if the kernel supports no such memory, or has no random numbers.
#[must_use]
pub fn process_token() -> Option<NonZeroU64> {
    let token = (*TOKEN)?;
    NonZeroU64::new(token.load(Ordering::Relaxed)).or_else(|| {
        let new = getrandom::u64().ok().and_then(NonZeroU64::new)?;
        let set = token.compare_exchange(0, new.get(), Ordering::Relaxed, Ordering::Relaxed);
        // Another thread may have been first.
        set.map_or_else(NonZeroU64::new, |_| Some(new))
    })
}

/// Maps the number. The mapping stays until the process ends.
fn map() -> Option<&'static AtomicU64> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses affects no other memory.
    let address = unsafe { libc::mmap(core::ptr::null_mut(), PAGE, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the range is the mapping just created.
    if unsafe { libc::madvise(address, PAGE, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above, and nothing refers to it.
        unsafe { libc::munmap(address, PAGE) };
        return None;
    }
    // SAFETY: the mapping is never removed, is aligned to a page, and consists of zeros, which are
    // a value of this type. Nothing else uses it.
    Some(unsafe { &*address.cast::<AtomicU64>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_keeps_its_token() {
        let token = process_token();
        assert!(token.is_some());
        assert_eq!(std::thread::spawn(process_token).join().unwrap(), token);
        assert_eq!(process_token(), token);
    }

    #[test]
    fn a_child_gets_another_token() {
        let token = process_token();
        // SAFETY: the child calls only functions that are safe after fork(2) in a process with
        // threads: it reads memory, calls getrandom(2), and ends without destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status =
                i32::from(process_token().is_none_or(|new| Some(new) == token || Some(new) != process_token()));
            // SAFETY: ends the child.
            unsafe { libc::_exit(status) };
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: waits for the child just created, and writes to `status`.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child's token is its parent's, or not one");
        assert_eq!(process_token(), token);
    }
}
