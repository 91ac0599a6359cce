//! `versionctl log`: the history of a file, or what happened in a directory.

use super::args::{LogArgs, Now};
use super::former::{Former, former, in_removed};
use super::history::{Filter, Found, Visited, walk};
use super::place::{self, Place};
use super::text::{columns, json_name, name, shown, user};
use super::when::{local, relative};
use crate::exit::Failure;
use crate::progress::amount;
use crate::tool::print;
use serde_json::{Value, json};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use versionclient::{Kind, List, Version};

/// Runs the command.
///
/// # Errors
/// Names the path and the reason.
pub(crate) fn run(args: &LogArgs, now: &Now) -> Result<(), Failure> {
    let filter = args.filter.parse(now)?;
    if is_directory(&args.path)? {
        return directory(args, &filter, now);
    }
    let (place, whole) = Place::with_history(&args.path)?;
    let mut list = whole.clone();
    let head = place.dir.stat(&place.name)?.filter(|_| list.set.head != Kind::None);
    let head = head.map(|stat| u64::try_from(stat.st_size).unwrap_or(0));
    list.versions.retain(|version| filter.admits(version));
    let mut former = former(&place, &whole);
    former.extend(in_removed(&place, &whole));
    former.iter_mut().for_each(|name| name.versions.retain(|version| filter.admits(version)));
    let text =
        if args.json { file_json(&place.path(), &list, head, &former) } else { file_text(&list, head, &former, now) };
    print(text)
}

/// Whether the path is a directory, or was one when it was removed.
fn is_directory(path: &Path) -> Result<bool, Failure> {
    match path.symlink_metadata() {
        Ok(metadata) => Ok(metadata.is_dir()),
        Err(_) => {
            let list = Place::with_history(path)?.1;
            Ok(list.versions.last().is_some_and(|newest| newest.kind == Kind::Directory))
        }
    }
}

fn directory(args: &LogArgs, filter: &Filter, now: &Now) -> Result<(), Failure> {
    let dir = place::directory(&args.path)?;
    let mut events = Vec::new();
    walk(dir, args.recursive, &mut |visited| {
        let Visited::Name(Found { path, list, .. }) = visited else { return };
        events.extend(list.versions.into_iter().filter(|version| filter.admits(version)).map(|v| (path.clone(), v)));
    })?;
    events.sort_by(|(one, a), (other, b)| b.died.cmp(&a.died).then_with(|| one.cmp(other)));
    print(if args.json { events_json(&events) } else { events_text(&events, now) })
}

/// Returns the process that ended a version: `rm[4711]`.
fn process(version: &Version) -> String {
    match (version.by.pid, name(&version.by.comm)) {
        (0, comm) if comm.is_empty() => "-".to_owned(),
        (pid, comm) => format!("{comm}[{pid}]"),
    }
}

/// Returns flags and note in words.
fn remarks(version: &Version) -> String {
    let words = [('p', "pinned"), ('l', "landmark"), ('u', "unfinished")];
    let mut parts: Vec<_> =
        words.iter().filter(|(flag, _)| version.flags.contains(*flag)).map(|(_, word)| (*word).to_owned()).collect();
    if !version.note.is_empty() {
        parts.push(format!("\"{}\"", name(&version.note)));
    }
    parts.join(", ")
}

fn size(version: &Version) -> String {
    if version.kind == Kind::File { amount(version.size) } else { version.kind.word().to_owned() }
}

fn cells<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// Draws the history of a file, newest first. Each line is a version and the change that ended it.
fn file_text(list: &List, head: Option<u64>, former: &[Former], now: &Now) -> String {
    let mut rows = vec![cells(["VERSION", "UNTIL", "", "SIZE", "USER", "PROCESS", "CHANGE"])];
    if let Some(size) = head {
        let size = if list.set.head == Kind::File { amount(size) } else { list.set.head.word().to_owned() };
        rows.push(cells(["head", "now", "", &size]));
    }
    rows.extend(list.versions.iter().rev().map(|version| file_row(version, None, now)));
    for name in former {
        rows.extend(name.versions.iter().rev().map(|version| file_row(version, Some(name), now)));
    }
    columns(&rows, &[2, 3])
}

