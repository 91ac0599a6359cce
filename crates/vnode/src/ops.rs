use crate::{Attr, Backing, Cx, Errno, Kind, Name, Result, SetAttr, StatFs};
use core::any::Any;
use core::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A vnode together with its attributes: what a look-up or a creation answers.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The object.
    pub vnode: Arc<dyn Vnode>,
    /// Its attributes at that moment.
    pub attr: Attr,
}

/// One entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Where to go on after this entry: non-zero, stable over close, reopen and changes of other entries.
    pub cookie: u64,
    /// The object's [`Vnode::id`].
    pub ino: u64,
    /// What it is.
    pub kind: Kind,
    /// Its name; `.` and `..` are never listed.
    pub name: Name<'a>,
}

/// How a file is opened: the `O_*` bits of open(2), without those that only concern the look-up (`O_CREAT`, `O_EXCL`,
/// `O_NOFOLLOW`, `O_CLOEXEC`, ...).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OpenFlags(pub u32);

impl OpenFlags {
    /// Read only.
    pub const RDONLY: Self = Self(0);
    /// Write only.
    pub const WRONLY: Self = Self(1);
    /// Read and write.
    pub const RDWR: Self = Self(2);
    const ACCMODE: u32 = 3;
    const TRUNC: u32 = 0o1000;
    const APPEND: u32 = 0o2000;

    /// May the open file be read?
    #[must_use]
    pub const fn reads(self) -> bool {
        self.0 & Self::ACCMODE != 1
    }

    /// May the open file be written?
    #[must_use]
    pub const fn writes(self) -> bool {
        self.0 & Self::ACCMODE != 0
    }

    /// Is the file emptied on opening (`O_TRUNC`)?
    #[must_use]
    pub const fn truncates(self) -> bool {
        self.0 & Self::TRUNC != 0
    }

    /// Does each write go to the end (`O_APPEND`)?
    #[must_use]
    pub const fn appends(self) -> bool {
        self.0 & Self::APPEND != 0
    }

    /// The same without `O_TRUNC`.
    #[must_use]
    pub const fn without_trunc(self) -> Self {
        Self(self.0 & !Self::TRUNC)
    }

    /// The same with `O_TRUNC`.
    #[must_use]
    pub const fn with_trunc(self) -> Self {
        Self(self.0 | Self::TRUNC)
    }

    /// Only the access mode: 0 read, 1 write, 2 both.
    #[must_use]
    pub const fn access(self) -> Self {
        Self(self.0 & Self::ACCMODE)
    }
}

/// Flags of renameat2(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RenameFlags {
    /// Fail with `EEXIST` if the new name exists (`RENAME_NOREPLACE`).
    pub no_replace: bool,
    /// Exchange the two, which must both exist (`RENAME_EXCHANGE`).
    pub exchange: bool,
    /// Leave a character device 0:0 of mode 0 under the old name, in the same step (`RENAME_WHITEOUT`). `EINVAL` with
    /// `exchange`, and where the bottom can't.
    pub whiteout: bool,
}

/// Flags of setxattr(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct XattrFlags {
    /// Fail with `EEXIST` if it exists (`XATTR_CREATE`).
    pub create: bool,
    /// Fail with `ENODATA` if it does not exist (`XATTR_REPLACE`).
    pub replace: bool,
}

/// The two kinds of seek that a file system must answer itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekFrom {
    /// The next data at or after the offset (`SEEK_DATA`).
    Data,
    /// The next hole at or after the offset (`SEEK_HOLE`).
    Hole,
}

/// What an ioctl answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IoctlReply {
    /// The system call's own result, 0 or positive.
    pub result: i32,
    /// Bytes written to the output buffer.
    pub len: usize,
}

/// Answers a value as [`Vnode::getxattr`] does: copied to `out`, or its length alone where `out` is empty.
///
/// # Errors
/// `ERANGE` if `out` is too small.
pub fn give(value: &[u8], out: &mut [u8]) -> Result<usize> {
    if !out.is_empty() {
        out.get_mut(..value.len()).ok_or(Errno::RANGE)?.copy_from_slice(value);
    }
    Ok(value.len())
}

/// An object of a layer: file, directory, symbolic link or special file. Every operation is that of the system call of the
/// same name, on the object itself: symbolic links are not followed, permissions not checked.
pub trait Vnode: Any + Send + Sync + fmt::Debug {
    /// For a layer that takes vnodes of its own as arguments ([`Vnode::link`], [`Vnode::rename`]).
    fn as_any(&self) -> &dyn Any;

    /// The object's number: see the crate's conventions.
    fn id(&self) -> u64;

    /// Tells objects apart that had the same number one after the other. Like the number it stays
    /// the same over rename, copy-up, forgetting, remount and restart.
    fn generation(&self) -> u32;

