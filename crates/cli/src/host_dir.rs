//! The host directories of a mount (branches, lower directory, mount point) and checks of their
//! suitability.

use crate::exit::Failure;
use crate::mountinfo::{self, Inside};
use rustix::fs::{Access, AtFlags, CWD, Mode as Perm, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Role of a directory in a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A branch of a layer over branches.
    Branch,
    /// A branch that a command names in its arguments, without `dirs=`.
    Argument,
    /// The directory under the layer of `mount -t LAYER`.
    Lower,
    /// The directory at the bottom of a stack.
    Bottom,
    /// The mount point.
    MountPoint,
}

impl Role {
    const fn name(self) -> &'static str {
        match self {
            Self::Branch | Self::Argument => "branch",
            Self::Lower => "lower directory",
            Self::Bottom => "directory",
            Self::MountPoint => "mount point",
        }
    }

    /// Returns the remedy if the path is not a directory.
    const fn remedy_if_not_directory(self) -> &'static str {
        match self {
            Self::Branch => "a branch must be a directory: remove it from dirs=",
            Self::Argument => "a branch must be a directory",
            Self::Lower => "the first argument must be the directory to mount",
            Self::Bottom => "the last part of the stack must be a directory",
            Self::MountPoint => "choose a directory as the mount point",
        }
    }

    /// Returns the remedy if the directory does not exist.
    const fn remedy_if_missing(self) -> &'static str {
        match self {
            Self::Branch => "create it, or remove it from dirs=",
            Self::Argument => "create it, or name another one",
            Self::Lower => "the first argument must be the directory to mount",
            Self::Bottom => "the last part of the stack must be a directory",
            Self::MountPoint => "create it with mkdir",
        }
    }

    /// Returns the remedy if this user has no access.
    const fn remedy_if_denied(self) -> &'static str {
        match self {
            Self::Argument => "run the command as a user with access to it",
            _ => "mount as a user with access to it",
        }
    }
}

/// An existing directory, with its role in the mount.
#[derive(Debug)]
pub struct HostDir {
    /// The path as given, for messages.
    pub given: PathBuf,
    /// The absolute path, without symbolic links.
    pub real: PathBuf,
    role: Role,
    fd: OwnedFd,
    id: Id,
    /// The process in whose mount namespace it was found; `None` for this one.
    caller: Option<u32>,
}

/// Device and inode number.
type Id = (u64, u64);

