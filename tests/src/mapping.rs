//! A shared or private memory mapping of a file: unsafe code of the tests, as in `handle`.

#![allow(unsafe_code)]

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::os::fd::AsFd;

/// A mapping of the first bytes of a file.
///
/// Bytes are read and written one by one and volatile, since others change the file meanwhile.
#[derive(Debug)]
pub struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    /// Maps the first `len` bytes of `file`.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub fn new(file: impl AsFd, len: usize, prot: ProtFlags, flags: MapFlags) -> rustix::io::Result<Self> {
        // SAFETY: no address is asked for, so the kernel chooses one where nothing is mapped.
        let start = unsafe { mmap(std::ptr::null_mut(), len, prot, flags, file, 0)? };
        Ok(Self { start: start.cast(), len })
    }

    /// The byte at `at`.
    #[must_use]
    pub fn get(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: `at` is in the mapping, which lives as long as self.
        unsafe { self.start.add(at).read_volatile() }
    }

    /// `len` bytes from `at`.
    #[must_use]
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        (at..at + len).map(|i| self.get(i)).collect()
    }

    /// Writes `bytes` at `at`.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: as in `get`; the mapping was made writable by the caller or the kernel ends the test with SIGSEGV.
            unsafe { self.start.add(at + i).write_volatile(*byte) }
        }
    }

    /// Writes the changes back and waits for that.
    ///
    /// # Errors
    /// What msync(2) says.
    pub fn sync(&self) -> rustix::io::Result<()> {
        // SAFETY: the range is the one that was mapped.
        unsafe { msync(self.start.cast(), self.len, MsyncFlags::SYNC) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the one that was mapped, and nothing borrows from it: reads copy.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}
