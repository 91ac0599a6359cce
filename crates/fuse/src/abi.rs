//! The kernel's structures, byte for byte, up to protocol 7.45.
//!
//! Each one is `struct fuse_*` of `<linux/fuse.h>` in CamelCase, without the prefix. Fields keep
//! the kernel's names, so the header documents them. All are plain integers without padding: any
//! bytes of the right length are a valid value.
#![expect(missing_docs, reason = "the kernel header documents fields and constants")]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol.
pub const KERNEL_VERSION: u32 = 7;
/// Newest minor version that this crate speaks.
pub const KERNEL_MINOR_VERSION: u32 = 45;
/// Oldest minor version that this crate speaks (Linux 5.4).
pub const OLDEST_MINOR_VERSION: u32 = 31;
/// Node id of the root directory.
pub const ROOT_ID: u64 = 1;
/// Smallest buffer that the kernel accepts for reading the device, in bytes.
pub const MIN_READ_BUFFER: usize = 8192;
/// Flag in a request's `unique`: the request was sent before (see [`crate::Notifier::resend`]).
pub const UNIQUE_RESEND: u64 = 1 << 63;
/// The uid and gid of requests on an idmapped mount, except for creations.
pub const INVALID_UIDGID: u32 = u32::MAX;

pub const FATTR_MODE: u32 = 1 << 0;
pub const FATTR_UID: u32 = 1 << 1;
pub const FATTR_GID: u32 = 1 << 2;
pub const FATTR_SIZE: u32 = 1 << 3;
pub const FATTR_ATIME: u32 = 1 << 4;
pub const FATTR_MTIME: u32 = 1 << 5;
pub const FATTR_FH: u32 = 1 << 6;
pub const FATTR_ATIME_NOW: u32 = 1 << 7;
pub const FATTR_MTIME_NOW: u32 = 1 << 8;
pub const FATTR_LOCKOWNER: u32 = 1 << 9;
pub const FATTR_CTIME: u32 = 1 << 10;
pub const FATTR_KILL_SUIDGID: u32 = 1 << 11;

pub const FOPEN_DIRECT_IO: u32 = 1 << 0;
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;
pub const FOPEN_NONSEEKABLE: u32 = 1 << 2;
pub const FOPEN_CACHE_DIR: u32 = 1 << 3;
pub const FOPEN_STREAM: u32 = 1 << 4;
pub const FOPEN_NOFLUSH: u32 = 1 << 5;
pub const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
pub const FOPEN_PASSTHROUGH: u32 = 1 << 7;

pub const RELEASE_FLUSH: u32 = 1 << 0;
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
pub const GETATTR_FH: u32 = 1 << 0;
pub const LK_FLOCK: u32 = 1 << 0;
pub const WRITE_CACHE: u32 = 1 << 0;
pub const WRITE_LOCKOWNER: u32 = 1 << 1;
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub const READ_LOCKOWNER: u32 = 1 << 1;
pub const IOCTL_COMPAT: u32 = 1 << 0;
pub const IOCTL_UNRESTRICTED: u32 = 1 << 1;
pub const IOCTL_RETRY: u32 = 1 << 2;
pub const IOCTL_32BIT: u32 = 1 << 3;
pub const IOCTL_DIR: u32 = 1 << 4;
pub const IOCTL_COMPAT_X32: u32 = 1 << 5;
pub const POLL_SCHEDULE_NOTIFY: u32 = 1 << 0;
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
pub const ATTR_SUBMOUNT: u32 = 1 << 0;
pub const ATTR_DAX: u32 = 1 << 1;
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
pub const EXPIRE_ONLY: u32 = 1 << 0;

pub const NOTIFY_POLL: i32 = 1;
pub const NOTIFY_INVAL_INODE: i32 = 2;
pub const NOTIFY_INVAL_ENTRY: i32 = 3;
pub const NOTIFY_STORE: i32 = 4;
pub const NOTIFY_RETRIEVE: i32 = 5;
pub const NOTIFY_DELETE: i32 = 6;
pub const NOTIFY_RESEND: i32 = 7;
/// Never sent: the kernel unmounts what is mounted on or below the names that it drops.
pub const NOTIFY_INC_EPOCH: i32 = 8;
pub const NOTIFY_PRUNE: i32 = 9;

/// Extension types up to this one are headers of security contexts; the type field holds their
/// number.
pub const MAX_NR_SECCTX: u32 = 31;
/// Extension type of supplementary groups.
pub const EXT_GROUPS: u32 = 32;

