//! The layer: options, opening, and the state that all vnodes share.

use crate::by_number::HandleBuilder;
use crate::caller::Server;
use crate::casefold;
use crate::descriptors::Budget;
use crate::dirs::{DirCache, Listings};
use crate::handle::FileHandle;
use crate::hot::HotFiles;
use crate::identity::{self, HostInode};
use crate::lifetimes::Lifetimes;
use crate::name_cache::NameCache;
use crate::opened::SharedFiles;
use crate::sys::fsid_of;
use crate::table::Table;
use crate::vnode_impl::{HostVnode, Locator};
use crate::watch::{Registration, Watch};
use core::fmt;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatVfsMountFlags, Statx, StatxFlags};
use rustix::mount::OpenTreeFlags;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Duration;
use vnode::{Command, Cx, Errno, Finder, Layer, NothingChanges, Properties, Reports, Result, Upcalls, Vnode};

/// Options for opening a host directory as a layer.
#[derive(Clone, Copy, Debug)]
pub struct HostOptions {
    /// Refuse all changes through this layer, even where the host would allow them. On a private
    /// mount, access times don't change either.
    pub read_only: bool,
    /// Maximum number of descriptors kept for recently used directories.
    pub directories: usize,
    /// Maximum number of descriptors kept for directory listings.
    pub listings: usize,
    /// Maximum number of descriptors kept for removed objects whose vnode is still referenced.
    pub removed: usize,
    /// How long the name cache may return negative lookups without checking the host. Zero
    /// disables the cache.
    pub name_cache_ttl: Duration,
    /// Reopen objects by file handle where the host allows it; otherwise by parent and name.
    pub handles: bool,
    /// Use a private clone of the mount where that is permitted.
    pub detach: bool,
    /// Without a private clone: mount points inside the directory don't exist, instead of failing
    /// with `EXDEV`.
    pub hide_mounts: bool,
    /// The out-of-band changes to report, where privileges and the file system permit it.
    pub watch: Watch,
    /// Whether other parts of this process may change the directory. Such changes are not reported.
    pub changed_within_process: bool,
    /// How long replies may be cached that can change without a report; `None` for any time.
    pub unreported_lifetime: Option<Duration>,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            directories: 256,
            listings: 64,
            removed: 256,
            name_cache_ttl: Duration::from_secs(1),
            handles: true,
            detach: true,
            hide_mounts: false,
            watch: Watch::Off,
            changed_within_process: false,
            unreported_lifetime: None,
        }
    }
}

/// When reads update access times, for settings that differ from those of the directory's mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessTimes {
    /// For all objects; `None` leaves the setting as it is.
    pub when: Option<When>,
    /// Whether directories are included; `None` leaves the setting as it is.
    pub directories: Option<bool>,
}

/// Access time modes, as in mount(8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// `noatime`
    Never,
    /// `relatime`: if the access time is older than the modification or change time, or than a day.
    Relative,
    /// `strictatime`
    Always,
}

