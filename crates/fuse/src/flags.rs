//! The flags that kernel and server agree on at INIT: the kernel offers, [`crate::Wish::flags`] takes. Both words of the
//! protocol in one `u64`.

macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident = $bit:literal,)*) => {
        $($(#[$doc])* pub const $name: u64 = 1 << $bit;)*
        /// Name and value of every flag, for messages.
        pub const ALL: &[(&str, u64)] = &[$((stringify!($name), $name),)*];
    };
}

flags! {
    /// Reads of one file may overtake each other.
    ASYNC_READ = 0,
    /// fcntl(2) locks come to the server.
    POSIX_LOCKS = 1,
    /// Never used by the kernel.
    FILE_OPS = 2,
    /// OPEN carries `O_TRUNC`.
    ATOMIC_O_TRUNC = 3,
    /// LOOKUP of `.` and `..` works: needed for handles of nodes that the kernel has forgotten.
    EXPORT_SUPPORT = 4,
    /// Writes larger than a page.
    BIG_WRITES = 5,
    /// The kernel does not apply the umask; the file system does.
    DONT_MASK = 6,
    /// splice(2) to the device.
    SPLICE_WRITE = 7,
    /// Moved pages in splice(2).
    SPLICE_MOVE = 8,
    /// splice(2) from the device.
    SPLICE_READ = 9,
    /// flock(2) locks come to the server.
    FLOCK_LOCKS = 10,
    /// ioctl(2) on directories.
    HAS_IOCTL_DIR = 11,
    /// Pages are dropped when a refresh shows another mtime or size.
    AUTO_INVAL_DATA = 12,
    /// READDIRPLUS is understood.
    DO_READDIRPLUS = 13,
    /// READDIRPLUS only where it seems useful.
    READDIRPLUS_AUTO = 14,
    /// Direct I/O in parallel.
    ASYNC_DIO = 15,
    /// Writes are cached and written back later. Excludes [`PASSTHROUGH`].
    WRITEBACK_CACHE = 16,
    /// ENOSYS to OPEN: no more of them are sent.
    NO_OPEN_SUPPORT = 17,
    /// Look-ups and readings of one directory in parallel.
    PARALLEL_DIROPS = 18,
    /// The file system takes set-id bits away, first version.
    HANDLE_KILLPRIV = 19,
    /// POSIX ACLs, as extended attributes.
    POSIX_ACL = 20,
    /// Reading the device after an abort tells so (`ECONNABORTED`).
    ABORT_ERROR = 21,
    /// `max_pages` counts. The transport sets it.
    MAX_PAGES = 22,
    /// Targets of symbolic links are cached.
    CACHE_SYMLINKS = 23,
    /// ENOSYS to OPENDIR: no more of them are sent.
    NO_OPENDIR_SUPPORT = 24,
    /// Pages are dropped only when told.
    EXPLICIT_INVAL_DATA = 25,
    /// DAX only.
    MAP_ALIGNMENT = 26,
    /// virtiofs only.
    SUBMOUNTS = 27,
    /// The file system takes set-id bits away when told.
    HANDLE_KILLPRIV_V2 = 28,
    /// The longer form of SETXATTR.
    SETXATTR_EXT = 29,
    /// The second word of flags counts. The transport sets it.
    INIT_EXT = 30,
    /// The security context comes with creations.
    SECURITY_CTX = 32,
    /// DAX only.
    HAS_INODE_DAX = 33,
    /// The directory's group, if the caller is in it, comes with creations.
    CREATE_SUPP_GROUP = 34,
    /// Entries can be made to expire: [`crate::Notifier::expire_entry`].
    HAS_EXPIRE_ONLY = 35,
    /// Shared mappings of files opened with `FOPEN_DIRECT_IO`.
    DIRECT_IO_ALLOW_MMAP = 36,
    /// Backing files: see [`crate::BackingId`].
    PASSTHROUGH = 37,
    /// No file handles at all.
    NO_EXPORT_SUPPORT = 38,
    /// [`crate::Notifier::resend`] works.
    HAS_RESEND = 39,
    /// Idmapped mounts; requests then lack the caller's ids.
    ALLOW_IDMAP = 40,
    /// The ring. The transport sets it.
    OVER_IO_URING = 41,
    /// Requests that take too long abort the connection.
    REQUEST_TIMEOUT = 42,
}

/// The flags that the transport sets by itself, whatever the file system wishes.
pub const TRANSPORT: u64 = MAX_PAGES | INIT_EXT | OVER_IO_URING | BIG_WRITES | ABORT_ERROR;
