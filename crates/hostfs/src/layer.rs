use crate::by_number::Forge;
use crate::caller::Server;
use crate::casefold;
use crate::descriptors::Budget;
use crate::dirs::{DirCache, Listings};
use crate::handle::FileHandle;
use crate::hot::HotFiles;
use crate::identity::{self, HostInode};
use crate::names::Names;
use crate::opened::Opened as OpenFiles;
use crate::table::Table;
use crate::vnode_impl::{HostVnode, Reach};
use core::fmt;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatVfsMountFlags, Statx, StatxFlags};
use rustix::mount::OpenTreeFlags;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Duration;
use vnode::{Command, Cx, Errno, Finder, Layer, Properties, Result, Upcalls, Vnode};

/// How a host directory is used.
#[derive(Clone, Copy, Debug)]
pub struct HostOptions {
    /// Never change anything through this layer, even where the host would allow it: on a private mount not even access times.
    pub read_only: bool,
    /// How many descriptors of recently used directories are kept.
    pub directories: usize,
    /// How many descriptors of directories that were listed are kept.
    pub listings: usize,
    /// How many descriptors are kept for objects that were removed while their vnode is held.
    pub removed: usize,
    /// How long a name that was missing may be believed to be missing still without asking the host. Zero: always ask.
    pub believed: Duration,
    /// Reach objects by file handle where the host allows it. Without, by parent and name.
    pub handles: bool,
    /// Use a private clone of the mount where that is permitted.
    pub detach: bool,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            directories: 256,
            listings: 64,
            removed: 256,
            believed: Duration::from_secs(1),
            handles: true,
            detach: true,
        }
    }
}

/// When reading moves the time of access, where that is not left to the mount on which the directory lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessTimes {
    /// Of anything that is read.
    pub when: Option<When>,
    /// Of directories, too (else never).
    pub directories: Option<bool>,
}

/// As mount(8) has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// `noatime`
    Never,
    /// `relatime`: if it is older than the time of modification or change, or than a day.
    Relative,
    /// `strictatime`
    Always,
}

impl AccessTimes {
    /// What the flags of a mount say, as statvfs(3) answers them.
    #[must_use]
    pub fn of_mount(flags: StatVfsMountFlags) -> Self {
        let when = if flags.contains(StatVfsMountFlags::NOATIME) {
            When::Never
        } else if flags.contains(StatVfsMountFlags::RELATIME) {
            When::Relative
        } else {
            When::Always
        };
        Self { when: Some(when), directories: Some(!flags.contains(StatVfsMountFlags::NODIRATIME)) }
    }
}

/// What was granted of [`AccessTimes`], beginning with what the mount had.
#[derive(Clone, Copy, Debug)]
struct Times {
    times: AccessTimes,
    suspended: bool,
}

impl Times {
    fn of(flags: StatVfsMountFlags) -> Self {
        Self { times: AccessTimes::of_mount(flags), suspended: false }
    }

    fn effective(self) -> AccessTimes {
        if self.suspended { AccessTimes { when: Some(When::Never), ..self.times } } else { self.times }
    }
}

/// Why a directory can't be used as a layer.
#[derive(Clone, Debug)]
pub struct OpenError {
    /// What was tried.
    pub step: &'static str,
    /// On what.
    pub path: PathBuf,
    /// What came of it.
    pub errno: Errno,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.errno {
            Errno::NOENT => write!(f, "{path}: no such directory"),
            Errno::NOTDIR => write!(f, "{path}: not a directory"),
            Errno::ACCESS | Errno::PERM => write!(f, "{path}: not permitted to {}", self.step),
            errno => write!(f, "{path}: can't {}: {errno}", self.step),
        }
    }
}

impl std::error::Error for OpenError {}

/// A directory of the host as a layer.
#[derive(Debug)]
pub struct HostFs {
    root: Arc<HostVnode>,
}

