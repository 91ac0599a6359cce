//! `versionctl diff` and `versionctl cat`.

use super::args::{Chosen, Now, at_time, choose};
use super::client::{self, Dir};
use super::place::Place;
use super::text::shown;
use super::when;
use crate::exit::{Exit, Failure};
use crate::tool::print;
use rustix::fs::{Mode, OFlags};
use similar::{ChangeTag, TextDiff};
use std::fs::File;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Read as _, Write as _};
use std::path::Path;
use std::time::Duration;
use versionclient::{Kind, List, Version};

/// Files of more than this many bytes are not compared line by line.
const LIMIT: u64 = 16 << 20;
/// A file with a NUL in its first bytes is binary.
const BEGIN: usize = 8000;
/// Time after which a less exact difference is accepted.
const PATIENCE: Duration = Duration::from_secs(5);
const COPY: usize = 128 * 1024;

/// Prints the difference of two versions. Returns the exit status of diff(1).
///
/// # Errors
/// Names the file and the reason.
pub(crate) fn run(path: &Path, from: Option<&str>, to: Option<&str>, colour: bool, now: &Now) -> Result<Exit, Failure> {
    let (place, list) = Place::with_history(path)?;
    let from = match from {
        Some(text) => choose(&place, &list, text, now)?,
        None => Chosen::Version(Box::new(newest_content(&place, &list)?)),
    };
    let to = to.map_or(Ok(Chosen::Head), |text| choose(&place, &list, text, now))?;
    let (old, new) = (load(&place, list.set.head, &from)?, load(&place, list.set.head, &to)?);
    let title = |chosen: &Chosen| match chosen {
        Chosen::Version(v) => format!("{}\tversion {}, until {}", shown(path), v.number, when::local(v.died, &now.0)),
        Chosen::Past(past) => format!("{}\tas of {}", shown(path), when::local(past.time, &now.0)),
        Chosen::Head if list.set.head == Kind::None => "/dev/null".to_owned(),
        Chosen::Head => format!("{}\thead", shown(path)),
    };
    let text = match (old, new) {
        (Some(old), Some(new)) => unified(&old, &new, &title(&from), &title(&to), colour),
        _ => format!("{}: the versions are too large to compare line by line\n", shown(path)).into_bytes(),
    };
    let exit = if text.is_empty() { Exit::Success } else { Exit::DIFFERENT };
    print(text)?;
    Ok(exit)
}

/// Returns the newest version that is not the present state.
///
/// # Errors
/// There is none.
pub(crate) fn newest(place: &Place, list: &List) -> Result<Version, Failure> {
    let none = || Failure::usage(format!("{}: it has no older version", shown(&place.path())));
    list.newest_other().cloned().ok_or_else(none)
}

/// Returns the newest version with another content than the present file: many programs that save a
/// file also set its mode, owner or ACL, which makes further versions. If no content differs, the
/// newest version.
///
/// # Errors
/// As [`newest`].
pub(crate) fn newest_content(place: &Place, list: &List) -> Result<Version, Failure> {
    let newest = newest(place, list)?;
    let mut is_same = true;
    for version in list.others() {
        is_same = is_same && version.keeps_content() || has_present_content(place, list, version);
        if !is_same {
            return Ok(version.clone());
        }
    }
    Ok(newest)
}

/// Whether a version is known to have the content of the present file.
fn has_present_content(place: &Place, list: &List, version: &Version) -> bool {
    let head = Chosen::Head;
    if version.kind != list.set.head {
        return false;
    }
    match version.kind {
        Kind::File => {
            let Ok(present) = open(place, &head) else { return false };
            let is_long = present.metadata().is_ok_and(|metadata| metadata.len() == version.size);
            is_long
                && place
                    .dir
                    .version(&place.name, version)
                    .is_ok_and(|old| is_equal(present, old.into()).unwrap_or(false))
        }
        Kind::Symlink => {
            let present = link_target(&place.dir, &place.name, place);
            present.is_ok_and(|present| place.dir.link_target(&place.name, version).is_ok_and(|old| old == present))
        }
        // Only attributes can differ.
        _ => true,
    }
}

