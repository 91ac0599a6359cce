//! `strata debug`: the level of a server's log, read and set while it serves.

use crate::exit::{Exit, Failure};
use crate::place::reason;
use crate::stats;
use fuse::control::{self, LEVELS};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// The level of the mount at `dir`.
///
/// # Errors
/// Where there is no mount of Strata.
pub fn level(dir: &Path) -> Result<&'static str, Failure> {
    let root = root(dir)?;
    let level = control::debug(&root).map_err(|errno| refusal(dir, errno))?;
    usize::try_from(level).ok().and_then(|level| LEVELS.get(level).copied()).ok_or_else(|| {
        Failure::system(format!("{}: its server's level is {level}, which has no name here", dir.display()))
    })
}

/// Sets it.
///
/// # Errors
/// There is no such level; it is not this user's mount; there is no mount of Strata.
pub fn set_level(dir: &Path, level: &str) -> Result<(), Failure> {
    let number =
        LEVELS.iter().position(|name| *name == level).or_else(|| level.parse().ok().filter(|n| *n < LEVELS.len()));
    let number = number
        .and_then(|number| u32::try_from(number).ok())
        .ok_or_else(|| Failure::usage(format!("{level:?} is no level: it is one of {}", LEVELS.join(", "))))?;
    control::set_debug(root(dir)?, number).map_err(|errno| refusal(dir, errno))
}

/// The root of a mount of ours, and of nothing else: to another driver the same number might mean another thing.
fn root(dir: &Path) -> Result<std::os::fd::OwnedFd, Failure> {
    stats::check(dir)?;
    rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| refusal(dir, errno))
}

fn refusal(dir: &Path, errno: Errno) -> Failure {
    let dir = dir.display();
    match errno {
        Errno::PERM => Failure::usage(format!("{dir}: only root and the user who mounted it may set the level")),
        Errno::NOTTY => Failure::mount(format!("{dir}: its server has no level to set: it is older than this program")),
        _ => Failure { exit: Exit::Mount, reason: format!("{dir}: {}", reason(errno)) },
    }
}
