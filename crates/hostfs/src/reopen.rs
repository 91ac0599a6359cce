//! Looks up names, and opens objects again by handle or by parent and name.

use crate::attr::{attr_of, kind_of};
use crate::handle::FileHandle;
use crate::hot::Hot;
use crate::identity::{self, HostInode};
use crate::layer::{HandleRule, Shared, WANTED, dev_of, statx_fd};
use crate::vnode_impl::{At, HostVnode, Locator, Place};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx};
use std::ffi::CString;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use vnode::{Entry, Errno, Kind, Name, Result};

/// A descriptor of an object, for one operation.
pub(crate) enum Fd {
    /// Shared with other operations; stays open.
    Kept(Arc<OwnedFd>),
    /// Kept by the cache of hot files.
    Hot(Arc<Hot>),
    /// Closed after the operation.
    Own(OwnedFd),
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Kept(fd) => fd.as_fd(),
            Self::Hot(hot) => hot.as_fd(),
            Self::Own(fd) => fd.as_fd(),
        }
    }
}

/// Flags that open an object as a reference (`O_PATH`): without side effects, and without
/// permission checks on the object.
pub(crate) const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Upper bound on the time between the host's unlink and the pinning of the removed file.
const PIN_DELAY: Duration = Duration::from_millis(2);

/// Flags for system calls that reject `O_PATH` descriptors. Opening with them has no side effects.
pub(crate) const READ_NONBLOCK: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Returns the path under /proc that reopens a descriptor's object, independent of its names.
pub(crate) fn proc_path(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// Repeats a call that a signal interrupted (`EINTR`) before it had any effect.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

impl Shared {
    /// Runs a call that allocates space, and repeats it once if the file system is full. A removed
    /// file's space becomes free only when its last descriptor is closed; the layer may still hold
    /// one for a referenced vnode, or another thread may be closing it.
    pub(crate) fn with_room<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        match call() {
            Err(Errno::NOSPC | Errno::DQUOT) if self.handles.is_some() => {
                self.release_kept_files();
                self.table.wait_for_room();
                call()
            }
            other => other,
        }
    }

    /// Closes the cached descriptors of files that nobody has open.
    fn release_kept_files(&self) {
        if let Some(files) = &self.hot {
            files.clear();
        }
        self.table.release_files();
    }

    /// Opens `name` in `dir`. Unless the layer owns a private mount, a mount point is not entered
    /// (`EXDEV`, or `ENOENT` if mount points are hidden): it may be our own FUSE mount, and the
    /// request would wait for this very thread.
    pub(crate) fn open_name(&self, dir: impl AsFd, name: &[u8], flags: OFlags) -> Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = dir.as_fd();
        if self.detached {
            return retry(|| rustix::fs::openat(dir, name, flags, Mode::empty()));
        }
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
        retry(|| match rustix::fs::openat2(dir, name, flags, Mode::empty(), beneath) {
            // A concurrent rename: the kernel could not verify the path.
            Err(Errno::AGAIN) => Err(Errno::INTR),
            Err(Errno::XDEV) if self.hide_mounts => Err(Errno::NOENT),
            other => other,
        })
    }

    /// Opens the object that `name` in `dir` currently refers to, as a reference.
    pub(crate) fn path_fd_at(&self, dir: impl AsFd, name: &[u8]) -> Result<OwnedFd> {
        self.open_name(dir, name, PATH_ONLY)
    }

    /// Whether the object's vnode number equals its inode number.
    pub(crate) fn is_direct(&self, stat: &Statx) -> bool {
        identity::is_direct(self.root_dev, HostInode { dev: dev_of(stat), ino: stat.stx_ino })
    }

    /// Returns the vnode number of the object that `fd` is open on.
    pub(crate) fn number_of(&self, fd: impl AsFd, stat: &Statx) -> Result<u64> {
        let inode = HostInode { dev: dev_of(stat), ino: stat.stx_ino };
        let handle =
            if self.is_direct(stat) || self.handles.is_none() { None } else { Some(FileHandle::of_fd(fd.as_fd())?) };
        Ok(identity::number(self.root_dev, inode, handle.as_ref()))
    }
}

