//! Undoing repairs: what a repair set aside returns to its place, and the marks that it created are
//! removed. The list in the directory for set-aside objects says what to do; it is processed from
//! its end.

use super::finding::Problem;
use super::repair::remove;
use crate::aside::{CREATED, LIST};
use crate::log::read_all;
use crate::opaque_redirect::components;
use crate::options::{Branch, Mode};
use crate::ownfiles::{ASIDE, ASIDES};
use crate::times::preserving_times;
use crate::trust::{OTHERS, is_servers};
use crate::work::entries;
use std::path::PathBuf;
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Name, OpenFlags, RenameFlags, Result, Vnode};

/// Maximum number of bytes read from a list.
const LIMIT: u64 = 1 << 30;

/// A step of a repair that was undone, or could not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undone {
    /// The branch.
    pub branch: PathBuf,
    /// The path on the branch.
    pub path: Vec<u8>,
    /// The kind of finding that was repaired.
    pub kind: String,
    /// `EEXIST`: something else has the name by now. `ENOENT`: the directory is gone, or the mark.
    pub result: Result<()>,
}

/// A directory with set-aside objects.
struct LastAside {
    name: String,
    dir: Arc<dyn Vnode>,
    lines: Vec<Line>,
}

/// A line of a list.
struct Line {
    /// The name in the directory; `None` if an object was created.
    number: Option<String>,
    kind: String,
    path: Vec<u8>,
}

/// Undoes the last repair of each read-write branch for which there is a list.
///
/// # Errors
/// A list can't be read.
pub fn undo(branches: &[Branch]) -> Result<Vec<Undone>> {
    let cx = Cx::internal(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut all = Vec::new();
    for branch in branches.iter().filter(|branch| branch.mode == Mode::ReadWrite) {
        let root = branch.layer.root();
        let Some(LastAside { name, dir, lines }) = last_list(&cx, &root)? else { continue };
        let before = all.len();
        for line in lines.iter().rev() {
            // The recovery of a snapshot has set it aside, no repair.
            if Problem::ALL.iter().all(|problem| problem.name() != line.kind) {
                continue;
            }
            let Some(result) = undo_line(&cx, &root, &dir, line).transpose() else { continue };
            all.push(Undone { branch: branch.path.clone(), path: line.path.clone(), kind: line.kind.clone(), result });
        }
        if all.iter().skip(before).all(|one| one.result.is_ok()) && entries(&cx, &dir)?.len() == 1 {
            dir.unlink(&cx, Name::new(LIST)?)?;
            preserving_times(&cx, &root, || root.rmdir(&cx, Name::new(name.as_bytes())?))?;
        }
    }
    Ok(all)
}

/// Returns the newest directory with a list, and the list.
fn last_list(cx: &Cx<'_>, root: &Arc<dyn Vnode>) -> Result<Option<LastAside>> {
    for number in (0..ASIDES).rev() {
        let name = format!("{ASIDE}{number}");
        let Some(dir) = root.lookup(cx, Name::new(name.as_bytes())?)? else { continue };
        if dir.vnode.kind() != Kind::Directory || !is_servers(&dir.attr, cx.uid) || dir.attr.mode & OTHERS != 0 {
            continue;
        }
        let Some(list) = dir.vnode.lookup(cx, Name::new(LIST)?)? else { continue };
        if list.vnode.kind() != Kind::Regular || !is_servers(&list.attr, cx.uid) {
            continue;
        }
        let bytes = read_all(&*list.vnode.open(cx, OpenFlags::RDONLY)?, cx, LIMIT)?;
        return Ok(Some(LastAside { name, dir: dir.vnode, lines: parse(&bytes) }));
    }
    Ok(None)
}

/// Undoes one step. `None` if that was done before.
fn undo_line(cx: &Cx<'_>, root: &Arc<dyn Vnode>, dir: &Arc<dyn Vnode>, line: &Line) -> Result<Option<()>> {
    let mut names = components(&line.path).collect::<Result<Vec<_>>>()?;
    let name = names.pop().ok_or(Errno::INVAL)?;
    let parent = || {
        let mut parent = root.clone();
        for name in &names {
            let entry = parent.lookup(cx, *name)?.ok_or(Errno::NOENT)?;
            parent = if entry.vnode.kind() == Kind::Directory { entry.vnode } else { return Err(Errno::NOENT) };
        }
        Ok(parent)
    };
    let Some(number) = &line.number else {
        let parent = parent()?;
        let Some(mark) = parent.lookup(cx, name)? else { return Ok(None) };
        if mark.vnode.kind() != Kind::Regular || mark.attr.size > 0 {
            return Err(Errno::EXIST);
        }
        return remove(cx, &parent, name.as_bytes()).map(Some);
    };
    let number = Name::new(number.as_bytes())?;
    if dir.lookup(cx, number)?.is_none() {
        return Ok(None);
    }
    let (parent, flags) = (parent()?, RenameFlags { no_replace: true, ..RenameFlags::default() });
    preserving_times(cx, &parent, || dir.rename(cx, number, &parent, name, flags)).map(Some)
}

/// Parses a list, up to the first line that is incomplete or malformed.
fn parse(bytes: &[u8]) -> Vec<Line> {
    let Ok(text) = std::str::from_utf8(bytes) else { return Vec::new() };
    let lines = text.split_inclusive('\n').map_while(|line| line.strip_suffix('\n'));
    lines.map_while(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Line> {
    let mut fields = line.split('\t');
    let (number, kind, path) = (fields.next()?, fields.next()?, unescape(fields.next()?)?);
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let is_path = path
        .strip_prefix(b"/")
        .is_some_and(|path| path.split(|&byte| byte == b'/').all(|name| Name::new(name).is_ok()));
    if !is_path || fields.next().is_some() || !(is_number || number == CREATED) {
        return None;
    }
    Some(Line { number: is_number.then(|| number.to_owned()), kind: kind.to_owned(), path })
}

/// The inverse of [`slice::escape_ascii`].
fn unescape(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        let plain = match byte {
            b'\\' => match rest.next()? {
                b't' => b'\t',
                b'r' => b'\r',
                b'n' => b'\n',
                b'x' => {
                    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                    (digit(rest.next()?)? << 4) | digit(rest.next()?)?
                }
                other => other,
            },
            other => other,
        };
        bytes.push(plain);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_they_are_written() {
        let path: Vec<u8> = (1..=255).filter(|&byte| byte != b'/').collect();
        let path = [b"/a/", &*path].concat();
        let line = format!("7\tlog-cut-off\t{}\n", path.escape_ascii());
        let lines = parse(format!("{line}+\tx\t/b\n8\tcut off\t/c").as_bytes());
        assert_eq!(lines.len(), 2);
        assert_eq!((lines[0].number.as_deref(), &lines[0].path), (Some("7"), &path));
        assert_eq!((lines[1].number.as_deref(), &*lines[1].path), (None, &b"/b"[..]));
        for wrong in ["", "7", "7\tx", "7\tx\tb", "7\tx\t/../b", "x\ty\t/b", "7\tx\t/b\ty", "7\tx\t/\\x4"] {
            assert!(parse_line(wrong).is_none(), "{wrong}");
        }
    }
}