/// Returns the row of a version. `former` is the name that the file had, if it was another one.
fn file_row(version: &Version, former: Option<&Former>, now: &Now) -> Vec<String> {
    let name = former.map(|former| match former.removed {
        None => format!("as {}", shown(&former.path)),
        Some(time) => format!("in the directory removed at {}", local(time, &now.0)),
    });
    let remarks = [name, Some(remarks(version)).filter(|words| !words.is_empty())];
    vec![
        version.number.to_string(),
        local(version.died, &now.0),
        relative(version.died, now.0.timestamp()),
        size(version),
        user(version.by.uid),
        process(version),
        version.op.clone(),
        remarks.into_iter().flatten().collect::<Vec<_>>().join(", "),
    ]
}

fn events_text(events: &[(PathBuf, Version)], now: &Now) -> String {
    let mut rows = vec![cells(["TIME", "", "USER", "PROCESS", "CHANGE", "VERSION", "SIZE", "FILE"])];
    for (path, version) in events {
        rows.push(vec![
            local(version.died, &now.0),
            relative(version.died, now.0.timestamp()),
            user(version.by.uid),
            process(version),
            version.op.clone(),
            version.number.to_string(),
            size(version),
            shown(path),
        ]);
    }
    columns(&rows, &[1, 5, 6])
}

fn version_json(version: &Version) -> Value {
    json!({
        "version": version.number, "kind": version.kind.word(), "format": version.letter, "size": version.size,
        "stored": version.stored, "mode": version.mode, "uid": version.uid, "gid": version.gid,
        "mtime": version.mtime.to_string(), "since": version.born.to_string(), "until": version.died.to_string(),
        "change": version.op, "pinned": version.flags.contains('p'), "landmark": version.flags.contains('l'),
        "unfinished": version.flags.contains('u'), "note": json_name(&version.note),
        "by": {
            "uid": version.by.uid, "pid": version.by.pid, "session": version.by.sid,
            "process": json_name(&version.by.comm),
        },
    })
}

fn file_json(path: &Path, list: &List, head: Option<u64>, former: &[Former]) -> String {
    let all = |versions: &[Version]| versions.iter().rev().map(version_json).collect::<Vec<_>>();
    let versions = all(&list.versions);
    let former = former.iter().map(|name| {
        let removed = name.removed.map(|time| time.to_string());
        let path = json_name(name.path.as_os_str().as_bytes());
        json!({ "path": path, "directory_removed": removed, "versions": all(&name.versions) })
    });
    let former = Value::from_iter(former);
    let head = head.map(|size| json!({ "kind": list.set.head.word(), "size": size }));
    let path = json_name(path.as_os_str().as_bytes());
    format!("{}\n", json!({ "path": path, "head": head, "versions": versions, "former": former }))
}

fn events_json(events: &[(PathBuf, Version)]) -> String {
    let all = events.iter().map(|(path, version)| {
        let mut event = version_json(version);
        if let Some(fields) = event.as_object_mut() {
            fields.insert("path".to_owned(), json_name(path.as_os_str().as_bytes()));
        }
        event
    });
    format!("{}\n", Value::from_iter(all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::versionctl::when::tests::noon;

    #[test]
    fn a_history_is_drawn_newest_first() {
        let mut list = versionclient::list(crate::versionctl::tests::LIST).unwrap();
        list.set.head = Kind::File;
        let drawn = file_text(&list, Some(2048), &[], &Now(noon()));
        let lines: Vec<_> = drawn.lines().collect();
        assert!(lines[1].starts_with("head") && lines[1].contains("2.0 KiB"), "{drawn}");
        assert!(
            lines[2].starts_with("2 ") && lines[2].contains("rm x[43]  unlink  pinned, landmark, \"a\\u{a}b\""),
            "{drawn}"
        );
        assert!(lines[3].contains("1970-01-01 02:33:20") && lines[3].ends_with("vi[42]    write"), "{drawn}");
        let json: Value = serde_json::from_str(&file_json(Path::new("f"), &list, None, &[])).unwrap();
        assert_eq!((&json["versions"][0]["note"], &json["head"]), (&json!("a\nb"), &Value::Null));
        assert_eq!(json["versions"][1]["by"]["process"], "vi");
    }

    #[test]
    fn events_name_their_files() {
        let list = versionclient::list(crate::versionctl::tests::LIST).unwrap();
        let events: Vec<_> = list.versions.into_iter().map(|version| (PathBuf::from("d/a\nb"), version)).collect();
        assert!(events_text(&events, &Now(noon())).lines().skip(1).all(|line| line.ends_with("  d/a\\u{a}b")));
        assert_eq!(serde_json::from_str::<Value>(&events_json(&events)).unwrap()[1]["path"], "d/a\nb");
    }
}
