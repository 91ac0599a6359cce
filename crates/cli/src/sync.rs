//! `strata sync`: what syncfs(2) and `sync -f` do on other file systems. The kernel does not tell a FUSE server of syncfs(2).

use crate::channel::{self, SYNC};
use crate::exit::{Exit, Failure};
use crate::place::reason;
use fuse::control::Error;
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
    let done = channel::open(path, SYNC).map_err(Error::Channel).and_then(|file| {
        let kind = rustix::fs::fstatfs(&file).map_err(Error::Channel)?.f_type;
        if kind as u64 & 0xffff_ffff != FUSE {
            return Err(Error::Foreign);
        }
        // What the command finds in the page cache would stay there: what was written to mappings, and the
        // kernel has yet to send to the server.
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
        Error::Foreign => {
            Failure::mount(format!("{shown}: not on a mount of Strata; for other file systems use sync -f"))
        }
        Error::Refused(errno) => {
            Failure { exit: Exit::Mount, reason: format!("{shown}: not all of it was made durable: {}", reason(errno)) }
        }
        error => channel::failure(path, SYNC, error),
    }
}
