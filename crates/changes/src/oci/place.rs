//! What a name in an archive means: its directory, and whether it is an entry, a whiteout or an
//! opaque mark.

use crate::oci::{MAX_DEPTH, MAX_PATH};
use unionfs::offline::OPAQUE_MARK;
use vnode::Name;

/// Prefix of whiteouts.
const WHITEOUT: &[u8] = b".wh.";

/// The last component of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last<'a> {
    /// None: the root itself.
    Root,
    /// A user's file.
    Entry(Name<'a>),
    /// A whiteout of this name.
    Whiteout(Name<'a>),
    /// An opaque mark of the directory.
    Opaque,
}

/// A parsed path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place<'a> {
    /// The components of the directory.
    pub(crate) dir: Vec<Name<'a>>,
    /// The last component.
    pub(crate) last: Last<'a>,
}

impl<'a> Place<'a> {
    /// Parses the path of an entry.
    ///
    /// # Errors
    /// Why it is refused.
    pub(crate) fn parse(path: &'a [u8]) -> Result<Self, &'static str> {
        if path.starts_with(b"/") {
            return Err("the path is absolute");
        }
        if path.len() > MAX_PATH {
            return Err("the path has more than 4096 bytes");
        }
        let mut parts: Vec<&[u8]> =
            path.split(|&b| b == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
        if parts.contains(&&b".."[..]) {
            return Err("the path contains ..");
        }
        if parts.len() > MAX_DEPTH {
            return Err("the path has more than 256 components");
        }
        let Some(last) = parts.pop() else {
            return if path.is_empty() {
                Err("the path is empty")
            } else {
                Ok(Self { dir: Vec::new(), last: Last::Root })
            };
        };
        let dir = parts.into_iter().map(component).collect::<Result<_, _>>()?;
        Ok(Self { dir, last: last_component(last)? })
    }

    /// Returns the path of a user's file, normalised.
    pub(crate) fn path(&self, name: Name<'_>) -> Vec<u8> {
        let parts: Vec<&[u8]> = self.dir.iter().map(|part| part.as_bytes()).chain([name.as_bytes()]).collect();
        parts.join(&b'/')
    }
}

fn component(part: &[u8]) -> Result<Name<'_>, &'static str> {
    if part.starts_with(WHITEOUT) {
        return Err("a directory has a name that begins with .wh., which is reserved for whiteouts");
    }
    Name::new(part).map_err(|_| "a name has more than 255 bytes or contains NUL")
}

fn last_component(part: &[u8]) -> Result<Last<'_>, &'static str> {
    if part == OPAQUE_MARK {
        return Ok(Last::Opaque);
    }
    let Some(hidden) = part.strip_prefix(WHITEOUT) else { return component(part).map(Last::Entry) };
    if hidden.starts_with(WHITEOUT) {
        return Err("names that begin with .wh..wh. are reserved for unions, and this one is not .wh..wh..opq");
    }
    Name::new(hidden).map(Last::Whiteout).map_err(|_| "a whiteout of an impossible name")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(bytes: &[u8]) -> Name<'_> {
        Name::new(bytes).unwrap()
    }

    #[test]
    fn paths_are_parsed() {
        let at = |path| Place::parse(path).unwrap();
        assert_eq!(at(b"./a//b/").path(name(b"b")), b"a/b");
        assert_eq!((at(b"./").last, at(b".").last), (Last::Root, Last::Root));
        assert_eq!(at(b"a/.wh.b"), Place { dir: vec![name(b"a")], last: Last::Whiteout(name(b"b")) });
        assert_eq!(at(b"a/.wh..wh..opq").last, Last::Opaque);
        assert_eq!(at(b".wh.__dir_opaque").last, Last::Whiteout(name(b"__dir_opaque")));
        let long = [b".wh.", &[b'x'; 255][..]].concat();
        assert_eq!(at(&long).last, Last::Whiteout(name(&[b'x'; 255])));
    }

    #[test]
    fn hostile_paths_are_refused() {
        let deep = b"a/".repeat(257);
        for bad in [
            &b""[..],
            b"/etc/passwd",
            b"../x",
            b"a/../../x",
            b"a/..",
            b"a\0b",
            b".wh.",
            b"a/.wh.",
            b".wh..",
            b".wh...",
            b".wh..wh.",
            b".wh..wh.ident",
            b".wh..wh..wh.x",
            b".wh.a/b",
            b".wh..wh..opq/a",
            &[b'x'; 256],
            &deep,
        ] {
            assert!(Place::parse(bad).is_err(), "{}", bad.escape_ascii());
        }
    }
}
