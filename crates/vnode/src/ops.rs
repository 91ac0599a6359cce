use crate::{Attr, Backing, Cx, Errno, Kind, Name, Result, SetAttr, StatFs};
use core::any::Any;
use core::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A vnode and its attributes: the result of a lookup or creation.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The object.
    pub vnode: Arc<dyn Vnode>,
    /// Its attributes at the time of the operation.
    pub attr: Attr,
}

/// A directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Position after this entry: non-zero, and stable across close, reopen and changes to other
    /// entries.
    pub cookie: u64,
    /// The object's [`Vnode::id`].
    pub ino: u64,
    /// The object's type.
    pub kind: Kind,
    /// Its name; `.` and `..` are never listed.
    pub name: Name<'a>,
}

/// Flags for opening a file: the `O_*` bits of open(2), without those that only affect lookup
/// (`O_CREAT`, `O_EXCL`, `O_NOFOLLOW`, `O_CLOEXEC`, ...).
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

    /// Whether the file is opened for reading.
    #[must_use]
    pub const fn reads(self) -> bool {
        self.0 & Self::ACCMODE != 1
    }

    /// Whether the file is opened for writing.
    #[must_use]
    pub const fn writes(self) -> bool {
        self.0 & Self::ACCMODE != 0
    }

    /// Whether opening truncates the file (`O_TRUNC`).
    #[must_use]
    pub const fn truncates(self) -> bool {
        self.0 & Self::TRUNC != 0
    }

    /// Whether every write appends to the file (`O_APPEND`).
    #[must_use]
    pub const fn appends(self) -> bool {
        self.0 & Self::APPEND != 0
    }

    /// Returns the flags without `O_TRUNC`.
    #[must_use]
    pub const fn without_trunc(self) -> Self {
        Self(self.0 & !Self::TRUNC)
    }

    /// Returns the flags with `O_TRUNC`.
    #[must_use]
    pub const fn with_trunc(self) -> Self {
        Self(self.0 | Self::TRUNC)
    }

    /// Returns only the access mode: 0 read, 1 write, 2 both.
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
    /// Exchange the two entries, which must both exist (`RENAME_EXCHANGE`).
    pub exchange: bool,
    /// Atomically leave a character device 0:0 with mode 0 under the old name (`RENAME_WHITEOUT`).
    /// Fails with `EINVAL` together with `exchange`, or if the file system at the bottom of the
    /// stack does not support it.
    pub whiteout: bool,
}

/// Flags of setxattr(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct XattrFlags {
    /// Fail with `EEXIST` if the attribute exists (`XATTR_CREATE`).
    pub create: bool,
    /// Fail with `ENODATA` if the attribute does not exist (`XATTR_REPLACE`).
    pub replace: bool,
}

/// What lseek(2) searches for. The file system implements only these two values of `whence`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The next data at or after the offset (`SEEK_DATA`).
    Data,
    /// The next hole at or after the offset (`SEEK_HOLE`).
    Hole,
}

/// The result of an ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IoctlReply {
    /// The return value of the system call, 0 or positive.
    pub result: i32,
    /// Number of bytes written to the output buffer.
    pub len: usize,
}

/// Copies `value` to `out` and returns its length, or only returns the length if `out` is empty:
/// the convention of [`Vnode::getxattr`].
///
/// # Errors
/// `ERANGE` if `out` is too small.
pub fn copy_value(value: &[u8], out: &mut [u8]) -> Result<usize> {
    if !out.is_empty() {
        out.get_mut(..value.len()).ok_or(Errno::RANGE)?.copy_from_slice(value);
    }
    Ok(value.len())
}

