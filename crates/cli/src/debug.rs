//! `strata debug`, and the server's command `server.debug`: the level of its log, read and set while it serves.

use crate::channel::{self, DEBUG};
use crate::exit::Failure;
use crate::logging::{LEVELS, Level};
use fuse::control::Error;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use vnode::Who;

/// The level of the mount that `path` lies on.
///
/// # Errors
/// Where there is no mount of Strata.
pub fn level(path: &Path) -> Result<String, Failure> {
    let answer: Value = serde_json::from_str(&channel::text(path, DEBUG)?).unwrap_or_default();
    let level = answer.get("level").and_then(Value::as_str);
    level.map(str::to_owned).ok_or_else(|| channel::failure(path, DEBUG, Error::Garbled))
}

/// Sets it.
///
/// # Errors
/// There is no such level; it is not this user's mount; there is no mount of Strata.
pub fn set_level(path: &Path, level: &str) -> Result<(), Failure> {
    let number = number_of(level)
        .ok_or_else(|| Failure::usage(format!("{level:?} is no level: it is one of {}", LEVELS.join(", "))))?;
    let name = LEVELS.get(number).copied().unwrap_or_default();
    match channel::call(path, DEBUG, name.as_bytes()) {
        Ok(_) => Ok(()),
        Err(Error::Refused(Errno::PERM)) => {
            Err(Failure::usage(format!("{}: only root and the user who mounted it may set the level", path.display())))
        }
        Err(error) => Err(channel::failure(path, DEBUG, error)),
    }
}

/// The number of a level that is given by name or by number.
fn number_of(level: &str) -> Option<usize> {
    LEVELS.iter().position(|name| *name == level).or_else(|| level.parse().ok().filter(|n| *n < LEVELS.len()))
}

/// The command, for a server.
#[must_use]
pub fn command(level: Arc<Level>) -> server::Command {
    let is = vnode::Command {
        name: DEBUG,
        help: "Answers as JSON the level of the server's log. With off, error, warn, info, debug or trace as input, root and \
               the user who mounted set it.",
        who: Who::Anyone,
    };
    let run = move |given: &server::Invocation<'_>| {
        if !given.input.is_empty() {
            let wanted = core::str::from_utf8(given.input).ok().and_then(number_of).ok_or(Errno::INVAL)?;
            if !given.by_owner {
                return Err(Errno::PERM);
            }
            level.set(wanted);
        }
        Ok(json!({ "level": level.get() }).to_string().into_bytes())
    };
    server::Command { is, run: Arc::new(run) }
}