impl HostVnode {
    /// Returns a descriptor of the object: a cached or readable one for a hot file or a readable
    /// directory, otherwise a reference (`O_PATH`).
    pub(crate) fn fd(&self) -> Result<Fd> {
        if self.object_kind() == Kind::Directory {
            return self.dir_fd().map(Fd::Kept);
        }
        match self.hot() {
            Some((hot, _)) => Ok(Fd::Hot(hot)),
            None => self.fresh_fd(),
        }
    }

    /// Like [`Self::fd`], for a non-directory without a hot file.
    pub(crate) fn fresh_fd(&self) -> Result<Fd> {
        match self.pinned() {
            Some(fd) => Ok(Fd::Kept(fd)),
            None => self.open_by_locator(PATH_ONLY).map(Fd::Own),
        }
    }

    /// Returns the descriptor of this directory, for operations on its entries.
    pub(crate) fn dir_fd(&self) -> Result<Arc<OwnedFd>> {
        self.must_be_directory()?;
        if let Locator::Root(_) = self.locator() {
            return Ok(Arc::clone(&self.fs().root));
        }
        if let Some(fd) = self.fs().dirs.get(self.number()) {
            return Ok(fd);
        }
        if let Some(fd) = self.pinned() {
            return Ok(fd);
        }
        let readable = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match self.open_by_locator(readable) {
            Err(Errno::ACCESS) => self.open_by_locator(PATH_ONLY | OFlags::DIRECTORY)?,
            other => other?,
        };
        let fd = Arc::new(fd);
        self.fs().dirs.put(self.number(), Arc::clone(&fd));
        Ok(fd)
    }

    /// Returns a descriptor that is not `O_PATH`, for a regular file or directory; `None` for other
    /// kinds, or if the object can't be opened.
    pub(crate) fn readable_fd(&self) -> Result<Option<Fd>> {
        match self.object_kind() {
            Kind::Directory => self.dir_fd().map(|fd| Some(Fd::Kept(fd))),
            Kind::Regular => match self.readable_file_fd() {
                Ok(fd) => Ok(Some(fd)),
                Err(Errno::STALE) => Err(Errno::STALE),
                Err(_) => Ok(None),
            },
            _ => Ok(None),
        }
    }

    /// Returns a descriptor of a regular file that is open for reading.
    fn readable_file_fd(&self) -> Result<Fd> {
        match self.hot() {
            Some((hot, _)) if hot.is_readable() => Ok(Fd::Hot(hot)),
            _ => self.reopen(READ_NONBLOCK).map(Fd::Own),
        }
    }

    /// Opens the object with `flags`, even if it was removed through this layer.
    pub(crate) fn reopen(&self, flags: OFlags) -> Result<OwnedFd> {
        if let Some(fd) = self.pinned() {
            return reopen_fd(&fd, flags);
        }
        self.open_by_locator(flags)
    }