    /// What it is. Never changes.
    fn kind(&self) -> Kind;

    /// Attributes, also of an object whose last name is gone while something still holds the vnode.
    ///
    /// # Errors
    /// `ESTALE` if the object is gone, `EIO` and others from below.
    fn getattr(&self, cx: &Cx<'_>) -> Result<Attr>;

    /// Changes attributes, and answers the new ones. `file` is the open file that the change came through, if it did
    /// (ftruncate(2)): one that this vnode's `open`, `create` or `tmpfile` answered.
    ///
    /// # Errors
    /// As chmod(2), chown(2), truncate(2), utimensat(2).
    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr, file: Option<&dyn OpenFile>) -> Result<Attr>;

    /// The object of that name in this directory; `None` if there is none.
    ///
    /// # Errors
    /// `ENOTDIR`; what the layer hides answers its own errno.
    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>>;

    /// Tells `sink` the names of this object, each with the directory that has it, until `sink`
    /// answers false. An object has none if its last name is gone, or if it is the root.
    ///
    /// Finding the names of a file that was not looked up before may take a walk through the
    /// whole tree. Those of a directory are found from its `..`.
    ///
    /// # Errors
    /// `ESTALE` if the object is gone; [`crate::MAY_BLOCK`].
    fn names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()>;

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `EINVAL` if this is none.
    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>>;

