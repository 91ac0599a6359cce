//! Names, users and amounts as text.

use core::fmt::Write as _;
use serde_json::{Value, json};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use versionclient::Why;

/// Returns a path as text that can't control a terminal.
pub(crate) fn shown(path: &Path) -> String {
    name(path.as_os_str().as_bytes())
}

/// Returns a name as text that can't control a terminal, on one line.
pub(crate) fn name(bytes: &[u8]) -> String {
    // The same escapes as in the other commands, without the leading slash.
    crate::change_list::shown(bytes).split_off(1)
}

/// Returns a name as JSON: a string, or an array of bytes if it is not UTF-8.
pub(crate) fn json_name(bytes: &[u8]) -> Value {
    String::from_utf8(bytes.to_vec()).map_or_else(|error| json!(error.into_bytes()), Value::String)
}

/// Returns a user's name, or the number if there is no name.
pub(crate) fn user(uid: u32) -> String {
    match nix::unistd::User::from_uid(uid.into()) {
        Ok(Some(user)) => name(user.name.as_bytes()),
        _ => uid.to_string(),
    }
}

/// Parses a user's name or number.
pub(crate) fn uid_of(text: &str) -> Option<u32> {
    match nix::unistd::User::from_name(text) {
        Ok(Some(user)) => Some(user.uid.as_raw()),
        _ => text.parse().ok(),
    }
}

/// Formats rows as columns. Columns are aligned to the left, except those in `right`.
pub(crate) fn columns(rows: &[Vec<String>], right: &[usize]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for ((column, cell), width) in row.iter().enumerate().zip(&widths) {
            if column > 0 {
                line.push_str("  ");
            }
            let _ =
                if right.contains(&column) { write!(line, "{cell:>width$}") } else { write!(line, "{cell:<width$}") };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Returns why a state is not in the history, as the end of a message.
pub(crate) const fn reason(why: Why) -> &'static str {
    match why {
        Why::NoRoom => "there was no room for a version of it",
        Why::Discarded => "its version was discarded",
        Why::Unrecorded => "it has changed since, and its policy keeps no versions of changes",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_not_control_a_terminal() {
        assert_eq!(name(b"a\nb\x1b[2J"), "a\\u{a}b\\u{1b}[2J");
        assert_eq!(name(&[b'x', 0xff]), "x\\xff");
        assert_eq!(shown(Path::new("/a/b")), "/a/b");
        assert_eq!(json_name(&[0xff]), json!([255]));
    }

    #[test]
    fn users_have_names() {
        assert_eq!(
            (user(0), uid_of("root"), uid_of("4711"), uid_of("no one")),
            ("root".into(), Some(0), Some(4711), None)
        );
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["a".to_owned(), "10".into(), String::new()], vec!["long".into(), "5".into(), "x".into()]];
        assert_eq!(columns(&rows, &[1]), "a     10\nlong   5  x\n");
    }
}
