//! The interface that a file system implements.

use crate::abi::{
    AttrOut, CopyFileRangeIn, CreateIn, EntryOut, FallocateIn, ForgetOne, GetattrIn, InitIn, IoctlIn, IoctlOut,
    Kstatfs, LkIn, LkOut, LseekIn, MknodIn, OpenIn, OpenOut, ReadIn, ReleaseIn, RenameFlags2, SetattrIn, SetxattrIn,
    StatxIn, StatxOut, WriteIn,
};
use crate::{Errno, Request, Session};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Result of a handler.
pub type Reply<T> = core::result::Result<T, Errno>;

/// A file system at the level of the FUSE protocol: one method per opcode, named after it, with the
/// kernel's own structures.
///
/// Handlers run on any of the session's threads, many at a time. If [`Request::may_block`] is
/// false, the thread serves other requests too. A handler that has not changed anything yet may
/// then return [`crate::MAY_BLOCK`], and is called again with the same arguments on a thread that
/// may block.
///
/// There are no default methods, so a missing operation does not compile instead of returning
/// `ENOSYS`. The kernel caches several `ENOSYS` replies for the life of the connection (see
/// [`crate::opcode`]).
pub trait Filesystem: Send + Sync + 'static {
    /// Receives the kernel's offer and returns the features and limits to request. Called once,
    /// before all other methods.
    fn init(&self, session: &Arc<Session>, offer: &InitIn) -> crate::InitConfig;

    /// Ends the file system: the connection was unmounted or aborted. No method is called after
    /// this one.
    fn destroy(&self);

    /// Looks up a name. `None`: a negative lookup, which the kernel may cache for
    /// [`crate::InitConfig::negative_timeout`].
    fn lookup(&self, rq: &Request<'_>, parent: u64, name: &[u8]) -> Reply<Option<EntryOut>>;
    /// Subtracts `ForgetOne::nlookup` from each node's lookup count.
    fn forget(&self, nodes: &[ForgetOne]);
    /// stat(2), statx(2) without birth time.
    fn getattr(&self, rq: &Request<'_>, node: u64, arg: &GetattrIn) -> Reply<AttrOut>;
    /// chmod, chown, truncate, utimes.
    fn setattr(&self, rq: &Request<'_>, node: u64, arg: &SetattrIn) -> Reply<AttrOut>;
    /// statx(2) that requests the birth time.
    fn statx(&self, rq: &Request<'_>, node: u64, arg: &StatxIn) -> Reply<StatxOut>;
    /// readlink(2)
    fn readlink(&self, rq: &Request<'_>, node: u64, out: &mut [u8]) -> Reply<usize>;
    /// symlink(2)
    fn symlink(&self, rq: &Request<'_>, parent: u64, name: &[u8], target: &[u8]) -> Reply<EntryOut>;
    /// mknod(2)
    fn mknod(&self, rq: &Request<'_>, parent: u64, arg: &MknodIn, name: &[u8]) -> Reply<EntryOut>;
    /// mkdir(2): `mode`, with the umask not applied where `DONT_MASK` was agreed, and `umask`.
    fn mkdir(&self, rq: &Request<'_>, parent: u64, mode: u32, umask: u32, name: &[u8]) -> Reply<EntryOut>;
    /// unlink(2)
    fn unlink(&self, rq: &Request<'_>, parent: u64, name: &[u8]) -> Reply<()>;
    /// rmdir(2)
    fn rmdir(&self, rq: &Request<'_>, parent: u64, name: &[u8]) -> Reply<()>;
    /// rename(2), renameat2(2)
    fn rename(
        &self,
        rq: &Request<'_>,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: RenameFlags2,
    ) -> Reply<()>;
    /// link(2)
    fn link(&self, rq: &Request<'_>, node: u64, new_parent: u64, new_name: &[u8]) -> Reply<EntryOut>;
    /// open(2) of an existing file. `arg.flags` are the `O_*` bits; `arg.open_flags` may have
    /// `OPEN_KILL_SUIDGID`.
    fn open(&self, rq: &Request<'_>, node: u64, arg: &OpenIn) -> Reply<OpenOut>;
    /// open(2) with `O_CREAT` of a name that does not exist.
    fn create(&self, rq: &Request<'_>, parent: u64, arg: &CreateIn, name: &[u8]) -> Reply<(EntryOut, OpenOut)>;
    /// open(2) with `O_TMPFILE`.
    fn tmpfile(&self, rq: &Request<'_>, parent: u64, arg: &CreateIn) -> Reply<(EntryOut, OpenOut)>;
    /// read(2) that the kernel cannot serve itself.
    fn read(&self, rq: &Request<'_>, node: u64, arg: &ReadIn, out: &mut [u8]) -> Reply<usize>;
    /// Serves a READ from a host file that holds the same data: passes that file to `take`. `take`
    /// returns the number of bytes that it read, or `None` if it cannot read this file. If this
    /// method returns `None`, [`Self::read`] is called.
    fn read_host(
        &self,
        rq: &Request<'_>,
        node: u64,
        arg: &ReadIn,
        take: &mut dyn FnMut(BorrowedFd<'_>) -> Option<usize>,
    ) -> Reply<Option<usize>>;
    /// write(2), or writeback of a shared mapping.
    fn write(&self, rq: &Request<'_>, node: u64, arg: &WriteIn, data: &[u8]) -> Reply<u32>;
    /// close(2) of each descriptor, unless `FOPEN_NOFLUSH`.
    fn flush(&self, rq: &Request<'_>, node: u64, fh: u64, lock_owner: u64) -> Reply<()>;
    /// The last descriptor of an open file was closed.
    fn release(&self, rq: &Request<'_>, node: u64, arg: &ReleaseIn) -> Reply<()>;
    /// fsync(2), fdatasync(2)
    fn fsync(&self, rq: &Request<'_>, node: u64, fh: u64, data_only: bool) -> Reply<()>;
    /// opendir(3). `ENOSYS`, once, lets the kernel open directories without requests.
    fn opendir(&self, rq: &Request<'_>, node: u64, flags: u32) -> Reply<OpenOut>;
    /// getdents(2): fills `out` with entries after offset `arg.offset`; see [`crate::DirBuf`].
    fn readdir(&self, rq: &Request<'_>, node: u64, arg: &ReadIn, out: &mut [u8]) -> Reply<usize>;
    /// getdents(2) with the attributes of each entry. Each entry with a node id counts as one
    /// lookup.
    fn readdirplus(&self, rq: &Request<'_>, node: u64, arg: &ReadIn, out: &mut [u8]) -> Reply<usize>;
    /// closedir(3)
    fn releasedir(&self, rq: &Request<'_>, node: u64, arg: &ReleaseIn) -> Reply<()>;
    /// fsync(2) of a directory
    fn fsyncdir(&self, rq: &Request<'_>, node: u64, fh: u64, data_only: bool) -> Reply<()>;
    /// statfs(2)
    fn statfs(&self, rq: &Request<'_>, node: u64) -> Reply<Kstatfs>;
    /// setxattr(2)
    fn setxattr(&self, rq: &Request<'_>, node: u64, arg: &SetxattrIn, name: &[u8], value: &[u8]) -> Reply<()>;
    /// getxattr(2): fills `out`, or returns the required size if `out` is empty.
    fn getxattr(&self, rq: &Request<'_>, node: u64, name: &[u8], out: &mut [u8]) -> Reply<usize>;
    /// listxattr(2): fills `out`, or returns the required size if `out` is empty.
    fn listxattr(&self, rq: &Request<'_>, node: u64, out: &mut [u8]) -> Reply<usize>;
    /// removexattr(2)
    fn removexattr(&self, rq: &Request<'_>, node: u64, name: &[u8]) -> Reply<()>;
    /// access(2), sent only without `default_permissions`.
    fn access(&self, rq: &Request<'_>, node: u64, mask: u32) -> Reply<()>;
    /// fcntl(F_GETLK), sent only if `POSIX_LOCKS` was agreed.
    fn getlk(&self, rq: &Request<'_>, node: u64, arg: &LkIn) -> Reply<LkOut>;
    /// fcntl(F_SETLK), flock(2); `wait`: F_SETLKW.
    fn setlk(&self, rq: &Request<'_>, node: u64, arg: &LkIn, wait: bool) -> Reply<()>;
    /// bmap, sent only for fuseblk.
    fn bmap(&self, rq: &Request<'_>, node: u64, block: u64, blocksize: u32) -> Reply<u64>;
    /// A restricted ioctl(2). Returns the structure and the number of bytes filled in `out`.
    fn ioctl(
        &self,
        rq: &Request<'_>,
        node: u64,
        arg: &IoctlIn,
        input: &[u8],
        out: &mut [u8],
    ) -> Reply<(IoctlOut, usize)>;
    /// poll(2): returns the events that are ready.
    fn poll(&self, rq: &Request<'_>, node: u64, fh: u64, kh: u64, flags: u32, events: u32) -> Reply<u32>;
    /// fallocate(2)
    fn fallocate(&self, rq: &Request<'_>, node: u64, arg: &FallocateIn) -> Reply<()>;
    /// lseek(2) with SEEK_DATA or SEEK_HOLE
    fn lseek(&self, rq: &Request<'_>, node: u64, arg: &LseekIn) -> Reply<u64>;
    /// copy_file_range(2), both the 32-bit and the 64-bit opcode; `arg` names source and target.
    fn copy_file_range(&self, rq: &Request<'_>, node: u64, arg: &CopyFileRangeIn) -> Reply<u64>;
    /// syncfs(2), which the kernel does not send on plain FUSE mounts.
    fn syncfs(&self, rq: &Request<'_>, node: u64) -> Reply<()>;
    /// The kernel's reply to [`crate::Notifier::retrieve`].
    fn notify_reply(&self, rq: &Request<'_>, node: u64, unique: u64, offset: u64, data: &[u8]);
}
