//! A file mapped into memory: the only unsafe code of the bench, because a mapping can't be measured without one.

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
    /// Maps the first `len` bytes of `file`, writable on request.
    pub(crate) fn new(file: impl AsFd, len: usize, writable: bool) -> Result<Self> {
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: no address is asked for, so the kernel places the mapping where nothing else is.
        let start = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, 0)? };
        Ok(Mapping { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, len, writable })
    }

    /// Reads all of it, a word at a time, and answers the sum of the words.
    pub(crate) fn read_all(&self) -> u64 {
        let words = self.start.cast::<u64>();
        // SAFETY: every index is less than the number of whole words in `len` bytes, all of which are mapped readable and
        // page-aligned for as long as `self` lives; the files of a worker are as long as the mapping and nobody truncates
        // them. A volatile read makes no assumption about who else changes the file.
        (0..self.len / size_of::<u64>()).fold(0, |sum, i| unsafe { words.add(i).read_volatile() }.wrapping_add(sum))
    }

    /// Fills all of it. EACCES if the mapping was not asked to be writable.
    pub(crate) fn fill(&mut self, byte: u8) -> Result<()> {
        if !self.writable {
            return Err(Errno::ACCESS);
        }
        // SAFETY: as in `read_all`; it is writable, as was just asked, and no reference points into it.
        unsafe { self.start.write_bytes(byte, self.len) };
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`, and nothing borrowed from it outlives `self`. It can't fail for the
        // range of one whole mapping.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
