//! The host directories at the bottom of a stack. They are checked before any layer is opened, and
//! opened when the stack is assembled.

use crate::atime;
use crate::exit::Failure;
use crate::host_dir::{HostDir, Role, reason};
use crate::options::Options;
use crate::report::Directory;
use crate::sole_layer;
use core::time::Duration;
use hostfs::{HostFs, HostOptions, Watch};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use vnode::Layer as _;

/// How long the kernel may cache names and attributes whose changes are not reported, unless
/// `cache=` is given. Other delays add up to half of this time.
const UNREPORTED_LIFETIME: Duration = Duration::from_millis(500);

/// Time limit for another server to release its claim on a directory.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(5);

/// Options for opening the directories of a mount.
#[derive(Clone, Copy, Debug)]
pub struct LeafOptions {
    cache: Option<Duration>,
    watch: Watch,
    flags: MountFlags,
}

impl LeafOptions {
    /// Returns those that follow from the mount's options.
    #[must_use]
    pub fn of(options: &Options) -> Self {
        // Without a cache, nothing needs to be dropped. A report could even do harm: the kernel
        // ignores attributes that it fetched while a report arrived, and would not notice by them
        // that cached data are old.
        let is_cached = options.cache != Some(Duration::ZERO);
        let watch = if is_cached { options.watch } else { Watch::Off };
        Self { cache: options.cache, watch, flags: options.flags }
    }

    fn host(&self, read_only: bool) -> HostOptions {
        let unreported_lifetime = self.cache.is_none().then_some(UNREPORTED_LIFETIME);
        let host = HostOptions { read_only, watch: self.watch, unreported_lifetime, ..HostOptions::default() };
        // A shorter cache= also limits this cache, so that out-of-band changes become visible in
        // time.
        let name_cache_ttl = self.cache.map_or(host.name_cache_ttl, |cache| cache.min(host.name_cache_ttl));
        HostOptions { name_cache_ttl, ..host }
    }
}

/// A failure to open a directory or layer, for the mounting user and for layers that reopen their
/// branches.
#[derive(Clone, Debug)]
pub struct OpenFailure {
    /// The message and the exit status.
    pub failure: Failure,
    /// The error number.
    pub errno: Errno,
    /// Whether a directory could not be opened. Otherwise a layer failed.
    pub is_directory: bool,
}

/// A directory at the bottom of a stack.
#[derive(Debug)]
pub struct Leaf {
    /// The path as given; made absolute for directories that are opened late.
    given: PathBuf,
    role: Role,
    /// Whether it is never changed.
    read_only: bool,
    /// Whether concurrent writes by another server must be excluded.
    claimed: bool,
    /// The layer of which only one server may use the directory.
    sole_layer: Option<&'static str>,
    /// The process in whose mount namespace it is found; `None` for this one.
    caller_pid: Option<u32>,
    found: Found,
    /// Whether another part of the same mount, or another server, changes it.
    is_changed: AtomicBool,
    /// The server's descriptor, if it is open for the life of the mount.
    fd: OnceLock<i32>,
}

/// When a directory is resolved.
#[derive(Debug)]
enum Found {
    /// At once, to report errors before the mount.
    Now(OnceLock<HostDir>),
    /// Whenever its layer opens it, since it may be unreachable or hang.
    Late(PathHistory),
}

impl Leaf {
    /// Returns a directory that must exist at mount time.
    #[must_use]
    pub fn new(role: Role, given: PathBuf, read_only: bool) -> Self {
        let found = Found::Now(OnceLock::new());
        let is_changed = AtomicBool::new(false);
        Self {
            given,
            role,
            read_only,
            claimed: false,
            sole_layer: None,
            caller_pid: None,
            found,
            is_changed,
            fd: OnceLock::new(),
        }
    }

    /// Returns a directory that is not accessed before its layer opens it. It is never changed.
    ///
    /// # Errors
    /// The path is empty, or it is relative and the working directory is unavailable.
    pub fn late(given: &Path) -> std::io::Result<Self> {
        let found = Found::Late(PathHistory::default());
        let given = std::path::absolute(given)?;
        Ok(Self {
            given,
            role: Role::Branch,
            read_only: true,
            claimed: false,
            sole_layer: None,
            caller_pid: None,
            found,
            is_changed: AtomicBool::new(false),
            fd: OnceLock::new(),
        })
    }

