use crate::abi::{
    AttrOut, CopyFileRangeIn, CreateIn, EntryOut, FallocateIn, ForgetOne, GetattrIn, InitIn, IoctlIn, IoctlOut,
    Kstatfs, LkIn, LkOut, LseekIn, MknodIn, OpenIn, OpenOut, ReadIn, ReleaseIn, RenameFlags2, SetattrIn, SetxattrIn,
    StatxIn, StatxOut, WriteIn,
};
use crate::{Errno, Request, Session};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The answer of a handler.
pub type Reply<T> = core::result::Result<T, Errno>;

/// A file system, as the kernel sees it: one method per opcode, named as the opcode, with the kernel's own structures.
///
/// A handler is called on any of the session's threads, many at a time. Where [`Request::may_block`] is false it runs on a
/// thread that serves others too; it may then answer [`crate::MAY_BLOCK`], *before it changed anything*, and is called
/// again, with the same arguments, on a thread that may wait.
///
/// There are no default methods, so that no forgotten operation answers ENOSYS in silence: several `ENOSYS` are remembered by the kernel for
/// the life of the connection (see [`crate::opcode`]).
pub trait Filesystem: Send + Sync + 'static {
    /// The kernel has said what it offers: answers what the file system wants of it. Called once, before anything else.
    fn init(&self, session: &Arc<Session>, offer: &InitIn) -> crate::Wish;

    /// The connection is gone (unmounted or aborted); no method is called after this one.
    fn destroy(&self);

    /// `None`: no such entry, and the kernel may remember that for the [`crate::Wish::negative_timeout`].
    fn lookup(&self, rq: &Request<'_>, parent: u64, name: &[u8]) -> Reply<Option<EntryOut>>;
    /// The kernel drops `ForgetOne::nlookup` look-ups of each node.
    fn forget(&self, nodes: &[ForgetOne]);
    /// stat(2), statx(2) without birth time.
    fn getattr(&self, rq: &Request<'_>, node: u64, arg: &GetattrIn) -> Reply<AttrOut>;
    /// chmod, chown, truncate, utimes.
    fn setattr(&self, rq: &Request<'_>, node: u64, arg: &SetattrIn) -> Reply<AttrOut>;
    /// statx(2) where the birth time is asked for.
    fn statx(&self, rq: &Request<'_>, node: u64, arg: &StatxIn) -> Reply<StatxOut>;
    /// The target of a symbolic link.
    fn readlink(&self, rq: &Request<'_>, node: u64, out: &mut [u8]) -> Reply<usize>;
    /// symlink(2)
    fn symlink(&self, rq: &Request<'_>, parent: u64, name: &[u8], target: &[u8]) -> Reply<EntryOut>;
    /// mknod(2)
    fn mknod(&self, rq: &Request<'_>, parent: u64, arg: &MknodIn, name: &[u8]) -> Reply<EntryOut>;
    /// mkdir(2): `mode` with the umask not applied where `DONT_MASK` was agreed, `umask`.
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
    /// open(2) of an existing file. `arg.flags` are the `O_*` bits; `arg.open_flags` may have `OPEN_KILL_SUIDGID`.
    fn open(&self, rq: &Request<'_>, node: u64, arg: &OpenIn) -> Reply<OpenOut>;
    /// open(2) with `O_CREAT` of a name that does not exist.
    fn create(&self, rq: &Request<'_>, parent: u64, arg: &CreateIn, name: &[u8]) -> Reply<(EntryOut, OpenOut)>;
    /// open(2) with `O_TMPFILE`.
    fn tmpfile(&self, rq: &Request<'_>, parent: u64, arg: &CreateIn) -> Reply<(EntryOut, OpenOut)>;
    /// read(2) that the kernel did not answer by itself.
    fn read(&self, rq: &Request<'_>, node: u64, arg: &ReadIn, out: &mut [u8]) -> Reply<usize>;
    /// The same where the data lie unchanged in a host file: has `take` read from it, which answers how much it read, or `None` where
    /// it can't read this file. `None`: [`Self::read`] is to be called.
    fn read_host(
        &self,
        rq: &Request<'_>,
        node: u64,
        arg: &ReadIn,
        take: &mut dyn FnMut(BorrowedFd<'_>) -> Option<usize>,
    ) -> Reply<Option<usize>>;
    /// write(2), or the writing back of a shared mapping.
    fn write(&self, rq: &Request<'_>, node: u64, arg: &WriteIn, data: &[u8]) -> Reply<u32>;
    /// close(2) of each descriptor, unless `FOPEN_NOFLUSH`.
    fn flush(&self, rq: &Request<'_>, node: u64, fh: u64, lock_owner: u64) -> Reply<()>;
    /// The last descriptor of an open file is gone.
    fn release(&self, rq: &Request<'_>, node: u64, arg: &ReleaseIn) -> Reply<()>;
    /// fsync(2), fdatasync(2)
    fn fsync(&self, rq: &Request<'_>, node: u64, fh: u64, data_only: bool) -> Reply<()>;
    /// `ENOSYS`, once, lets the kernel open directories without asking.
    fn opendir(&self, rq: &Request<'_>, node: u64, flags: u32) -> Reply<OpenOut>;
    /// Fills `out` with entries after offset `arg.offset`: see [`crate::DirBuf`].
    fn readdir(&self, rq: &Request<'_>, node: u64, arg: &ReadIn, out: &mut [u8]) -> Reply<usize>;
    /// The same, with the attributes of each entry; each entry with a node id counts as one look-up.
    fn readdirplus(&self, rq: &Request<'_>, node: u64, arg: &ReadIn, out: &mut [u8]) -> Reply<usize>;
    /// closedir(3)
    fn releasedir(&self, rq: &Request<'_>, node: u64, arg: &ReleaseIn) -> Reply<()>;
    /// fsync(2) of a directory
    fn fsyncdir(&self, rq: &Request<'_>, node: u64, fh: u64, data_only: bool) -> Reply<()>;
    /// statfs(2)
    fn statfs(&self, rq: &Request<'_>, node: u64) -> Reply<Kstatfs>;
    /// setxattr(2). With an empty `out` (size 0 asked) get and list answer the size needed.
    fn setxattr(&self, rq: &Request<'_>, node: u64, arg: &SetxattrIn, name: &[u8], value: &[u8]) -> Reply<()>;
    /// getxattr(2): fills `out`, or answers the size if `out` is empty.
    fn getxattr(&self, rq: &Request<'_>, node: u64, name: &[u8], out: &mut [u8]) -> Reply<usize>;
    /// listxattr(2): fills `out`, or answers the size if `out` is empty.
    fn listxattr(&self, rq: &Request<'_>, node: u64, out: &mut [u8]) -> Reply<usize>;
    /// removexattr(2)
    fn removexattr(&self, rq: &Request<'_>, node: u64, name: &[u8]) -> Reply<()>;
    /// access(2), only without `default_permissions`.
    fn access(&self, rq: &Request<'_>, node: u64, mask: u32) -> Reply<()>;
    /// fcntl(F_GETLK), only if `POSIX_LOCKS` was agreed.
    fn getlk(&self, rq: &Request<'_>, node: u64, arg: &LkIn) -> Reply<LkOut>;
    /// fcntl(F_SETLK), flock(2); `wait`: F_SETLKW.
    fn setlk(&self, rq: &Request<'_>, node: u64, arg: &LkIn, wait: bool) -> Reply<()>;
    /// bmap, only for fuseblk.
    fn bmap(&self, rq: &Request<'_>, node: u64, block: u64, blocksize: u32) -> Reply<u64>;
    /// A restricted ioctl. Answers the structure and how much of `out` was filled.
    fn ioctl(
        &self,
        rq: &Request<'_>,
        node: u64,
        arg: &IoctlIn,
        input: &[u8],
        out: &mut [u8],
    ) -> Reply<(IoctlOut, usize)>;
    /// poll(2): the events that are ready.
    fn poll(&self, rq: &Request<'_>, node: u64, fh: u64, kh: u64, flags: u32, events: u32) -> Reply<u32>;
    /// fallocate(2)
    fn fallocate(&self, rq: &Request<'_>, node: u64, arg: &FallocateIn) -> Reply<()>;
    /// SEEK_DATA, SEEK_HOLE
    fn lseek(&self, rq: &Request<'_>, node: u64, arg: &LseekIn) -> Reply<u64>;
    /// copy_file_range(2); `arg` names source and target. Both the 32-bit and the 64-bit opcode.
    fn copy_file_range(&self, rq: &Request<'_>, node: u64, arg: &CopyFileRangeIn) -> Reply<u64>;
    /// syncfs(2), which a plain FUSE mount does not pass on.
    fn syncfs(&self, rq: &Request<'_>, node: u64) -> Reply<()>;
    /// The kernel answers [`crate::Notifier::retrieve`].
    fn notify_reply(&self, rq: &Request<'_>, node: u64, unique: u64, offset: u64, data: &[u8]);
}
