//! Memory mappings of files. Separate from the tests because a mapping needs unsafe code.

#![allow(unsafe_code)]

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::os::fd::AsFd;

/// A mapping of the first bytes of a file.
///
/// Reads and writes bytes one at a time and volatile, because other processes change the file
/// meanwhile.
#[derive(Debug)]
pub struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    /// Maps the first `len` bytes of `file`.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn new(file: impl AsFd, len: usize, prot: ProtFlags, flags: MapFlags) -> rustix::io::Result<Self> {
        // SAFETY: the address hint is null, so the kernel chooses an unmapped range.
        let start = unsafe { mmap(std::ptr::null_mut(), len, prot, flags, file, 0)? };
        Ok(Self { start: start.cast(), len })
    }

    /// Returns the byte at offset `at`.
    #[must_use]
    pub fn get(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: `at` is within the mapping, which lives as long as self.
        unsafe { self.start.add(at).read_volatile() }
    }

    /// Returns `len` bytes from offset `at`.
    #[must_use]
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        (at..at + len).map(|i| self.get(i)).collect()
    }

    /// Writes `bytes` at offset `at`.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: as in `get`. If the caller did not map the file writable, the kernel ends the
            // test with SIGSEGV.
            unsafe { self.start.add(at + i).write_volatile(*byte) }
        }
    }

    /// Writes changed pages back and waits for completion.
    ///
    /// # Errors
    /// Those of msync(2).
    pub fn sync(&self) -> rustix::io::Result<()> {
        // SAFETY: the range is the one that `new` mapped.
        unsafe { msync(self.start.cast(), self.len, MsyncFlags::SYNC) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the one that `new` mapped, and nothing borrows from it: reads copy.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}
