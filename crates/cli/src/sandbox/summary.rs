//! Changes and sandboxes as text and as JSON.

use super::outcome::Part;
use super::store::Record;
use crate::change_list::{self, harmless, line, shown};
use crate::diff::{hunks, trouble};
use crate::exit::Failure;
use crate::host_dir::reason;
use changes::{Change, Conflict, ConflictKind, Failed};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use vnode::Errno;

/// Most lines of the brief form.
const BRIEF: usize = 20;

/// Returns the path on the host, without the leading slash, of a path below a mount point.
fn path(point: &Path, path: &[u8]) -> Vec<u8> {
    let point = point.as_os_str().as_bytes();
    match point.strip_prefix(b"/").filter(|point| !point.is_empty()) {
        Some(point) => [point, b"/", path].concat(),
        None => path.to_vec(),
    }
}

/// Returns the change with paths on the host.
fn on_host(point: &Path, change: &Change) -> Change {
    let from = change.from.as_ref().map(|from| path(point, from));
    Change { path: path(point, &change.path), from, ..change.clone() }
}

/// Returns the line for a change that could not be committed.
pub(super) fn failed(point: &Path, failed: &Failed) -> String {
    let hint = if failed.errno == Errno::BUSY { "; unmount that file system and try again" } else { "" };
    format!("{}: can't {}: {}{hint}", shown(&path(point, &failed.path)), failed.step, reason(failed.errno))
}

/// Returns the line for a conflict.
pub(super) fn conflict(point: &Path, conflict: &Conflict) -> String {
    let what = match conflict.kind {
        ConflictKind::Changed => "has also changed on the host since the sandbox was created",
        ConflictKind::Created => "was also created on the host",
    };
    format!("{}: {what}", shown(&path(point, &conflict.path)))
}

/// Returns at most [`BRIEF`] lines, and the number of the others.
pub(super) fn brief(parts: &[Part]) -> String {
    let lines: Vec<String> =
        parts.iter().flat_map(|part| part.changes.iter().map(|change| line(&on_host(&part.point, change)))).collect();
    let mut text = format!("\nThe command wrote in the sandbox ({} changes):\n", lines.len());
    lines.iter().take(BRIEF).for_each(|line| text += &format!("{line}\n"));
    if let Some(more) = lines.len().checked_sub(BRIEF).filter(|&more| more > 0) {
        let _ = writeln!(text, "... and {more} more");
    }
    text
}

/// Returns a line for each change, and with `patch` the lines of files that differ. On a terminal
/// these can't hide other lines.
pub(super) fn full(parts: &[Part], patch: bool, terminal: bool) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    for part in parts {
        let texts = if patch { Some(part.branches.texts().map_err(trouble)?) } else { None };
        for change in &part.changes {
            text.extend(format!("{}\n", line(&on_host(&part.point, change))).into_bytes());
            if let Some(texts) = &texts {
                let lines = hunks(texts, change, &|name| shown(&path(&part.point, name)))?;
                text.extend(if terminal { harmless(&lines).into_bytes() } else { lines });
            }
        }
    }
    Ok(text)
}

/// Returns the changes as JSON, each as `strata diff --json` shows it.
pub(super) fn json(parts: &[Part]) -> String {
    let of_part = |part: &Part| {
        let point = part.point.clone();
        part.changes.iter().map(move |change| change_list::json(&on_host(&point, change))).collect::<Vec<_>>()
    };
    format!("{}\n", json!({ "changes": parts.iter().flat_map(of_part).collect::<Vec<_>>() }))
}

fn words(command: &[OsString]) -> String {
    let words: Vec<_> = command.iter().map(|word| word.as_bytes().escape_ascii().to_string()).collect();
    words.join(" ")
}

/// Returns the list of sandboxes.
pub(super) fn text_of_list(all: &[(String, Record, bool)]) -> String {
    let width = all.iter().map(|(name, ..)| name.len()).max().unwrap_or_default();
    let mut text = String::new();
    for (name, record, busy) in all {
        let state = if *busy { "running" } else { "ended" };
        let _ = writeln!(text, "{name:<width$}  {state:<7}  {}", words(&record.command));
    }
    text
}

/// Returns the list of sandboxes as JSON.
pub(super) fn json_of_list(all: &[(String, Record, bool)]) -> String {
    let one = |(name, record, busy): &(String, Record, bool)| {
        json!({
            "name": name,
            "running": busy,
            "created": record.created / 1_000_000_000,
            "command": record.command.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>(),
        })
    };
    let all: Vec<Value> = all.iter().map(one).collect();
    format!("{}\n", Value::from(all))
}
