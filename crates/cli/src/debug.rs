//! `strata debug` and the server command `server.debug`: read and set the log level of a running
//! server.

use crate::channel::{self, DEBUG};
use crate::exit::Failure;
use crate::logging::{LEVELS, Level};
use fuse::control::Error;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use vnode::CommandAccess;

/// Returns the log level of the mount that contains `path`.
///
/// # Errors
/// The path is not on a Strata mount.
pub fn level(path: &Path) -> Result<String, Failure> {
    let reply: Value = serde_json::from_str(&channel::text(path, DEBUG)?).unwrap_or_default();
    let level = reply.get("level").and_then(Value::as_str);
    level.map(str::to_owned).ok_or_else(|| channel::failure(path, DEBUG, Error::Garbled))
}

/// Sets the log level of the mount that contains `path`.
///
/// # Errors
/// There is no such level; the user has no permission; the path is not on a Strata mount.
pub fn set_level(path: &Path, level: &str) -> Result<(), Failure> {
    let number = number_of(level)
        .ok_or_else(|| Failure::usage(format!("{level:?}: no such log level; use one of {}", LEVELS.join(", "))))?;
    let name = LEVELS.get(number).copied().unwrap_or_default();
    match channel::call(path, DEBUG, name.as_bytes()) {
        Ok(_) => Ok(()),
        Err(Error::Refused(Errno::PERM)) => {
            Err(Failure::usage(format!("{}: only root and the mounting user may set the log level", path.display())))
        }
        Err(error) => Err(channel::failure(path, DEBUG, error)),
    }
}

/// Returns the index of a level, which is given by name or by index.
fn number_of(level: &str) -> Option<usize> {
    LEVELS.iter().position(|name| *name == level).or_else(|| level.parse().ok().filter(|n| *n < LEVELS.len()))
}

/// Returns the server command.
#[must_use]
pub fn command(level: Arc<Level>) -> server::Command {
    let declared = vnode::Command {
        name: DEBUG,
        help: "Returns the server's log level as JSON. With off, error, warn, info, debug or trace as input, sets it; only for \
               root and the mounting user.",
        access: CommandAccess::Anyone,
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
    server::Command { declared, run: Arc::new(run) }
}
