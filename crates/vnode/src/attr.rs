/// What an object is.
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

    /// The type bits of a mode, as in `st_mode`.
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

    /// The kind that a mode's type bits name, if any.
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

    /// The value of `d_type` in a directory entry (the type bits shifted down by 12).
    #[must_use]
    pub const fn d_type(self) -> u32 {
        self.mode_bits() >> 12
    }
}

/// A point in time: seconds since the epoch (negative before it) and nanoseconds 0 to 999,999,999.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970-01-01 UTC.
    pub sec: i64,
    /// Nanoseconds of the second.
    pub nsec: u32,
}

/// Attributes of an object, as statx(2) gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Inode number: always the vnode's [`crate::Vnode::id`].
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the data.
    pub mtime: Time,
    /// Last change of the attributes.
    pub ctime: Time,
    /// Birth, where the file system below keeps it.
    pub btime: Option<Time>,
    /// Type and permission bits, as `st_mode`.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as `makedev(3)` packs it; 0 for all else.
    pub rdev: u64,
    /// Preferred size of I/O in bytes.
    pub blksize: u32,
}

impl Attr {
    /// The kind that the mode names; a regular file where it names none.
    #[must_use]
    pub fn kind(&self) -> Kind {
        Kind::from_mode(self.mode).unwrap_or(Kind::Regular)
    }

    /// Permission bits with set-user-id, set-group-id and sticky: `mode & 07777`.
    #[must_use]
    pub const fn perm(&self) -> u32 {
        self.mode & 0o7777
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The bottom file system's own clock (`UTIME_NOW`).
    Now,
    /// Exactly this.
    At(Time),
}

/// Attributes to change; what is `None` stays.
///
/// The owner is set before the mode, so that its change doesn't take away bits that are set by the same call, and the times
/// last.
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
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the data.
    pub mtime: Option<SetTime>,
    /// Take the set-user-id bit away, and the set-group-id bit where the group may execute, because an unprivileged user
    /// wrote, truncated or chowned.
    pub kill_suidgid: bool,
}

impl SetAttr {
    /// Does this change nothing?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Figures of a file system, as statvfs(3) gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Size of a block in bytes: the unit of the three counts that follow.
    pub frsize: u64,
    /// Preferred size of I/O in bytes.
    pub bsize: u64,
    /// All blocks.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for unprivileged users.
    pub bavail: u64,
    /// All inodes.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Longest name in bytes.
    pub namemax: u32,
    /// A number that is the same for two vnodes exactly if they lie on the same file system.
    pub fsid: u64,
}
