//! `versionctl audit`: the operations in the audit log.

use super::args::{AuditArgs, Now};
use super::client::Dir;
use super::history::Filter;
use super::place;
use super::text::{columns, json_name, name, shown, user};
use super::when::local;
use crate::exit::{Exit, Failure};
use crate::tool::print;
use serde_json::{Value, json};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use versionclient::{LogLine, Recorded};
use versionpolicy::PathPattern;

/// Which operations are wanted.
struct Wanted {
    filter: Filter,
    path: Option<PathPattern>,
}

impl Wanted {
    fn admits(&self, record: &Recorded) -> bool {
        let matches = |pattern: &PathPattern| {
            [&record.path, &record.new_path].into_iter().any(|path| !path.is_empty() && pattern.matches(path))
        };
        self.filter.admits_change(record.time, &record.by) && self.path.as_ref().is_none_or(matches)
    }
}

/// Runs the command.
///
/// # Errors
/// Names the directory and the reason.
pub(crate) fn run(args: &AuditArgs, now: &Now) -> Result<Exit, Failure> {
    let path = args.path.as_ref().map(|path| PathPattern::new(path.as_bytes()));
    let path = path.transpose().map_err(|wrong| Failure::usage(format!("--path: {wrong}")))?;
    let wanted = Wanted { filter: args.filter.parse(now)?, path };
    let dir: Dir = place::directory(&args.dir)?;
    let (mut records, mut damage, mut torn) = (Vec::new(), Vec::new(), Vec::new());
    dir.audit_log(&mut |line| match line {
        LogLine::Record(record) => {
            if record.operation == "torn" {
                torn.extend(number_of(&record.text).map(|segment| (segment, record.range.0)));
            }
            if wanted.admits(&record) {
                records.push(*record);
            }
        }
        LogLine::Damage(segment, at, len) => damage.push((segment, at, len)),
    })?;
    // The log says itself where an interrupted server left half a record.
    damage.retain(|(segment, at, _)| !torn.contains(&(*segment, *at)));
    print(if args.json { as_json(&records) } else { as_text(&records, now) })?;
    for (segment, at, len) in &damage {
        let _ = writeln!(
            std::io::stderr(),
            "versionctl: {}: the audit log is damaged: segment {segment}, {len} bytes at {at}",
            shown(&args.dir)
        );
    }
    Ok(if damage.is_empty() { Exit::Success } else { Exit::Partial })
}

fn number_of(text: &[u8]) -> Option<u64> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

/// Returns what an operation did besides its name and path.
fn details(record: &Recorded) -> String {
    let (first, second) = record.range;
    let mut parts = Vec::new();
    match &*record.operation {
        "write" | "fallocate" => parts.push(format!("{second} bytes at {first}")),
        "create" | "mkdir" | "mknod" | "tmpfile" => parts.push(format!("mode {:o}", first & 0o7777)),
        "lost" => parts.push(format!("{second} operations, no space")),
        "discarded" => parts.push(format!("records {first} to {second}")),
        "torn" => parts.push(format!("{second} bytes at {first} of segment")),
        _ => {}
    }
    if !record.text.is_empty() {
        parts.push(name(&record.text));
    }
    if !record.versions.is_empty() {
        parts.push(format!("version {}", record.versions));
    }
    if record.errno != 0 {
        parts.push(format!("failed: {}", std::io::Error::from_raw_os_error(record.errno)));
    }
    parts.join(", ")
}

fn as_text(records: &[Recorded], now: &Now) -> String {
    let mut rows = vec![["TIME", "USER", "PROCESS", "OPERATION", "PATH", "DETAILS"].map(str::to_owned).to_vec()];
    for record in records {
        let by = &record.by;
        let is_own = matches!(&*record.operation, "torn" | "lost" | "discarded");
        let process =
            if by.pid == 0 && by.comm.is_empty() { "-".to_owned() } else { format!("{}[{}]", name(&by.comm), by.pid) };
        let path = match (record.path.is_empty(), record.new_path.is_empty()) {
            (true, true) if is_own => "-".to_owned(),
            (true, true) => format!("(inode {})", record.inode),
            (_, true) => name(&record.path),
            (true, false) => format!("(inode {}) -> {}", record.inode, name(&record.new_path)),
            (false, false) => format!("{} -> {}", name(&record.path), name(&record.new_path)),
        };
        let user = if is_own { "-".to_owned() } else { user(by.uid) };
        rows.push(vec![local(record.time, &now.0), user, process, record.operation.clone(), path, details(record)]);
    }
    columns(&rows, &[])
}