/// What all vnodes of the layer share.
pub(crate) struct Shared {
    /// The root directory, on a mount of its own where `detached`.
    pub(crate) root: Arc<OwnedFd>,
    pub(crate) detached: bool,
    /// Keeps the private mount a mount. Without this it lives on as one that was unmounted, and with each path on it that is let go
    /// of, so in each system call, the kernel takes the lock of all mounts of the system.
    _tree: Option<OwnedFd>,
    pub(crate) root_dev: u64,
    pub(crate) root_inode: HostInode,
    /// Are objects reached by handle? Then here is where such a handle has the inode number, if that was found.
    pub(crate) handles: Option<HandleRule>,
    /// Can the handle of an object be made from its number? Then here is how.
    pub(crate) forge: Option<Forge>,
    /// Finds objects by number, and the names of files, where the host doesn't.
    pub(crate) finder: Finder,
    pub(crate) read_only: bool,
    times: Mutex<Times>,
    pub(crate) traits: FsTraits,
    /// May several names lead to one entry here?
    merges_names: bool,
    pub(crate) server: Server,
    pub(crate) table: Table,
    /// The descriptors of the process.
    pub(crate) budget: Arc<Budget>,
    /// The open files that may be opened once more.
    pub(crate) opened: OpenFiles,
    /// Files that are used again and again; `None` where they are not to be kept.
    pub(crate) hot: Option<HotFiles>,
    pub(crate) dirs: DirCache,
    pub(crate) listings: Listings,
    /// The names of recently searched directories.
    pub(crate) names: Names,
    /// Are they to be used?
    known_names: bool,
    /// Where objects are reached by name: held for reading by who goes by names, for writing by who changes them, so that nobody
    /// meets a name between its change on the host and the note of it here. See [`Shared::by_names`].
    places: RwLock<()>,
    /// Does this file system not say whether a read would wait (`RWF_NOWAIT`)? Found out by the first.
    pub(crate) no_nowait: AtomicBool,
    /// The root's vnode, which holds this.
    pub(crate) root_vnode: OnceLock<Weak<HostVnode>>,
}

/// How handles of this file system are checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandleRule {
    /// See [`FileHandle::position_of`].
    pub(crate) ino_at: Option<u8>,
}

/// What is known of a file system by its type.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FsTraits {
    may_hang: bool,
    needs_flush: bool,
    /// Its data is always in memory: reading never waits for a device.
    pub(crate) in_memory: bool,
    /// Handles are answered, but can't be relied on.
    no_handles: bool,
    /// Two open files of an inode with the same flags are the same to whoever uses them by position.
    pub(crate) open_once: bool,
    /// Whatever name is found in a directory is also listed there.
    lists_all_names: bool,
    /// `d_ino` of these can differ from `st_ino`.
    pub(crate) vague_d_ino: Vague,
}

/// Which entries of a listing must be looked at one by one for their inode number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Vague {
    /// None.
    #[default]
    None,
    /// Directories: roots of btrfs subvolumes.
    Directories,
    /// All.
    All,
}

impl FsTraits {
    /// Magic numbers are those of statfs(2).
    fn of(magic: u64) -> Self {
        const NFS: u64 = 0x6969;
        const SMB: u64 = 0x517b;
        const CIFS: u64 = 0xff53_4d42;
        const SMB2: u64 = 0xfe53_4d42;
        const FUSE: u64 = 0x6573_5546;
        const V9FS: u64 = 0x0102_1997;
        const CEPH: u64 = 0x00c3_6400;
        const AFS: u64 = 0x5346_414f;
        const CODA: u64 = 0x7375_7245;
        const GFS2: u64 = 0x0116_1970;
        const OCFS2: u64 = 0x7461_636f;
        const OVERLAY: u64 = 0x794c_7630;
        const BTRFS: u64 = 0x9123_683e;
        const TMPFS: u64 = 0x0102_1994;
        const RAMFS: u64 = 0x8584_58f6;
        const EXT4: u64 = 0xef53;
        const XFS: u64 = 0x5846_5342;
        const F2FS: u64 = 0xf2f5_2010;
        const SQUASHFS: u64 = 0x7371_7368;
        const EROFS: u64 = 0xe0f5_e1e2;
        const ISO9660: u64 = 0x9660;
        let none = Self::default();
        match magic {
            NFS | SMB | CIFS | SMB2 | AFS | CODA => Self { may_hang: true, needs_flush: true, ..none },
            V9FS | CEPH => Self { may_hang: true, ..none },
            GFS2 | OCFS2 => Self { may_hang: true, ..none },
            // A FUSE file system answers handles even if it can't find a node by one that it has forgotten.
            FUSE => Self { may_hang: true, needs_flush: true, no_handles: true, vague_d_ino: Vague::All, ..none },
            OVERLAY => Self { vague_d_ino: Vague::All, ..none },
            EXT4 => Self { open_once: true, lists_all_names: true, ..none },
            TMPFS | RAMFS => Self { open_once: true, in_memory: true, lists_all_names: true, ..none },
            BTRFS => Self { open_once: true, vague_d_ino: Vague::Directories, lists_all_names: true, ..none },
            XFS | F2FS | SQUASHFS | EROFS | ISO9660 => Self { open_once: true, ..none },
            _ => none,
        }
    }
}

