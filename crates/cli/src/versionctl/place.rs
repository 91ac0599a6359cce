//! From a path to a directory and a name in it, also if the file and its parents were removed.

use super::client::{Dir, at};
use super::text::shown;
use crate::exit::Failure;
use jiff::Timestamp;
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
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

/// What a path led to at a time, whatever the directories above it are now.
#[derive(Debug)]
pub(crate) struct Past {
    /// The directory as it was, and the name in it.
    pub(crate) dir: Dir,
    pub(crate) name: Vec<u8>,
    pub(crate) stat: Stat,
    pub(crate) time: Timestamp,
}

impl Past {
    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

/// Whether two states of a file have the same attributes, so that the content is not compared.
pub(crate) fn is_same(one: &Stat, other: &Stat) -> bool {
    let facts = |stat: &Stat| {
        let times = (stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec);
        (stat.st_mode & !0o6000, stat.st_uid, stat.st_gid, stat.st_size, times)
    };
    facts(one) == facts(other)
}

/// Opens the nearest directory above a path that exists now.
///
/// # Errors
/// Those of open(2).
pub(crate) fn nearest(path: &Path) -> Result<Dir, Failure> {
    let path = named(path)?;
    let mut above = path.parent().into_iter().flat_map(Path::ancestors);
    let found =
        above.find_map(|above| Dir::open(if above.as_os_str().is_empty() { Path::new(".") } else { above }).ok());
    found.ok_or_else(|| at(&path, Errno::NOENT))
}

/// Finds what a path led to at a time: from the highest directory of the mount, as it was then.
///
/// # Errors
/// Not on versionfs, or no permission.
pub(crate) fn past(path: &Path, time: Timestamp) -> Result<Option<Past>, Failure> {
    let path = named(path)?;
    // Only symbolic links before the last name are followed, and what was removed has none.
    let (mut above, mut names) = (path.as_path(), Vec::new());
    let above = loop {
        let name = above.file_name().map(|name| name.as_bytes().to_vec());
        above = above.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        names.extend(name);
        match above.canonicalize() {
            Ok(above) => break above,
            Err(_) if above != Path::new(".") && above != Path::new("/") => {}
            Err(error) => return Err(at(above, Errno::from_io_error(&error).unwrap_or(Errno::IO))),
        }
    };
    let wanted = names.iter().rev().fold(above.clone(), |path, name| path.join(OsStr::from_bytes(name)));
    let top = match rustix::fs::lstat(&wanted) {
        Ok(found) if rustix::fs::stat(&above).is_ok_and(|stat| stat.st_dev != found.st_dev) => Dir::open(&wanted),
        _ => highest(&above),
    };
    let top = top.map_err(|errno| at(&wanted, errno))?;
    let mut parts: Vec<_> = wanted.strip_prefix(&top.path).unwrap_or(Path::new("")).iter().collect();
    let name = parts.pop().unwrap_or(OsStr::new(".")).as_bytes().to_vec();
    let mut dir = top.at(time)?;
    for part in parts {
        dir = match dir.child(part.as_bytes()) {
            Ok(below) => below,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(errno) => return Err(at(&dir.path_of(part.as_bytes()), errno)),
        };
    }
    Ok(dir.stat(&name)?.map(|stat| Past { dir, name, stat, time }))
}

/// Opens the highest directory above `path` in the same mount that this user may open.
fn highest(path: &Path) -> Result<Dir, Errno> {
    let device = rustix::fs::stat(path)?.st_dev;
    let is_same = |above: &&Path| rustix::fs::stat(*above).is_ok_and(|stat| stat.st_dev == device);
    let mut all: Vec<_> = path.ancestors().take_while(is_same).collect();
    let lowest = Dir::open(path);
    all.reverse();
    all.into_iter().find_map(|above| Dir::open(above).ok()).map_or(lowest, Ok)
}

/// Returns the directories with this path that were removed, and when, newest first, as
/// [`in_earlier`] does.
pub(crate) fn earlier_lists(place: &Place) -> Vec<(Timestamp, List)> {
    let mut found = Vec::new();
    in_earlier(&place.dir.path, &mut |dir| {
        let list = dir.list(&place.name).ok().flatten().filter(|list| !list.versions.is_empty());
        found.extend(list.and_then(|list| Some((list.versions.last()?.died, list))));
        false
    });
    found
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
