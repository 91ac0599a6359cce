//! `strata control`: sends arbitrary commands to the server and the layers, and lists them.

use crate::channel;
use crate::exit::Failure;
use crate::man::item;
use crate::stats;
use core::fmt::Write as _;
use fuse::control::Error;
use rustix::io::Errno;
use serde_json::Value;
use stack::suggest::nearest;
use std::path::Path;

/// Sends a command and returns the text to print. A JSON reply becomes a table, unless `json` is
/// set.
///
/// # Errors
/// Those of [`channel::send`].
pub fn run(path: &Path, command: &str, input: &[u8], json: bool) -> Result<Vec<u8>, Failure> {
    let mut reply = channel::call(path, command, input).map_err(|error| match error {
        Error::Refused(Errno::NOTTY) => unknown(path, command),
        // Either the path, or the command has no valid name, such as one without a dot.
        Error::Channel(Errno::INVAL) if path.is_dir() || path.is_file() => unknown(path, command),
        error => channel::failure(path, command, error),
    })?;
    let is_json = matches!(serde_json::from_slice(&reply), Ok(Value::Object(_) | Value::Array(_)));
    if is_json && !json {
        let text = String::from_utf8(reply).map_err(|error| Failure::system(error.to_string()))?;
        return Ok(stats::table(&text)?.into_bytes());
    }
    if !reply.is_empty() && !reply.ends_with(b"\n") {
        reply.push(b'\n');
    }
    Ok(reply)
}

/// Returns the failure for a command that the mount does not have.
fn unknown(path: &Path, command: &str) -> Failure {
    let commands: Vec<Value> = match channel::text(path, channel::COMMANDS) {
        Ok(text) => serde_json::from_str(&text).unwrap_or_default(),
        Err(failure) => return failure,
    };
    let failure = channel::failure(path, command, Error::Refused(Errno::NOTTY));
    match meant(command, commands.iter().filter_map(|command| command.get("name")?.as_str())) {
        Some(name) => failure.map(|reason| format!("{reason}; did you mean {name}?")),
        None => failure,
    }
}

/// Returns the command that was meant: one with a similar name, or of a layer that was left out.
fn meant<'a>(command: &str, mut names: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    nearest(command, names.clone())
        .or_else(|| names.find(|name| name.rsplit_once('.').is_some_and(|(_, word)| word == command)))
}

/// Returns the commands of the mount that contains `path`, as text to print.
///
/// # Errors
/// Those of [`channel::send`].
pub fn list(path: &Path, json: bool) -> Result<Vec<u8>, Failure> {
    let text = channel::text(path, channel::COMMANDS)?;
    if json {
        return Ok(format!("{text}\n").into_bytes());
    }
    let wrong = || Failure::system(format!("{}: the server's reply can't be parsed; --json prints it", path.display()));
    described(&text).map(String::into_bytes).ok_or_else(wrong)
}

fn described(json: &str) -> Option<String> {
    let commands: Vec<Value> = serde_json::from_str(json).ok()?;
    let mut out = String::new();
    for command in &commands {
        let field = |name: &str| command.get(name)?.as_str();
        let who = match field("who")? {
            "owner" => "Root and the mounting user: ",
            _ => "",
        };
        let mut help = String::new();
        let _ = write!(help, "{who}{}", field("help")?);
        item(&mut out, field("name")?, &help);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_commands_are_suggested() {
        let meant = |command| meant(command, ["server.info", "unionfs.query"].into_iter());
        assert_eq!(
            (meant("unionfs.qeury"), meant("info"), meant("nope")),
            (Some("unionfs.query"), Some("server.info"), None)
        );
    }

    #[test]
    fn commands_are_listed_with_their_permissions() {
        let json =
            r#"[{"name":"server.info","who":"anyone","help":"Answers."},{"name":"a.b","who":"owner","help":"Does."}]"#;
        let listed = described(json).unwrap();
        assert_eq!(listed, "  server.info         Answers.\n  a.b                 Root and the mounting user: Does.\n");
        assert_eq!(described("[{}]"), None);
        assert_eq!(described("{"), None);
    }
}
