//! The commands about policies: apply them, explain them, check a configuration file.

use super::place::{self, Place};
use super::text::shown;
use crate::exit::Failure;
use crate::tool::print;
use crate::version_policies::{Local, open_regular, parse_admin, read_bounded};
use serde_json::{Map, Value, json};
use std::path::Path;
use versionpolicy::{Problem, Severity, UserConfig};

/// Sends `clean`, `convert` or `reload` and prints the reply.
///
/// # Errors
/// The server does not know the command, or refuses it.
pub(crate) fn apply(dir: &Path, word: &str, json: bool) -> Result<(), Failure> {
    let dir = place::directory(dir)?;
    let reply = dir.plain(word, b"")?;
    print(if json { format!("{}\n", counts(&reply)) } else { String::from_utf8_lossy(&reply).into_owned() })
}

/// Reads `NAME NUMBER NAME NUMBER ...`.
fn counts(reply: &[u8]) -> Value {
    let text = String::from_utf8_lossy(reply);
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let pairs = words.chunks_exact(2).filter_map(|pair| match pair {
        [name, number] => Some(((*name).to_owned(), json!(number.parse::<u64>().ok()?))),
        _ => None,
    });
    Value::Object(pairs.collect())
}

/// Prints which policy applies to a file and why.
///
/// # Errors
/// The server does not know the command, or refuses it.
pub(crate) fn explain(path: &Path, json: bool) -> Result<(), Failure> {
    let place = Place::of(path)?;
    let reply = place.dir.command("policy", &place.name, &[])?;
    if !json {
        return print(reply);
    }
    let text = String::from_utf8_lossy(&reply);
    let values: Map<String, Value> = text.lines().filter_map(explained).collect();
    print(format!("{}\n", Value::Object(values)))
}

/// Reads `KEY = VALUE (SOURCE)`, perhaps with `, changed by the bounds of FILE:LINE` at its end.
fn explained(line: &str) -> Option<(String, Value)> {
    let (key, rest) = line.split_once(" = ")?;
    let (rest, bound) = match rest.split_once(", changed by the bounds of ") {
        Some((rest, bound)) => (rest, Some(bound)),
        None => (rest, None),
    };
    let (value, source) = rest.split_once(" (")?;
    let source = source.strip_suffix(')').unwrap_or(source);
    Some((key.to_owned(), json!({ "value": value, "source": source, "changed_by": bound })))
}

/// Checks a configuration file and prints what is wrong.
///
/// # Errors
/// It can't be read, or has an error.
pub(crate) fn check(path: &Path, of_user: bool, json: bool) -> Result<(), Failure> {
    let name = path.display().to_string();
    let text = open_regular(path).and_then(read_bounded);
    let text = text.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            Failure::system(format!("{}: no such file; without it, the built-in configuration applies", shown(path)))
        }
        _ => Failure::system(format!("{}: {error}", shown(path))),
    })?;
    let home = std::env::var("HOME").ok();
    let uid = rustix::process::getuid().as_raw();
    let problems = match of_user {
        true => UserConfig::parse(&name, &text, uid, home.as_deref(), &Local).problems,
        false => parse_admin(path, &text).problems,
    };
    print(if json { format!("{}\n", as_json(&problems)) } else { as_text(&problems) })?;
    match problems.iter().filter(|problem| problem.severity == Severity::Error).count() {
        0 => Ok(()),
        1 => Err(Failure::usage(format!("{}: 1 error; the file is not used", shown(path)))),
        count => Err(Failure::usage(format!("{}: {count} errors; the file is not used", shown(path)))),
    }
}

fn as_text(problems: &[Problem]) -> String {
    // The file may quote control characters, which must not reach the terminal.
    problems.iter().map(|problem| format!("{}\n", problem.to_string().replace(char::is_control, "?"))).collect()
}

fn as_json(problems: &[Problem]) -> Value {
    problems
        .iter()
        .map(|problem| {
            json!({
                "severity": if problem.severity == Severity::Error { "error" } else { "warning" },
                "line": problem.line, "column": problem.column, "message": problem.message,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_become_json() {
        assert_eq!(counts(b"sets 3 freed 4096\n"), json!({ "sets": 3, "freed": 4096 }));
        let (key, value) =
            explained("number.max = 5 (/h/versionfs.conf:2), changed by the bounds of /etc/versionfs.conf:7").unwrap();
        let source = "/h/versionfs.conf:2";
        assert_eq!(key, "number.max");
        assert_eq!(value, json!({ "value": "5", "source": source, "changed_by": "/etc/versionfs.conf:7" }));
        assert_eq!(explained("keep = all (default)").unwrap().1["source"], "default");
    }

    #[test]
    fn a_file_is_checked_without_a_mount() {
        let path = std::env::temp_dir().join(format!("policy-check-{}", std::process::id()));
        std::fs::write(&path, "number = \"..5\"\n").unwrap();
        assert!(check(&path, false, false).is_ok() && check(&path, true, true).is_ok());
        std::fs::write(&path, "numbers = 5\n[volume]\nmax = \"1GiB\"\n").unwrap();
        assert!(check(&path, false, false).unwrap_err().reason.ends_with(": 1 error; the file is not used"));
        assert!(check(&path, true, true).unwrap_err().reason.contains("2 errors"));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(check(&path, false, false).unwrap_err().exit, crate::exit::Exit::System);
    }
}