impl AccessTimes {
    /// Converts mount flags as returned by statvfs(3).
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

/// The [`AccessTimes`] in force, starting with those of the mount.
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
    /// The step that failed.
    pub step: &'static str,
    /// The path of the directory.
    pub path: PathBuf,
    /// The error.
    pub errno: Errno,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.errno {
            Errno::NOENT => write!(f, "{path}: no such directory"),
            Errno::NOTDIR => write!(f, "{path}: not a directory"),
            Errno::ACCESS | Errno::PERM => write!(f, "{path}: can't {}: not permitted", self.step),
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

/// State shared by all vnodes of the layer.
pub(crate) struct Shared {
    /// The root directory, on a private mount if `detached`.
    pub(crate) root: Arc<OwnedFd>,
    pub(crate) detached: bool,
    /// Whether mount points inside the directory count as missing. Otherwise they fail with
    /// `EXDEV`.
    pub(crate) hide_mounts: bool,
    /// Keeps the private mount attached. If this descriptor were closed, the mount would count as
    /// unmounted, and the kernel would take the system-wide mount lock whenever a path on it is
    /// released, so in every system call.
    _tree: Option<OwnedFd>,
    pub(crate) root_dev: u64,
    pub(crate) root_inode: HostInode,
    /// Set if objects are reopened by handle; says where in a handle the inode number is, if that
    /// is known.
    pub(crate) handles: Option<HandleRule>,
    /// Set if the handle of an object can be constructed from its inode number.
    pub(crate) handle_builder: Option<HandleBuilder>,
    /// Walks the tree for objects by number, and for names of files, where the host offers no
    /// better way.
    pub(crate) finder: Finder,
    read_only: AtomicBool,
    /// Whether the directory's own mount is read-only.
    mount_read_only: bool,
    times: Mutex<Times>,
    pub(crate) traits: FsTraits,
    /// Whether several names may refer to one entry (case folding).
    merges_names: bool,
    pub(crate) server: Server,
    pub(crate) table: Table,
    /// The process's budget of descriptors.
    pub(crate) budget: Arc<Budget>,
    /// Open files whose descriptor may be shared.
    pub(crate) opened: SharedFiles,
    /// Descriptors of hot files; `None` where they must not be kept.
    pub(crate) hot: Option<HotFiles>,
    pub(crate) dirs: DirCache,
    pub(crate) listings: Listings,
    /// The names in recently searched directories.
    pub(crate) names: NameCache,
    /// Whether `names` is used.
    cache_names: bool,
    lists_all_names: bool,
    /// Lock for the case that objects are reopened by name: taken for reading by operations that
    /// rely on names, and for writing by those that change names, so that nobody sees a name
    /// between its change on the host and the update here. See [`Shared::read_places`].
    places: RwLock<()>,
    /// Whether the file system lacks `RWF_NOWAIT`; set by the first read that fails with it.
    pub(crate) no_nowait: AtomicBool,
    /// Set if out-of-band changes are reported.
    pub(crate) watch: Option<Registration>,
    /// Whether `watch` reports each change of an entry.
    reports_all_entries: bool,
    pub(crate) lifetimes: Lifetimes,
    /// The root's vnode, which owns this structure.
    pub(crate) root_vnode: OnceLock<Weak<HostVnode>>,
    /// See [`Layer::fingerprint`].
    fingerprint: Option<u64>,
}

/// How handles of this file system are checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandleRule {
    /// See [`FileHandle::position_of`].
    pub(crate) ino_at: Option<u8>,
}

/// Properties of a file system, derived from its type.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FsTraits {
    pub(crate) may_hang: bool,
    needs_flush: bool,
    /// File data is always in memory: a read never waits for a device.
    pub(crate) in_memory: bool,
    /// name_to_handle_at(2) works, but its handles can't be relied on.
    no_handles: bool,
    /// Two open files of one inode with the same flags behave alike for positional reads and
    /// writes.
    pub(crate) open_once: bool,
    /// Every name that a lookup finds is also listed in its directory.
    lists_all_names: bool,
    /// Nothing on it ever changes.
    immutable: bool,
    /// Each change of an entry passes the kernel's hooks for fanotify(7) on this file system.
    reports_entries: bool,
    /// The entries whose `d_ino` can differ from their `st_ino`.
    pub(crate) unreliable_d_ino: UnreliableIno,
    /// What the file system is told from others by.
    lasting_id: LastingId,
}

/// A number of a file system that does not depend on its device, which can have another number
/// after a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastingId {
    /// It has none, or it can't be read: the id of F2FS in statfs(2) is the number of the device.
    #[default]
    None,
    /// The id in statfs(2), which is made from the UUID, and on btrfs from the subvolume's number.
    Fsid,
    /// The UUID of XFS, whose id in statfs(2) is the number of the device.
    XfsUuid,
}

/// Which entries of a listing need a statx(2) each to learn their inode number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UnreliableIno {
    /// None.
    #[default]
    None,
    /// Directories: roots of btrfs subvolumes.
    Directories,
    /// All.
    All,
}

