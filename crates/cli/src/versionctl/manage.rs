//! The commands that mark and discard versions, and tags.

use super::args::{Now, instant};
use super::place::{self, Place};
use super::text::{columns, json_name, name, shown};
use super::when::local;
use crate::exit::Failure;
use crate::tool::print;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::Path;
use versionclient::{List, Version, escape, time_field};

/// Names the present state of the mount, or that at a time.
///
/// # Errors
/// The name or the time is refused.
pub(crate) fn tag(dir: &Path, tag: &str, at: Option<&str>, now: &Now) -> Result<(), Failure> {
    use super::when::When;
    if !matches!(When::parse(tag, &now.0), Ok(When::Tag(_))) || tag == "head" {
        return Err(Failure::usage(format!(
            "{tag}: not a name for a tag: it is a number or a time, or contains a blank, / : or @"
        )));
    }
    let dir = place::directory(dir)?;
    let mut input = escape(tag.as_bytes());
    if let Some(at) = at {
        input.extend(format!(" {}", time_field(instant(at, &dir, now)?)).into_bytes());
    }
    dir.plain("tag", &input).map(|_| ())
}

/// Removes a tag.
///
/// # Errors
/// There is no such tag.
pub(crate) fn untag(dir: &Path, tag: &str) -> Result<(), Failure> {
    let dir = place::directory(dir)?;
    // Names the tag, not the directory, if there is none.
    super::args::tag_time(&dir, tag)?;
    dir.plain("untag", &escape(tag.as_bytes())).map(|_| ())
}

/// Lists the tags, oldest first.
///
/// # Errors
/// Names the directory and the reason.
pub(crate) fn tags(dir: &Path, json: bool, now: &Now) -> Result<(), Failure> {
    let dir = place::directory(dir)?;
    let mut tags = dir.tags()?;
    tags.sort_by(|(one, a), (other, b)| a.cmp(b).then_with(|| one.cmp(other)));
    if json {
        let all = tags.iter().map(|(tag, time)| json!({ "tag": json_name(tag), "time": time.to_string() }));
        return print(format!("{}\n", Value::from_iter(all)));
    }
    let rows: Vec<_> = tags.iter().map(|(tag, time)| vec![local(*time, &now.0), name(tag)]).collect();
    print(columns(&rows, &[]))
}

/// Pins a version, so that it is never discarded, or ends that.
///
/// # Errors
/// No such version, or no permission.
pub(crate) fn pin(path: &Path, number: u64, on: bool) -> Result<(), Failure> {
    let (place, _) = existing(path, &[number])?;
    let word: &[u8] = if on { b"on" } else { b"off" };
    place.dir.command("pin", &place.name, &[number.to_string().as_bytes(), word]).map(|_| ())
}

/// Gives a version a note; an empty text removes it.
///
/// # Errors
/// No such version, or no permission.
pub(crate) fn annotate(path: &Path, number: u64, text: &[u8]) -> Result<(), Failure> {
    let (place, _) = existing(path, &[number])?;
    place.dir.command("annotate", &place.name, &[number.to_string().as_bytes(), &escape(text)]).map(|_| ())
}

/// Finds the place of a file that has versions with these numbers.
fn existing(path: &Path, numbers: &[u64]) -> Result<(Place, List), Failure> {
    // Listed once: a file may have 100,000 versions.
    let (place, list) = Place::with_history(path)?;
    let known: HashSet<u64> = list.versions.iter().map(|version| version.number).collect();
    if let Some(number) = numbers.iter().find(|number| !known.contains(number)) {
        return Err(Failure::usage(format!("{}: no version {number}; see versionctl log", shown(path))));
    }
    Ok((place, list))
}

/// Discards versions for good. Asks on a terminal.
///
/// # Errors
/// No such version, no permission, or the answer is no.
pub(crate) fn discard(path: &Path, numbers: &[u64], yes: bool) -> Result<(), Failure> {
    let (place, list) = existing(path, numbers)?;
    let is_pinned = |version: &&Version| version.flags.contains('p') && numbers.contains(&version.number);
    if let Some(pinned) = list.versions.iter().find(is_pinned) {
        let (path, number) = (shown(path), pinned.number);
        return Err(Failure::usage(format!("{path}: version {number} is pinned; versionctl unpin {path} {number}")));
    }
    let count = if numbers.len() == 1 { "1 version".to_owned() } else { format!("{} versions", numbers.len()) };
    if !yes && std::io::stdin().is_terminal() && !agreed(&format!("{}: discard {count} for good?", shown(path))) {
        return Err(Failure::usage("nothing was discarded"));
    }
    let numbers: Vec<_> = numbers.iter().map(|number| number.to_string().into_bytes()).collect();
    let fields: Vec<_> = numbers.iter().map(Vec::as_slice).collect();
    place.dir.command("discard", &place.name, &fields).map(|_| ())
}

fn agreed(question: &str) -> bool {
    let mut line = String::new();
    let asked = write!(std::io::stderr(), "{question} [y/N] ").and_then(|()| std::io::stderr().flush());
    asked.is_ok() && std::io::stdin().lock().read_line(&mut line).is_ok() && matches!(line.trim(), "y" | "Y" | "yes")
}
