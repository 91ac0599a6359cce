//! `strata stats` and `strata info`: what a mount's server says about itself, read through attributes of the mount's root.

use crate::exit::Failure;
use crate::place::reason;
use core::fmt::Write as _;
use fuse::control;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde_json::Value;
use std::path::Path;

/// What a server can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// How many requests of each kind it was sent.
    Requests,
    /// Which server it is, and what it holds.
    Info,
    /// Of which layers it is made, and what they did.
    Stack,
}

impl Question {
    const fn attribute(self) -> &'static str {
        match self {
            Self::Requests => "user.strata.requests",
            Self::Info => "user.strata.info",
            Self::Stack => "user.strata.stack",
        }
    }
}

/// Asks the server of the mount at `dir`: JSON.
///
/// # Errors
/// Where there is no mount of Strata.
pub fn ask(dir: &Path, question: Question) -> Result<String, Failure> {
    let refuse = |errno| {
        Failure::mount(match errno {
            Errno::OPNOTSUPP if has_no_attributes(dir) => format!(
                "{}: mounted with noxattr, so that its server can't be asked; mount it without to see its figures",
                dir.display()
            ),
            Errno::NODATA | Errno::OPNOTSUPP => {
                format!("{}: not the root of a mount of Strata; findmnt lists all mounts", dir.display())
            }
            Errno::NOTCONN => format!("{}: the mount's server has ended; unmount it (umount -l)", dir.display()),
            _ => format!("{}: {}", dir.display(), reason(errno)),
        })
    };
    read_attribute(dir, question.attribute()).map_err(refuse)
}

/// Is there a mount of Strata at `dir`?
///
/// # Errors
/// Where there is none.
pub fn check(dir: &Path) -> Result<(), Failure> {
    if has_no_attributes(dir) { Ok(()) } else { ask(dir, Question::Info).map(drop) }
}

/// Is it a mount of Strata with `noxattr`?
pub fn has_no_attributes(dir: &Path) -> bool {
    /// `f_type` of statfs(2).
    const FUSE: u64 = 0x6573_5546;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(root) = rustix::fs::open(dir, flags, Mode::empty()) else { return false };
    rustix::fs::fstatfs(&root).is_ok_and(|stat| stat.f_type as u64 & 0xffff_ffff == FUSE)
        && rustix::fs::fgetxattr(&root, Question::Info.attribute(), &mut [0_u8; 0]) == Err(Errno::OPNOTSUPP)
        // To another driver this would be an unknown command: it only asks.
        && control::debug(&root).is_ok()
}

fn read_attribute(dir: &Path, name: &str) -> Result<String, Errno> {
    const MOST: usize = 64 * 1024;
    let mut text = vec![0; MOST];
    let len = rustix::fs::getxattr(dir, name, &mut text)?;
    text.truncate(len);
    String::from_utf8(text).map_err(|_| Errno::ILSEQ)
}

/// JSON as a table: a name and a number or word in a line, the lines of an object within an object beneath its name.
///
/// # Errors
/// Where it is no JSON.
pub fn table(json: &str) -> Result<String, Failure> {
    let value: Value = serde_json::from_str(json)
        .map_err(|error| Failure::system(format!("the server's answer can't be read: {error}; --json prints it")))?;
    let mut rows = Vec::new();
    flatten(&value, 0, &mut rows);
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let numbers = rows.iter().map(|(_, value)| value.chars().count()).max().unwrap_or(0).min(16);
    let mut out = String::new();
    for (name, value) in rows {
        let line = format!("{name:width$}  {value:>numbers$}");
        let _ = writeln!(out, "{}", line.trim_end());
    }
    Ok(out)
}

fn flatten(value: &Value, depth: usize, rows: &mut Vec<(String, String)>) {
    let Value::Object(fields) = value else { return };
    for (name, value) in fields {
        let name = format!("{}{name}", "  ".repeat(depth));
        match value {
            Value::Object(_) => {
                rows.push((name, String::new()));
                flatten(value, depth + 1, rows);
            }
            Value::String(text) => rows.push((name, text.clone())),
            _ => rows.push((name, value.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_value() {
        let table = table(r#"{"transport":"ring","requests":{"lookup":1234567,"open":5}}"#).unwrap();
        assert_eq!(table, "requests\n  lookup   1234567\n  open           5\ntransport     ring\n");
    }

    #[test]
    fn what_is_no_json_is_refused() {
        assert!(table("{").unwrap_err().reason.contains("--json"));
        assert_eq!(table("{}").unwrap(), "");
    }

    #[test]
    fn other_file_systems_are_told_apart() {
        let failure = ask(Path::new("/"), Question::Requests).unwrap_err();
        assert!(failure.reason.contains("not the root of a mount of Strata"), "{failure}");
        let failure = ask(Path::new("/no/such/directory"), Question::Info).unwrap_err();
        assert!(failure.reason.contains("no such file"), "{failure}");
    }
}
