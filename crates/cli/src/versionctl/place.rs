//! From a path to a directory and a name in it, also if the file and its parents were removed.

use super::client::{Dir, at};
use super::text::shown;
use crate::exit::Failure;
use rustix::io::Errno;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use versionclient::{Kind, List, Version};

/// Where a path leads: a name in a directory.
#[derive(Debug)]
pub(crate) struct Place {
    /// The directory; an old version of it if it was removed.
    pub(crate) dir: Dir,
    pub(crate) name: Vec<u8>,
    /// The parents that do not exist any more, outermost first.
    pub(crate) lost: Vec<Lost>,
}

/// A directory that was removed.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) path: PathBuf,
    /// Its newest version.
    pub(crate) old: OwnedFd,
}

impl Place {
    /// Finds the place of a path. Only symbolic links before the last name are followed.
    ///
    /// # Errors
    /// Names the part that never existed, or can't be read.
    pub(crate) fn of(path: &Path) -> Result<Self, Failure> {
        let path = named(path)?;
        let wrong = || Failure::usage(format!("{}: it has no directory above it", shown(&path)));
        let name = path.file_name().ok_or_else(wrong)?.as_bytes().to_vec();
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        match Dir::open(parent) {
            Ok(dir) => Ok(Self { dir, name, lost: Vec::new() }),
            Err(Errno::NOENT | Errno::NOTDIR) => Self::in_removed(parent, name),
            Err(errno) => Err(at(parent, errno)),
        }
    }

    fn in_removed(parent: &Path, name: Vec<u8>) -> Result<Self, Failure> {
        let (above, list) = Self::with_history(parent)?;
        let version = above.newest_directory(list)?;
        let dir = above.dir.old_dir(&above.name, &version)?;
        let mut lost = above.lost;
        let old = dir.as_fd().try_clone_to_owned();
        let old = old.map_err(|error| at(parent, Errno::from_io_error(&error).unwrap_or(Errno::MFILE)))?;
        lost.push(Lost { path: parent.to_owned(), old });
        Ok(Self { dir, name, lost })
    }

    /// Finds the place of a path and its versions. If the directory was removed and created again,
    /// the versions may be in the old one.
    ///
    /// # Errors
    /// As [`Self::of`]; there never was such a file.
    pub(crate) fn with_history(path: &Path) -> Result<(Self, List), Failure> {
        let mut place = Self::of(path)?;
        if let Some(list) = place.dir.list(&place.name)? {
            return Ok((place, list));
        }
        let mut found = None;
        in_earlier(&place.dir.path, &mut |dir| {
            found = dir.list(&place.name).ok().flatten();
            found.is_some()
        })
        .into_iter()
        .for_each(|dir| place.dir = dir);
        let never = || Failure::usage(format!("{}: no such file, and no versions of it", shown(path)));
        Ok((place, found.ok_or_else(never)?))
    }

    /// Returns the path, for messages.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path_of(&self.name)
    }

    fn newest_directory(&self, list: List) -> Result<Version, Failure> {
        let found = list.versions.into_iter().rev().find(|version| version.kind == Kind::Directory);
        found
            .ok_or_else(|| Failure::usage(format!("{}: no such directory, and no versions of it", shown(&self.path()))))
    }
}

/// Searches the earlier directories with this path, newest first: those that were removed, also in
/// earlier directories above. Returns the first that `probe` accepts.
fn in_earlier(path: &Path, probe: &mut dyn FnMut(&Dir) -> bool) -> Option<Dir> {
    let path = named(path).ok()?;
    let name = path.file_name()?.as_bytes();
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut found = None;
    let mut versions_in = |above: &Dir| {
        let versions = above.list(name).ok().flatten().map(|list| list.versions).unwrap_or_default();
        let removed = versions.iter().rev().filter(|version| version.letter == 'd');
        found = removed.filter_map(|version| above.old_dir(name, version).ok()).find(|dir| probe(dir));
        found.is_some()
    };
    let is_found = Dir::open(parent).is_ok_and(|above| versions_in(&above));
    if !is_found {
        in_earlier(parent, &mut versions_in)?;
    }
    found
}

/// Opens the directory that a path names, as it is now or was before it was removed.
///
/// # Errors
/// As [`Place::with_history`].
pub(crate) fn directory(path: &Path) -> Result<Dir, Failure> {
    match Dir::open(path) {
        Ok(dir) => Ok(dir),
        Err(Errno::NOENT) => {
            let (place, list) = Place::with_history(path)?;
            let version = place.newest_directory(list)?;
            place.dir.old_dir(&place.name, &version)
        }
        Err(errno) => Err(at(path, errno)),
    }
}

/// Returns the path in a form that ends with a name: `.` and `..` at the end are resolved.
fn named(path: &Path) -> Result<PathBuf, Failure> {
    match path.components().next_back() {
        Some(Component::Normal(_)) => Ok(path.components().collect()),
        _ => path.canonicalize().map_err(|error| at(path, Errno::from_io_error(&error).unwrap_or(Errno::IO))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_end_with_a_name() {
        assert_eq!(named(Path::new("a/b/./")).unwrap(), Path::new("a/b"));
        assert_eq!(named(Path::new("/usr/..")).unwrap(), Path::new("/"));
        assert!(Place::of(Path::new("/")).unwrap_err().reason.contains("no directory above"));
        let place = Place::of(Path::new("/etc/-x\n")).unwrap();
        assert_eq!((&*place.name, place.dir.path.as_path(), place.lost.len()), (&b"-x\n"[..], Path::new("/etc"), 0));
        let refused = Place::of(Path::new("/no such/x")).unwrap_err();
        assert!(refused.reason.starts_with("/no such: "), "{refused}");
    }
}