fn as_json(records: &[Recorded]) -> String {
    let path = |path: &[u8]| if path.is_empty() { Value::Null } else { json_name(path) };
    let all = records.iter().map(|record| {
        let versions = record.versions.split(',').filter(|version| !version.is_empty());
        let versions = versions.map(|version| {
            let number: Option<u64> = version.trim_end_matches('n').parse().ok();
            json!({ "number": number, "of": if version.ends_with('n') { "new_path" } else { "path" } })
        });
        json!({
            "number": record.number, "time": record.time.to_string(), "operation": record.operation, "errno": record.errno,
            "inode": record.inode, "path": path(&record.path), "new_path": path(&record.new_path),
            "range": [record.range.0, record.range.1], "text": json_name(&record.text),
            "versions": Value::from_iter(versions),
            "by": {
                "uid": record.by.uid, "gid": record.gid, "pid": record.by.pid, "session": record.by.sid,
                "process": json_name(&record.by.comm),
            },
        })
    });
    format!("{}\n", Value::from_iter(all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::versionctl::when::tests::noon;

    const LOG: &[u8] = b"\
1 10.000000000 write 0 7 2 /d/a\\012b 0 - 5 3 - 4 0 0 42 41 vi\n\
2 20.000000000 rename 5 8 2 /x 9 /d/y 0 0 exchange 1,2n 4294967294 5 0 0 -\n\
later words are ignored\n\
damaged 1 99 7\n\
3 30.000000000 torn 0 0 0 - 0 - 99 7 1 - 0 0 0 0 -\n\
4 40.000000000 create 0 9 0 - 0 - 420 0 - - 0 0 0 0 -\n\
5 50.000000000 discarded 0 0 0 - 0 - 1 2 - - 0 0 0 0 -\n\
more 6\n";

    fn records() -> Vec<Recorded> {
        let (lines, more) = versionclient::log(LOG).unwrap();
        assert_eq!((more, &lines[2]), (Some(6), &LogLine::Damage(1, 99, 7)));
        lines
            .into_iter()
            .filter_map(|line| if let LogLine::Record(record) = line { Some(*record) } else { None })
            .collect()
    }

    #[test]
    fn records_are_drawn() {
        let text = as_text(&records(), &Now(noon()));
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].contains("root") && lines[1].contains("vi[42]"), "{text}");
        assert!(lines[1].ends_with("/d/a\\u{a}b  3 bytes at 5, version 4"), "{text}");
        assert!(lines[2].contains("/x -> /d/y") && lines[2].contains("exchange, version 1,2n, failed: "), "{text}");
        assert!(lines[3].ends_with("7 bytes at 99 of segment, 1") && lines[4].contains("(inode 9)"), "{text}");
        let own: Vec<_> = lines[5].split_whitespace().skip(2).collect();
        assert_eq!(own, ["-", "-", "discarded", "-", "records", "1", "to", "2"]);
        let json: Value = serde_json::from_str(&as_json(&records())).unwrap();
        assert_eq!((&json[0]["path"], &json[0]["by"]["pid"]), (&json!("/d/a\nb"), &json!(42)));
        assert_eq!(json[1]["versions"], json!([{"number": 1, "of": "path"}, {"number": 2, "of": "new_path"}]));
        assert_eq!((&json[3]["path"], &json[1]["errno"]), (&Value::Null, &json!(5)));
    }

    #[test]
    fn operations_are_selected_by_path() {
        let selected = |pattern: &str| {
            let path = Some(PathPattern::new(pattern.as_bytes()).unwrap());
            let wanted = Wanted { filter: Filter::default(), path };
            records().iter().filter(|record| wanted.admits(record)).map(|record| record.number).collect::<Vec<_>>()
        };
        assert_eq!((selected("/d/**"), selected("y"), selected("/*")), (vec![1, 2], vec![2], vec![2]));
        assert_eq!((selected("*"), selected("/nothing")), (vec![1, 2], vec![]));
        assert!(PathPattern::new(b"").is_err());
    }

    #[test]
    fn malformed_replies_are_refused() {
        for wrong in [&b"1 2\n"[..], b"1 x write 0 7 2 /d 0 - 5 3 - 4 0 0 42 41 vi\n", b"more x\n", b"damaged 1\n9"] {
            assert_eq!(versionclient::log(wrong), None, "{}", wrong.escape_ascii());
        }
    }
}