    /// Sets whether the directory is claimed: no other server may write to it at the same time.
    #[must_use]
    pub fn claimed(self, claimed: bool) -> Self {
        Self { claimed: claimed && !self.read_only, ..self }
    }

    /// Sets the layer of which no other server may have one over this directory, unless the
    /// directory is never changed.
    #[must_use]
    pub fn used_by_one(self, layer: Option<&'static str>) -> Self {
        Self { sole_layer: layer.filter(|_| !self.read_only), ..self }
    }

    /// Sets the process in whose mount namespace the directory is found. Its path is then absolute
    /// and without symbolic links.
    #[must_use]
    pub fn of_caller(self, caller_pid: Option<u32>) -> Self {
        Self { caller_pid, ..self }
    }

    /// Resolves the directory, unless it is opened late.
    ///
    /// # Errors
    /// Names the directory, the reason and the remedy.
    pub fn find(&self) -> Result<(), Failure> {
        if let Found::Now(place) = &self.found
            && place.get().is_none()
        {
            let found = match self.caller_pid {
                None => HostDir::open(self.role, &self.given)?,
                Some(pid) => HostDir::open_through(self.role, &self.given, pid)?,
            };
            let _found = place.set(found);
        }
        Ok(())
    }

    /// Returns the resolved directory; `None` if it is opened late or not resolved yet.
    #[must_use]
    pub fn place(&self) -> Option<&HostDir> {
        match &self.found {
            Found::Now(place) => place.get(),
            Found::Late(_) => None,
        }
    }

    /// Declares that another part of the same mount, or another server, changes it: names are not
    /// cached then.
    pub fn expect_changes(&self) {
        self.is_changed.store(true, Ordering::Relaxed);
    }

    /// Whether the mount writes to it.
    #[must_use]
    pub const fn is_written(&self) -> bool {
        !self.read_only
    }

    /// Returns its path; absolute and without symbolic links if the directory is resolved.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.place().map_or(&self.given, |place| &place.real)
    }

    /// Returns its entry in the report.
    #[must_use]
    pub fn describe(&self, mode: &'static str) -> Directory {
        Directory { path: self.path().to_owned(), mode, fd: self.fd.get().copied() }
    }

    /// Opens it as a layer. May hang for a directory that is opened late.
    ///
    /// # Errors
    /// Names the directory and the reason.
    pub fn open(&self, leaf_options: &LeafOptions) -> Result<Arc<HostFs>, OpenFailure> {
        let path = self.path();
        let refused = |error: hostfs::OpenError| {
            let error = hostfs::OpenError { path: path.to_owned(), ..error };
            OpenFailure { failure: Failure::mount(error.to_string()), errno: error.errno, is_directory: true }
        };
        // In another mount namespace, the path may lead elsewhere.
        let reached = self.place().filter(|_| self.caller_pid.is_some()).map(HostDir::path_of_descriptor);
        let mut host = match &self.found {
            Found::Now(_) => leaf_options.host(self.read_only),
            // Its layer opens several directories that should be equal, and receives no reports.
            Found::Late(_) => HostOptions { watch: Watch::Off, ..leaf_options.host(self.read_only) },
        };
        if self.is_changed.load(Ordering::Relaxed) {
            host.name_cache_ttl = Duration::ZERO;
            host.changed_within_process = true;
        }
        let opened = HostFs::open(reached.as_deref().unwrap_or(path), host);
        let opened = opened.map_err(refused);
        let place = match &self.found {
            Found::Now(place) => place.get(),
            Found::Late(history) => {
                return opened.and_then(|layer| history.check(path, layer)).inspect_err(|_| history.record_miss());
            }
        };
        let layer = opened?;
        self.apply_access_times(&layer, leaf_options);
        if let Some(sole) = self.sole_layer {
            let claimed = sole_layer::claim(sole, path, &layer, CLAIM_TIMEOUT);
            claimed.map_err(|failure| OpenFailure { failure, errno: Errno::BUSY, is_directory: true })?;
        } else if let Some(place) = place.filter(|_| self.claimed) {
            claim(&place.given, &layer);
        }
        let _known = self.fd.set(layer.directory().as_raw_fd());
        Ok(layer)
    }

    fn apply_access_times(&self, layer: &HostFs, leaf_options: &LeafOptions) {
        if let Err(errno) = layer.suspend_access_times(leaf_options.flags.contains(MountFlags::RDONLY)) {
            tracing::debug!(%errno, "can't suspend access-time updates");
        }
        if let Err(errno) = layer.set_access_times(atime::of_options(leaf_options.flags)) {
            let path = self.given.display();
            tracing::warn!("{path}: can't apply the access-time options; its mount's options apply: {}", reason(errno));
        }
    }
}

