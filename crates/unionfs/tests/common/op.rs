//! The operations that a program can do, as data: printable, repeatable, the same for the model and for a layer.

use super::path::Path;
use std::fmt;
use vnode::{RenameFlags, Time, XattrFlags};

/// Bytes to write: `len` bytes that follow from `seed` alone, so that a printed program is whole.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    /// Which bytes.
    pub seed: u8,
    /// How many.
    pub len: usize,
}

impl Fill {
    /// The bytes: they differ from place to place, so that a shifted copy is noticed.
    pub fn bytes(self) -> Vec<u8> {
        (0..self.len).map(|i| self.seed.wrapping_mul(31).wrapping_add((i % 251) as u8) | 1).collect()
    }
}

impl fmt::Debug for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fill({}, {})", self.seed, self.len)
    }
}

/// How many open files a program can hold.
pub const SLOTS: usize = 4;

/// One operation. Paths are from the root; symbolic links are not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Make a regular file, exclusively.
    Create { path: Path, mode: u32 },
    /// Make a directory.
    Mkdir { path: Path, mode: u32 },
    /// Make a fifo, socket, device or regular file.
    Mknod { path: Path, mode: u32, rdev: u64 },
    /// Make a symbolic link.
    Symlink { path: Path, target: Vec<u8> },
    /// Give a file a further name.
    Link { from: Path, to: Path },
    /// Remove a name of a file.
    Unlink { path: Path },
    /// Remove an empty directory.
    Rmdir { path: Path },
    /// Rename.
    Rename { from: Path, to: Path, flags: RenameFlags },
    /// Change permission bits.
    Chmod { path: Path, mode: u32 },
    /// Change owner and group.
    Chown { path: Path, uid: u32, gid: u32 },
    /// Set the time of the last change of the data.
    Utimes { path: Path, mtime: Time },
    /// Change the size.
    Truncate { path: Path, size: u64 },
    /// Open for writing, write at an offset, close.
    Write { path: Path, offset: u64, fill: Fill },
    /// Open for appending, write, close.
    Append { path: Path, fill: Fill },
    /// Open with `O_TRUNC`, close.
    OpenTrunc { path: Path },
    /// Open for writing, allocate or punch, close.
    Fallocate { path: Path, mode: u32, offset: u64, len: u64 },
    /// Copy the whole of one file over the start of another.
    CopyRange { from: Path, to: Path },
    /// Set an extended attribute.
    Setxattr { path: Path, name: &'static [u8], value: Fill, flags: XattrFlags },
    /// Remove an extended attribute.
    Removexattr { path: Path, name: &'static [u8] },
    /// Look at everything of an object without changing it.
    Stat { path: Path },
    /// Open and keep open.
    Open { slot: usize, path: Path, flags: u32 },
    /// Make a file without a name and keep it open.
    Tmpfile { slot: usize, dir: Path, mode: u32 },
    /// Name an open file.
    LinkSlot { slot: usize, to: Path },
    /// Write through an open file.
    WriteSlot { slot: usize, offset: u64, fill: Fill },
    /// Truncate through an open file.
    TruncateSlot { slot: usize, size: u64 },
    /// Change the mode through an open file.
    ChmodSlot { slot: usize, mode: u32 },
    /// Close.
    Close { slot: usize },
}

impl Op {
    /// Is it on an open file?
    pub fn uses_slot(&self) -> bool {
        matches!(
            self,
            Self::LinkSlot { .. } | Self::WriteSlot { .. } | Self::TruncateSlot { .. } | Self::ChmodSlot { .. }
        )
    }

    /// Does it only look?
    pub fn is_read(&self) -> bool {
        match self {
            Self::Stat { .. } | Self::Close { .. } => true,
            Self::Open { flags, .. } => flags & 3 == 0 && flags & 0o1000 == 0,
            _ => false,
        }
    }
}
