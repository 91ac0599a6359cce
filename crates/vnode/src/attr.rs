/// The type of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// `S_IFREG`
    Regular,
    /// `S_IFDIR`
    Directory,
    /// `S_IFLNK`
    Symlink,
    /// `S_IFIFO`
    Fifo,
    /// `S_IFSOCK`
    Socket,
    /// `S_IFCHR`
    CharDevice,
    /// `S_IFBLK`
    BlockDevice,
}

impl Kind {
    /// The mask of the type bits in a mode (`S_IFMT`).
    pub const MASK: u32 = 0o170_000;

    /// Returns the type bits for a mode, as in `st_mode`.
    #[must_use]
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::Regular => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
            Self::CharDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
        }
    }

    /// Returns the kind for the type bits of `mode`, or `None` for an unknown type.
    #[must_use]
    pub const fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & Self::MASK {
            0o100_000 => Self::Regular,
            0o040_000 => Self::Directory,
            0o120_000 => Self::Symlink,
            0o010_000 => Self::Fifo,
            0o140_000 => Self::Socket,
            0o020_000 => Self::CharDevice,
            0o060_000 => Self::BlockDevice,
            _ => return None,
        })
    }

    /// Returns the word for the type in messages and replies to commands.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Regular => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::CharDevice | Self::BlockDevice => "device",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
        }
    }

    /// Returns the `d_type` of a directory entry: the type bits shifted right by 12.
    #[must_use]
    pub const fn d_type(self) -> u32 {
        self.mode_bits() >> 12
    }
}

/// A point in time: seconds since the epoch (negative before it) and nanoseconds from 0 to
/// 999,999,999.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970-01-01 UTC.
    pub sec: i64,
    /// Nanoseconds within the second.
    pub nsec: u32,
}

/// Attributes of an object, as returned by statx(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Inode number: always the vnode's [`crate::Vnode::id`].
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Allocated size in 512-byte blocks.
    pub blocks: u64,
    /// Time of last access.
    pub atime: Time,
    /// Time of last data modification.
    pub mtime: Time,
    /// Time of last attribute change.
    pub ctime: Time,
    /// Creation time, if the underlying file system records it.
    pub btime: Option<Time>,
    /// Type and permission bits, as in `st_mode`.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, packed as by `makedev(3)`; 0 for all other types.
    pub rdev: u64,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
}

impl Attr {
    /// Returns the kind encoded in the mode, or a regular file if the type bits are invalid.
    #[must_use]
    pub fn kind(&self) -> Kind {
        Kind::from_mode(self.mode).unwrap_or(Kind::Regular)
    }

    /// Returns the permission bits including set-user-ID, set-group-ID and sticky: `mode & 07777`.
    #[must_use]
    pub const fn perm(&self) -> u32 {
        self.mode & 0o7777
    }
}

/// A timestamp to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current time by the clock of the bottom file system (`UTIME_NOW`).
    Now,
    /// This exact time.
    At(Time),
}

/// Attributes to change. Fields that are `None` remain unchanged.
///
/// The owner is set before the mode, so that chown(2) does not clear mode bits set by the same
/// call. Times are set last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits (`07777`).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Time of last access.
    pub atime: Option<SetTime>,
    /// Time of last data modification.
    pub mtime: Option<SetTime>,
    /// Clear the set-user-ID bit, and the set-group-ID bit if the file is group-executable, because
    /// an unprivileged user wrote, truncated or changed ownership.
    pub kill_suidgid: bool,
}

impl SetAttr {
    /// Whether this changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// File-system statistics, as returned by statvfs(3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Block size in bytes: the unit of `blocks`, `bfree` and `bavail`.
    pub frsize: u64,
    /// Preferred I/O size in bytes.
    pub bsize: u64,
    /// Total number of blocks.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks available to unprivileged users.
    pub bavail: u64,
    /// Total number of inodes.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Maximum length of a name in bytes.
    pub namemax: u32,
    /// File-system ID: equal for two vnodes if and only if they are on the same file system.
    pub fsid: u64,
}
