//! Directories that a mount needs, and whether they can be what they are meant to be.

use crate::exit::Failure;
use crate::mountinfo::{self, Inside};
use rustix::fs::{Access, AtFlags, CWD, Mode as Perm, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// What a directory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A branch of a layer over several.
    Branch,
    /// The directory under the layer of `mount -t LAYER`.
    Lower,
    /// The directory that a stack ends with.
    Bottom,
    /// Where it is mounted.
    MountPoint,
}

impl Role {
    const fn name(self) -> &'static str {
        match self {
            Self::Branch => "branch",
            Self::Lower => "lower directory",
            Self::Bottom => "directory",
            Self::MountPoint => "mount point",
        }
    }

    /// What to do where something else is in its place.
    const fn way_around(self) -> &'static str {
        match self {
            Self::Branch => "a branch is a directory: take it out of dirs=",
            Self::Lower => "the first argument names the directory to mount",
            Self::Bottom => "the last part of the stack names the directory that it stands on",
            Self::MountPoint => "the root of what is mounted is a directory, and is mounted on one: name another",
        }
    }

    /// What to do where it is missing.
    const fn way_out(self) -> &'static str {
        match self {
            Self::Branch => "make it, or take it out of dirs=",
            Self::Lower => "the first argument names the directory to mount",
            Self::Bottom => "the last part of the stack names the directory that it stands on",
            Self::MountPoint => "make it with mkdir",
        }
    }
}

/// A directory that exists.
#[derive(Debug)]
pub struct Place {
    /// As it was written: for messages.
    pub given: PathBuf,
    /// Absolute, without symbolic links.
    pub real: PathBuf,
    role: Role,
    fd: OwnedFd,
    id: Id,
}

/// Device and inode number.
type Id = (u64, u64);

impl Place {
    /// Finds the directory.
    ///
    /// # Errors
    /// Names the path, why it can't be used and what to do about it.
    pub fn open(role: Role, given: &Path) -> Result<Self, Failure> {
        let refuse = |errno: Errno| Failure::mount(refusal(role, given, errno));
        let fd = open_dir(given).map_err(refuse)?;
        let real = given.canonicalize().map_err(|error| refuse(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        let id = identify(&fd).map_err(refuse)?;
        Ok(Self { given: given.to_owned(), real, role, fd, id })
    }

    /// Can entries be made in it?
    ///
    /// # Errors
    /// Names the path and what to do about it.
    pub fn check_writable(&self) -> Result<(), Failure> {
        // The effective user is the one who writes.
        let denied = match rustix::fs::accessat(CWD, &self.real, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
            Ok(()) => return Ok(()),
            Err(errno) => errno,
        };
        let (why, way_out) = match denied {
            Errno::ROFS => ("lies on a read-only file system", "put a writable directory first, or mount with ro"),
            Errno::ACCESS | Errno::PERM => ("may not be written by this user", "choose one that may, or mark it =ro"),
            _ => ("can't be written", "put a writable directory first, or mark it =ro"),
        };
        Err(Failure::mount(format!(
            "branch {}: {why} ({}), but the first branch takes the changes; {way_out}",
            self.given.display(),
            reason(denied)
        )))
    }

    /// The magic number of the file system that it lies on (`f_type` of statfs(2)).
    #[must_use]
    pub fn magic(&self) -> Option<u64> {
        rustix::fs::fstatfs(&self.fd).ok().and_then(|figures| u64::try_from(figures.f_type).ok())
    }

    /// The directory, for looking at.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Directories above it, and itself.
    fn ancestors(&self) -> Result<Vec<Id>, Errno> {
        let mut ids = vec![self.id];
        let mut above = rustix::io::fcntl_dupfd_cloexec(&self.fd, 3)?;
        loop {
            above =
                rustix::fs::openat(&above, "..", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Perm::empty())?;
            let id = identify(&above)?;
            // The root is above itself.
            if ids.last() == Some(&id) {
                return Ok(ids);
            }
            ids.push(id);
        }
    }
}

/// A branch, and where it lies, in both ways of looking at it.
struct Located<'a> {
    place: &'a Place,
    ancestors: Vec<Id>,
    inside: Option<Inside>,
}

impl<'a> Located<'a> {
    fn new(place: &'a Place, mounts: &[mountinfo::Mount]) -> Result<Self, Failure> {
        let refuse = |errno| Failure::mount(format!("branch {}: {}", place.given.display(), reason(errno)));
        let ancestors = place.ancestors().map_err(refuse)?;
        Ok(Self { place, ancestors, inside: mountinfo::inside(mounts, place.fd.as_fd(), &place.real) })
    }