impl FsTraits {
    /// Returns the traits for a magic number of statfs(2).
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
            NFS => Self { may_hang: true, needs_flush: true, lists_all_names: true, ..none },
            SMB | CIFS | SMB2 | AFS | CODA => Self { may_hang: true, needs_flush: true, ..none },
            V9FS | CEPH => Self { may_hang: true, ..none },
            GFS2 | OCFS2 => Self { may_hang: true, ..none },
            // A FUSE file system returns handles even for nodes that it can't find again once
            // forgotten.
            FUSE => Self {
                may_hang: true,
                needs_flush: true,
                no_handles: true,
                unreliable_d_ino: UnreliableIno::All,
                ..none
            },
            OVERLAY => Self { unreliable_d_ino: UnreliableIno::All, ..none },
            EXT4 => Self {
                open_once: true,
                lists_all_names: true,
                reports_entries: true,
                lasting_id: LastingId::Fsid,
                ..none
            },
            TMPFS | RAMFS => {
                Self { open_once: true, in_memory: true, lists_all_names: true, reports_entries: true, ..none }
            }
            BTRFS => Self {
                open_once: true,
                unreliable_d_ino: UnreliableIno::Directories,
                lists_all_names: true,
                lasting_id: LastingId::Fsid,
                ..none
            },
            XFS => Self { open_once: true, reports_entries: true, lasting_id: LastingId::XfsUuid, ..none },
            F2FS => Self { open_once: true, reports_entries: true, ..none },
            ISO9660 => Self { open_once: true, immutable: true, ..none },
            SQUASHFS | EROFS => Self { open_once: true, immutable: true, lists_all_names: true, ..none },
            _ => none,
        }
    }
}

/// Returns what tells the root directory from others. On a network or a FUSE file system, times of
/// birth need not last.
fn fingerprint(root: BorrowedFd<'_>, stat: &Statx, fs: &rustix::fs::StatFs, traits: &FsTraits) -> Option<u64> {
    let born = stat.stx_btime;
    let known =
        !traits.may_hang && stat.stx_mask & StatxFlags::BTIME.bits() != 0 && (born.tv_sec, born.tv_nsec) != (0, 0);
    known.then(|| identity::fingerprint(stat.stx_ino, (born.tv_sec, born.tv_nsec), &lasting_id(root, fs, traits)))
}

/// See [`LastingId`]. Empty if there is none.
fn lasting_id(root: BorrowedFd<'_>, fs: &rustix::fs::StatFs, traits: &FsTraits) -> Vec<u8> {
    match traits.lasting_id {
        LastingId::Fsid => fsid_of(fs).to_vec(),
        LastingId::XfsUuid => crate::sys::xfs_uuid(root).map(Vec::from).unwrap_or_default(),
        LastingId::None => Vec::new(),
    }
}

