//! The directories of the host that a stack stands on: found before anything is opened, opened when
//! the stack is put together.

use crate::atime;
use crate::exit::Failure;
use crate::options::Options;
use crate::place::{Place, Role, reason};
use crate::report::Directory;
use core::time::Duration;
use hostfs::{HostFs, HostOptions};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use vnode::Layer as _;

/// So long a server is waited for that writes to a directory.
const PATIENCE: Duration = Duration::from_secs(5);

/// How the directories of a mount are opened.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    cache: Option<Duration>,
    flags: MountFlags,
}

impl Manner {
    /// As the mount's options say.
    #[must_use]
    pub const fn of(options: &Options) -> Self {
        Self { cache: options.cache, flags: options.flags }
    }

    fn host(&self, read_only: bool) -> HostOptions {
        let host = HostOptions { read_only, ..HostOptions::default() };
        // Whoever wants to see at once what others change below wants no cache here either.
        let name_cache_ttl = self.cache.map_or(host.name_cache_ttl, |cache| cache.min(host.name_cache_ttl));
        HostOptions { name_cache_ttl, ..host }
    }
}

/// Why something could not be opened: for who mounts, and for a layer that opens its branches
/// itself.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The sentence and the status.
    pub failure: Failure,
    /// The error.
    pub errno: Errno,
    /// Is it a directory that can't be opened? Otherwise it is a layer that can't be put on what is
    /// below it.
    pub is_directory: bool,
}

/// A directory at the bottom of a stack.
#[derive(Debug)]
pub struct Leaf {
    /// As it was written; absolute where nothing may touch it yet.
    given: PathBuf,
    role: Role,
    /// Is it never changed?
    read_only: bool,
    /// No other server may write to it at the same time.
    claimed: bool,
    found: Found,
    /// The server's descriptor, if it has one for good.
    fd: OnceLock<i32>,
}

/// When a directory is looked for.
#[derive(Debug)]
enum Found {
    /// At once, so that what is wrong with it is said.
    Now(OnceLock<Place>),
    /// When its layer asks for it, each time: it may be away, or hang.
    Late(Memory),
}

impl Leaf {
    /// A directory that must be there.
    #[must_use]
    pub fn new(role: Role, given: PathBuf, read_only: bool) -> Self {
        let found = Found::Now(OnceLock::new());
        Self { given, role, read_only, claimed: false, found, fd: OnceLock::new() }
    }

    /// A directory that is not touched before its layer wants it. It is never changed.
    ///
    /// # Errors
    /// The path is empty, or there is no working directory that it could count from.
    pub fn late(given: &Path) -> std::io::Result<Self> {
        let found = Found::Late(Memory::default());
        let given = std::path::absolute(given)?;
        Ok(Self { given, role: Role::Branch, read_only: true, claimed: false, found, fd: OnceLock::new() })
    }

    /// One to which no other server may write at the same time.
    #[must_use]
    pub fn claimed(self, claimed: bool) -> Self {
        Self { claimed: claimed && !self.read_only, ..self }
    }

    /// Finds it, unless that has to wait.
    ///
    /// # Errors
    /// Names the directory, why it can't be used and what to do about it.
    pub fn find(&self) -> Result<(), Failure> {
        if let Found::Now(place) = &self.found
            && place.get().is_none()
        {
            let _found = place.set(Place::open(self.role, &self.given)?);
        }
        Ok(())
    }

    /// Where it was found.
    #[must_use]
    pub fn place(&self) -> Option<&Place> {
        match &self.found {
            Found::Now(place) => place.get(),
            Found::Late(_) => None,
        }
    }

    /// Can it be written?
    #[must_use]
    pub const fn is_written(&self) -> bool {
        !self.read_only
    }