fn is_equal(one: File, other: File) -> std::io::Result<bool> {
    let (mut one, mut other) = (BufReader::with_capacity(COPY, one), BufReader::with_capacity(COPY, other));
    loop {
        let (left, right) = (one.fill_buf()?, other.fill_buf()?);
        let count = left.len().min(right.len());
        if left.get(..count) != right.get(..count) {
            return Ok(false);
        }
        if count == 0 {
            return Ok(left.is_empty() && right.is_empty());
        }
        one.consume(count);
        other.consume(count);
    }
}

/// Opens what is selected, for reading.
///
/// # Errors
/// Names the file and the reason.
pub(crate) fn open(place: &Place, chosen: &Chosen) -> Result<File, Failure> {
    match chosen {
        Chosen::Version(version) => Ok(place.dir.version(&place.name, version)?.into()),
        Chosen::Past(past) => open_in(&past.dir, &past.name, place),
        Chosen::Head => open_in(&place.dir, &place.name, place),
    }
}

fn open_in(dir: &Dir, name: &[u8], place: &Place) -> Result<File, Failure> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let opened = rustix::fs::openat(dir, name, flags, Mode::empty());
    opened.map(File::from).map_err(|errno| client::at(&place.path(), errno))
}

fn link_target(dir: &Dir, name: &[u8], place: &Place) -> Result<Vec<u8>, Failure> {
    let target = rustix::fs::readlinkat(dir, name, Vec::new());
    target.map(std::ffi::CString::into_bytes).map_err(|errno| client::at(&place.path(), errno))
}

/// Returns the kind of what is selected; `head` is that of the present object.
fn kind_of(chosen: &Chosen, head: Kind) -> Kind {
    match chosen {
        Chosen::Version(version) => version.kind,
        Chosen::Past(past) => Kind::of(past.kind()),
        Chosen::Head => head,
    }
}

/// Returns the bytes of what is selected, those of a link's target, nothing for a removed head, or
/// `None` if it is too large.
fn load(place: &Place, head: Kind, chosen: &Chosen) -> Result<Option<Vec<u8>>, Failure> {
    match (kind_of(chosen, head), chosen) {
        (Kind::None, _) => return Ok(Some(Vec::new())),
        (Kind::Symlink, Chosen::Version(version)) => return place.dir.link_target(&place.name, version).map(Some),
        (Kind::Symlink, Chosen::Past(past)) => return link_target(&past.dir, &past.name, place).map(Some),
        (Kind::Symlink, Chosen::Head) => return link_target(&place.dir, &place.name, place).map(Some),
        (Kind::File, _) => {}
        (kind, _) => return Err(Failure::usage(format!("{}: a {}, not a file", shown(&place.path()), kind.word()))),
    }
    read_up_to(&open(place, chosen)?, LIMIT).map_err(|error| unreadable(place, &error))
}

/// Returns the bytes of a file, or `None` if there are more than `limit`.
pub(crate) fn read_up_to(file: &File, limit: u64) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= limit).then_some(bytes))
}

fn unreadable(place: &Place, error: &std::io::Error) -> Failure {
    Failure::mount(format!("{}: can't be read: {error}", shown(&place.path())))
}

/// Whether the bytes are not text.
pub(crate) fn is_binary(bytes: &[u8]) -> bool {
    bytes.iter().take(BEGIN).any(|byte| *byte == 0)
}