impl HostDir {
    /// Opens the directory with `O_PATH`.
    ///
    /// # Errors
    /// Names the path, the reason and the remedy.
    pub fn open(role: Role, given: &Path) -> Result<Self, Failure> {
        let refuse = |errno: Errno| Failure::mount(refusal(role, given, errno));
        let fd = open_dir(given).map_err(refuse)?;
        let real = given.canonicalize().map_err(|error| refuse(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        let id = identify(&fd).map_err(refuse)?;
        Ok(Self { given: given.to_owned(), real, role, fd, id, caller: None })
    }

    /// Opens the directory with this absolute path, without symbolic links, in the root directory
    /// and mount namespace of a process.
    ///
    /// # Errors
    /// Names the path, the reason and the remedy.
    pub fn open_through(role: Role, real: &Path, pid: u32) -> Result<Self, Failure> {
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let root = open_dir(&root).map_err(|errno| {
            Failure::mount(format!(
                "{} {}: the server can't access your root directory ({}); run the command as the user of the server",
                role.name(),
                real.display(),
                reason(errno)
            ))
        })?;
        let refuse = |errno: Errno| Failure::mount(refusal(role, real, errno));
        let below = real.strip_prefix("/").unwrap_or(real);
        let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = rustix::fs::ResolveFlags::BENEATH | rustix::fs::ResolveFlags::NO_SYMLINKS;
        let fd = rustix::fs::openat2(root, below, flags, Perm::empty(), resolve).map_err(refuse)?;
        let id = identify(&fd).map_err(refuse)?;
        Ok(Self { given: real.to_owned(), real: real.to_owned(), role, fd, id, caller: Some(pid) })
    }

    /// Returns the failure for an error of an access to the directory.
    #[must_use]
    pub fn refuse(&self, errno: Errno) -> Failure {
        Failure::mount(refusal(self.role, &self.given, errno))
    }

    /// Returns a path that leads to the directory while this is open.
    #[must_use]
    pub fn path_of_descriptor(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd()).into()
    }

    /// Returns the device number of its file system (`st_dev`).
    #[must_use]
    pub const fn device(&self) -> u64 {
        self.id.0
    }

    /// Checks that entries can be created in the directory.
    ///
    /// # Errors
    /// Names the path, the reason and the remedy.
    pub fn check_writable(&self) -> Result<(), Failure> {
        // EACCES checks with the effective user ID, which the server writes with.
        let denied = match rustix::fs::accessat(CWD, &self.real, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
            Ok(()) => return Ok(()),
            Err(errno) => errno,
        };
        let (why, remedy) = match denied {
            Errno::ROFS => {
                ("is on a read-only file system".to_owned(), "put a writable directory first, or mount with ro")
            }
            Errno::ACCESS | Errno::PERM => (
                format!("is not writable for this user ({})", reason(denied)),
                "choose a writable directory, or mark it =ro",
            ),
            _ => (format!("is not writable ({})", reason(denied)), "put a writable directory first, or mark it =ro"),
        };
        Err(Failure::mount(format!(
            "branch {}: {why}, but the first branch must be writable; {remedy}",
            self.given.display()
        )))
    }

    /// Returns the magic number of its file system (`f_type` of statfs(2)).
    #[must_use]
    pub fn magic(&self) -> Option<u64> {
        rustix::fs::fstatfs(&self.fd).ok().and_then(|figures| u64::try_from(figures.f_type).ok())
    }

    /// Returns the `O_PATH` descriptor.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the directory itself and all of its ancestors.
    fn ancestors(&self) -> Result<Vec<Id>, Errno> {
        let mut ids = vec![self.id];
        let mut above = rustix::io::fcntl_dupfd_cloexec(&self.fd, 3)?;
        loop {
            above =
                rustix::fs::openat(&above, "..", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Perm::empty())?;
            let id = identify(&above)?;
            // The parent of the root is the root.
            if ids.last() == Some(&id) {
                return Ok(ids);
            }
            ids.push(id);
        }
    }
}

/// The two positions of a branch: in the directory tree, and within its file system.
#[derive(Clone, Debug)]
pub struct Place {
    given: PathBuf,
    id: Id,
    ancestors: Vec<Id>,
    inside: Option<Inside>,
}

impl Place {
    /// Returns the positions of each directory.
    ///
    /// # Errors
    /// Names the directory and the reason.
    pub fn of(dirs: &[&HostDir]) -> Result<Vec<Self>, Failure> {
        let mounts = mountinfo::read();
        let place = |dir: &&HostDir| {
            let refuse = |errno| Failure::mount(format!("branch {}: {}", dir.given.display(), reason(errno)));
            let ancestors = dir.ancestors().map_err(refuse)?;
            let inside = match dir.caller {
                None => mountinfo::inside(&mounts, dir.fd.as_fd(), &dir.real),
                Some(pid) => mountinfo::inside(&mountinfo::read_of(pid), dir.fd.as_fd(), &dir.real),
            };
            Ok(Self { given: dir.given.clone(), id: dir.id, ancestors, inside })
        };
        dirs.iter().map(place).collect()
    }

    /// Whether changes in it are visible through `other`. A file system that is mounted inside a
    /// branch is not part of the branch. The position within the file system therefore decides, and
    /// the position in the directory tree only if that is unknown.
    fn is_within(&self, other: &Self) -> bool {
        match (&self.inside, &other.inside) {
            (Some(inside), Some(others)) => inside.is_within(others),
            _ => self.ancestors.contains(&other.id),
        }
    }