/// Waits until no other server writes to a directory. Returns false if one still does.
///
/// # Errors
/// The `errno` of flock(2) if the file system has no locks.
pub fn wait_for_claim(layer: &HostFs) -> Result<bool, Errno> {
    layer.claim(CLAIM_TIMEOUT)
}

/// Waits until no other server writes to a directory. A server that was killed or just unmounted
/// exits soon. Two mounts over one branch are permitted at the user's risk, so a timeout only
/// warns.
pub fn claim(branch: &Path, layer: &HostFs) {
    match wait_for_claim(layer) {
        Ok(true) => {}
        Ok(false) => {
            tracing::warn!("branch {}: another server still writes to it; unmount one of the two", branch.display());
        }
        Err(errno) => tracing::debug!(%errno, "branch {}: can't claim it", branch.display()),
    }
}

/// Earlier results at a path.
#[derive(Debug, Default)]
struct PathHistory {
    /// The type of the file system there (`f_type` of statfs(2)).
    magic: OnceLock<i64>,
    was_missing: AtomicBool,
}

impl PathHistory {
    /// Whether the directory at the path is plausible. If a network file system is not mounted, the
    /// path leads to its empty mount point, where every file would appear to be missing.
    fn accepts(&self, magic: i64, may_hang: bool) -> bool {
        match self.magic.get() {
            Some(before) => *before == magic,
            None => may_hang || !self.was_missing.load(Ordering::Relaxed),
        }
    }

    fn check(&self, path: &Path, layer: Arc<HostFs>) -> Result<Arc<HostFs>, OpenFailure> {
        let refused = |errno| OpenFailure {
            failure: Failure::mount(format!("{}: {}", path.display(), reason(errno))),
            errno,
            is_directory: true,
        };
        let magic = rustix::fs::statfs(path).map_err(refused)?.f_type;
        if !self.accepts(magic, layer.properties().may_hang) {
            return Err(refused(Errno::NOTCONN));
        }
        let _known = self.magic.set(magic);
        Ok(layer)
    }

    fn record_miss(&self) {
        self.was_missing.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_mount_point_is_not_accepted_as_a_replica() {
        const NFS: i64 = 0x6969;
        const EXT4: i64 = 0xef53;
        let history = PathHistory::default();
        assert!(history.accepts(EXT4, false));
        history.magic.set(NFS).unwrap();
        assert!(history.accepts(NFS, true) && !history.accepts(EXT4, false));
        let away = PathHistory { was_missing: AtomicBool::new(true), ..PathHistory::default() };
        assert!(away.accepts(NFS, true) && !away.accepts(EXT4, false));
    }

    #[test]
    fn late_directories_are_opened_on_demand() {
        let leaf_options = LeafOptions::of(&Options::default());
        assert!(Leaf::late(&std::env::temp_dir()).unwrap().open(&leaf_options).is_ok());
        let missing = Leaf::late(&std::env::temp_dir().join("strata-no-such-replica")).unwrap();
        assert!(missing.find().is_ok());
        assert_eq!(missing.open(&leaf_options).unwrap_err().errno, Errno::NOENT);
        assert!(Leaf::late(Path::new("")).is_err());
        assert_eq!(Leaf::late(Path::new("x")).unwrap().path(), std::env::current_dir().unwrap().join("x"));
    }

    #[test]
    fn other_directories_must_exist() {
        let missing = Leaf::new(Role::Branch, "/no/such/branch".into(), false);
        assert!(missing.find().unwrap_err().reason.starts_with("branch /no/such/branch: no such directory"));
        let there = Leaf::new(Role::Bottom, "/".into(), true).claimed(true);
        there.find().unwrap();
        assert!(there.place().is_some() && !there.is_written() && !there.claimed);
    }
}