    /// Like [`Self::reopen`], for an open by name that writes or truncates. A file that was removed
    /// or replaced out of band has no name any more: `ESTALE` makes the kernel repeat the lookup.
    /// The kernel knows about files that were removed through this layer, so only a process that
    /// already has such a file open can open it again.
    pub(crate) fn reopen_named(&self, flags: OFlags) -> Result<OwnedFd> {
        let changes = flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC);
        if !changes || self.is_pinned() || self.fs().handles.is_none() {
            return self.reopen(flags);
        }
        // Truncate only after the link count is known.
        let fd = self.reopen(flags - OFlags::TRUNC)?;
        if rustix::fs::fstat(&fd)?.st_nlink == 0 && !self.is_being_pinned() {
            return Err(Errno::STALE);
        }
        if flags.contains(OFlags::TRUNC) {
            if !flags.intersects(OFlags::WRONLY | OFlags::RDWR) {
                return reopen_fd(&fd, flags);
            }
            retry(|| rustix::fs::ftruncate(&fd, 0))?;
        }
        Ok(fd)
    }

    /// Whether the object is pinned now or a moment later: a removal pins it after the host's
    /// unlink.
    fn is_being_pinned(&self) -> bool {
        self.is_pinned() || {
            std::thread::sleep(PIN_DELAY);
            self.is_pinned()
        }
    }

    /// Opens a private reference, expecting the object at `name` in `dir`. The caller holds
    /// [`Shared::write_places`].
    pub(crate) fn path_fd_in(&self, dir: &OwnedFd, name: Name<'_>) -> Result<OwnedFd> {
        match self.locator() {
            Locator::Place(_, place) => self.fs().path_fd_verified(dir, name.as_bytes(), place.inode),
            _ => self.open_by_locator(PATH_ONLY),
        }
    }

    fn pinned(&self) -> Option<Arc<OwnedFd>> {
        if self.is_pinned() { self.fs().table.pinned(self.number()) } else { None }
    }

    /// Opens the object by its locator.
    fn open_by_locator(&self, flags: OFlags) -> Result<OwnedFd> {
        let fs = self.fs();
        let by_handle = |(kind, bytes): (i32, &[u8])| {
            crate::sys::open_by_handle(fs.root.as_fd(), kind, bytes, flags.bits().cast_signed())
        };
        match self.locator() {
            Locator::Root(_) => retry(|| rustix::fs::openat(&*fs.root, c".", flags | OFlags::CLOEXEC, Mode::empty())),
            Locator::Small(_, handle) => by_handle(handle.parts()),
            Locator::Large(_, handle) => by_handle(handle.parts()),
            Locator::Place(_, place) => {
                let fd = self.walk_to(place)?;
                if flags.contains(OFlags::PATH) { Ok(fd) } else { reopen_fd(&fd, flags) }
            }
        }
    }

    /// Walks down to the object from its nearest ancestor that is open (or the root), and verifies
    /// each step.
    pub(crate) fn walk_to(&self, place: &Place) -> Result<OwnedFd> {
        let _places = self.fs().read_places();
        let last = place.snapshot();
        // Ancestors that are not open, the deepest first.
        let mut closed = Vec::new();
        let mut dir = Arc::clone(&last.parent);
        let mut open = loop {
            if let Some(fd) = dir.cached_fd() {
                break fd;
            }
            let Locator::Place(_, above) = dir.locator() else { return Err(Errno::STALE) };
            let at = above.snapshot();
            let parent = Arc::clone(&at.parent);
            closed.push((std::mem::replace(&mut dir, parent), at.name));
        };
        while let Some((dir, name)) = closed.pop() {
            let Locator::Place(_, place) = dir.locator() else { return Err(Errno::STALE) };
            open = Arc::new(self.fs().path_fd_verified(&*open, &name, place.inode)?);
            self.fs().dirs.put(dir.number(), Arc::clone(&open));
        }
        self.fs().path_fd_verified(&*open, &last.name, place.inode)
    }

    /// Returns a descriptor of this directory if one is already open.
    fn cached_fd(&self) -> Option<Arc<OwnedFd>> {
        match self.locator() {
            Locator::Root(_) => Some(Arc::clone(&self.fs().root)),
            _ => self.fs().dirs.get(self.number()).or_else(|| self.pinned()),
        }
    }

    /// Returns the `Arc` that owns this vnode.
    pub(crate) fn shared_self(&self) -> Result<Arc<Self>> {
        let found = match self.locator() {
            Locator::Root(_) => self.fs().root_vnode.get().and_then(std::sync::Weak::upgrade),
            _ => self.fs().table.get(self.number()),
        };
        found.filter(|found| std::ptr::eq(Arc::as_ptr(found), self)).ok_or(Errno::STALE)
    }

    /// Returns the vnode and attributes of `name` in this directory; `None` if there is no such
    /// name.
    pub(crate) fn find(&self, name: Name<'_>) -> Result<Option<Entry>> {
        let dir = self.dir_fd()?;
        if self.is_known_missing(&dir, name) {
            return Ok(None);
        }
        match self.entry_of_name(&dir, name) {
            Ok(entry) => Ok(Some(entry)),
            Err(Errno::NOENT) => {
                self.note_missing_name(&dir);
                Ok(None)
            }
            Err(errno) => Err(errno),
        }
    }

    /// Looks up a name that the host has. Takes two system calls where handles contain the inode
    /// number.
    pub(crate) fn entry_of_name(&self, dir: &OwnedFd, name: Name<'_>) -> Result<Entry> {
        let fs = self.fs();
        if let (true, Some(HandleRule { ino_at: Some(position) })) = (fs.detached, fs.handles) {
            let path = c_name(name)?;
            let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
            let stat = rustix::fs::statx(dir, path.as_c_str(), flags, WANTED)?;
            let handle = FileHandle::of_name(dir.as_fd(), &path)?;
            // On a mismatch, another object took the name between the two calls: use the slow path.
            if handle.is_of(stat.stx_ino, position) {
                return self.fs().entry_by_handle(&stat, handle);
            }
        }
        let _places = fs.read_places();
        let fd = fs.path_fd_at(dir, name.as_bytes())?;
        self.entry_of_fd(fd.as_fd(), Some(name))
    }

    /// Returns the vnode and attributes of the object that `fd` is open on; `name` is its name in
    /// this directory, if it has one. The caller holds [`Shared::read_places`].
    pub(crate) fn entry_of_fd(&self, fd: BorrowedFd<'_>, name: Option<Name<'_>>) -> Result<Entry> {
        let fs = self.fs();
        let stat = statx_fd(fd)?;
        if fs.handles.is_some() {
            return fs.entry_by_handle(&stat, FileHandle::of_fd(fd)?);
        }
        let parent = self.shared_self()?;
        let kind = kind_of(&stat);
        let inode = HostInode { dev: dev_of(&stat), ino: stat.stx_ino };
        let id = identity::number(fs.root_dev, inode, None);
        let bytes = name.map_or(&[][..], |name| name.as_bytes());
        let at = At { parent: Arc::clone(&parent), name: bytes.into() };
        let vnode = fs.table.intern(Self::new(Arc::clone(fs), id, Locator::place(kind, inode, at)));
        if name.is_some() {
            vnode.set_place(&parent, bytes);
            if vnode.is_pinned() {
                fs.table.unpin(&vnode);
            }
        }
        Ok(Entry { attr: attr_of(&stat, id), vnode })
    }
}