/// SQE command: register an entry of a queue and fetch a request into it.
pub const IO_URING_CMD_REGISTER: u32 = 1;
/// SQE command: commit the reply in the entry and fetch the next request.
pub const IO_URING_CMD_COMMIT_AND_FETCH: u32 = 2;

/// Declares a structure of the protocol with the traits that all of them need.
macro_rules! wire {
    ($($(#[$doc:meta])* struct $name:ident { $($field:tt)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $($field)* }
    )*};
}

wire! {
    /// Attributes of a node.
    struct Attr {
        pub ino: u64,
        pub size: u64,
        pub blocks: u64,
        pub atime: u64,
        pub mtime: u64,
        pub ctime: u64,
        pub atimensec: u32,
        pub mtimensec: u32,
        pub ctimensec: u32,
        pub mode: u32,
        pub nlink: u32,
        pub uid: u32,
        pub gid: u32,
        /// Encoded like the kernel's `new_encode_dev`: low 8 bits of the minor, 12 bits of major,
        /// the rest of the minor.
        pub rdev: u32,
        pub blksize: u32,
        pub flags: u32,
    }

    /// Timestamp in [`Statx`].
    struct SxTime {
        pub tv_sec: i64,
        pub tv_nsec: u32,
        pub __reserved: i32,
    }

    /// Attributes of a node, as in statx(2).
    struct Statx {
        pub mask: u32,
        pub blksize: u32,
        pub attributes: u64,
        pub nlink: u32,
        pub uid: u32,
        pub gid: u32,
        pub mode: u16,
        pub __spare0: [u16; 1],
        pub ino: u64,
        pub size: u64,
        pub blocks: u64,
        pub attributes_mask: u64,
        pub atime: SxTime,
        pub btime: SxTime,
        pub ctime: SxTime,
        pub mtime: SxTime,
        pub rdev_major: u32,
        pub rdev_minor: u32,
        pub dev_major: u32,
        pub dev_minor: u32,
        pub __spare2: [u64; 14],
    }

    /// File system statistics, as in statfs(2).
    struct Kstatfs {
        pub blocks: u64,
        pub bfree: u64,
        pub bavail: u64,
        pub files: u64,
        pub ffree: u64,
        pub bsize: u32,
        pub namelen: u32,
        pub frsize: u32,
        pub padding: u32,
        pub spare: [u32; 6],
    }

    /// A byte-range lock, as in fcntl(2).
    struct FileLock {
        pub start: u64,
        pub end: u64,
        pub r#type: u32,
        pub pid: u32,
    }

    /// A node, its attributes, and how long the kernel may cache both.
    struct EntryOut {
        pub nodeid: u64,
        pub generation: u64,
        pub entry_valid: u64,
        pub attr_valid: u64,
        pub entry_valid_nsec: u32,
        pub attr_valid_nsec: u32,
        pub attr: Attr,
    }

    struct ForgetIn { pub nlookup: u64, }

    /// A node and the number of lookups to drop.
    struct ForgetOne { pub nodeid: u64, pub nlookup: u64, }

    struct BatchForgetIn { pub count: u32, pub dummy: u32, }

    struct GetattrIn { pub getattr_flags: u32, pub dummy: u32, pub fh: u64, }

    struct AttrOut { pub attr_valid: u64, pub attr_valid_nsec: u32, pub dummy: u32, pub attr: Attr, }

    struct StatxIn { pub getattr_flags: u32, pub reserved: u32, pub fh: u64, pub sx_flags: u32, pub sx_mask: u32, }

    struct StatxOut {
        pub attr_valid: u64,
        pub attr_valid_nsec: u32,
        pub flags: u32,
        pub spare: [u64; 2],
        pub stat: Statx,
    }

    struct MknodIn { pub mode: u32, pub rdev: u32, pub umask: u32, pub padding: u32, }

    struct MkdirIn { pub mode: u32, pub umask: u32, }

    struct RenameIn { pub newdir: u64, }

    struct Rename2In { pub newdir: u64, pub flags: u32, pub padding: u32, }

    struct LinkIn { pub oldnodeid: u64, }

    struct SetattrIn {
        pub valid: u32,
        pub padding: u32,
        pub fh: u64,
        pub size: u64,
        pub lock_owner: u64,
        pub atime: u64,
        pub mtime: u64,
        pub ctime: u64,
        pub atimensec: u32,
        pub mtimensec: u32,
        pub ctimensec: u32,
        pub mode: u32,
        pub unused4: u32,
        pub uid: u32,
        pub gid: u32,
        pub unused5: u32,
    }

    struct OpenIn { pub flags: u32, pub open_flags: u32, }

    struct CreateIn { pub flags: u32, pub mode: u32, pub umask: u32, pub open_flags: u32, }

    /// Reply to an open; `backing_id` is valid only with [`FOPEN_PASSTHROUGH`].
    struct OpenOut { pub fh: u64, pub open_flags: u32, pub backing_id: i32, }

    struct ReleaseIn { pub fh: u64, pub flags: u32, pub release_flags: u32, pub lock_owner: u64, }

    struct FlushIn { pub fh: u64, pub unused: u32, pub padding: u32, pub lock_owner: u64, }

    struct ReadIn {
        pub fh: u64,
        pub offset: u64,
        pub size: u32,
        pub read_flags: u32,
        pub lock_owner: u64,
        pub flags: u32,
        pub padding: u32,
    }

    struct WriteIn {
        pub fh: u64,
        pub offset: u64,
        pub size: u32,
        pub write_flags: u32,
        pub lock_owner: u64,
        pub flags: u32,
        pub padding: u32,
    }

    struct WriteOut { pub size: u32, pub padding: u32, }

    struct StatfsOut { pub st: Kstatfs, }

    struct FsyncIn { pub fh: u64, pub fsync_flags: u32, pub padding: u32, }

    /// Without `SETXATTR_EXT` the kernel sends only `size` and `flags`; the other fields are then
    /// 0.
    struct SetxattrIn { pub size: u32, pub flags: u32, pub setxattr_flags: u32, pub padding: u32, }

    struct GetxattrIn { pub size: u32, pub padding: u32, }

    struct GetxattrOut { pub size: u32, pub padding: u32, }

    struct LkIn { pub fh: u64, pub owner: u64, pub lk: FileLock, pub lk_flags: u32, pub padding: u32, }

    struct LkOut { pub lk: FileLock, }

    struct AccessIn { pub mask: u32, pub padding: u32, }

    /// The kernel's offer. Kernels before 7.36 send only the first four fields; the others are then
    /// 0.
    struct InitIn {
        pub major: u32,
        pub minor: u32,
        pub max_readahead: u32,
        pub flags: u32,
        pub flags2: u32,
        pub unused: [u32; 11],
    }

    struct InitOut {
        pub major: u32,
        pub minor: u32,
        pub max_readahead: u32,
        pub flags: u32,
        pub max_background: u16,
        pub congestion_threshold: u16,
        pub max_write: u32,
        pub time_gran: u32,
        pub max_pages: u16,
        pub map_alignment: u16,
        pub flags2: u32,
        pub max_stack_depth: u32,
        pub request_timeout: u16,
        pub unused: [u16; 11],
    }

    struct InterruptIn { pub unique: u64, }

    struct BmapIn { pub block: u64, pub blocksize: u32, pub padding: u32, }

    struct BmapOut { pub block: u64, }

    struct IoctlIn { pub fh: u64, pub flags: u32, pub cmd: u32, pub arg: u64, pub in_size: u32, pub out_size: u32, }

    struct IoctlIovec { pub base: u64, pub len: u64, }

    struct IoctlOut { pub result: i32, pub flags: u32, pub in_iovs: u32, pub out_iovs: u32, }

    struct PollIn { pub fh: u64, pub kh: u64, pub flags: u32, pub events: u32, }

    struct PollOut { pub revents: u32, pub padding: u32, }

    struct NotifyPollWakeupOut { pub kh: u64, }

    struct FallocateIn { pub fh: u64, pub offset: u64, pub length: u64, pub mode: u32, pub padding: u32, }

    struct InHeader {
        pub len: u32,
        pub opcode: u32,
        pub unique: u64,
        pub nodeid: u64,
        pub uid: u32,
        pub gid: u32,
        pub pid: u32,
        /// Length of the extensions at the end of the request, in units of 8 bytes.
        pub total_extlen: u16,
        pub padding: u16,
    }

    struct OutHeader { pub len: u32, pub error: i32, pub unique: u64, }

    /// A directory entry; its name follows, padded to 8 bytes.
    struct Dirent { pub ino: u64, pub off: u64, pub namelen: u32, pub r#type: u32, }

    /// A directory entry with attributes; its name follows, padded to 8 bytes.
    struct Direntplus { pub entry_out: EntryOut, pub dirent: Dirent, }

    struct NotifyInvalInodeOut { pub ino: u64, pub off: i64, pub len: i64, }

    struct NotifyInvalEntryOut { pub parent: u64, pub namelen: u32, pub flags: u32, }

    struct NotifyDeleteOut { pub parent: u64, pub child: u64, pub namelen: u32, pub padding: u32, }

    struct NotifyStoreOut { pub nodeid: u64, pub offset: u64, pub size: u32, pub padding: u32, }

    struct NotifyRetrieveOut {
        pub notify_unique: u64,
        pub nodeid: u64,
        pub offset: u64,
        pub size: u32,
        pub padding: u32,
    }

    struct NotifyRetrieveIn {
        pub dummy1: u64,
        pub offset: u64,
        pub size: u32,
        pub dummy2: u32,
        pub dummy3: u64,
        pub dummy4: u64,
    }

    struct NotifyPruneOut { pub count: u32, pub padding: u32, pub spare: u64, }

    struct BackingMap { pub fd: i32, pub flags: u32, pub padding: u64, }

    struct LseekIn { pub fh: u64, pub offset: u64, pub whence: u32, pub padding: u32, }

    struct LseekOut { pub offset: u64, }

    struct CopyFileRangeIn {
        pub fh_in: u64,
        pub off_in: u64,
        pub nodeid_out: u64,
        pub fh_out: u64,
        pub off_out: u64,
        pub len: u64,
        pub flags: u64,
    }

    struct CopyFileRangeOut { pub bytes_copied: u64, }

    struct SetupmappingIn { pub fh: u64, pub foffset: u64, pub len: u64, pub flags: u64, pub moffset: u64, }

    struct RemovemappingIn { pub count: u32, }

    struct RemovemappingOne { pub moffset: u64, pub len: u64, }

    struct SyncfsIn { pub padding: u64, }

    struct Secctx { pub size: u32, pub padding: u32, }

    struct SecctxHeader { pub size: u32, pub nr_secctx: u32, }

    struct ExtHeader { pub size: u32, pub r#type: u32, }

    /// Header of a list of group ids.
    struct SuppGroups { pub nr_groups: u32, }

    /// The ring's own part of an entry's header.
    struct UringEntInOut { pub flags: u64, pub commit_id: u64, pub payload_sz: u32, pub padding: u32, pub reserved: u64, }

    /// Command area of an SQE.
    struct UringCmdReq { pub flags: u64, pub commit_id: u64, pub qid: u16, pub padding: [u8; 6], }
}

/// Header of a ring entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UringReqHeader {
    /// [`InHeader`] in requests, [`OutHeader`] in replies.
    pub in_out: [u8; 128],
    /// The first argument of the opcode.
    pub op_in: [u8; 128],
    pub ring_ent_in_out: UringEntInOut,
}

/// Flags of renameat2(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags2(pub u32);

impl RenameFlags2 {
    /// `RENAME_NOREPLACE`: fail with `EEXIST` if the new name exists.
    pub const NOREPLACE: Self = Self(1);
    /// `RENAME_EXCHANGE`: exchange the two names.
    pub const EXCHANGE: Self = Self(2);
    /// `RENAME_WHITEOUT`: leave a whiteout at the old name.
    pub const WHITEOUT: Self = Self(4);

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl SetattrIn {
    /// Whether all `FATTR_*` bits of `what` are to be set.
    #[must_use]
    pub const fn has(&self, what: u32) -> bool {
        self.valid & what == what
    }
}

impl InitIn {
    /// Returns both flag words combined: see [`crate::flags`].
    #[must_use]
    pub const fn all_flags(&self) -> u64 {
        self.flags as u64 | (self.flags2 as u64) << 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::size_of;

    /// Sizes according to `<linux/fuse.h>` on 64-bit Linux.
    #[test]
    fn sizes_match_the_kernel_header() {
        assert_eq!(size_of::<Attr>(), 88);
        assert_eq!(size_of::<EntryOut>(), 128);
        assert_eq!(size_of::<AttrOut>(), 104);
        assert_eq!(size_of::<Statx>(), 256);
        assert_eq!(size_of::<StatxOut>(), 288);
        assert_eq!(size_of::<Kstatfs>(), 80);
        assert_eq!(size_of::<SetattrIn>(), 88);
        assert_eq!(size_of::<InitIn>(), 64);
        assert_eq!(size_of::<InitOut>(), 64);
        assert_eq!(size_of::<InHeader>(), 40);
        assert_eq!(size_of::<OutHeader>(), 16);
        assert_eq!(size_of::<LkIn>(), 48);
        assert_eq!(size_of::<WriteIn>(), 40);
        assert_eq!(size_of::<NotifyRetrieveIn>(), 40);
        assert_eq!(size_of::<CopyFileRangeIn>(), 56);
        assert_eq!(size_of::<UringEntInOut>(), 32);
        assert_eq!(size_of::<UringReqHeader>(), 288);
        assert_eq!(size_of::<UringCmdReq>(), 24);
        assert_eq!(size_of::<Direntplus>(), 152);
    }
}
