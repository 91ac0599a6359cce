//! From a path to a directory and a name in it, also if the file and its parents were removed.

use super::client::{Dir, at};
use super::text::{reason, shown};
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
    /// An old version of it.
    pub(crate) old: OwnedFd,
}

impl Lost {
    fn new(path: &Path, old: &Dir) -> Result<Self, Failure> {
        let old = old.as_fd().try_clone_to_owned();
        let old = old.map_err(|error| at(path, Errno::from_io_error(&error).unwrap_or(Errno::MFILE)))?;
        Ok(Self { path: path.to_owned(), old })
    }
}

impl Place {
    /// Finds the place of a path. Only symbolic links before the last name are followed.
    ///
    /// # Errors
    /// Names the part that never existed, or can't be read.
    pub(crate) fn of(path: &Path) -> Result<Self, Failure> {
        Self::or_in(path, Self::in_removed)
    }

    /// Finds the place of a path, by `in_removed` if the directory above is not there any more.
    fn or_in(path: &Path, in_removed: impl Fn(&Path, Vec<u8>) -> Result<Self, Failure>) -> Result<Self, Failure> {
        let path = named(path)?;
        let wrong = || Failure::usage(format!("{}: it has no directory above it", shown(&path)));
        let name = path.file_name().ok_or_else(wrong)?.as_bytes().to_vec();
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        match Dir::open(parent) {
            Ok(dir) => Ok(Self { dir, name, lost: Vec::new() }),
            Err(Errno::NOENT | Errno::NOTDIR) => in_removed(parent, name),
            Err(errno) => Err(at(parent, errno)),
        }
    }

    fn in_removed(parent: &Path, name: Vec<u8>) -> Result<Self, Failure> {
        let (above, list) = Self::with_history(parent)?;
        let dir = above.newest_directory(list)?;
        let mut lost = above.lost;
        lost.push(Lost::new(parent, &dir)?);
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

    /// Opens the directory that has, or had last, this place. If one above it was renamed, it is
    /// still there.
    fn newest_directory(&self, list: List) -> Result<Dir, Failure> {
        if list.set.head == Kind::Directory {
            return self.dir.child(&self.name).map_err(|errno| at(&self.path(), errno));
        }
        let found = list.versions.into_iter().rev().find(|version| version.kind == Kind::Directory);
        let missing = || Failure::usage(format!("{}: no such directory, and no versions of it", shown(&self.path())));
        self.dir.old_dir(&self.name, &found.ok_or_else(missing)?)
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
    /// The directories above `dir`, up to the highest one.
    above: Vec<Dir>,
}

impl Past {
    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// Returns the place of the path now. Directories above it that are not there any more were as
    /// they were then.
    ///
    /// # Errors
    /// As [`Place::of`].
    pub(crate) fn place(&self, path: &Path) -> Result<Place, Failure> {
        Place::or_in(path, |parent, name| {
            let is_lost = |dir: &&Dir| matches!(rustix::fs::lstat(&dir.path), Err(Errno::NOENT));
            let lost = self.above.iter().chain([&self.dir]).filter(is_lost);
            let lost = lost.map(|dir| Lost::new(&dir.path, dir)).collect::<Result<_, _>>()?;
            let dir = self.dir.again().map_err(|errno| at(parent, errno))?;
            Ok(Place { dir, name, lost })
        })
    }

    /// Whether the place has the same object in the same state.
    ///
    /// # Errors
    /// No permission.
    pub(crate) fn is_unchanged(&self, place: &Place) -> Result<bool, Failure> {
        // A directory that is not there any more may have been renamed, with all that is in it.
        let present = if place.lost.is_empty() { place.dir.stat(&place.name)? } else { None };
        Ok(present.is_some_and(|present| is_same(&present, &self.stat)))
    }

    /// Returns the version that it was; `None` if it has not changed since.
    ///
    /// # Errors
    /// Not on versionfs, or no permission.
    pub(crate) fn version(&self) -> Result<Option<Version>, Failure> {
        let list = self.dir.list(&self.name)?;
        Ok(list.and_then(|list| list.versions.into_iter().rev().find(|version| version.covers(self.time))))
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

/// Opens the nearest directory that exists now: the one with this path, or one above. The root of a
/// mount has none above in the mount.
///
/// # Errors
/// Those of open(2).
pub(crate) fn nearest(path: &Path) -> Result<Dir, Failure> {
    let path = named(path)?;
    let is_dir = rustix::fs::lstat(&path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir());
    let mut all = path.ancestors().skip(usize::from(!is_dir));
    let found = all.find_map(|dir| Dir::open(if dir.as_os_str().is_empty() { Path::new(".") } else { dir }).ok());
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
    let (mut dir, mut above) = (top.at(time)?, Vec::new());
    for part in parts {
        let below = match dir.child(part.as_bytes()) {
            Ok(below) => below,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                return require_known(&dir, part.as_bytes(), time).map(|()| None);
            }
            Err(errno) => return Err(at(&dir.path_of(part.as_bytes()), errno)),
        };
        above.push(std::mem::replace(&mut dir, below));
    }
    if name != b"." {
        require_known(&dir, &name, time)?;
    }
    Ok(dir.stat(&name)?.map(|stat| Past { dir, name, stat, time, above }))
}

/// Fails if a name existed at a time in a state that is not in the history.
fn require_known(dir: &Dir, name: &[u8], time: Timestamp) -> Result<(), Failure> {
    let lost = dir.lost_at(time, Some(name))?;
    lost.first().map_or(Ok(()), |lost| {
        let path = shown(&dir.path_of(name));
        Err(Failure::usage(format!("{path}: its state at that time is not known: {}", reason(lost.why))))
    })
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
            place.newest_directory(list)
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