    /// Fails if this is the same directory as `other`, or if one is inside the other: changes to
    /// one would be visible through the other. Device and inode numbers are compared, so symbolic
    /// links and bind mounts don't hide an overlap.
    ///
    /// # Errors
    /// Names both branches and the remedy.
    pub fn check_no_overlap(&self, other: &Self) -> Result<(), Failure> {
        if self.id == other.id {
            return Err(overlap(self, "is the same directory as", other));
        }
        if self.is_within(other) {
            return Err(overlap(self, "is inside", other));
        }
        if other.is_within(self) {
            return Err(overlap(other, "is inside", self));
        }
        Ok(())
    }
}

/// Fails if two branches overlap: see [`Place::check_no_overlap`]. `common`: whether the branches
/// with these two indexes may be the same directory.
///
/// # Errors
/// Names both branches and the remedy.
pub fn check_no_overlap(dirs: &[&HostDir], common: impl Fn(usize, usize) -> bool) -> Result<(), Failure> {
    let places = Place::of(dirs)?;
    for (number, place) in places.iter().enumerate() {
        for (earlier, other) in places.iter().enumerate().take(number) {
            if place.id != other.id || !common(earlier, number) {
                place.check_no_overlap(other)?;
            }
        }
    }
    Ok(())
}

fn overlap(a: &Place, how: &str, b: &Place) -> Failure {
    let (a, b) = (a.given.display(), b.given.display());
    Failure::mount(format!("branch {a}: {how} branch {b}; remove one of them"))
}

fn refusal(role: Role, path: &Path, errno: Errno) -> String {
    let (what, path) = (role.name(), path.display());
    match errno {
        Errno::NOENT => format!("{what} {path}: no such directory; {}", role.remedy_if_missing()),
        Errno::NOTDIR => format!("{what} {path}: not a directory; {}", role.remedy_if_not_directory()),
        Errno::NOTCONN | Errno::CONNABORTED => {
            format!("{what} {path}: the server of this mount has exited; unmount it first (umount -l)")
        }
        Errno::ACCESS | Errno::PERM => format!("{what} {path}: {}; {}", reason(errno), role.remedy_if_denied()),
        Errno::LOOP => format!("{what} {path}: {}; use the path of the directory itself", reason(errno)),
        _ => format!("{what} {path}: {}", reason(errno)),
    }
}

/// Returns the system's message for an errno, in lower case.
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

impl core::fmt::Display for HostDir {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} {}", self.role.name(), self.given.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn check(paths: &[&Path]) -> Result<(), String> {
        let dirs: Vec<_> = paths.iter().map(|path| HostDir::open(Role::Branch, path).unwrap()).collect();
        check_no_overlap(&dirs.iter().collect::<Vec<_>>(), |_, _| false).map_err(|failure| failure.reason)
    }

    #[test]
    fn missing_paths_and_non_directories_are_refused() {
        let scratch = testkit::TempDir::new();
        let file = scratch.join("file");
        std::fs::write(&file, "").unwrap();
        let message = |path: &Path| HostDir::open(Role::Branch, path).unwrap_err().reason;
        let missing = scratch.join("missing");
        assert_eq!(
            message(&missing),
            format!("branch {}: no such directory; create it, or remove it from dirs=", missing.display())
        );
        assert!(message(&file).contains("not a directory; a branch must be a directory"));
        let point = HostDir::open(Role::MountPoint, &file).unwrap_err().reason;
        assert!(point.contains("not a directory; ") && !point.contains("mkdir"), "{point}");
        let of_command = |path: &Path| HostDir::open(Role::Argument, path).unwrap_err().reason;
        let (missing_one, wrong) = (of_command(&missing), of_command(&file));
        assert!(missing_one.starts_with("branch ") && missing_one.ends_with("create it, or name another one"));
        assert!(wrong.ends_with("a branch must be a directory"), "{wrong}");
        let link = scratch.join("loop");
        symlink("loop", &link).unwrap();
        assert!(message(&link).contains("symbolic link"), "{}", message(&link));
        let point = HostDir::open(Role::MountPoint, &missing).unwrap_err().reason;
        assert!(point.starts_with("mount point") && point.ends_with("mkdir"));
    }

    #[test]
    fn overlapping_branches_are_refused() {
        let scratch = testkit::TempDir::new();
        let (a, b, inner) = (scratch.dir("a"), scratch.dir("b"), scratch.dir("a/x/y"));
        assert_eq!(check(&[&a, &b]), Ok(()));
        assert_eq!(check(&[&b, &inner, &scratch.dir("ab")]), Ok(()));
        assert!(check(&[&a, &b, &a]).unwrap_err().contains("is the same directory as"));
        assert!(check(&[&a, &inner]).unwrap_err().contains(&format!(
            "{}: is inside branch {};",
            inner.display(),
            a.display()
        )));
        assert!(check(&[&inner, &a]).unwrap_err().contains(&format!(
            "{}: is inside branch {};",
            inner.display(),
            a.display()
        )));
        let link = scratch.join("link");
        symlink(&inner, &link).unwrap();
        assert!(check(&[&a, &link]).unwrap_err().contains("is inside"));
        assert!(check(&[&scratch, &a]).unwrap_err().contains("is inside"));
        assert!(check(&[&a, &a.join("../a/./x/..")]).unwrap_err().contains("same directory"));
    }
}
