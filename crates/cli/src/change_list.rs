//! Prints lists of changes, for `strata diff`, `strata commit`, `strata discard` and `snapmerge`.

use changes::{Change, ChangeKind, Facts};
use core::fmt::Write as _;
use serde_json::{Value, json};
use vnode::Kind;

/// Returns a path in the union, with a leading slash, that can't control a terminal.
#[must_use]
pub fn shown(path: &[u8]) -> String {
    let mut out = String::from("/");
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                _ if c.is_control() || is_invisible(c) => drop(write!(out, "{}", c.escape_unicode())),
                _ => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// Returns a text for a terminal, on which it can't move, hide or change other lines.
#[must_use]
pub fn harmless(text: &[u8]) -> String {
    let mut out = String::new();
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' | '\t' => out.push(c),
                _ if c.is_control() || is_invisible(c) => drop(write!(out, "{}", c.escape_unicode())),
                _ => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// Whether the character changes the order or look of others.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Returns a path as JSON: a string, or an array of bytes if it is not UTF-8.
#[must_use]
pub fn json_path(path: &[u8]) -> Value {
    let path = [b"/", path].concat();
    String::from_utf8(path).map_or_else(|error| json!(error.into_bytes()), Value::String)
}

/// Returns the word for a kind of change.
#[must_use]
pub const fn word(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Added => "added",
        ChangeKind::Changed => "changed",
        ChangeKind::Attributes => "attributes",
        ChangeKind::Removed => "removed",
        ChangeKind::Renamed => "renamed",
    }
}

/// Returns a change as a line of the list, without a newline.
#[must_use]
pub fn line(change: &Change) -> String {
    let slash = if change.is_dir() { "/" } else { "" };
    let path = format!("{}{slash}", shown(&change.path));
    let path = match &change.from {
        Some(from) => format!("{}{slash} -> {path}", shown(from)),
        None => path,
    };
    let notes = notes(change);
    let notes = if notes.is_empty() { String::new() } else { format!("  ({})", notes.join(", ")) };
    format!("{:<10}  {path}{notes}", word(change.kind))
}

/// Describes with whose rights a new program runs, other than its caller's.
fn set_id(facts: Facts) -> Vec<String> {
    let bits = [(0o4000, "set-user-ID"), (0o2000, "set-group-ID")];
    let set = bits.into_iter().filter(|(bit, _)| facts.kind == Kind::Regular && facts.mode & bit != 0);
    set.map(|(_, word)| word.to_owned()).collect()
}

/// Describes what changed in the attributes, size and type.
fn notes(change: &Change) -> Vec<String> {
    let (Some(before), Some(after)) = (change.before, change.after) else {
        return change.after.map(set_id).unwrap_or_default();
    };
    let mut notes = Vec::new();
    if before.kind != after.kind {
        notes.push(format!("{} -> {}", before.kind.word(), after.kind.word()));
        return notes;
    }
    if before.size != after.size {
        notes.push(format!("{} -> {} bytes", before.size, after.size));
    }
    if before.mode != after.mode {
        notes.push(format!("mode {:04o} -> {:04o}", before.mode, after.mode));
    }
    if (before.uid, before.gid) != (after.uid, after.gid) {
        notes.push(format!("owner {}:{} -> {}:{}", before.uid, before.gid, after.uid, after.gid));
    }
    if notes.is_empty() && change.kind == ChangeKind::Attributes {
        let times = before.mtime != after.mtime && before.kind != Kind::Directory;
        notes.push(if times { "modification time" } else { "extended attributes or links" }.to_owned());
    }
    notes
}

/// Returns a change as JSON.
#[must_use]
pub fn json(change: &Change) -> Value {
    json!({
        "path": json_path(&change.path),
        "change": word(change.kind),
        "from": change.from.as_deref().map(json_path),
        "before": change.before.as_ref().map(json_facts),
        "after": change.after.as_ref().map(json_facts),
        "content": change.content,
    })
}

fn json_facts(facts: &Facts) -> Value {
    let Facts { kind, size, mode, uid, gid, mtime } = facts;
    let mtime = json!({ "sec": mtime.sec, "nsec": mtime.nsec });
    json!({ "type": kind.word(), "size": size, "mode": format!("{mode:04o}"), "uid": uid, "gid": gid, "mtime": mtime })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_escaped() {
        assert_eq!(shown(b"a/b c"), "/a/b c");
        assert_eq!(shown("ä".as_bytes()), "/ä");
        assert_eq!(shown(b"\x1b[2J\n"), "/\\u{1b}[2J\\u{a}");
        assert_eq!(shown(b"\xff\\"), "/\\xff\\\\");
        assert_eq!(shown("x\u{202e}y".as_bytes()), "/x\\u{202e}y");
        assert_eq!(json_path(b"\xff"), json!([47, 255]));
        assert_eq!(harmless("+a\tä\r\n\x1b[1A".as_bytes()), "+a\tä\\u{d}\n\\u{1b}[1A");
        assert_eq!(harmless(b"\xff"), "\\xff");
    }

    #[test]
    fn new_programs_with_other_rights_are_marked() {
        let facts = Facts { kind: Kind::Regular, size: 1, mode: 0o6755, uid: 0, gid: 0, mtime: vnode::Time::default() };
        assert_eq!(set_id(facts), ["set-user-ID", "set-group-ID"]);
        assert!(set_id(Facts { mode: 0o755, ..facts }).is_empty());
        assert!(set_id(Facts { kind: Kind::Directory, ..facts }).is_empty());
    }
}
