//! INIT flags: the kernel offers them, [`crate::InitConfig::flags`] accepts them. Both words of the
//! protocol are combined in one `u64`.

macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident = $bit:literal,)*) => {
        $($(#[$doc])* pub const $name: u64 = 1 << $bit;)*
        /// Name and value of every flag, for messages.
        pub const ALL: &[(&str, u64)] = &[$((stringify!($name), $name),)*];
    };
}

flags! {
    /// Parallel reads of one file.
    ASYNC_READ = 0,
    /// fcntl(2) locks are sent to the server.
    POSIX_LOCKS = 1,
    /// Never used by the kernel.
    FILE_OPS = 2,
    /// OPEN carries `O_TRUNC`.
    ATOMIC_O_TRUNC = 3,
    /// LOOKUP of `.` and `..` works: needed for file handles of nodes that the kernel has
    /// forgotten.
    EXPORT_SUPPORT = 4,
    /// Writes larger than a page.
    BIG_WRITES = 5,
    /// The file system applies the umask, not the kernel.
    DONT_MASK = 6,
    /// splice(2) to the device.
    SPLICE_WRITE = 7,
    /// Moved pages in splice(2).
    SPLICE_MOVE = 8,
    /// splice(2) from the device.
    SPLICE_READ = 9,
    /// flock(2) locks are sent to the server.
    FLOCK_LOCKS = 10,
    /// ioctl(2) on directories.
    HAS_IOCTL_DIR = 11,
    /// Cached pages are dropped when refreshed attributes have another mtime or size.
    AUTO_INVAL_DATA = 12,
    /// READDIRPLUS is supported.
    DO_READDIRPLUS = 13,
    /// The kernel chooses between READDIR and READDIRPLUS.
    READDIRPLUS_AUTO = 14,
    /// Parallel direct I/O.
    ASYNC_DIO = 15,
    /// Writeback cache. Excludes [`PASSTHROUGH`].
    WRITEBACK_CACHE = 16,
    /// ENOSYS to OPEN makes the kernel open files without requests.
    NO_OPEN_SUPPORT = 17,
    /// Parallel lookups and listings in one directory.
    PARALLEL_DIROPS = 18,
    /// The file system clears set-id bits, first version.
    HANDLE_KILLPRIV = 19,
    /// POSIX ACLs, as extended attributes.
    POSIX_ACL = 20,
    /// Reading the device after an abort fails with `ECONNABORTED`.
    ABORT_ERROR = 21,
    /// `max_pages` is valid. Set by the transport.
    MAX_PAGES = 22,
    /// Targets of symbolic links are cached.
    CACHE_SYMLINKS = 23,
    /// ENOSYS to OPENDIR makes the kernel open directories without requests.
    NO_OPENDIR_SUPPORT = 24,
    /// Cached pages are dropped only on notification.
    EXPLICIT_INVAL_DATA = 25,
    /// DAX only.
    MAP_ALIGNMENT = 26,
    /// virtiofs only.
    SUBMOUNTS = 27,
    /// The file system clears set-id bits when a request says so.
    HANDLE_KILLPRIV_V2 = 28,
    /// The longer form of SETXATTR.
    SETXATTR_EXT = 29,
    /// The second flags word is valid. Set by the transport.
    INIT_EXT = 30,
    /// Creations carry the security context.
    SECURITY_CTX = 32,
    /// DAX only.
    HAS_INODE_DAX = 33,
    /// Creations carry the directory's group if the caller is a member.
    CREATE_SUPP_GROUP = 34,
    /// Cached names can be expired: [`crate::Notifier::expire_entry`].
    HAS_EXPIRE_ONLY = 35,
    /// Shared mappings of files opened with `FOPEN_DIRECT_IO`.
    DIRECT_IO_ALLOW_MMAP = 36,
    /// Backing files: see [`crate::BackingId`].
    PASSTHROUGH = 37,
    /// No file handles at all.
    NO_EXPORT_SUPPORT = 38,
    /// [`crate::Notifier::resend`] is supported.
    HAS_RESEND = 39,
    /// Idmapped mounts; requests other than creations then lack the caller's ids.
    ALLOW_IDMAP = 40,
    /// The io_uring transport. Set by the transport.
    OVER_IO_URING = 41,
    /// Requests that exceed a time limit abort the connection.
    REQUEST_TIMEOUT = 42,
}

/// Flags that the transport controls, regardless of [`crate::InitConfig::flags`].
pub const TRANSPORT: u64 = MAX_PAGES | INIT_EXT | OVER_IO_URING | BIG_WRITES | ABORT_ERROR;
