use crate::attr::{attr_of, kind_of};
use crate::handle::FileHandle;
use crate::hot::Hot;
use crate::identity::{self, HostInode};
use crate::layer::{HandleRule, Shared, WANTED, dev_of, statx_fd};
use crate::vnode_impl::{At, HostVnode, Place, Reach};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx};
use std::ffi::CString;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use vnode::{Entry, Errno, Kind, Name, Result};

/// A descriptor of an object, for one operation.
pub(crate) enum Fd {
    /// It stays open for others.
    Kept(Arc<OwnedFd>),
    /// It stays open for a while.
    Hot(Arc<Hot>),
    /// It is closed afterwards.
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

/// Opening for reference only: nothing of the object is touched, no permission is needed.
pub(crate) const REFER: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// So long does a removal take at most from the host's until the file is pinned.
const REMOVAL: Duration = Duration::from_millis(2);

/// Opening for the sake of calls that want a real descriptor, without any effect of it.
pub(crate) const GLANCE: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// The path by which a descriptor's object can be opened again, whatever names it has.
pub(crate) fn proc_path(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// Repeats what a signal interrupted before it did anything.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

impl Shared {
    /// Does what needs room, a second time if there was none: a file's room is free once it is removed and closed, but removed files
    /// are kept for those who still hold their vnodes, or are just being freed.
    pub(crate) fn with_room<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        match call() {
            Err(Errno::NOSPC | Errno::DQUOT) if self.handles.is_some() => {
                self.let_go();
                self.table.wait_for_room();
                call()
            }
            other => other,
        }
    }

    /// Lets go of files that are kept although nobody has them open.
    fn let_go(&self) {
        if let Some(files) = &self.hot {
            files.clear();
        }
        self.table.release_files();
    }

    /// Opens `name` in `dir`. Where the mount is not ours alone, what is mounted there is not entered (`EXDEV`): it may be
    /// our own FUSE mount, which would wait for this very thread.
    pub(crate) fn open_name(&self, dir: impl AsFd, name: &[u8], flags: OFlags) -> Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = dir.as_fd();
        if self.detached {
            return retry(|| rustix::fs::openat(dir, name, flags, Mode::empty()));
        }
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
        retry(|| match rustix::fs::openat2(dir, name, flags, Mode::empty(), beneath) {
            // A rename elsewhere made the kernel unsure.
            Err(Errno::AGAIN) => Err(Errno::INTR),
            other => other,
        })
    }

    /// The object that `name` in the directory `dir` is now, for reference.
    pub(crate) fn refer_name(&self, dir: impl AsFd, name: &[u8]) -> Result<OwnedFd> {
        self.open_name(dir, name, REFER)
    }

    /// Is an object's vnode number its inode number?
    pub(crate) fn is_direct(&self, stat: &Statx) -> bool {
        identity::is_direct(self.root_dev, HostInode { dev: dev_of(stat), ino: stat.stx_ino })
    }

    /// The number of the object that `fd` is open on.
    pub(crate) fn number_of(&self, fd: impl AsFd, stat: &Statx) -> Result<u64> {
        let inode = HostInode { dev: dev_of(stat), ino: stat.stx_ino };
        let handle =
            if self.is_direct(stat) || self.handles.is_none() { None } else { Some(FileHandle::of_fd(fd.as_fd())?) };
        Ok(identity::number(self.root_dev, inode, handle.as_ref()))
    }
}

impl HostVnode {
    /// A descriptor of the object: a real one where one is kept anyway or it is a directory that may be read, else one for
    /// reference only (`O_PATH`).
    pub(crate) fn fd(&self) -> Result<Fd> {
        if self.what() == Kind::Directory {
            return self.dir_fd().map(Fd::Kept);
        }
        match self.hot() {
            Some((hot, _)) => Ok(Fd::Hot(hot)),
            None => self.fd_anew(),
        }
    }

    /// The same of what is not a directory, for which no file that is kept stands.
    pub(crate) fn fd_anew(&self) -> Result<Fd> {
        match self.pinned() {
            Some(fd) => Ok(Fd::Kept(fd)),
            None => self.open_again(REFER).map(Fd::Own),
        }
    }