/// Returns the difference in unified format; nothing if there is none.
pub(crate) fn unified(old: &[u8], new: &[u8], old_title: &str, new_title: &str, colour: bool) -> Vec<u8> {
    if old == new {
        return Vec::new();
    }
    if is_binary(old) || is_binary(new) {
        let name = |title: &str| title.replace('\t', ", ");
        return format!("Binary files {} and {} differ\n", name(old_title), name(new_title)).into_bytes();
    }
    let (red, green, cyan, bold, plain) =
        if colour { ("\x1b[31m", "\x1b[32m", "\x1b[36m", "\x1b[1m", "\x1b[m") } else { ("", "", "", "", "") };
    let diff = TextDiff::configure().timeout(PATIENCE).diff_lines(old, new);
    let mut out = format!("{bold}--- {old_title}{plain}\n{bold}+++ {new_title}{plain}\n").into_bytes();
    for hunk in diff.unified_diff().context_radius(3).iter_hunks() {
        out.extend(format!("{cyan}{}{plain}\n", hunk.header()).into_bytes());
        for change in hunk.iter_changes() {
            let (begin, sign) = match change.tag() {
                ChangeTag::Delete => (red, '-'),
                ChangeTag::Insert => (green, '+'),
                ChangeTag::Equal => ("", ' '),
            };
            let line = change.value();
            let body = line.strip_suffix(b"\n").unwrap_or(line);
            out.extend(format!("{begin}{sign}").into_bytes());
            // On a terminal, a line must not move, hide or change others.
            if colour {
                out.extend(crate::change_list::harmless(body).into_bytes());
            } else {
                out.extend(body);
            }
            out.extend(if begin.is_empty() { "" } else { plain }.as_bytes());
            out.extend(if line.ends_with(b"\n") { &b"\n"[..] } else { b"\n\\ No newline at end of file\n" });
        }
    }
    out
}

/// Prints a version.
///
/// # Errors
/// Names the file and the reason.
pub(crate) fn cat(path: &Path, which: &str, now: &Now) -> Result<(), Failure> {
    let (place, head, chosen) = match at_time(path, which, now)? {
        Some(past) => {
            let kind = Kind::of(past.kind());
            (Place { dir: past.dir, name: past.name, lost: Vec::new() }, kind, Chosen::Head)
        }
        None => {
            let (place, list) = Place::with_history(path)?;
            let chosen = choose(&place, &list, which, now)?;
            (place, list.set.head, chosen)
        }
    };
    match kind_of(&chosen, head) {
        Kind::File => {}
        Kind::Symlink => return print(load(&place, head, &chosen)?.unwrap_or_default()),
        other => return Err(Failure::usage(format!("{}: a {}, not a file", shown(path), other.word()))),
    }
    let mut file = open(&place, &chosen)?;
    let mut out = std::io::stdout().lock();
    let mut buffer = vec![0; COPY];
    loop {
        let got = file.read(&mut buffer).map_err(|error| unreadable(&place, &error))?;
        let Some(bytes) = buffer.get(..got).filter(|bytes| !bytes.is_empty()) else { break };
        match out.write_all(bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(|error| Failure::system(format!("can't write to standard output: {error}")))?,
        }
    }
    drop(out);
    print(b"")
}

/// Whether output is coloured.
pub(crate) fn wants_colour() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_unified() {
        let diff = |old: &[u8], new: &[u8]| String::from_utf8(unified(old, new, "a\tone", "b\ttwo", false)).unwrap();
        assert_eq!(diff(b"x\n", b"x\n"), "");
        assert_eq!(
            diff(b"x\ny\n", b"x\nz"),
            "--- a\tone\n+++ b\ttwo\n@@ -1,2 +1,2 @@\n x\n-y\n+z\n\\ No newline at end of file\n"
        );
        assert_eq!(diff(b"", b"new\n"), "--- a\tone\n+++ b\ttwo\n@@ -0,0 +1 @@\n+new\n");
        assert_eq!(diff(b"\0", b"x"), "Binary files a, one and b, two differ\n");
    }

    #[test]
    fn colours_are_for_terminals_and_text_can_not_add_any() {
        let text = String::from_utf8(unified(b"a\n", b"\x1b[2J\xff\n", "a", "b", true)).unwrap();
        assert!(text.contains("\x1b[31m-a\x1b[m\n") && text.contains("+\\u{1b}[2J\\xff\x1b[m"), "{text:?}");
        let raw = unified(b"a\n", b"\xff\n", "a", "b", false);
        assert!(raw.ends_with(b"+\xff\n"));
    }
}
