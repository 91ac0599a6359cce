//! The standard descriptors of the command, the only ones that it inherits.
//!
//! A descriptor of a host directory would lead to the whole host. One of a file could be opened
//! again, through /proc, for writing. A file that the user opened for writing is meant to be
//! written.

use crate::exit::Failure;
use crate::host_dir::reason;
use rustix::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, SeekFrom, fcntl_getfl, fstat};
use rustix::io::Errno;
use std::path::PathBuf;

const NAMES: [&str; 3] = ["standard input", "standard output", "standard error"];

/// Refuses descriptors that would lead out of the sandbox. For the front process.
pub(super) fn check() -> Result<(), Failure> {
    let (input, output, error) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    for (fd, name) in [input.as_fd(), output.as_fd(), error.as_fd()].into_iter().zip(NAMES) {
        let stat = fstat(fd).map_err(|errno| failed(name, "can't be used", errno))?;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => "a directory",
            FileType::BlockDevice => "a block device",
            FileType::Symlink => "a symbolic link",
            _ => continue,
        };
        return Err(Failure::usage(format!(
            "{name}: is {kind}, through which the command could leave the sandbox; redirect it"
        )));
    }
    Ok(())
}

/// The command's standard input.
#[derive(Debug)]
pub(super) struct Input {
    /// The file, if it was opened again in the sandbox.
    reopened: Option<OwnedFd>,
}

impl Input {
    /// Opens files that are open for reading only again, in the sandbox: changes of them are then
    /// captured. For the init process, once it has entered the sandbox.
    pub(super) fn reopen() -> Result<Self, Failure> {
        let (input, output, error) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
        let reopened = reopened(input.as_fd(), NAMES[0])?;
        if let Some(fd) = &reopened {
            rustix::stdio::dup2_stdin(fd).map_err(|errno| failed(NAMES[0], "can't be replaced", errno))?;
        }
        if let Some(fd) = self::reopened(output.as_fd(), NAMES[1])? {
            rustix::stdio::dup2_stdout(fd).map_err(|errno| failed(NAMES[1], "can't be replaced", errno))?;
        }
        if let Some(fd) = self::reopened(error.as_fd(), NAMES[2])? {
            rustix::stdio::dup2_stderr(fd).map_err(|errno| failed(NAMES[2], "can't be replaced", errno))?;
        }
        Ok(Self { reopened })
    }

    /// Returns the position in a file that was opened again.
    pub(super) fn position(&self) -> Option<u64> {
        rustix::fs::seek(self.reopened.as_ref()?, SeekFrom::Current(0)).ok()
    }
}

/// Continues at this position in the standard input. For the front process, after the command.
pub(super) fn continue_at(position: Option<u64>) {
    if let Some(position) = position {
        let _ = rustix::fs::seek(std::io::stdin(), SeekFrom::Start(position));
    }
}

fn reopened(fd: BorrowedFd<'_>, name: &str) -> Result<Option<OwnedFd>, Failure> {
    let stat = fstat(fd).map_err(|errno| failed(name, "can't be used", errno))?;
    let flags = fcntl_getfl(fd).map_err(|errno| failed(name, "can't be used", errno))?;
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let read_only = !flags.intersects(OFlags::WRONLY | OFlags::RDWR);
    // A file without a name is no part of the host's tree.
    if !regular || !read_only || stat.st_nlink == 0 {
        return Ok(None);
    }
    let hint = || {
        Failure::usage(format!(
            "{name}: is a file that the sandbox doesn't show, and which the command could change; pass it through a pipe: cat FILE | strata run ..."
        ))
    };
    let path: PathBuf = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(|_| hint())?;
    let again = rustix::fs::open(&path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    let again = again.map_err(|_| hint())?;
    let at = rustix::fs::seek(fd, SeekFrom::Current(0)).map_err(|errno| failed(name, "has no position", errno))?;
    rustix::fs::seek(&again, SeekFrom::Start(at)).map_err(|errno| failed(name, "has no position", errno))?;
    Ok(Some(again))
}

fn failed(name: &str, what: &str, errno: Errno) -> Failure {
    Failure::usage(format!("{name}: {what}: {}", reason(errno)))
}