    /// The descriptor of this directory, for operations on its entries.
    pub(crate) fn dir_fd(&self) -> Result<Arc<OwnedFd>> {
        self.must_be_directory()?;
        if let Reach::Root(_) = self.reach() {
            return Ok(Arc::clone(&self.fs().root));
        }
        if let Some(fd) = self.fs().dirs.get(self.number()) {
            return Ok(fd);
        }
        if let Some(fd) = self.pinned() {
            return Ok(fd);
        }
        let readable = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match self.open_again(readable) {
            Err(Errno::ACCESS) => self.open_again(REFER | OFlags::DIRECTORY)?,
            other => other?,
        };
        let fd = Arc::new(fd);
        self.fs().dirs.put(self.number(), Arc::clone(&fd));
        Ok(fd)
    }

    /// A real descriptor of a regular file or directory for calls that don't take `O_PATH` ones; `None` for others, or if it
    /// can't be had.
    pub(crate) fn glance(&self) -> Result<Option<Fd>> {
        match self.what() {
            Kind::Directory => self.dir_fd().map(|fd| Some(Fd::Kept(fd))),
            Kind::Regular => match self.readable_fd() {
                Ok(fd) => Ok(Some(fd)),
                Err(Errno::STALE) => Err(Errno::STALE),
                Err(_) => Ok(None),
            },
            _ => Ok(None),
        }
    }

    /// A descriptor of a regular file that is open for reading.
    fn readable_fd(&self) -> Result<Fd> {
        match self.hot() {
            Some((hot, _)) if hot.is_readable() => Ok(Fd::Hot(hot)),
            _ => self.reopen(GLANCE).map(Fd::Own),
        }
    }

    /// Opens the object really, also one that was removed.
    pub(crate) fn reopen(&self, flags: OFlags) -> Result<OwnedFd> {
        if let Some(fd) = self.pinned() {
            return reopen_fd(&fd, flags);
        }
        self.open_again(flags)
    }

    /// The same for a program that wants to write the file, or to empty it, by its name. A file that others have removed or
    /// replaced has no name: `ESTALE` makes the kernel look at the name again. (Of one that was removed through this layer
    /// the kernel knows that; who opens it has it open already.)
    pub(crate) fn reopen_named(&self, flags: OFlags) -> Result<OwnedFd> {
        let changes = flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC);
        if !changes || self.is_pinned() || self.fs().handles.is_none() {
            return self.reopen(flags);
        }
        // Emptied only once it is known to be there.
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

    /// Is it pinned, or will it be in a moment? A removal does that after the host's.
    fn is_being_pinned(&self) -> bool {
        self.is_pinned() || {
            std::thread::sleep(REMOVAL);
            self.is_pinned()
        }
    }

    /// A descriptor of its own for reference, where this is thought to be `name` in `dir`. Under [`Shared::changing_names`].
    pub(crate) fn refer_at(&self, dir: &OwnedFd, name: Name<'_>) -> Result<OwnedFd> {
        match self.reach() {
            Reach::Place(_, place) => self.fs().refer_verified(dir, name.as_bytes(), place.inode),
            _ => self.open_again(REFER),
        }
    }

    fn pinned(&self) -> Option<Arc<OwnedFd>> {
        if self.is_pinned() { self.fs().table.pinned(self.number()) } else { None }
    }

    /// Opens the object by what is known of it.
    fn open_again(&self, flags: OFlags) -> Result<OwnedFd> {
        let fs = self.fs();
        let by_handle = |(kind, bytes): (i32, &[u8])| {
            crate::sys::open_by_handle(fs.root.as_fd(), kind, bytes, flags.bits().cast_signed())
        };
        match self.reach() {
            Reach::Root(_) => retry(|| rustix::fs::openat(&*fs.root, c".", flags | OFlags::CLOEXEC, Mode::empty())),
            Reach::Small(_, handle) => by_handle(handle.parts()),
            Reach::Large(_, handle) => by_handle(handle.parts()),
            Reach::Place(_, place) => {
                let fd = self.walk_to(place)?;
                if flags.contains(OFlags::PATH) { Ok(fd) } else { reopen_fd(&fd, flags) }
            }
        }
    }