impl HostFs {
    /// Opens the directory at `path`. Symbolic links in `path` are followed, unlike in later
    /// lookups.
    ///
    /// # Errors
    /// Returns the step that failed, and the path.
    pub fn open(path: &Path, options: HostOptions) -> core::result::Result<Arc<Self>, OpenError> {
        let at = |step: &'static str| move |errno| OpenError { step, path: path.to_owned(), errno };
        let Opened { root, detached, tree, mount_read_only } = open_root(path, &options).map_err(at("open it"))?;
        let stat = statx_fd(&root).map_err(at("read its attributes"))?;
        let fs_stats = rustix::fs::fstatfs(&root).map_err(at("query its file system"))?;
        let flags = rustix::fs::fstatvfs(&root).map_err(at("query its file system"))?.f_flag;
        let magic = fs_stats.f_type as u64 & 0xffff_ffff;
        let traits = FsTraits::of(magic);
        let merges_names = casefold::merges_names(&root, magic);
        let handles = if options.handles && !traits.no_handles { try_handles(&root, stat.stx_ino) } else { None };
        let handle_builder =
            handles.and_then(|_| HandleBuilder::of(magic, stat.stx_ino, &FileHandle::of_fd(root.as_fd()).ok()?));
        let budget = Budget::of_process();
        let keeps_files = handles.is_some() && traits.open_once;
        let fingerprint = fingerprint(root.as_fd(), &stat, &fs_stats, &traits);
        let root = Arc::new(root);
        let watch = if traits.immutable || traits.may_hang || handles.is_none() || options.watch == Watch::Off {
            None
        } else {
            // Without privileges, or on a file system without handles that fanotify can use.
            Registration::new(&root, dev_of(&stat), detached, options.watch).ok()
        };
        let mut name_cache_ttl = options.name_cache_ttl;
        if let (None, Some(limit)) = (&watch, options.unreported_lifetime) {
            // A name that appears is found after this time and that of the caches above.
            name_cache_ttl = name_cache_ttl.min(limit / 2);
        }
        // A report refers to an object by the inode number in its handle.
        let finds_reported = handles.is_some_and(|rule| rule.ino_at.is_some());
        let reports_all_entries = traits.reports_entries && finds_reported && !options.changed_within_process;
        let lifetimes = match options.unreported_lifetime {
            Some(_) if traits.immutable => Lifetimes::default(),
            Some(limit) => Lifetimes {
                names: watch.is_none().then_some(limit),
                files: (!watch.as_ref().is_some_and(Registration::sees_writes)).then_some(limit),
            },
            None => Lifetimes::default(),
        };
        let shared = Shared {
            root,
            detached,
            hide_mounts: options.hide_mounts,
            _tree: tree,
            root_dev: dev_of(&stat),
            root_inode: HostInode { dev: dev_of(&stat), ino: stat.stx_ino },
            handle_builder,
            finder: Finder::new(),
            handles,
            read_only: AtomicBool::new(options.read_only || flags.contains(StatVfsMountFlags::RDONLY)),
            mount_read_only,
            times: Mutex::new(Times::of(flags)),
            traits,
            merges_names,
            server: Server::current(),
            table: Table::new(options.removed, Arc::clone(&budget)),
            hot: keeps_files.then(|| HotFiles::new(Arc::clone(&budget))),
            dirs: DirCache::new(options.directories, Arc::clone(&budget)),
            listings: Listings::new(options.listings, Arc::clone(&budget)),
            budget,
            opened: SharedFiles::default(),
            names: NameCache::new(name_cache_ttl),
            lists_all_names: traits.lists_all_names,
            cache_names: handles.is_some() && traits.lists_all_names && !traits.may_hang && !name_cache_ttl.is_zero(),
            places: RwLock::new(()),
            no_nowait: AtomicBool::new(false),
            watch,
            reports_all_entries,
            lifetimes,
            root_vnode: OnceLock::new(),
            fingerprint,
        };
        Ok(Arc::new(Self { root: HostVnode::new_root(Arc::new(shared)) }))
    }

    /// Whether objects are reopened by file handle, not by parent and name.
    #[must_use]
    pub fn uses_handles(&self) -> bool {
        self.root.fs().handles.is_some()
    }

    /// Whether out-of-band changes of names and attributes are reported, or can't happen.
    #[must_use]
    pub fn reports_changes(&self) -> bool {
        self.root.fs().watch.is_some() || self.root.fs().traits.immutable
    }

    /// Whether the tree is a private clone of its mount, without any mounts on it or inside it.
    #[must_use]
    pub fn is_detached(&self) -> bool {
        self.root.fs().detached
    }

    /// Sets when reads through this layer update access times; a `None` in `times` keeps the
    /// current setting. This changes the private clone of the mount only, so other users of the
    /// file system are not affected. A read-only layer never updates access times.
    ///
    /// # Errors
    /// `EPERM` if there is no private clone, or if its setting is locked (in a user namespace).
    pub fn set_access_times(&self, times: AccessTimes) -> Result<()> {
        self.change_times(|requested| {
            requested.times = AccessTimes {
                when: times.when.or(requested.times.when),
                directories: times.directories.or(requested.times.directories),
            };
        })
    }