    /// Can what is written to it be seen through the other? What is mounted inside a branch is not part of it: so the place
    /// in the file system counts, and the place in the tree of names only where that one is not known.
    fn is_within(&self, other: &Self) -> bool {
        match (&self.inside, &other.inside) {
            (Some(inside), Some(others)) => inside.is_within(others),
            _ => self.ancestors.contains(&other.place.id),
        }
    }
}

/// Refuses branches that are the same directory, or of which one lies inside another: what is written to one would show up
/// through the other. They are compared as directories, so symbolic links and bind mounts don't hide it.
///
/// # Errors
/// Names both and what to do about it.
pub fn check_apart(places: &[&Place]) -> Result<(), Failure> {
    let mounts = mountinfo::read();
    let mut known: Vec<Located<'_>> = Vec::with_capacity(places.len());
    for place in places {
        let this = Located::new(place, &mounts)?;
        for other in &known {
            if place.id == other.place.id {
                return Err(not_apart(place, "is the same directory as", other.place));
            }
            if this.is_within(other) {
                return Err(not_apart(place, "lies inside", other.place));
            }
            if other.is_within(&this) {
                return Err(not_apart(other.place, "lies inside", place));
            }
        }
        known.push(this);
    }
    Ok(())
}

fn not_apart(a: &Place, how: &str, b: &Place) -> Failure {
    let (a, b) = (a.given.display(), b.given.display());
    Failure::mount(format!("branch {a} {how} branch {b}; leave one of them out"))
}

fn refusal(role: Role, path: &Path, errno: Errno) -> String {
    let (what, path) = (role.name(), path.display());
    match errno {
        Errno::NOENT => format!("{what} {path}: no such directory; {}", role.way_out()),
        Errno::NOTDIR => format!("{what} {path}: not a directory; {}", role.way_around()),
        Errno::NOTCONN => format!("{what} {path}: its file system's server has ended; unmount it first (umount -l)"),
        Errno::ACCESS | Errno::PERM => format!("{what} {path}: {}; mount as a user who may reach it", reason(errno)),
        Errno::LOOP => format!("{what} {path}: {}; name the directory itself", reason(errno)),
        _ => format!("{what} {path}: {}", reason(errno)),
    }
}

/// The system's own words for an error.
#[must_use]
pub fn reason(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

fn open_dir(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Perm::empty())
}

fn identify(fd: &OwnedFd) -> Result<Id, Errno> {
    rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

impl core::fmt::Display for Place {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} {}", self.role.name(), self.given.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A directory that goes away with the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("strata-place-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn dir(&self, name: &str) -> PathBuf {
            let path = self.0.join(name);
            std::fs::create_dir_all(&path).unwrap();
            path
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn apart(paths: &[&Path]) -> Result<(), String> {
        let places: Vec<_> = paths.iter().map(|path| Place::open(Role::Branch, path).unwrap()).collect();
        check_apart(&places.iter().collect::<Vec<_>>()).map_err(|failure| failure.reason)
    }

    #[test]
    fn missing_and_other_things_are_refused() {
        let scratch = Scratch::new("missing");
        let file = scratch.0.join("file");
        std::fs::write(&file, "").unwrap();
        let message = |path: &Path| Place::open(Role::Branch, path).unwrap_err().reason;
        let missing = scratch.0.join("missing");
        assert_eq!(
            message(&missing),
            format!("branch {}: no such directory; make it, or take it out of dirs=", missing.display())
        );
        assert!(message(&file).contains("not a directory; a branch is a directory"));
        let point = Place::open(Role::MountPoint, &file).unwrap_err().reason;
        assert!(point.contains("not a directory; ") && !point.contains("mkdir"), "{point}");
        let link = scratch.0.join("loop");
        symlink("loop", &link).unwrap();
        assert!(message(&link).contains("symbolic link"), "{}", message(&link));
        let point = Place::open(Role::MountPoint, &missing).unwrap_err().reason;
        assert!(point.starts_with("mount point") && point.ends_with("mkdir"));
    }

    #[test]
    fn branches_lie_apart() {
        let scratch = Scratch::new("apart");
        let (a, b, inner) = (scratch.dir("a"), scratch.dir("b"), scratch.dir("a/x/y"));
        assert_eq!(apart(&[&a, &b]), Ok(()));
        assert_eq!(apart(&[&b, &inner, &scratch.dir("ab")]), Ok(()));
        assert!(apart(&[&a, &b, &a]).unwrap_err().contains("is the same directory as"));
        assert!(apart(&[&a, &inner]).unwrap_err().contains(&format!(
            "{} lies inside branch {};",
            inner.display(),
            a.display()
        )));
        assert!(apart(&[&inner, &a]).unwrap_err().contains(&format!(
            "{} lies inside branch {};",
            inner.display(),
            a.display()
        )));
        let link = scratch.0.join("link");
        symlink(&inner, &link).unwrap();
        assert!(apart(&[&a, &link]).unwrap_err().contains("lies inside"));
        assert!(apart(&[&scratch.0, &a]).unwrap_err().contains("lies inside"));
        assert!(apart(&[&a, &a.join("../a/./x/..")]).unwrap_err().contains("same directory"));
    }
}
