//! Returning free heap memory to the system.

/// Returns free heap memory to the system. After millions of small objects were freed, glibc keeps
/// pages that lie between live ones. Takes milliseconds; does nothing with other C libraries.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer, and is safe to call at any time from any thread (malloc_trim(3)).
    let _released = unsafe { libc::malloc_trim(0) };
}