    /// Suspends or resumes access time updates, for example while the mount above is read-only.
    ///
    /// # Errors
    /// Same as [`Self::set_access_times`].
    pub fn suspend_access_times(&self, suspended: bool) -> Result<()> {
        self.change_times(|requested| requested.suspended = suspended)
    }

    fn change_times(&self, change: impl FnOnce(&mut Times)) -> Result<()> {
        let fs = self.root.fs();
        let mut times = fs.times.lock().unwrap_or_else(PoisonError::into_inner);
        let mut requested = *times;
        change(&mut requested);
        if !fs.is_read_only() && requested.effective() != times.effective() {
            if !fs.detached {
                return Err(Errno::PERM);
            }
            crate::sys::set_access_times(fs.root.as_fd(), requested.effective())?;
        }
        // Stored only on success, so that a refused setting is refused again and not mistaken for
        // the current one.
        *times = requested;
        Ok(())
    }

    /// Forbids changes through this layer, or permits them again, while it is in use. On a private
    /// clone of the mount the kernel then enforces it.
    ///
    /// # Errors
    /// `EROFS` if changes can't be permitted, because the file system or the directory's mount is
    /// read-only. `EBUSY` if they can't be forbidden, because files are open for writing.
    pub fn set_read_only(&self, read_only: bool) -> Result<()> {
        let fs = self.root.fs();
        if !read_only && fs.mount_read_only {
            return Err(Errno::ROFS);
        }
        if fs.detached {
            crate::sys::set_mount_read_only(fs.root.as_fd(), read_only)?;
        }
        fs.read_only.store(read_only, Ordering::Release);
        if !read_only && fs.detached {
            // Settings that were made meanwhile are only stored.
            let times = *fs.times.lock().unwrap_or_else(PoisonError::into_inner);
            let _as_before = crate::sys::set_access_times(fs.root.as_fd(), times.effective());
        }
        Ok(())
    }

    /// Returns the directory's descriptor, open for the lifetime of the layer.
    #[must_use]
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.root.fs().root.as_fd()
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        self.root.fs()
    }
}

/// The result of opening the root directory.
struct Opened {
    root: OwnedFd,
    /// Whether it lies on a private clone of its mount.
    detached: bool,
    /// The clone, if it may be kept attached.
    tree: Option<OwnedFd>,
    /// Whether the directory's own mount is read-only.
    mount_read_only: bool,
}

impl Opened {
    fn in_place(root: OwnedFd) -> Self {
        let mount_read_only = is_read_only(&root);
        Self { root, detached: false, tree: None, mount_read_only }
    }
}

