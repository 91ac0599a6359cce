//! Operations as data: printable and repeatable, applied both to the model and to a layer.

use super::path::Path;
use std::fmt;
use vnode::{RenameFlags, Time, XattrFlags};

/// Bytes to write: `len` bytes derived from `seed`, so a printed program is complete.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    /// Selects the bytes.
    pub seed: u8,
    /// Number of bytes.
    pub len: usize,
}

impl Fill {
    /// Returns the bytes. They differ by position, so a copy at a wrong offset is detected.
    pub fn bytes(self) -> Vec<u8> {
        (0..self.len).map(|i| self.seed.wrapping_mul(31).wrapping_add((i % 251) as u8) | 1).collect()
    }
}

impl fmt::Debug for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fill({}, {})", self.seed, self.len)
    }
}

/// Number of files that a program can hold open.
pub const SLOTS: usize = 4;

/// One operation. Paths start at the root; symbolic links are not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Create a regular file, with `O_EXCL`.
    Create { path: Path, mode: u32 },
    /// Create a directory.
    Mkdir { path: Path, mode: u32 },
    /// Create a FIFO, socket, device or regular file.
    Mknod { path: Path, mode: u32, rdev: u64 },
    /// Create a symbolic link.
    Symlink { path: Path, target: Vec<u8> },
    /// Create a hard link.
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
    /// Set the modification time.
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
    /// Read the attributes.
    Stat { path: Path },
    /// Open and keep open.
    Open { slot: usize, path: Path, flags: u32 },
    /// Create an unnamed file (`O_TMPFILE`) and keep it open.
    Tmpfile { slot: usize, dir: Path, mode: u32 },
    /// Create a link to an open file.
    LinkSlot { slot: usize, to: Path },
    /// Write through an open file.
    WriteSlot { slot: usize, offset: u64, fill: Fill },
    /// Truncate through an open file.
    TruncateSlot { slot: usize, size: u64 },
    /// Change the mode through an open file.
    ChmodSlot { slot: usize, mode: u32 },
    /// Close an open file.
    Close { slot: usize },
}

impl Op {
    /// Whether the operation uses an open file.
    pub fn uses_slot(&self) -> bool {
        matches!(
            self,
            Self::LinkSlot { .. } | Self::WriteSlot { .. } | Self::TruncateSlot { .. } | Self::ChmodSlot { .. }
        )
    }

    /// Whether the operation changes nothing.
    pub fn is_read(&self) -> bool {
        match self {
            Self::Stat { .. } | Self::Close { .. } => true,
            Self::Open { flags, .. } => flags & 3 == 0 && flags & 0o1000 == 0,
            _ => false,
        }
    }
}
