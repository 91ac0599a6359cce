//! The list of branches of a union: `dirs=PATH[=MODE]:PATH[=MODE]:...`, highest precedence first.

use crate::text::Text;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use unionfs::Mode;

/// The modes, as they are written.
const MODES: [(&str, Mode); 3] = [("rw", Mode::ReadWrite), ("ro", Mode::ReadOnly), ("nfsro", Mode::NfsReadOnly)];

/// The mode of that name.
fn mode_of(name: &Text) -> Option<Mode> {
    let name = name.bytes();
    MODES.iter().find(|(known, _)| known.as_bytes() == name).map(|&(_, mode)| mode)
}

/// How a mode is written.
#[must_use]
pub fn name_of(mode: Mode) -> &'static str {
    MODES.iter().find(|(_, known)| *known == mode).map_or("", |(name, _)| name)
}

/// A branch as it is written in the options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchSpec {
    /// The directory, perhaps relative to the working directory of whoever mounts.
    pub path: PathBuf,
    /// Its mode, if one is written.
    pub mode: Option<Mode>,
}

impl BranchSpec {
    /// The mode that counts. Without one, the first branch is where changes go, unless the union is mounted read-only; no
    /// other branch is ever changed without being asked for.
    #[must_use]
    pub fn mode(&self, first: bool, read_only_mount: bool) -> Mode {
        self.mode.unwrap_or(if first && !read_only_mount { Mode::ReadWrite } else { Mode::ReadOnly })
    }
}

/// Reads branches between colons.
///
/// # Errors
/// Names what is wrong.
pub fn parse(text: &Text) -> Result<Vec<BranchSpec>, String> {
    text.split(b':').iter().map(branch).collect()
}

fn branch(text: &Text) -> Result<BranchSpec, String> {
    let (path, mode) = match text.split_last(b'=') {
        None => (text.clone(), None),
        Some((path, mode)) => match mode_of(&mode) {
            Some(known) => (path, Some(known)),
            None => {
                return Err(format!(
                    "unknown mode {:?} of branch {}: it is rw, ro or nfsro (a '=' in a path is written \\=)",
                    mode.show(),
                    path.show()
                ));
            }
        },
    };
    if path.is_empty() {
        return Err(
            "an empty path among the branches: separate them by one ':' (one in a path is written \\:)".to_owned()
        );
    }
    Ok(BranchSpec { path: OsString::from_vec(path.bytes()).into(), mode })
}

/// Is this item, which stands in the list of options somewhere behind `dirs=`, one more branch? Schroot writes a comma between the
/// branches.
#[must_use]
pub fn is_branch(item: &Text) -> bool {
    let has_mode = |text: &Text| text.split_last(b'=').is_some_and(|(_, mode)| mode_of(&mode).is_some());
    item.split(b':').iter().any(has_mode) || item.bytes().first().is_some_and(|&b| b == b'/' || b == b'.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::escape;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStrExt as _;

    fn read(s: &str) -> Result<Vec<(String, Option<Mode>)>, String> {
        let branches = parse(&Text::read(s.as_bytes()).unwrap())?;
        Ok(branches.into_iter().map(|b| (b.path.to_str().unwrap().to_owned(), b.mode)).collect())
    }

    #[test]
    fn modes_are_optional() {
        use Mode::{NfsReadOnly, ReadOnly, ReadWrite};
        let read = read("/a=rw:/b:rel/c=ro:.=nfsro").unwrap();
        let want = [("/a", Some(ReadWrite)), ("/b", None), ("rel/c", Some(ReadOnly)), (".", Some(NfsReadOnly))];
        assert_eq!(read, want.map(|(path, mode)| (path.to_owned(), mode)));
    }

    #[test]
    fn what_separates_can_be_part_of_a_path() {
        let read = read(r"/a\:b=rw:/c\=ro:/d\=rw=ro:/e=f\=ro=ro").unwrap();
        let want = [
            ("/a:b", Some(Mode::ReadWrite)),
            ("/c=ro", None),
            ("/d=rw", Some(Mode::ReadOnly)),
            // An earlier '=' needs no backslash where a mode follows.
            ("/e=f=ro", Some(Mode::ReadOnly)),
        ];
        assert_eq!(read, want.map(|(path, mode)| (path.to_owned(), mode)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(read("/a=rx").unwrap_err().contains("\"rx\" of branch /a"));
        assert!(read("/a=").unwrap_err().contains("\"\" of branch /a"));
        for empty in ["", "/a::/b", ":/a", "/a:", "=rw"] {
            assert!(read(empty).unwrap_err().starts_with("an empty path"), "{empty}");
        }
    }

    #[test]
    fn a_mode_that_is_missing() {
        let branch = BranchSpec { path: "/a".into(), mode: None };
        assert_eq!(branch.mode(true, false), Mode::ReadWrite);
        assert_eq!(branch.mode(true, true), Mode::ReadOnly);
        assert_eq!(branch.mode(false, false), Mode::ReadOnly);
        let branch = BranchSpec { path: "/a".into(), mode: Some(Mode::ReadWrite) };
        assert_eq!(branch.mode(false, true), Mode::ReadWrite);
    }

    #[test]
    fn branches_after_a_comma() {
        let item = |s: &str| is_branch(&Text::read(s.as_bytes()).unwrap());
        assert!(item("/a=ro") && item("/a") && item("./a") && item("../a") && item("a=ro") && item("a=nfsro:b"));
        assert!(!item("ro") && !item("delete=all") && !item("a") && !item(""));
    }

    proptest! {
        #[test]
        fn any_path_can_be_written(
            paths in proptest::collection::vec((proptest::collection::vec(1u8.., 1..20), 0usize..4), 1..6),
        ) {
            let written = |path: &[u8], mode: usize| match MODES.get(mode) {
                Some((name, _)) => format!("{}={name}", escape(path)),
                None => escape(path),
            };
            let line: Vec<_> = paths.iter().map(|(path, mode)| written(path, *mode)).collect();
            let read = parse(&Text::read(line.join(":").as_bytes()).unwrap()).unwrap();
            prop_assert_eq!(read.len(), paths.len());
            for (branch, (path, mode)) in read.iter().zip(&paths) {
                prop_assert_eq!(branch.path.as_os_str().as_bytes(), path);
                prop_assert_eq!(branch.mode, MODES.get(*mode).map(|m| m.1));
            }
        }
    }
}
