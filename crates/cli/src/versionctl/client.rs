//! Commands to the layer versionfs, sent to a directory.

use super::text::shown;
use crate::channel;
use crate::exit::Failure;
use crate::host_dir::reason;
use jiff::Timestamp;
use rustix::fs::{AtFlags, Mode, OFlags, Stat, StatxFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use versionclient::{Directory, Error, List, LogLine, Lost, Named, Origin, Version};

/// Commands about the whole mount.
const OF_THE_OWNER: [&str; 5] = ["tag", "untag", "clean", "convert", "reload"];

/// A directory of the mount, as it is now or as it was.
#[derive(Debug)]
pub(crate) struct Dir {
    inner: Directory,
    /// Its path in messages.
    pub(crate) path: PathBuf,
    /// Whether this is an old version, which can't be changed.
    pub(crate) is_old: bool,
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Dir {
    /// Opens a directory as it is now.
    ///
    /// # Errors
    /// Those of open(2).
    pub(crate) fn open(path: &Path) -> Result<Self, Errno> {
        let fd = rustix::fs::open(path, DIRECTORY, Mode::empty())?;
        Ok(Self { inner: fd.into(), path: path.to_owned(), is_old: false })
    }

    /// Opens the same directory once more.
    ///
    /// # Errors
    /// Those of openat(2).
    pub(crate) fn again(&self) -> Result<Self, Errno> {
        let fd = rustix::fs::openat(self, ".", DIRECTORY, Mode::empty())?;
        Ok(Self { inner: fd.into(), path: self.path.clone(), is_old: self.is_old })
    }

    /// Opens a directory in this one. A symbolic link is not followed.
    ///
    /// # Errors
    /// Those of openat(2).
    pub(crate) fn child(&self, name: &[u8]) -> Result<Self, Errno> {
        let fd = rustix::fs::openat(self, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Self { inner: fd.into(), path: self.path_of(name), is_old: self.is_old })
    }

    /// Returns the path of an entry.
    pub(crate) fn path_of(&self, name: &[u8]) -> PathBuf {
        use std::os::unix::ffi::OsStrExt as _;
        let name = std::ffi::OsStr::from_bytes(name);
        if self.path == Path::new(".") { name.into() } else { self.path.join(name) }
    }

    /// Returns the attributes of an entry, if it exists.
    ///
    /// # Errors
    /// Those of fstatat(2).
    pub(crate) fn stat(&self, name: &[u8]) -> Result<Option<Stat>, Failure> {
        match rustix::fs::statat(self, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(at(&self.path_of(name), errno)),
        }
    }

    /// Returns when an entry was created, if the file system knows.
    pub(crate) fn born(&self, name: &[u8]) -> Option<Timestamp> {
        let found = rustix::fs::statx(self, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME).ok()?;
        let is_known = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        let (second, nano) = (found.stx_btime.tv_sec, i32::try_from(found.stx_btime.tv_nsec).ok()?);
        Timestamp::new(second, nano).ok().filter(|_| is_known)
    }

    /// Sends a command about an entry.
    ///
    /// # Errors
    /// Names the entry and the reason.
    pub(crate) fn command(&self, word: &str, name: &[u8], rest: &[&[u8]]) -> Result<Vec<u8>, Failure> {
        self.about(word, name, self.inner.call_about(word, name, rest))
    }

    /// Sends a command about the mount.
    ///
    /// # Errors
    /// Names the directory and the reason.
    pub(crate) fn plain(&self, word: &str, input: &[u8]) -> Result<Vec<u8>, Failure> {
        self.inner.call(word, input).map_err(|error| failure(&self.path, word, error))
    }

    /// Names the entry in a failure.
    fn about<T>(&self, word: &str, name: &[u8], result: Result<T, Error>) -> Result<T, Failure> {
        result.map_err(|error| failure(&self.path_of(name), word, error))
    }

    /// Returns the versions of a name, oldest first; `None` if there never was such a file.
    ///
    /// # Errors
    /// Not on versionfs, or no permission to read old versions.
    pub(crate) fn list(&self, name: &[u8]) -> Result<Option<List>, Failure> {
        self.about("list", name, self.inner.versions(name))
    }

    /// Returns from where files were renamed to a name.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub(crate) fn origins(&self, name: &[u8]) -> Result<Vec<Origin>, Failure> {
        self.about("origins", name, self.inner.origins(name))
    }

    /// Opens another directory of the mount by its path from this one. Its path in messages has no
    /// `..` where it can be without.
    ///
    /// # Errors
    /// Those of openat(2).
    pub(crate) fn relative(&self, path: &[u8]) -> Result<Self, Errno> {
        let fd = rustix::fs::openat(self, path, DIRECTORY, Mode::empty())?;
        let long = self.path_of(path);
        let mut short = PathBuf::new();
        for part in long.components() {
            let is_below = matches!(short.components().next_back(), Some(Component::Normal(_)));
            match part {
                Component::CurDir => {}
                Component::ParentDir if is_below => drop(short.pop()),
                part => short.push(part),
            }
        }
        if short.as_os_str().is_empty() {
            short.push(".");
        }
        let identity = |stat: Stat| (stat.st_dev, stat.st_ino);
        let is_same = rustix::fs::stat(&short).ok().map(identity) == rustix::fs::fstat(&fd).ok().map(identity);
        Ok(Self { inner: fd.into(), path: if is_same { short } else { long }, is_old: self.is_old })
    }

    /// Returns all names that have versions, also removed ones.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub(crate) fn names(&self) -> Result<Vec<Named>, Failure> {
        self.inner.names().map_err(|error| failure(&self.path, "names", error))
    }

    /// Returns the names whose last state is not in the history.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub(crate) fn lost(&self) -> Result<Vec<Lost>, Failure> {
        self.inner.lost().map_err(|error| failure(&self.path, "lost", error))
    }

    /// Returns the names, or this one, that existed at a time in a state that is not known.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub(crate) fn lost_at(&self, time: Timestamp, name: Option<&[u8]>) -> Result<Vec<Lost>, Failure> {
        self.inner.lost_at(time, name).map_err(|error| failure(&self.path, "lost", error))
    }

    /// Returns the tags of the mount.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub(crate) fn tags(&self) -> Result<Vec<(Vec<u8>, Timestamp)>, Failure> {
        self.inner.tags().map_err(|error| failure(&self.path, "tags", error))
    }

    /// Calls `visit` for each line of the audit log, in order.
    ///
    /// # Errors
    /// Not on versionfs, or neither root nor the mounting user.
    pub(crate) fn audit_log(&self, visit: &mut dyn FnMut(LogLine)) -> Result<(), Failure> {
        self.inner.audit_log(visit).map_err(|error| match error {
            Error::Refused(Errno::PERM) => Failure::usage(format!(
                "{}: only root and the mounting user may read the audit log; use sudo",
                shown(&self.path)
            )),
            error => failure(&self.path, "log", error),
        })
    }

    /// Returns the name under which an old version can be opened, for some seconds.
    ///
    /// # Errors
    /// Names the entry and the reason.
    pub(crate) fn token(&self, name: &[u8], number: u64) -> Result<Vec<u8>, Failure> {
        self.about("open", name, self.inner.token(name, number))
    }

    /// Opens an old version of a file, for reading.
    ///
    /// # Errors
    /// Names the file and the reason.
    pub(crate) fn version(&self, name: &[u8], version: &Version) -> Result<OwnedFd, Failure> {
        self.old(name, version, self.inner.open_version(name, version.number))
    }

    /// Returns the target of an old version of a symbolic link.
    ///
    /// # Errors
    /// Names the link and the reason.
    pub(crate) fn link_target(&self, name: &[u8], version: &Version) -> Result<Vec<u8>, Failure> {
        self.old(name, version, self.inner.link_target(name, version.number))
    }

    /// Opens an old version of a directory.
    ///
    /// # Errors
    /// Names the directory and the reason.
    pub(crate) fn old_dir(&self, name: &[u8], version: &Version) -> Result<Self, Failure> {
        let inner = self.old(name, version, self.inner.directory_version(name, version.number))?;
        Ok(Self { inner, path: self.path_of(name), is_old: true })
    }

    /// Opens this directory as it was, with everything in it.
    ///
    /// # Errors
    /// Names the directory and the reason.
    pub(crate) fn at(&self, time: Timestamp) -> Result<Self, Failure> {
        let inner = self.inner.at(time).map_err(|error| match error {
            Error::Channel(errno) => at(&self.path, errno),
            error => failure(&self.path, "at", error),
        })?;
        Ok(Self { inner, path: self.path.clone(), is_old: true })
    }

    /// Names the version in a failure.
    fn old<T>(&self, name: &[u8], version: &Version, result: Result<T, Error>) -> Result<T, Failure> {
        result.map_err(|error| match error {
            Error::Channel(errno) => {
                let path = shown(&self.path_of(name));
                Failure::mount(format!("{path}: version {}: {}", version.number, reason(errno)))
            }
            error => failure(&self.path_of(name), "open", error),
        })
    }
}

