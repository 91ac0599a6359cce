//! `strata sync`: what syncfs(2) and `sync -f` do on other file systems. The kernel does not tell a FUSE server of syncfs(2).

use crate::exit::{Exit, Failure};
use crate::place::reason;
use fuse::control;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Makes everything durable on the mounts that `paths` lie on. All are tried.
///
/// # Errors
/// The first failure; the others were given to `tell`.
pub fn all(paths: &[PathBuf], mut tell: impl FnMut(&Failure)) -> Result<(), Failure> {
    let mut first = Ok(());
    for path in paths {
        match (one(path), &first) {
            (Ok(()), _) => {}
            (Err(failure), Ok(())) => first = Err(failure),
            (Err(failure), Err(_)) => tell(&failure),
        }
    }
    first
}

fn one(path: &Path) -> Result<(), Failure> {
    let file = open(path).map_err(|errno| match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG => {
            Failure::usage(format!("{}: {}; name a file or directory of the mount", path.display(), reason(errno)))
        }
        _ => refusal(path, errno),
    })?;
    if rustix::fs::fstatfs(&file).map_err(|errno| refusal(path, errno))?.f_type as u64 & 0xffff_ffff != FUSE {
        return Err(refusal(path, Errno::NOTTY));
    }
    // What was written to mappings, and the kernel has yet to send to the server.
    rustix::fs::syncfs(&file).and_then(|()| control::sync(&file)).map_err(|errno| refusal(path, errno))
}

/// `f_type` of statfs(2).
const FUSE: u64 = 0x6573_5546;

/// The file or directory, or where it is something else the directory that it lies in.
fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let kind = FileType::from_raw_mode(rustix::fs::stat(path)?.st_mode);
    let path = match path.parent().filter(|_| !matches!(kind, FileType::RegularFile | FileType::Directory)) {
        None => path,
        Some(here) if here.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
    };
    rustix::fs::open(path, flags, Mode::empty())
}

fn refusal(path: &Path, errno: Errno) -> Failure {
    let path = path.display();
    match errno {
        Errno::NOTTY | Errno::NOSYS | Errno::OPNOTSUPP => Failure::mount(format!(
            "{path}: not on a mount of Strata, or on one of an older server; for other file systems use sync -f"
        )),
        Errno::ACCESS | Errno::PERM => Failure::usage(format!(
            "{path}: {}; name a file or directory of the mount that you may read",
            reason(errno)
        )),
        Errno::NOTCONN | Errno::CONNABORTED => {
            Failure::mount(format!("{path}: the mount's server has ended; unmount it (umount -l)"))
        }
        _ => {
            Failure { exit: Exit::Mount, reason: format!("{path}: not all of it was made durable: {}", reason(errno)) }
        }
    }
}
