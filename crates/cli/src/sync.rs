//! `strata sync`: writes all changes of a mount to stable storage. It replaces `sync -f`, since the
//! kernel does not forward syncfs(2) to FUSE servers.

use crate::channel::{self, SYNC};
use crate::exit::{Exit, Failure};
use crate::host_dir::reason;
use fuse::control::Error;
use std::path::{Path, PathBuf};

/// Syncs the mounts that contain `paths`. Continues after a failure.
///
/// # Errors
/// The first failure; the others are passed to `report`.
pub fn all(paths: &[PathBuf], mut report: impl FnMut(&Failure)) -> Result<(), Failure> {
    let mut first = Ok(());
    for path in paths {
        match (one(path), &first) {
            (Ok(()), _) => {}
            (Err(failure), Ok(())) => first = Err(failure),
            (Err(failure), Err(_)) => report(&failure),
        }
    }
    first
}

fn one(path: &Path) -> Result<(), Failure> {
    let done = channel::open(path, SYNC).map_err(Error::Channel).and_then(|file| {
        let kind = rustix::fs::fstatfs(&file).map_err(Error::Channel)?.f_type;
        if kind as u64 & 0xffff_ffff != FUSE {
            return Err(Error::Foreign);
        }
        // SYNC covers only data that the server has received. This call first makes the kernel send
        // the dirty pages of shared mappings.
        rustix::fs::syncfs(&file).map_err(Error::Refused)?;
        channel::call_on(&file, SYNC, b"")
    });
    done.map(|_| ()).map_err(|error| refusal(path, error))
}

/// `f_type` of statfs(2).
const FUSE: u64 = 0x6573_5546;

fn refusal(path: &Path, error: Error) -> Failure {
    let shown = path.display();
    match error {
        Error::Foreign => Failure::mount(format!("{shown}: {error}; for other file systems use sync -f")),
        Error::Refused(errno) => {
            Failure { exit: Exit::Mount, reason: format!("{shown}: some changes are not durable: {}", reason(errno)) }
        }
        error => channel::failure(path, SYNC, error),
    }
}