    /// Its path: absolute and without symbolic links, where it was found already.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.place().map_or(&self.given, |place| &place.real)
    }

    /// As the report tells of it.
    #[must_use]
    pub fn describe(&self, mode: &'static str) -> Directory {
        Directory { path: self.path().to_owned(), mode, fd: self.fd.get().copied() }
    }

    /// Opens it as a layer. May hang, if it was not looked for before.
    ///
    /// # Errors
    /// Names the directory and the reason.
    pub fn open(&self, manner: &Manner) -> Result<Arc<HostFs>, Refused> {
        let path = self.path();
        let refused = |error: hostfs::OpenError| Refused {
            failure: Failure::mount(error.to_string()),
            errno: error.errno,
            is_directory: true,
        };
        let opened = HostFs::open(path, manner.host(self.read_only)).map_err(refused);
        let place = match &self.found {
            Found::Now(place) => place.get(),
            Found::Late(memory) => {
                return opened.and_then(|layer| memory.check(path, layer)).inspect_err(|_| memory.missed());
            }
        };
        let layer = opened?;
        self.apply_access_times(&layer, manner);
        if let Some(place) = place.filter(|_| self.claimed) {
            claim(place, &layer);
        }
        let _known = self.fd.set(layer.directory().as_raw_fd());
        Ok(layer)
    }

    fn apply_access_times(&self, layer: &HostFs, manner: &Manner) {
        if let Err(errno) = layer.suspend_access_times(manner.flags.contains(MountFlags::RDONLY)) {
            tracing::debug!(%errno, "reading still moves times of access");
        }
        if let Err(errno) = layer.set_access_times(atime::of_options(manner.flags)) {
            let path = self.given.display();
            tracing::warn!("{path}: noatime, relatime and the like are as on its own mount: {}", reason(errno));
        }
    }
}

/// Waits until no other server writes to a directory. One that was killed, or whose mount was just
/// unmounted, ends soon; two mounts over one branch were always up to their user.
fn claim(place: &Place, layer: &HostFs) {
    match layer.claim(PATIENCE) {
        Ok(true) => {}
        Ok(false) => tracing::warn!("branch {}: another server still writes to it", place.given.display()),
        Err(errno) => tracing::debug!(%errno, "branch {} can't be claimed", place.given.display()),
    }
}

/// What was found at a path before.
#[derive(Debug, Default)]
struct Memory {
    /// The type of the file system there (`f_type` of statfs(2)).
    magic: OnceLock<i64>,
    was_away: AtomicBool,
}

impl Memory {
    /// Can that be the directory? Where a network file system was, its empty mount point may be:
    /// that has no file, and all of them would be missing.
    fn accepts(&self, magic: i64, may_hang: bool) -> bool {
        match self.magic.get() {
            Some(before) => *before == magic,
            None => may_hang || !self.was_away.load(Ordering::Relaxed),
        }
    }

    fn check(&self, path: &Path, layer: Arc<HostFs>) -> Result<Arc<HostFs>, Refused> {
        let refused = |errno| Refused {
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

    fn missed(&self) {
        self.was_away.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_mount_point_is_no_replica() {
        const NFS: i64 = 0x6969;
        const EXT4: i64 = 0xef53;
        let memory = Memory::default();
        assert!(memory.accepts(EXT4, false));
        memory.magic.set(NFS).unwrap();
        assert!(memory.accepts(NFS, true) && !memory.accepts(EXT4, false));
        let away = Memory { was_away: AtomicBool::new(true), ..Memory::default() };
        assert!(away.accepts(NFS, true) && !away.accepts(EXT4, false));
    }

    #[test]
    fn late_directories_are_opened_when_they_are_wanted() {
        let manner = Manner::of(&Options::default());
        assert!(Leaf::late(&std::env::temp_dir()).unwrap().open(&manner).is_ok());
        let missing = Leaf::late(&std::env::temp_dir().join("strata-no-such-replica")).unwrap();
        assert!(missing.find().is_ok());
        assert_eq!(missing.open(&manner).unwrap_err().errno, Errno::NOENT);
        assert!(Leaf::late(Path::new("")).is_err());
        assert_eq!(Leaf::late(Path::new("x")).unwrap().path(), std::env::current_dir().unwrap().join("x"));
    }

    #[test]
    fn others_must_be_there() {
        let missing = Leaf::new(Role::Branch, "/no/such/branch".into(), false);
        assert!(missing.find().unwrap_err().reason.starts_with("branch /no/such/branch: no such directory"));
        let there = Leaf::new(Role::Bottom, "/".into(), true).claimed(true);
        there.find().unwrap();
        assert!(there.place().is_some() && !there.is_written() && !there.claimed);
    }
}