/// Whether the descriptor's mount, or its file system, is read-only.
fn is_read_only(fd: &OwnedFd) -> bool {
    rustix::fs::fstatvfs(fd).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Opens the directory, on a private clone of its mount if possible.
fn open_root(path: &Path, options: &HostOptions) -> Result<Opened> {
    let readable = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if options.detach {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        match rustix::mount::open_tree(CWD, path, flags) {
            // The descriptor from open_tree(2) does not work for everything (handles). One opened
            // through it does, and keeps the private mount alive.
            Ok(tree) => {
                let mount_read_only = is_read_only(&tree);
                if options.read_only {
                    // The kernel then refuses changes too, and reads don't update access times. If
                    // this is not permitted, only the layer itself refuses changes.
                    let _enforced = crate::sys::set_mount_read_only(tree.as_fd(), true);
                }
                let root = rustix::fs::openat(&tree, c".", readable, Mode::empty())?;
                // A clone of a shared mount is shared too while it is attached: later mounts below
                // the original would propagate into it.
                let tree = crate::sys::make_mount_private(tree.as_fd()).is_ok().then_some(tree);
                return Ok(Opened { root, detached: true, tree, mount_read_only });
            }
            Err(errno @ (Errno::NOENT | Errno::LOOP | Errno::NAMETOOLONG)) => return Err(errno),
            // Not permitted, or the mount can't be cloned.
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

/// Returns how handles of this file system are checked. `None` if the root can't be opened by its
/// handle.
fn try_handles(root: &OwnedFd, ino: u64) -> Option<HandleRule> {
    let handle = FileHandle::of_fd(root.as_fd()).ok()?;
    let again = handle.open(root.as_fd(), libc::O_PATH | libc::O_NOFOLLOW).ok()?;
    let same = statx_fd(&again).is_ok_and(|stat| stat.stx_ino == ino);
    same.then(|| HandleRule { ino_at: handle.position_of(ino) })
}

/// The statx(2) fields that [`vnode::Attr`] contains.
pub(crate) const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// Calls statx(2) on a descriptor's object.
pub(crate) fn statx_fd(fd: impl AsFd) -> Result<Statx> {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, WANTED)
}

/// Returns `st_dev` as one number.
pub(crate) fn dev_of(stat: &Statx) -> u64 {
    rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor)
}

impl Shared {
    /// Whether changes through this layer are forbidden.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// Returns `EROFS` if the layer is read-only. Called before every change.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.is_read_only() { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// Whether every name that a lookup finds is also listed, except in directories with encoded
    /// names.
    pub(crate) fn lists_all_names(&self) -> bool {
        self.lists_all_names
    }

    /// Whether the name cache may return negative lookups.
    pub(crate) fn caches_names(&self) -> bool {
        self.cache_names
    }

    /// Locks the known names of objects for reading. `None` where objects are reopened by handle.
    pub(crate) fn read_places(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.handles.is_none().then(|| self.places.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks the known names of objects for a change. `None` where objects are reopened by handle.
    pub(crate) fn write_places(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        self.handles.is_none().then(|| self.places.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostFs")
            .field("root", &self.root)
            .field("detached", &self.detached)
            .field("handles", &self.handles)
            .field("read_only", &self.is_read_only())
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
            read_only: fs.is_read_only(),
            may_hang: fs.traits.may_hang,
            needs_flush: fs.traits.needs_flush,
            merges_names: fs.merges_names,
            ..Properties::default()
        }
    }

    fn fingerprint(&self) -> Option<u64> {
        self.root.fs().fingerprint
    }

    fn attach(&self, upcalls: Arc<dyn Upcalls>) {
        let fs = self.root.fs();
        if let Some(watch) = &fs.watch {
            watch.start(fs, upcalls);
        }
    }

    fn reports(&self) -> Option<Arc<dyn Reports>> {
        let fs = self.root.fs();
        match &fs.watch {
            _ if fs.traits.immutable => Some(Arc::new(NothingChanges)),
            Some(watch) if fs.reports_all_entries => watch.reports(),
            _ => None,
        }
    }

    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        if number == identity::ROOT {
            return Ok(self.root());
        }
        let fs = self.root.fs();
        Ok(match fs.table.get(number) {
            Some(live) => live,
            None => fs.vnode_by_number(cx, number)?,
        })
    }

    fn commands(&self) -> Vec<Command> {
        Vec::new()
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        cx.require_blocking()?;
        let fs = self.root.fs();
        if fs.is_read_only() {
            return Ok(());
        }
        match rustix::fs::syncfs(&*fs.root) {
            // The root is only an `O_PATH` reference, because it is not readable.
            Err(Errno::BADF) => {
                rustix::fs::sync();
                Ok(())
            }
            other => other,
        }
    }

    fn unmounted(&self) {}
}

impl HostVnode {
    fn new_root(fs: Arc<Shared>) -> Arc<Self> {
        let root = Arc::new(Self::new(fs, identity::ROOT, Locator::root()));
        // This is the only place that sets it.
        let _ = root.fs().root_vnode.set(Arc::downgrade(&root));
        root
    }
}
