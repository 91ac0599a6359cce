//! Memory mappings of files: the only unsafe code of the benchmark, because mapping needs it.

#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A shared mapping of a whole file.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
}

impl Mapping {
    /// Maps the first `len` bytes of `file`, writable if requested.
    pub(crate) fn new(file: impl AsFd, len: usize, writable: bool) -> Result<Self> {
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the address hint is null, so the kernel chooses an unmapped range.
        let start = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, 0)? };
        Ok(Mapping { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, len, writable })
    }

    /// Reads the whole mapping by words and returns their sum.
    pub(crate) fn read_all(&self) -> u64 {
        let words = self.start.cast::<u64>();
        // SAFETY: every index is less than the number of whole words in `len` bytes, all of which
        // are mapped readable and page-aligned while `self` lives. A worker's files are as long as
        // the mapping, and no process truncates them. A volatile read tolerates concurrent changes
        // of the file.
        (0..self.len / size_of::<u64>()).fold(0, |sum, i| unsafe { words.add(i).read_volatile() }.wrapping_add(sum))
    }

    /// Fills the whole mapping. Fails with EACCES if it is not writable.
    pub(crate) fn fill(&mut self, byte: u8) -> Result<()> {
        if !self.writable {
            return Err(Errno::ACCESS);
        }
        // SAFETY: as in `read_all`; the check above ensures that the mapping is writable, and no
        // reference points into it.
        unsafe { self.start.write_bytes(byte, self.len) };
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`, and nothing borrowed from it outlives `self`.
        // munmap can't fail for the range of one whole mapping.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