impl HostFs {
    /// Opens the directory at `path` (symbolic links in this one path are followed).
    ///
    /// # Errors
    /// The step that failed, and on what.
    pub fn open(path: &Path, options: HostOptions) -> core::result::Result<Arc<Self>, OpenError> {
        let at = |step: &'static str| move |errno| OpenError { step, path: path.to_owned(), errno };
        let Opened { root, detached, tree } = open_root(path, &options).map_err(at("open it"))?;
        let stat = statx_fd(&root).map_err(at("read its attributes"))?;
        let figures = rustix::fs::fstatfs(&root).map_err(at("read its file system's figures"))?;
        let flags = rustix::fs::fstatvfs(&root).map_err(at("read its file system's figures"))?.f_flag;
        let magic = figures.f_type as u64 & 0xffff_ffff;
        let traits = FsTraits::of(magic);
        let merges_names = casefold::merges_names(&root, magic);
        let handles = if options.handles && !traits.no_handles { try_handles(&root, stat.stx_ino) } else { None };
        let forge = handles.and_then(|_| Forge::of(magic, stat.stx_ino, &FileHandle::of_fd(root.as_fd()).ok()?));
        let budget = Budget::of_process();
        let keeps_files = handles.is_some() && traits.open_once;
        let shared = Shared {
            root: Arc::new(root),
            detached,
            _tree: tree,
            root_dev: dev_of(&stat),
            root_inode: HostInode { dev: dev_of(&stat), ino: stat.stx_ino },
            forge,
            finder: Finder::new(),
            handles,
            read_only: options.read_only || flags.contains(StatVfsMountFlags::RDONLY),
            times: Mutex::new(Times::of(flags)),
            traits,
            merges_names,
            server: Server::current(),
            table: Table::new(options.removed, Arc::clone(&budget)),
            hot: keeps_files.then(|| HotFiles::new(Arc::clone(&budget))),
            dirs: DirCache::new(options.directories, Arc::clone(&budget)),
            listings: Listings::new(options.listings, Arc::clone(&budget)),
            budget,
            opened: OpenFiles::default(),
            names: Names::new(options.believed),
            known_names: handles.is_some() && traits.lists_all_names && !options.believed.is_zero(),
            places: RwLock::new(()),
            no_nowait: AtomicBool::new(false),
            root_vnode: OnceLock::new(),
        };
        Ok(Arc::new(Self { root: HostVnode::new_root(Arc::new(shared)) }))
    }

    /// Are objects reached again by file handle (else by parent and name)?
    #[must_use]
    pub fn uses_handles(&self) -> bool {
        self.root.fs().handles.is_some()
    }

    /// Is the tree a private clone of its mount, which nothing mounted over or in it is part of?
    #[must_use]
    pub fn is_detached(&self) -> bool {
        self.root.fs().detached
    }

    /// Sets when reading through this layer moves the time of access; what `times` says nothing about stays as it is. Nobody else is
    /// concerned: only the private clone of the mount is changed. A read-only layer never moves it.
    ///
    /// # Errors
    /// `EPERM` where there is no private clone, or its setting is locked (in a user namespace).
    pub fn set_access_times(&self, times: AccessTimes) -> Result<()> {
        self.change_times(|asked| {
            asked.times = AccessTimes {
                when: times.when.or(asked.times.when),
                directories: times.directories.or(asked.times.directories),
            };
        })
    }

    /// Sets whether reading moves no time of access at all for now, because what is mounted over this is read-only.
    ///
    /// # Errors
    /// As [`Self::set_access_times`].
    pub fn suspend_access_times(&self, suspended: bool) -> Result<()> {
        self.change_times(|asked| asked.suspended = suspended)
    }

    fn change_times(&self, change: impl FnOnce(&mut Times)) -> Result<()> {
        let fs = self.root.fs();
        let mut times = fs.times.lock().unwrap_or_else(PoisonError::into_inner);
        let mut asked = *times;
        change(&mut asked);
        if !fs.read_only && asked.effective() != times.effective() {
            if !fs.detached {
                return Err(Errno::PERM);
            }
            crate::sys::set_access_times(fs.root.as_fd(), asked.effective())?;
        }
        // What was refused is refused again, and not taken for what is so already.
        *times = asked;
        Ok(())
    }

    /// The directory itself, open for as long as the layer is.
    #[must_use]
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.root.fs().root.as_fd()
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        self.root.fs()
    }
}

/// What came of opening the root directory.
struct Opened {
    root: OwnedFd,
    /// It lies on a private clone of its mount.
    detached: bool,
    /// That clone, if it may be kept.
    tree: Option<OwnedFd>,
}

