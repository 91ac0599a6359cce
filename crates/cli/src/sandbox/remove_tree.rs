//! Removal of a directory tree whose directories may lack permissions for their owner.

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Removes `path` and everything below it. Never follows a symbolic link.
///
/// # Errors
/// The first path that could not be removed. The others are removed nevertheless, where possible.
pub(super) fn remove(path: &Path) -> Result<(), (PathBuf, Errno)> {
    let dir = open(CWD, path.as_os_str().as_bytes()).map_err(|errno| (path.to_owned(), errno))?;
    clear(dir, path)?;
    rustix::fs::rmdir(path).map_err(|errno| (path.to_owned(), errno))
}

/// Opens a directory, which is made accessible for its owner first.
fn open(parent: impl std::os::fd::AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let path = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let readable = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let reference = rustix::fs::openat(parent.as_fd(), name, path, Mode::empty())?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&reference)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        // chmod(2) of an O_PATH descriptor works through /proc only.
        let by = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reference));
        rustix::fs::chmod(by, Mode::RWXU)?;
    }
    rustix::fs::openat(&reference, c".", readable, Mode::empty())
}

/// Most directories that are open at the same time.
const MAX_OPEN: usize = 64;

/// Removes the entries. Descends by a stack of open directories, so that deep trees need no
/// recursion. Directories that lie deeper than [`MAX_OPEN`] are moved to the top first.
fn clear(root: OwnedFd, path: &Path) -> Result<(), (PathBuf, Errno)> {
    let mut first = Ok(());
    let mut raised = 0;
    let mut stack = vec![(root, path.to_owned(), None::<Vec<u8>>)];
    while let Some((dir, path, _)) = stack.last() {
        match next_directory(dir, path, &mut first) {
            Some((below, name)) => {
                let path = path.join(std::ffi::OsStr::from_bytes(&name));
                match stack.first() {
                    Some((top, ..)) if stack.len() >= MAX_OPEN => {
                        if let Err(errno) = raise(top, dir, &name, &mut raised) {
                            return first.and(Err((path, errno)));
                        }
                    }
                    _ => stack.push((below, path, Some(name))),
                }
            }
            None => {
                let Some((_, path, name)) = stack.pop() else { break };
                if let (Some((parent, ..)), Some(name)) = (stack.last(), name)
                    && let Err(errno) = rustix::fs::unlinkat(parent, &*name, AtFlags::REMOVEDIR)
                {
                    return first.and(Err((path, errno)));
                }
            }
        }
    }
    first
}

/// Moves a directory to `top`, under a name that does not exist there.
fn raise(top: &OwnedFd, dir: &OwnedFd, name: &[u8], raised: &mut u64) -> Result<(), Errno> {
    loop {
        *raised += 1;
        let to = format!(".removing-{raised}");
        match rustix::fs::renameat_with(dir, name, top, to, rustix::fs::RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            renamed => return renamed,
        }
    }
}

/// Removes all entries but directories, and returns the first directory.
fn next_directory(dir: &OwnedFd, path: &Path, first: &mut Result<(), (PathBuf, Errno)>) -> Option<(OwnedFd, Vec<u8>)> {
    let mut entries = Dir::read_from(dir).ok()?;
    while let Some(Ok(entry)) = entries.read() {
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let removed = match entry.file_type() {
            FileType::Directory => Err(Errno::ISDIR),
            _ => rustix::fs::unlinkat(dir, name, AtFlags::empty()),
        };
        let failed = match removed {
            Ok(()) => continue,
            Err(Errno::ISDIR) => match open(dir, name) {
                Ok(below) => return Some((below, name.to_owned())),
                Err(errno) => errno,
            },
            Err(errno) => errno,
        };
        if first.is_ok() {
            *first = Err((path.join(std::ffi::OsStr::from_bytes(name)), failed));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn closed_and_deep_directories_are_removed() {
        let top = std::env::temp_dir().join(format!("strata-remove-{}", std::process::id()));
        let deep = top.join("a/b/c/d");
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("file"), "x").unwrap();
        std::os::unix::fs::symlink("/", top.join("link")).unwrap();
        std::fs::create_dir(top.join(".removing-1")).unwrap();
        let mut at = rustix::fs::open(&deep, OFlags::PATH, Mode::empty()).unwrap();
        for depth in 0..1500 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            let below = rustix::fs::openat(&at, "d", OFlags::PATH, Mode::empty()).unwrap();
            if depth % 500 == 0 {
                rustix::fs::mkdirat(&at, "e", Mode::RWXU).unwrap();
            }
            at = below;
        }
        std::fs::set_permissions(top.join("a/b"), std::fs::Permissions::from_mode(0o0)).unwrap();
        remove(&top).unwrap();
        assert!(!top.exists() && Path::new("/").exists());
        assert_eq!(remove(&top).unwrap_err().1, Errno::NOENT);
    }
}
