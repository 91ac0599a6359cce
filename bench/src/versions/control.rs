//! The commands of versionfs that the experiments send.

use std::ffi::CString;
use std::fmt::Write as _;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use rustix::fs::{Mode, OFlags};

/// A version of a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) number: u64,
    /// Size in bytes of the file as it was.
    pub(crate) size: u64,
}

/// Waits until the versions have the formats of their policies.
pub(crate) fn convert(dir: impl AsFd) -> Result<()> {
    call(dir, "versionfs.convert", "").map(drop)
}

/// Returns the names in a directory that have versions, also those of removed files.
pub(crate) fn names(dir: impl AsFd) -> Result<Vec<Vec<u8>>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut after = String::new();
    loop {
        let reply = call(&dir, "versionfs.names", &after)?;
        let before = names.len();
        let mut more = None;
        for line in reply.lines() {
            match *line.split(' ').collect::<Vec<_>>().as_slice() {
                ["more", name] => more = Some(name.to_owned()),
                [_, _, _, _, name] => names.push(unescape(name)),
                _ => anyhow::bail!("versionfs.names: unexpected line: {line}"),
            }
        }
        match more {
            // A reply without progress would never end the loop.
            Some(_) if names.len() == before => anyhow::bail!("versionfs.names: a reply without names"),
            Some(name) => after = name,
            None => return Ok(names),
        }
    }
}

/// Returns the versions of a name that are regular files, oldest first.
pub(crate) fn versions(dir: impl AsFd, name: &[u8]) -> Result<Vec<Version>> {
    let mut found = Vec::new();
    let mut input = escape(name);
    loop {
        let reply = call(&dir, "versionfs.list", &input)?;
        let mut next = None;
        for line in reply.lines() {
            match *line.split(' ').collect::<Vec<_>>().as_slice() {
                ["set", ..] => {}
                ["more", number] => next = Some(number.to_owned()),
                [number, _, kind, size, ..] => {
                    let number = number.parse().with_context(|| format!("versionfs.list: {line}"))?;
                    let size = size.parse().with_context(|| format!("versionfs.list: {line}"))?;
                    if kind == "file" {
                        found.push(Version { number, size });
                    }
                }
                _ => anyhow::bail!("versionfs.list: unexpected line: {line}"),
            }
        }
        let Some(number) = next else { return Ok(found) };
        let following = format!("{} {number}", escape(name));
        ensure!(following != input, "versionfs.list: a reply without progress");
        input = following;
    }
}

/// A version that can be opened again and again.
#[derive(Debug)]
pub(crate) struct Opener(String);

impl Opener {
    pub(crate) fn new(name: &[u8], version: Version) -> Self {
        Self(format!("{} {}", escape(name), version.number))
    }

    /// Opens the version for reading.
    pub(crate) fn open(&self, dir: impl AsFd) -> Result<OwnedFd> {
        let token = call(&dir, "versionfs.open", &self.0)?;
        let token = CString::new(token.trim_end()).context("versionfs.open: the token contains a NUL byte")?;
        rustix::fs::openat(dir, token, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .with_context(|| format!("open the version {}", self.0))
    }
}

fn call(dir: impl AsFd, command: &str, input: &str) -> Result<String> {
    let reply = fuse::control::call(dir, command, input.as_bytes()).with_context(|| format!("{command} {input}"))?;
    String::from_utf8(reply).with_context(|| format!("{command} {input}: the reply is no text"))
}

/// Escapes a name as the commands expect it: `\` and three octal digits.
fn escape(name: &[u8]) -> String {
    let mut text = String::new();
    for &byte in name {
        match byte {
            b'!'..=b'~' if byte != b'\\' => text.push(char::from(byte)),
            _ => {
                let _ = write!(text, "\\{byte:03o}");
            }
        }
    }
    text
}

/// Undoes [`escape`]. Keeps a backslash that does not begin an escape.
fn unescape(text: &str) -> Vec<u8> {
    let mut rest = text.as_bytes();
    let mut name = Vec::new();
    while let [first, after @ ..] = rest {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.filter(|_| *first == b'\\').and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                name.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                name.push(*first);
                rest = after;
            }
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_escaping() {
        for name in [b"plain".as_slice(), b"a b\\c\n", b"\xff\x00\x7f", b""] {
            assert_eq!(unescape(&escape(name)), name);
        }
        assert_eq!(escape(b"a b\\\x7f"), "a\\040b\\134\\177");
        assert_eq!(unescape("a\\9\\777\\"), b"a\\9\\777\\");
    }
}