    /// Goes down from the nearest directory that is open (or the root) to the object, verifying each step.
    pub(crate) fn walk_to(&self, place: &Place) -> Result<OwnedFd> {
        let _steady = self.fs().by_names();
        let last = place.snapshot();
        // Directories that are not open, the lowest first.
        let mut closed = Vec::new();
        let mut dir = Arc::clone(&last.parent);
        let mut open = loop {
            if let Some(fd) = dir.fd_at_hand() {
                break fd;
            }
            let Reach::Place(_, above) = dir.reach() else { return Err(Errno::STALE) };
            let at = above.snapshot();
            let parent = Arc::clone(&at.parent);
            closed.push((std::mem::replace(&mut dir, parent), at.name));
        };
        while let Some((dir, name)) = closed.pop() {
            let Reach::Place(_, place) = dir.reach() else { return Err(Errno::STALE) };
            open = Arc::new(self.fs().refer_verified(&*open, &name, place.inode)?);
            self.fs().dirs.put(dir.number(), Arc::clone(&open));
        }
        self.fs().refer_verified(&*open, &last.name, place.inode)
    }

    /// A descriptor of this directory that need not be opened.
    fn fd_at_hand(&self) -> Option<Arc<OwnedFd>> {
        match self.reach() {
            Reach::Root(_) => Some(Arc::clone(&self.fs().root)),
            _ => self.fs().dirs.get(self.number()).or_else(|| self.pinned()),
        }
    }

    /// This vnode as its owners hold it.
    pub(crate) fn shared_self(&self) -> Result<Arc<Self>> {
        let found = match self.reach() {
            Reach::Root(_) => self.fs().root_vnode.get().and_then(std::sync::Weak::upgrade),
            _ => self.fs().table.get(self.number()),
        };
        found.filter(|found| std::ptr::eq(Arc::as_ptr(found), self)).ok_or(Errno::STALE)
    }

    /// The vnode and attributes of what `name` in this directory is; `None` if there is nothing.
    pub(crate) fn find(&self, name: Name<'_>) -> Result<Option<Entry>> {
        let dir = self.dir_fd()?;
        if self.surely_lacks(&dir, name) {
            return Ok(None);
        }
        match self.entry_of_name(&dir, name) {
            Ok(entry) => Ok(Some(entry)),
            Err(Errno::NOENT) => {
                self.missed_name(&dir);
                Ok(None)
            }
            Err(errno) => Err(errno),
        }
    }

    /// Looks at a name: two system calls, where handles say which inode they are of.
    pub(crate) fn entry_of_name(&self, dir: &OwnedFd, name: Name<'_>) -> Result<Entry> {
        let fs = self.fs();
        if let (true, Some(HandleRule { ino_at: Some(position) })) = (fs.detached, fs.handles) {
            let path = c_name(name)?;
            let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
            let stat = rustix::fs::statx(dir, path.as_c_str(), flags, WANTED)?;
            let handle = FileHandle::of_name(dir.as_fd(), &path)?;
            // Otherwise somebody put another object there in between.
            if handle.is_of(stat.stx_ino, position) {
                return self.fs().entry_by_handle(&stat, handle);
            }
        }
        let _steady = fs.by_names();
        let fd = fs.refer_name(dir, name.as_bytes())?;
        self.entry_of_fd(fd.as_fd(), Some(name))
    }

    /// The vnode and attributes of the object that `fd` is open on; `name` is its name in this directory, if it has one. Under
    /// [`Shared::by_names`].
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
        let vnode = fs.table.intern(Self::new(Arc::clone(fs), id, Reach::place(kind, inode, at)));
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
        let fresh = HostVnode::new(Arc::clone(self), id, Reach::handle(kind_of(stat), handle));
        let vnode = self.table.intern(fresh);
        Ok(Entry { attr: attr_of(stat, id), vnode })
    }

    /// What `name` is, if it is the inode that it should be.
    pub(crate) fn refer_verified(&self, dir: impl AsFd, name: &[u8], inode: HostInode) -> Result<OwnedFd> {
        let fd = self.refer_name(dir, name).map_err(|errno| match errno {
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

/// A name as system calls take it.
pub(crate) fn c_name(name: Name<'_>) -> Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)
}

/// Opens what a descriptor refers to with other flags.
pub(crate) fn reopen_fd(fd: impl AsFd, flags: OFlags) -> Result<OwnedFd> {
    // The last step leads to the object itself: it must be followed, and nothing after it is.
    let flags = (flags - OFlags::NOFOLLOW) | OFlags::CLOEXEC;
    retry(|| rustix::fs::openat(CWD, proc_path(&fd), flags, Mode::empty()))
}