    /// Lists entries after `cookie` (0: from the start) until `sink` answers false, which means that the entry did not
    /// fit and was not taken. An entry that exists throughout is listed exactly once, whatever else comes and goes.
    /// A directory that was removed is empty.
    ///
    /// # Errors
    /// `ENOTDIR`.
    fn readdir(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()>;

    /// What tells, beside this directory's own times, whether a listing of it that is kept somewhere is out of date: a
    /// number that changes when entries come or go that these times don't tell of, as those of other branches. 0 where
    /// there are none. `None`: keep listings by the time of modification alone, the time of change says nothing.
    fn listing_stamp(&self, cx: &Cx<'_>) -> Option<u64>;

    /// Opens a regular file. `O_TRUNC` truncates.
    ///
    /// # Errors
    /// As open(2).
    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>>;

    /// Makes a regular file (`mode`: permission bits, before the umask) and opens it.
    ///
    /// # Errors
    /// `EEXIST` and as open(2).
    fn create(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)>;

    /// Makes and opens a regular file without a name in this directory (`O_TMPFILE`); [`Vnode::link`] can name it.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the bottom can't.
    fn tmpfile(&self, cx: &Cx<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)>;

    /// Makes a regular file, fifo, socket or device: `mode` has type and permission bits, `rdev` is packed as by makedev(3).
    ///
    /// # Errors
    /// As mknod(2).
    fn mknod(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry>;

    /// Makes a directory (`mode`: permission bits).
    ///
    /// # Errors
    /// As mkdir(2).
    fn mkdir(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32) -> Result<Entry>;

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As symlink(2).
    fn symlink(&self, cx: &Cx<'_>, name: Name<'_>, target: &[u8]) -> Result<Entry>;

    /// Gives `target`, a vnode of the same layer and not a directory, another name in this directory.
    ///
    /// # Errors
    /// As link(2); `EXDEV` if `target` is of another layer.
    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &Arc<dyn Vnode>) -> Result<Entry>;

    /// Removes a name of something that is not a directory.
    ///
    /// # Errors
    /// `EISDIR` for a directory, and as unlink(2).
    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As rmdir(2).
    fn rmdir(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()>;

    /// Renames an entry of this directory into `new_dir`, a directory of the same layer.
    ///
    /// # Errors
    /// As renameat2(2); `EXDEV` only if `new_dir` is of another layer.
    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        new_dir: &Arc<dyn Vnode>,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()>;

    /// Reads an extended attribute; with an empty `out` answers its size.
    ///
    /// # Errors
    /// `ERANGE` if `out` is too small, and as lgetxattr(2).
    fn getxattr(&self, cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize>;

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As lsetxattr(2).
    fn setxattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()>;

    /// Lists the names of extended attributes, each with a NUL after it; with an empty `out` answers the size.
    ///
    /// # Errors
    /// As llistxattr(2).
    fn listxattr(&self, cx: &Cx<'_>, out: &mut [u8]) -> Result<usize>;

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As lremovexattr(2).
    fn removexattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()>;

    /// A word for layers that [want to know](Layer::watches_refusals): the kernel has refused the caller one or more of `mask`: to read
    /// (4) the object, to write it (2), to execute or search it (1). What is answered changes nothing.
    ///
    /// # Errors
    /// [`crate::MAY_BLOCK`], and whatever kept the layer from taking notice.
    fn refused(&self, cx: &Cx<'_>, mask: u32) -> Result<()>;

    /// Figures of the file system that the object lies on.
    ///
    /// # Errors
    /// As statfs(2).
    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs>;

    /// Makes a directory's entries durable (for files see [`OpenFile::fsync`]).
    ///
    /// # Errors
    /// As fsync(2).
    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()>;

    /// An ioctl on a directory, or on a file that was not opened: the file flags of chattr(1) and the like.
    ///
    /// # Errors
    /// `ENOTTY` for what is not understood.
    fn ioctl(&self, cx: &Cx<'_>, cmd: u32, input: &[u8], out: &mut [u8]) -> Result<IoctlReply>;

    /// A command of the control channel ([`crate::Layer::commands`]), given on this object. A layer
    /// answers its own and passes on the others.
    ///
    /// # Errors
    /// `ENOTTY` for a command that no layer knows, `EINVAL` for input that it does not understand.
    fn control(&self, cx: &Cx<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>>;
}

/// See [`Vnode::names`].
pub type NameSink<'a> = &'a mut dyn FnMut(&Arc<dyn Vnode>, Name<'_>) -> bool;

/// Reads from the host file that [`OpenFile::read_host`] lends it: answers how many bytes it read, or `None` if it can't read that file.
pub type HostReader<'a> = &'a mut dyn FnMut(BorrowedFd<'_>) -> Option<usize>;

/// An open regular file. Closed when dropped.
pub trait OpenFile: Any + Send + Sync + fmt::Debug {
    /// For a layer that takes open files of its own as arguments.
    fn as_any(&self) -> &dyn Any;

    /// The host file under it, if every byte of this file is read from and written to that file, unchanged, for as long
    /// as *any* open file of its vnode lives. The kernel may then be given it (FUSE passthrough).
    ///
    /// A layer that moves a file's data to another host file all the same says so in time
    /// ([`crate::Upcalls::data_moved`]), and keeps the open files for which [`Self::bind`] was
    /// called on the old one.
    fn backing(&self) -> Option<Backing<'_>>;

    /// The kernel was given [`Self::backing`] for this open file: all that is asked of it from now
    /// on is asked of that host file, also if the file's data move to another.
    fn bind(&self);

    /// Reads at `offset`; answers fewer bytes than asked for only at the end of the file.
    ///
    /// # Errors
    /// As pread(2); [`crate::MAY_BLOCK`].
    fn read(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize>;

    /// Has `take` read from the host file in which this file's data lie *now*, every byte unchanged and at the same offset. `take`
    /// answers how much it read, or `None` if it can't read that file. `None`: the data are to be had by [`Self::read`] only.
    ///
    /// Unlike [`Self::backing`] it promises nothing for the time after: where a file may move, its data are elsewhere
    /// at the next call. A layer may call `take` again with another host file if that is as good; what was read last counts.
    ///
    /// # Errors
    /// As pread(2), where the host file can't be found; what `take` could not do is no error.
    fn read_host(&self, cx: &Cx<'_>, take: HostReader<'_>) -> Result<Option<usize>>;

    /// Writes all of `data` at `offset`, or at the end if the file was opened with `O_APPEND`.
    ///
    /// # Errors
    /// As pwrite(2). A partial write answers its length.
    fn write(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize>;

    /// A descriptor of the file was closed: report what only now can be known.
    ///
    /// # Errors
    /// As close(2).
    fn flush(&self, cx: &Cx<'_>) -> Result<()>;

    /// Makes the file durable.
    ///
    /// # Errors
    /// As fsync(2).
    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()>;

    /// Allocates, punches or zeroes a range: `mode` is that of fallocate(2).
    ///
    /// # Errors
    /// As fallocate(2).
    fn fallocate(&self, cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()>;

    /// Finds data or a hole.
    ///
    /// # Errors
    /// `ENXIO` past the end.
    fn seek(&self, cx: &Cx<'_>, offset: u64, whence: SeekFrom) -> Result<u64>;

    /// Copies from `source` at `source_offset` into this file; answers how much was copied, 0 at the source's end.
    /// `source` may be of any layer: a layer looks through to what it knows.
    ///
    /// # Errors
    /// As copy_file_range(2).
    fn copy_from(&self, cx: &Cx<'_>, offset: u64, source: &dyn OpenFile, source_offset: u64, len: u64) -> Result<u64>;

    /// Makes this file share all of `source`'s data (`FICLONE`).
    ///
    /// # Errors
    /// `EOPNOTSUPP`, `EXDEV`, `EINVAL` where that can't be done.
    fn reflink_from(&self, cx: &Cx<'_>, source: &dyn OpenFile) -> Result<()>;
}
