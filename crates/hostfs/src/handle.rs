//! File handles of name_to_handle_at(2).

use crate::sys;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::ffi::CStr;
use vnode::{Errno, Result};

/// Maximum length in bytes of a handle stored inside the vnode. ext4 and tmpfs use 8 to 12, xfs 8
/// to 12, btrfs 20.
pub(crate) const INLINE: usize = 20;

/// A file handle that is short and of a common type, so that it fits into the vnode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SmallHandle {
    kind: u8,
    len: u8,
    bytes: [u8; INLINE],
}

/// A file handle of any length up to 128 bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LargeHandle {
    kind: i32,
    bytes: Box<[u8]>,
}

/// A handle as returned by name_to_handle_at(2): identifies an inode of a file system until the
/// inode is freed, independent of its names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum FileHandle {
    Small(SmallHandle),
    Large(Box<LargeHandle>),
}

impl SmallHandle {
    pub(crate) fn parts(&self) -> (i32, &[u8]) {
        let len = usize::from(self.len).min(INLINE);
        (i32::from(self.kind), self.bytes.get(..len).unwrap_or(&[]))
    }
}

impl LargeHandle {
    pub(crate) fn parts(&self) -> (i32, &[u8]) {
        (self.kind, &self.bytes)
    }
}

impl FileHandle {
    pub(crate) fn new(kind: i32, handle: &[u8]) -> Self {
        let mut bytes = [0; INLINE];
        match (u8::try_from(kind), bytes.get_mut(..handle.len())) {
            (Ok(kind), Some(start)) => {
                start.copy_from_slice(handle);
                Self::Small(SmallHandle { kind, len: handle.len() as u8, bytes })
            }
            _ => Self::Large(Box::new(LargeHandle { kind, bytes: handle.into() })),
        }
    }

    /// Returns the handle of `name` in `dir`. Does not follow symbolic links.
    pub(crate) fn of_name(dir: BorrowedFd<'_>, name: &CStr) -> Result<Self> {
        let (kind, len, bytes) = sys::name_to_handle(dir, name)?;
        Ok(Self::new(kind, bytes.get(..len).ok_or(Errno::OVERFLOW)?))
    }

    /// Returns the handle of the object that `fd` is open on.
    pub(crate) fn of_fd(fd: BorrowedFd<'_>) -> Result<Self> {
        Self::of_name(fd, c"")
    }

    /// Returns type and bytes.
    pub(crate) fn parts(&self) -> (i32, &[u8]) {
        match self {
            Self::Small(small) => small.parts(),
            Self::Large(large) => large.parts(),
        }
    }

    /// Opens the object on the file system of `mount`.
    pub(crate) fn open(&self, mount: BorrowedFd<'_>, flags: i32) -> Result<OwnedFd> {
        let (kind, bytes) = self.parts();
        sys::open_by_handle(mount, kind, bytes, flags)
    }

    /// Returns the offset of the inode number in handles of this file system, judging by the handle
    /// of a known inode: almost all file systems store its low 32 bits at a multiple of four bytes.
    /// Used only to detect that a name was given to another object between two system calls.
    pub(crate) fn position_of(&self, ino: u64) -> Option<u8> {
        let (_, bytes) = self.parts();
        let at = bytes.chunks_exact(4).position(|word| word == (ino as u32).to_le_bytes())?;
        u8::try_from(at * 4).ok()
    }

    /// Whether the number at `position` shows that this is the handle of `ino`.
    pub(crate) fn is_of(&self, ino: u64, position: u8) -> bool {
        let (_, bytes) = self.parts();
        let at = usize::from(position);
        bytes.get(at..at + 4).is_some_and(|word| word == (ino as u32).to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_handles_are_inline_and_long_ones_boxed() {
        let small = FileHandle::new(1, &[1, 2, 3, 4, 9, 9, 9, 9]);
        assert!(matches!(small, FileHandle::Small(_)));
        assert_eq!(small.parts(), (1, &[1, 2, 3, 4, 9, 9, 9, 9][..]));
        assert!(matches!(FileHandle::new(1, &[0; 20]), FileHandle::Small(_)));
        for large in [FileHandle::new(1, &[7; 21]), FileHandle::new(0x1_0001, &[7; 8])] {
            assert!(matches!(large, FileHandle::Large(_)));
            assert_eq!(large.parts().1[0], 7);
        }
    }

    #[test]
    fn the_inode_number_is_found_in_a_handle() {
        let handle = FileHandle::new(1, &[0, 0, 0, 0, 0x34, 0x12, 0, 0]);
        assert_eq!(handle.position_of(0x1234), Some(4));
        assert_eq!(handle.position_of(0x77), None);
        assert!(handle.is_of(0x1234, 4));
        assert!(!handle.is_of(0x1235, 4));
        assert!(!handle.is_of(0x1234, 200));
    }
}