impl Shared {
    fn entry_by_handle(self: &Arc<Self>, stat: &Statx, handle: FileHandle) -> Result<Entry> {
        let inode = HostInode { dev: dev_of(stat), ino: stat.stx_ino };
        let id = identity::number(self.root_dev, inode, Some(&handle));
        let fresh = HostVnode::new(Arc::clone(self), id, Locator::handle(kind_of(stat), handle));
        let vnode = self.table.intern(fresh);
        Ok(Entry { attr: attr_of(stat, id), vnode })
    }

    /// Opens `name` as a reference; `ESTALE` unless it is the expected inode.
    pub(crate) fn path_fd_verified(&self, dir: impl AsFd, name: &[u8], inode: HostInode) -> Result<OwnedFd> {
        let fd = self.path_fd_at(dir, name).map_err(|errno| match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::INVAL => Errno::STALE,
            other => other,
        })?;
        let stat = statx_fd(&fd)?;
        let found = HostInode { dev: dev_of(&stat), ino: stat.stx_ino };
        if found == inode { Ok(fd) } else { Err(Errno::STALE) }
    }
}

impl Place {
    pub(crate) fn snapshot(&self) -> At {
        self.at.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Converts a name for a system call.
pub(crate) fn c_name(name: Name<'_>) -> Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)
}

/// Opens a descriptor's object again, with other flags.
pub(crate) fn reopen_fd(fd: impl AsFd, flags: OFlags) -> Result<OwnedFd> {
    // The link in /proc must be followed; it leads to the object itself, so nothing after it is.
    let flags = (flags - OFlags::NOFOLLOW) | OFlags::CLOEXEC;
    retry(|| rustix::fs::openat(CWD, proc_path(&fd), flags, Mode::empty()))
}
