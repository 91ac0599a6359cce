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

/// Returns the index of a level, which is given by name or by index.
#[must_use]
pub fn level_number(level: &str) -> Option<usize> {
    number_of(level)
}

/// The crates whose modules log: the components, and the first part of their names.
pub const COMPONENTS: &[&str] = &[
    "cli",
    "container",
    "fuse",
    "hostfs",
    "layers",
    "lbfs",
    "meter",
    "plugin",
    "server",
    "snoopfs",
    "unionfs",
    "usenetfs",
    "wrapfs",
];

/// Returns the full name of a component: a crate, or a module of one. A name without `::` that is
/// no crate is a module of unionfs. `None` for an invalid name.
#[must_use]
pub fn component(name: &str) -> Option<String> {
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_'));
    let mut words = name.split("::");
    if name.len() > 64 || !words.clone().all(is_word) {
        return None;
    }
    if COMPONENTS.contains(&words.next()?) {
        return Some(name.to_owned());
    }
    (!name.contains(':')).then(|| format!("unionfs::{name}"))
}

/// A change of the levels: `LEVEL`, `COMPONENT=LEVEL` or `COMPONENT=default`.
fn change(level: &Level, text: &str) -> Result<(), Errno> {
    let Some((name, wanted)) = text.split_once('=') else {
        level.set(number_of(text).ok_or(Errno::INVAL)?);
        return Ok(());
    };
    let number = if wanted == "default" { None } else { Some(number_of(wanted).ok_or(Errno::INVAL)?) };
    let component = component(name).ok_or(Errno::INVAL)?;
    if level.set_component(&component, number) { Ok(()) } else { Err(Errno::NOSPC) }
}

/// Returns the server command.
#[must_use]
pub fn command(level: Arc<Level>) -> server::Command {
    let declared = vnode::Command {
        name: DEBUG,
        help: "Returns the server's log levels as JSON. With off, error, warn, info, debug or trace as input, sets the level; \
               with COMPONENT=LEVEL that of a crate or module, such as unionfs::copyup; with COMPONENT=default the \
               component has the common level again. Only root and the mounting user may change levels.",
        access: CommandAccess::Anyone,
    };
    let run = move |given: &server::Invocation<'_>| {
        if !given.input.is_empty() {
            let text = core::str::from_utf8(given.input).map_err(|_| Errno::INVAL)?;
            if !given.by_owner {
                return Err(Errno::PERM);
            }
            change(&level, text)?;
        }
        let components = level.components();
        let reply = match components.is_empty() {
            true => json!({ "level": level.get() }),
            false => json!({ "level": level.get(), "components": components }),
        };
        Ok(reply.to_string().into_bytes())
    };
    server::Command { declared, run: Arc::new(run) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_crates_and_modules() {
        for (name, full) in
            [("server", "server"), ("unionfs::copyup", "unionfs::copyup"), ("copyup", "unionfs::copyup")]
        {
            assert_eq!(component(name).as_deref(), Some(full));
        }
        for wrong in ["", "::", "a::b", "unionfs::", "a b", "A", "x=y", &"x".repeat(65)] {
            assert_eq!(component(wrong), None, "{wrong:?}");
        }
    }
}
