//! The list of branches of a layer: `PATH[=MODE]:PATH[=MODE]:...`.

use crate::{BranchMode, Branches, Text};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

/// A branch as it is written in the options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchSpec {
    /// The directory, perhaps relative to the working directory of whoever mounts.
    pub path: PathBuf,
    /// Its mode, if one is written.
    pub mode: Option<BranchMode>,
}

/// Reads branches between colons.
///
/// # Errors
/// Names what is wrong.
pub fn parse(text: &Text, branches: &Branches) -> Result<Vec<BranchSpec>, String> {
    text.split(b':').iter().map(|one| branch(one, branches)).collect()
}

fn branch(text: &Text, branches: &Branches) -> Result<BranchSpec, String> {
    let (path, mode) = split_mode(text, branches)?;
    if path.is_empty() {
        let (_, several) = branches.noun;
        return Err(format!(
            "an empty path among the {several}: separate them by one ':' (one in a path is written \\:)"
        ));
    }
    Ok(BranchSpec { path: OsString::from_vec(path.bytes()).into(), mode })
}

fn split_mode(text: &Text, branches: &Branches) -> Result<(Text, Option<BranchMode>), String> {
    let Some((path, mode)) = text.split_last(b'=').filter(|_| !branches.modes.is_empty()) else {
        return Ok((text.clone(), None));
    };
    match branches.mode(&mode.bytes()) {
        Some(known) => Ok((path, Some(known))),
        None => Err(format!(
            "unknown mode {:?} of {} {}: it is {} (a '=' in a path is written \\=)",
            mode.show(),
            branches.noun.0,
            path.show(),
            alternatives(branches)
        )),
    }
}

/// `rw, ro or nfsro`
fn alternatives(branches: &Branches) -> String {
    let names: Vec<_> = branches.modes.iter().map(|mode| mode.name).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => names.concat(),
    }
}

/// Is this item, which stands in the list of options somewhere behind a list of branches, one more branch?
pub(crate) fn is_branch(item: &Text, branches: &Branches) -> bool {
    let has_mode = |text: &Text| text.split_last(b'=').is_some_and(|(_, mode)| branches.mode(&mode.bytes()).is_some());
    item.split(b':').iter().any(has_mode) || item.bytes().first().is_some_and(|&b| b == b'/' || b == b'.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{BRANCHES, RO, RW};
    use crate::text::escape;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStrExt as _;

    fn read(s: &str) -> Result<Vec<(String, Option<BranchMode>)>, String> {
        let branches = parse(&Text::read(s.as_bytes()).unwrap(), &BRANCHES)?;
        Ok(branches.into_iter().map(|b| (b.path.to_str().unwrap().to_owned(), b.mode)).collect())
    }

    #[test]
    fn modes_are_optional() {
        let read = read("/a=rw:/b:rel/c=ro:.=rw").unwrap();
        let want = [("/a", Some(RW)), ("/b", None), ("rel/c", Some(RO)), (".", Some(RW))];
        assert_eq!(read, want.map(|(path, mode)| (path.to_owned(), mode)));
    }

    #[test]
    fn what_separates_can_be_part_of_a_path() {
        let read = read(r"/a\:b=rw:/c\=ro:/d\=rw=ro:/e=f\=ro=ro").unwrap();
        let want = [
            ("/a:b", Some(RW)),
            ("/c=ro", None),
            ("/d=rw", Some(RO)),
            // An earlier '=' needs no backslash where a mode follows.
            ("/e=f=ro", Some(RO)),
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
    fn branches_after_a_comma() {
        let item = |s: &str| is_branch(&Text::read(s.as_bytes()).unwrap(), &BRANCHES);
        assert!(item("/a=ro") && item("/a") && item("./a") && item("../a") && item("a=ro") && item("a=rw:b"));
        assert!(!item("ro") && !item("delete=all") && !item("a") && !item(""));
    }

    proptest! {
        #[test]
        fn any_path_can_be_written(
            paths in proptest::collection::vec((proptest::collection::vec(1u8.., 1..20), 0usize..3), 1..6),
        ) {
            let written = |path: &[u8], mode: usize| match BRANCHES.modes.get(mode) {
                Some(mode) => format!("{}={}", escape(path), mode.name),
                None => escape(path),
            };
            let line: Vec<_> = paths.iter().map(|(path, mode)| written(path, *mode)).collect();
            let read = parse(&Text::read(line.join(":").as_bytes()).unwrap(), &BRANCHES).unwrap();
            prop_assert_eq!(read.len(), paths.len());
            for (branch, (path, mode)) in read.iter().zip(&paths) {
                prop_assert_eq!(branch.path.as_os_str().as_bytes(), path);
                prop_assert_eq!(branch.mode, BRANCHES.modes.get(*mode).copied());
            }
        }
    }
}