impl Opened {
    fn in_place(root: OwnedFd) -> Self {
        Self { root, detached: false, tree: None }
    }
}

/// The directory, on a private clone of its mount if that can be had.
fn open_root(path: &Path, options: &HostOptions) -> Result<Opened> {
    let readable = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if options.detach {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        match rustix::mount::open_tree(CWD, path, flags) {
            // What open_tree answers can't be used for everything (handles): a descriptor opened from it can, and keeps
            // the private mount alive.
            Ok(tree) => {
                if options.read_only {
                    // The kernel then refuses changes as well, and reading leaves no access times. Without it (not permitted)
                    // it is this layer alone that refuses.
                    let _enforced = crate::sys::make_mount_read_only(tree.as_fd());
                }
                let root = rustix::fs::openat(&tree, c".", readable, Mode::empty())?;
                // A clone of a shared mount is shared too, until it is let go of: what is mounted below would show up in it.
                let tree = crate::sys::make_mount_private(tree.as_fd()).is_ok().then_some(tree);
                return Ok(Opened { root, detached: true, tree });
            }
            Err(errno @ (Errno::NOENT | Errno::LOOP | Errno::NAMETOOLONG)) => return Err(errno),
            // Not permitted, or a mount that may not be cloned.
            Err(_) => {}
        }
    }
    match rustix::fs::open(path, readable, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            Ok(Opened::in_place(rustix::fs::open(path, flags, Mode::empty())?))
        }
        other => Ok(Opened::in_place(other?)),
    }
}

/// Can objects of this file system be opened by handle? Found out on the root.
fn try_handles(root: &OwnedFd, ino: u64) -> Option<HandleRule> {
    let handle = FileHandle::of_fd(root.as_fd()).ok()?;
    let again = handle.open(root.as_fd(), libc::O_PATH | libc::O_NOFOLLOW).ok()?;
    let same = statx_fd(&again).is_ok_and(|stat| stat.stx_ino == ino);
    same.then(|| HandleRule { ino_at: handle.position_of(ino) })
}

/// All that [`vnode::Attr`] has.
pub(crate) const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// statx(2) of what a descriptor is open on.
pub(crate) fn statx_fd(fd: impl AsFd) -> Result<Statx> {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, WANTED)
}

/// `st_dev` in one number.
pub(crate) fn dev_of(stat: &Statx) -> u64 {
    rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor)
}

impl Shared {
    /// To be asked before anything is changed.
    pub(crate) fn changing(&self) -> Result<()> {
        if self.read_only { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// Can it be told from a listing which names a directory lacks?
    pub(crate) fn names_can_be_known(&self) -> bool {
        self.known_names
    }

    /// To be held while going by the names that are known of objects. Nothing where objects are reached by handle.
    pub(crate) fn by_names(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.handles.is_none().then(|| self.places.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// To be held while names change.
    pub(crate) fn changing_names(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        self.handles.is_none().then(|| self.places.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostFs")
            .field("root", &self.root)
            .field("detached", &self.detached)
            .field("handles", &self.handles)
            .field("read_only", &self.read_only)
            .finish_non_exhaustive()
    }
}

impl Layer for HostFs {
    fn root(&self) -> Arc<dyn Vnode> {
        self.root.clone()
    }

    fn properties(&self) -> Properties {
        let fs = self.root.fs();
        Properties {
            read_only: fs.read_only,
            may_hang: fs.traits.may_hang,
            needs_flush: fs.traits.needs_flush,
            merges_names: fs.merges_names,
            ..Properties::default()
        }
    }

    fn attach(&self, _upcalls: Arc<dyn Upcalls>) {
        // Nothing here notices out-of-band changes by itself.
    }

    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        if number == identity::ROOT {
            return Ok(self.root());
        }
        let fs = self.root.fs();
        Ok(match fs.table.get(number) {
            Some(live) => live,
            None => fs.by_number(cx, number)?,
        })
    }

    fn commands(&self) -> Vec<Command> {
        Vec::new()
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        cx.require_blocking()?;
        let fs = self.root.fs();
        if fs.read_only {
            return Ok(());
        }
        match rustix::fs::syncfs(&*fs.root) {
            // The root could not be opened for reading, only for reference.
            Err(Errno::BADF) => {
                rustix::fs::sync();
                Ok(())
            }
            other => other,
        }
    }
}

impl HostVnode {
    fn new_root(fs: Arc<Shared>) -> Arc<Self> {
        let root = Arc::new(Self::new(fs, identity::ROOT, Reach::root()));
        // Set once, here.
        let _ = root.fs().root_vnode.set(Arc::downgrade(&root));
        root
    }
}