/// Returns the failure of a system call on a path.
pub(crate) fn at(path: &Path, errno: Errno) -> Failure {
    let line = format!("{}: {}", shown(path), reason(errno));
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::PERM | Errno::LOOP | Errno::NAMETOOLONG => {
            Failure::usage(line)
        }
        _ => Failure::mount(line),
    }
}

/// Returns the failure of the command `versionfs.WORD`.
fn failure(path: &Path, word: &str, error: Error) -> Failure {
    let (name, command) = (shown(path), format!("versionfs.{word}"));
    match error {
        Error::Foreign | Error::Refused(Errno::NOTTY | Errno::OPNOTSUPP) => Failure::mount(format!(
            "{name}: not in a mount with versionfs, or its server does not know {command}; mount -t versionfs DIR MNT"
        )),
        Error::Refused(Errno::NOENT) => Failure::usage(format!("{name}: no such version; see versionctl log")),
        Error::Refused(Errno::ACCESS) => {
            Failure::usage(format!("{name}: you may not read old versions of it; see versionctl policy explain"))
        }
        Error::Refused(Errno::PERM) if OF_THE_OWNER.contains(&word) => {
            Failure::usage(format!("{name}: only root and the mounting user may use {command}; use sudo"))
        }
        Error::Refused(Errno::INVAL) if word == "reload" => Failure::usage(format!(
            "{name}: a policy file has errors, and the policies stay as they are; see versionctl policy check"
        )),
        Error::Refused(Errno::PERM) => Failure::usage(format!(
            "{name}: you may not change its versions: only its owner and root may, unless the administrator forbids it; \
                 see versionctl policy explain"
        )),
        Error::Refused(Errno::INVAL) => Failure::usage(format!("{name}: {command}: the server refused the arguments")),
        error => channel::failure(path, &command, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn failures_name_the_path_and_what_to_do() {
        let failed = |command, errno| failure(Path::new("/m"), command, Error::Refused(errno)).reason;
        assert!(failed("reload", Errno::PERM).contains("only root and the mounting user"));
        assert!(failed("reload", Errno::INVAL).contains("versionctl policy check"));
        for (error, exit, part) in [
            (Error::Foreign, Exit::Mount, "mount -t versionfs"),
            (Error::Refused(Errno::NOTTY), Exit::Mount, "versionfs.list"),
            (Error::Refused(Errno::NOENT), Exit::Usage, "versionctl log"),
            (Error::Refused(Errno::ACCESS), Exit::Usage, "may not read"),
            (Error::Refused(Errno::PERM), Exit::Usage, "may not change"),
            (Error::Channel(Errno::NOTCONN), Exit::Mount, "umount -l"),
        ] {
            let failure = failure(Path::new("/m/f"), "list", error);
            assert!(failure.exit == exit && failure.reason.starts_with("/m/f: "), "{failure}");
            assert!(failure.reason.contains(part), "{failure}");
        }
    }

    #[test]
    fn outside_of_a_mount_every_command_fails() {
        let dir = Dir::open(Path::new("/")).unwrap();
        assert_eq!(dir.list(b"etc").unwrap_err().exit, Exit::Mount);
        assert_eq!(dir.names().unwrap_err().exit, Exit::Mount);
        assert!(dir.stat(b"no such file").unwrap().is_none());
        assert_eq!(dir.path_of(b"x"), Path::new("/x"));
    }
}
