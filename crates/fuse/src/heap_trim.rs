//! Giving memory back to the system.

/// Gives the free memory of the heap back to the system: after millions of small objects went, glibc keeps the pages that lay
/// between others. Takes milliseconds; does nothing with other C libraries.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer, and is safe to call at any time from any thread (malloc_trim(3)).
    let _released = unsafe { libc::malloc_trim(0) };
}
