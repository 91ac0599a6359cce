//! The opcodes of the protocol.

use core::fmt;

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// Opcode of a request.
        ///
        /// The kernel caches an `ENOSYS` reply to these for the life of the connection and sends no
        /// more of them: OPEN and OPENDIR (if so agreed), FLUSH, FSYNC, FSYNCDIR, ACCESS, the four
        /// for extended attributes, CREATE, TMPFILE, RENAME2, LSEEK, FALLOCATE, COPY_FILE_RANGE,
        /// STATX, POLL, BMAP, GETLK, SETLK, IOCTL on directories.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Opcode {
            $($(#[$doc])* $name = $number,)*
        }

        impl Opcode {
            /// All opcodes.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the opcode with this number, if this crate knows it.
            #[must_use]
            pub const fn new(number: u32) -> Option<Self> {
                Some(match number {
                    $($number => Self::$name,)*
                    _ => return None,
                })
            }
        }
    };
}

opcodes! {
    /// Look up an entry.
    Lookup = 1,
    /// Drop lookups of a node. No reply.
    Forget = 2,
    /// Get attributes.
    Getattr = 3,
    /// Set attributes.
    Setattr = 4,
    /// Read a symbolic link.
    Readlink = 5,
    /// Create a symbolic link.
    Symlink = 6,
    /// Create a file or device node.
    Mknod = 8,
    /// Create a directory.
    Mkdir = 9,
    /// Remove a file.
    Unlink = 10,
    /// Remove a directory.
    Rmdir = 11,
    /// Rename an entry.
    Rename = 12,
    /// Create a hard link.
    Link = 13,
    /// Open a file.
    Open = 14,
    /// Read.
    Read = 15,
    /// Write.
    Write = 16,
    /// File system statistics.
    Statfs = 17,
    /// Close an open file.
    Release = 18,
    /// Flush a file to stable storage.
    Fsync = 20,
    /// Set an extended attribute.
    Setxattr = 21,
    /// Get an extended attribute.
    Getxattr = 22,
    /// List extended attributes.
    Listxattr = 23,
    /// Remove an extended attribute.
    Removexattr = 24,
    /// close(2) of a descriptor.
    Flush = 25,
    /// Negotiate the protocol.
    Init = 26,
    /// Open a directory.
    Opendir = 27,
    /// Read a directory.
    Readdir = 28,
    /// Close an open directory.
    Releasedir = 29,
    /// Flush a directory to stable storage.
    Fsyncdir = 30,
    /// Find a conflicting lock.
    Getlk = 31,
    /// Lock or unlock.
    Setlk = 32,
    /// Lock, and block until it is available.
    Setlkw = 33,
    /// access(2).
    Access = 34,
    /// Create and open a file.
    Create = 35,
    /// Cancel a request. No reply.
    Interrupt = 36,
    /// Map a file's block to the device.
    Bmap = 37,
    /// End of the file system.
    Destroy = 38,
    /// ioctl(2).
    Ioctl = 39,
    /// poll(2).
    Poll = 40,
    /// Reply to a retrieve notification. No reply.
    NotifyReply = 41,
    /// Drop lookups of many nodes. No reply.
    BatchForget = 42,
    /// Allocate, punch a hole or zero a range.
    Fallocate = 43,
    /// Read a directory with attributes.
    Readdirplus = 44,
    /// Rename with flags.
    Rename2 = 45,
    /// Seek to data or to a hole.
    Lseek = 46,
    /// Copy between files, up to 4 GiB.
    CopyFileRange = 47,
    /// DAX: map.
    Setupmapping = 48,
    /// DAX: unmap.
    Removemapping = 49,
    /// Flush the file system to stable storage.
    Syncfs = 50,
    /// Create and open a file without a name.
    Tmpfile = 51,
    /// Get attributes with birth time.
    Statx = 52,
    /// Copy between files.
    CopyFileRange64 = 53,
}

impl Opcode {
    /// One more than the largest opcode.
    pub const COUNT: usize = 54;

    /// Returns the kernel's name of the opcode, without the prefix.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lookup => "LOOKUP",
            Self::Forget => "FORGET",
            Self::Getattr => "GETATTR",
            Self::Setattr => "SETATTR",
            Self::Readlink => "READLINK",
            Self::Symlink => "SYMLINK",
            Self::Mknod => "MKNOD",
            Self::Mkdir => "MKDIR",
            Self::Unlink => "UNLINK",
            Self::Rmdir => "RMDIR",
            Self::Rename => "RENAME",
            Self::Link => "LINK",
            Self::Open => "OPEN",
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::Statfs => "STATFS",
            Self::Release => "RELEASE",
            Self::Fsync => "FSYNC",
            Self::Setxattr => "SETXATTR",
            Self::Getxattr => "GETXATTR",
            Self::Listxattr => "LISTXATTR",
            Self::Removexattr => "REMOVEXATTR",
            Self::Flush => "FLUSH",
            Self::Init => "INIT",
            Self::Opendir => "OPENDIR",
            Self::Readdir => "READDIR",
            Self::Releasedir => "RELEASEDIR",
            Self::Fsyncdir => "FSYNCDIR",
            Self::Getlk => "GETLK",
            Self::Setlk => "SETLK",
            Self::Setlkw => "SETLKW",
            Self::Access => "ACCESS",
            Self::Create => "CREATE",
            Self::Interrupt => "INTERRUPT",
            Self::Bmap => "BMAP",
            Self::Destroy => "DESTROY",
            Self::Ioctl => "IOCTL",
            Self::Poll => "POLL",
            Self::NotifyReply => "NOTIFY_REPLY",
            Self::BatchForget => "BATCH_FORGET",
            Self::Fallocate => "FALLOCATE",
            Self::Readdirplus => "READDIRPLUS",
            Self::Rename2 => "RENAME2",
            Self::Lseek => "LSEEK",
            Self::CopyFileRange => "COPY_FILE_RANGE",
            Self::Setupmapping => "SETUPMAPPING",
            Self::Removemapping => "REMOVEMAPPING",
            Self::Syncfs => "SYNCFS",
            Self::Tmpfile => "TMPFILE",
            Self::Statx => "STATX",
            Self::CopyFileRange64 => "COPY_FILE_RANGE_64",
        }
    }

    /// Whether the request usually waits for a disk or another program. Such requests are handed to
    /// a worker at once.
    #[must_use]
    pub const fn usually_blocks(self) -> bool {
        matches!(
            self,
            Self::Fsync
                | Self::Fsyncdir
                | Self::Syncfs
                | Self::Fallocate
                | Self::CopyFileRange
                | Self::CopyFileRange64
                | Self::Setlkw
        )
    }

    /// Whether the request has no reply.
    #[must_use]
    pub const fn is_oneway(self) -> bool {
        matches!(self, Self::Forget | Self::BatchForget | Self::Interrupt | Self::NotifyReply)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_one_to_one() {
        for (i, &a) in Opcode::ALL.iter().enumerate() {
            assert_eq!(Opcode::new(a as u32), Some(a));
            assert!((a as usize) < Opcode::COUNT);
            for &b in &Opcode::ALL[i + 1..] {
                assert_ne!(a.name(), b.name());
            }
        }
        assert_eq!(Opcode::new(0), None);
        assert_eq!(Opcode::new(54), None);
    }
}
