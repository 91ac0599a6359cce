use core::fmt;

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// What a request asks for.
        ///
        /// The kernel remembers an `ENOSYS` answer to these for the life of the connection and asks no more: OPEN and
        /// OPENDIR (if so agreed), FLUSH, FSYNC, FSYNCDIR, ACCESS, the four of extended attributes, CREATE, TMPFILE,
        /// RENAME2, LSEEK, FALLOCATE, COPY_FILE_RANGE, STATX, POLL, BMAP, GETLK, SETLK, IOCTL on directories.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Opcode {
            $($(#[$doc])* $name = $number,)*
        }

        impl Opcode {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The opcode of a number, if this crate knows it.
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
    /// Find an entry.
    Lookup = 1,
    /// Forget a node. No reply.
    Forget = 2,
    /// Attributes.
    Getattr = 3,
    /// Change attributes.
    Setattr = 4,
    /// Target of a symbolic link.
    Readlink = 5,
    /// Make a symbolic link.
    Symlink = 6,
    /// Make a file or device node.
    Mknod = 8,
    /// Make a directory.
    Mkdir = 9,
    /// Remove an entry.
    Unlink = 10,
    /// Remove a directory.
    Rmdir = 11,
    /// Rename.
    Rename = 12,
    /// Make a hard link.
    Link = 13,
    /// Open a file.
    Open = 14,
    /// Read.
    Read = 15,
    /// Write.
    Write = 16,
    /// Figures of the file system.
    Statfs = 17,
    /// An open file is gone.
    Release = 18,
    /// Make a file's data durable.
    Fsync = 20,
    /// Set an extended attribute.
    Setxattr = 21,
    /// Get an extended attribute.
    Getxattr = 22,
    /// List extended attributes.
    Listxattr = 23,
    /// Remove an extended attribute.
    Removexattr = 24,
    /// A descriptor is closed.
    Flush = 25,
    /// Agree on the protocol.
    Init = 26,
    /// Open a directory.
    Opendir = 27,
    /// Read a directory.
    Readdir = 28,
    /// An open directory is gone.
    Releasedir = 29,
    /// Make a directory durable.
    Fsyncdir = 30,
    /// Who holds a lock?
    Getlk = 31,
    /// Lock or unlock.
    Setlk = 32,
    /// Lock, and wait for it.
    Setlkw = 33,
    /// access(2).
    Access = 34,
    /// Make and open a file.
    Create = 35,
    /// A request's caller gave up. No reply.
    Interrupt = 36,
    /// Block of a file.
    Bmap = 37,
    /// The end.
    Destroy = 38,
    /// ioctl(2).
    Ioctl = 39,
    /// poll(2).
    Poll = 40,
    /// Answer to a retrieve notification. No reply.
    NotifyReply = 41,
    /// Forget many nodes. No reply.
    BatchForget = 42,
    /// Allocate, punch or zero.
    Fallocate = 43,
    /// Read a directory with attributes.
    Readdirplus = 44,
    /// Rename with flags.
    Rename2 = 45,
    /// Find data or a hole.
    Lseek = 46,
    /// Copy between files, up to 4 GiB.
    CopyFileRange = 47,
    /// DAX: map.
    Setupmapping = 48,
    /// DAX: unmap.
    Removemapping = 49,
    /// Make the file system durable.
    Syncfs = 50,
    /// Make and open a file without a name.
    Tmpfile = 51,
    /// Attributes with birth time.
    Statx = 52,
    /// Copy between files.
    CopyFileRange64 = 53,
}

impl Opcode {
    /// One more than the largest number.
    pub const COUNT: usize = 54;

    /// The kernel's name of it, without the prefix.
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

    /// Does this usually wait for a disk or for another program? Such requests go to a worker at once.
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

    /// Is there no reply to this?
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