/// Reads a value of unknown size, such as an extended attribute: queries the size, then the value,
/// until both agree. The opposite of [`copy_value`].
///
/// # Errors
/// Those of `read`.
pub fn read_value(mut read: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<Vec<u8>> {
    loop {
        let mut value = vec![0; read(&mut [])?];
        if value.is_empty() {
            return Ok(value);
        }
        match read(&mut value) {
            Ok(len) => {
                value.truncate(len);
                return Ok(value);
            }
            Err(Errno::RANGE) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// An object of a layer: a file, directory, symbolic link or special file. Every operation behaves
/// like the system call of the same name, applied to the object itself: symbolic links are not
/// followed and permissions are not checked.
pub trait Vnode: Any + Send + Sync + fmt::Debug {
    /// Returns `self` for downcasting, for layers that take their own vnodes as arguments
    /// ([`Vnode::link`], [`Vnode::rename`]).
    fn as_any(&self) -> &dyn Any;

    /// Returns the object's number: see "Stable identity" in the crate documentation.
    fn id(&self) -> u64;

    /// Returns a generation number, which distinguishes objects that successively had the same
    /// number. Like the number, it survives rename, copy-up, FORGET, remount and restart.
    fn generation(&self) -> u32;

    /// Returns the object's type, which never changes.
    fn kind(&self) -> Kind;

    /// Returns the attributes. Also works on an unlinked object while a reference to its vnode
    /// exists.
    ///
    /// # Errors
    /// `ESTALE` if the object no longer exists; `EIO` and other errors of the lower file system.
    fn getattr(&self, cx: &Cx<'_>) -> Result<Attr>;

    /// Returns the attributes, as [`Self::getattr`] does. `file` is an open file of this vnode, as
    /// in [`Self::setattr`], through which a layer may get them faster. By default it is not used.
    ///
    /// # Errors
    /// As [`Self::getattr`].
    fn getattr_open(&self, cx: &Cx<'_>, file: &dyn OpenFile) -> Result<Attr> {
        let _ = file;
        self.getattr(cx)
    }

    /// Changes attributes and returns the new ones. `file` is the open file that the change was
    /// made through, if any (ftruncate(2)). It is an open file of this vnode, returned by
    /// [`Self::open`], or by the [`Self::create`] or [`Self::tmpfile`] that created the vnode.
    ///
    /// # Errors
    /// As chmod(2), chown(2), truncate(2), utimensat(2).
    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr, file: Option<&dyn OpenFile>) -> Result<Attr>;

    /// Looks up a name in this directory. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// `ENOTDIR` if this is not a directory. A layer that denies access to an entry chooses the
    /// errno.
    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>>;

    /// Passes each name of this object, with the directory that contains it, to `sink`, until
    /// `sink` returns false. An unlinked object has no names, and neither has the root.
    ///
    /// Finding the names of a file that has not been looked up before may require a walk of the
    /// whole tree. The name of a directory is found through its `..` entry.
    ///
    /// # Errors
    /// `ESTALE` if the object no longer exists; [`crate::MAY_BLOCK`] if the walk would block a
    /// thread that must not block.
    fn names(&self, cx: &Cx<'_>, sink: NameSink<'_>) -> Result<()>;

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// `EINVAL` if this is not a symbolic link.
    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>>;

    /// Lists the entries after `cookie` (0: from the start) until `sink` returns false. False means
    /// that the entry did not fit; it counts as not listed. An entry that exists throughout the
    /// listing is listed exactly once, whatever other entries are added or removed. A removed
    /// directory has no entries.
    ///
    /// # Errors
    /// `ENOTDIR`.
    fn readdir(&self, cx: &Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()>;

    /// Returns a stamp for validating cached listings of this directory, in addition to its mtime
    /// and ctime. A layer whose directory merges several lower ones returns a stamp that changes
    /// when entries are added or removed in one whose times are not visible. A layer without such
    /// directories returns 0. Returns `None` if cached listings must be validated by mtime alone,
    /// for example because the ctime differs between replicas of the directory.
    fn listing_stamp(&self, cx: &Cx<'_>) -> Option<u64>;

    /// Whether lookups in this directory find exactly the names that [`Self::readdir`] lists, so
    /// that a layer above may answer negative lookups from a listing. False if that is not certain:
    /// names may be found in other spellings, or be created by looking them up.
    fn lists_exactly(&self, cx: &Cx<'_>) -> bool;

    /// Opens a regular file. `O_TRUNC` truncates.
    ///
    /// # Errors
    /// As open(2).
    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn OpenFile>>;

    /// Creates and opens a regular file (`mode`: permission bits, before the umask is applied).
    ///
    /// # Errors
    /// `EEXIST` and as open(2).
    fn create(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)>;

    /// Creates and opens an unnamed regular file in this directory (`O_TMPFILE`). [`Vnode::link`]
    /// can give it a name.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the bottom file system does not support it.
    fn tmpfile(&self, cx: &Cx<'_>, mode: u32, flags: OpenFlags) -> Result<(Entry, Arc<dyn OpenFile>)>;

    /// Creates a regular file, FIFO, socket or device node. `mode` has type and permission bits;
    /// `rdev` is packed as by makedev(3).
    ///
    /// # Errors
    /// As mknod(2).
    fn mknod(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry>;

    /// Creates a directory (`mode`: permission bits).
    ///
    /// # Errors
    /// As mkdir(2).
    fn mkdir(&self, cx: &Cx<'_>, name: Name<'_>, mode: u32) -> Result<Entry>;

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// As symlink(2).
    fn symlink(&self, cx: &Cx<'_>, name: Name<'_>, target: &[u8]) -> Result<Entry>;

    /// Adds a hard link to `target`, a non-directory vnode of the same layer, in this directory.
    /// Bottom layers also accept a vnode of another layer that is a directory of the same file
    /// system.
    ///
    /// # Errors
    /// As link(2); `EXDEV` if `target` belongs to any other layer.
    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &Arc<dyn Vnode>) -> Result<Entry>;

    /// Removes the name of a non-directory.
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
    /// As renameat2(2); `EXDEV` only if `new_dir` belongs to another layer.
    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        new_dir: &Arc<dyn Vnode>,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()>;

    /// Reads an extended attribute. With an empty `out`, returns only its size.
    ///
    /// # Errors
    /// `ERANGE` if `out` is too small, and as lgetxattr(2).
    fn getxattr(&self, cx: &Cx<'_>, name: &[u8], out: &mut [u8]) -> Result<usize>;

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As lsetxattr(2).
    fn setxattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()>;

    /// Lists the names of the extended attributes, each terminated by a NUL. With an empty `out`,
    /// returns only the size.
    ///
    /// # Errors
    /// As llistxattr(2).
    fn listxattr(&self, cx: &Cx<'_>, out: &mut [u8]) -> Result<usize>;

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As lremovexattr(2).
    fn removexattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()>;

    /// Reports an access that the kernel has denied the caller. Called only if a layer [requests
    /// it](crate::Properties::audits_refusals). `mask` contains the denied permissions: at least
    /// one of read (4), write (2), and execute or search (1). The result does not affect the
    /// caller.
    ///
    /// # Errors
    /// [`crate::MAY_BLOCK`] if recording the denial would block a thread that must not block; any
    /// error that prevented the layer from recording it.
    fn refused(&self, cx: &Cx<'_>, mask: u32) -> Result<()>;

    /// Returns statistics of the file system that contains the object.
    ///
    /// # Errors
    /// As statfs(2).
    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs>;

    /// Makes a directory's entries durable. (For files, see [`OpenFile::fsync`].)
    ///
    /// # Errors
    /// As fsync(2).
    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()>;

    /// Runs an ioctl on this file or directory, for example to read or change the file flags of
    /// chattr(1). An ioctl on an open file is also passed to its vnode.
    ///
    /// # Errors
    /// `ENOTTY` if the command is not supported.
    fn ioctl(&self, cx: &Cx<'_>, cmd: u32, input: &[u8], out: &mut [u8]) -> Result<IoctlReply>;

    /// Runs a command of the control channel ([`crate::Layer::commands`]) on this object. A layer
    /// handles its own commands and forwards the others.
    ///
    /// # Errors
    /// `ENOTTY` for an unknown command, `EINVAL` for invalid input.
    fn control(&self, cx: &Cx<'_>, command: &str, input: &[u8]) -> Result<Vec<u8>>;
}

/// The callback of [`Vnode::names`].
pub type NameSink<'a> = &'a mut dyn FnMut(&Arc<dyn Vnode>, Name<'_>) -> bool;

/// The callback of [`OpenFile::read_host`], which passes it the host file. Returns the number of
/// bytes read, or `None` if it cannot read that file.
pub type HostReader<'a> = &'a mut dyn FnMut(BorrowedFd<'_>) -> Option<usize>;

/// An open regular file. Dropping it closes it.
pub trait OpenFile: Any + Send + Sync + fmt::Debug {
    /// Returns `self` for downcasting, for layers that take their own open files as arguments.
    fn as_any(&self) -> &dyn Any;

    /// Returns the host file that backs this file, if reads and writes of this file can bypass the
    /// layer: the host file contains every byte unchanged and at the same offset. The kernel may
    /// then do I/O on it directly (FUSE passthrough).
    ///
    /// This must remain true while *any* open file of the vnode exists, with one exception: a layer
    /// may move the data to another host file, for example by copy-up, if it calls
    /// [`crate::Upcalls::data_moved`]. Open files on which [`Self::bind`] was called continue to
    /// use the old host file.
    fn backing(&self) -> Option<Backing<'_>>;

    /// Notifies the layer that the kernel now does this open file's I/O on the host file of
    /// [`Self::backing`]. From now on, all operations on the open file must use that host file too,
    /// even if the file's data moves to another one.
    fn bind(&self);

    /// Whether dropping this open file takes no longer than close(2) on the host. Otherwise a
    /// thread that must not block does not drop it.
    fn closes_quickly(&self) -> bool;

    /// Advises the layer that `len` bytes at `offset` will be read soon. A layer may begin to fetch
    /// them, if it does not have to wait for longer than a lookup. By default it does nothing.
    fn will_need(&self, cx: &Cx<'_>, offset: u64, len: u64) {
        let _ = (cx, offset, len);
    }

    /// Reads at `offset`. Returns fewer bytes than requested only at the end of the file.
    ///
    /// # Errors
    /// As pread(2); [`crate::MAY_BLOCK`] if the read would block a thread that must not block.
    fn read(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize>;

    /// Lets `take` read from the host file that contains this file's data *now*, every byte
    /// unchanged and at the same offset. `take` returns the number of bytes read, or `None` if it
    /// cannot read that file. Returns `None` if the data is available only through [`Self::read`].
    ///
    /// Unlike [`Self::backing`], this guarantees nothing beyond the call: the file's data may move
    /// to another host file before the next one. A layer may call `take` again with another,
    /// equivalent host file; the last result counts.
    ///
    /// # Errors
    /// As pread(2), if the host file cannot be found. A failure of `take` is not an error.
    fn read_host(&self, cx: &Cx<'_>, take: HostReader<'_>) -> Result<Option<usize>>;

    /// Writes `data` at `offset`, or at the end of the file if it was opened with `O_APPEND`.
    /// Returns the number of bytes written, which is less than the length of `data` only if an
    /// error occurred after some bytes were written.
    ///
    /// # Errors
    /// As pwrite(2), if nothing was written.
    fn write(&self, cx: &Cx<'_>, data: &[u8], offset: u64) -> Result<usize>;

    /// Reports deferred errors when a descriptor of the file is closed.
    ///
    /// # Errors
    /// As close(2).
    fn flush(&self, cx: &Cx<'_>) -> Result<()>;

    /// Makes the file durable.
    ///
    /// # Errors
    /// As fsync(2).
    fn fsync(&self, cx: &Cx<'_>, data_only: bool) -> Result<()>;

    /// Allocates, punches or zeroes a range. `mode` is that of fallocate(2).
    ///
    /// # Errors
    /// As fallocate(2).
    fn fallocate(&self, cx: &Cx<'_>, mode: u32, offset: u64, len: u64) -> Result<()>;

    /// Returns the offset of the next data or hole.
    ///
    /// # Errors
    /// `ENXIO` at or past the end of the file.
    fn seek(&self, cx: &Cx<'_>, offset: u64, whence: Whence) -> Result<u64>;

    /// Copies from `source` at `source_offset` to this file. Returns the number of bytes copied, 0
    /// at the end of the source. `source` may belong to any layer; an implementation downcasts it
    /// with [`Self::as_any`].
    ///
    /// # Errors
    /// As copy_file_range(2).
    fn copy_from(&self, cx: &Cx<'_>, offset: u64, source: &dyn OpenFile, source_offset: u64, len: u64) -> Result<u64>;

    /// Makes this file share all data of `source` (`FICLONE`).
    ///
    /// # Errors
    /// `EOPNOTSUPP`, `EXDEV` or `EINVAL` if that is not possible.
    fn reflink_from(&self, cx: &Cx<'_>, source: &dyn OpenFile) -> Result<()>;
}
