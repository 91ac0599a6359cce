//! Hard links in what is restored. Names of one file become names of one file again. A name that
//! belongs to another file now is taken from it first: writing to that would change its other
//! names, too.

use super::client::{Dir, at};
use super::put::{Put, remove};
use crate::exit::Failure;
use jiff::Timestamp;
use rustix::fs::{AtFlags, CWD, FileType, Stat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::path::PathBuf;
use versionclient::{List, Version};

/// A file with several names, as far as the history knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum File {
    /// An entry of a past directory: its device and inode number.
    Past(u64, u64),
    /// That of a version: the device, and the text in the list.
    Version(u64, Vec<u8>),
}

/// Which state of a name is restored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum State<'a> {
    /// A version.
    Version(&'a Version),
    /// That of a time.
    At(Timestamp),
}

impl State<'_> {
    /// Returns the file that the state is of, if it had several names.
    pub(crate) fn file(self, old: &Stat) -> Option<File> {
        if FileType::from_raw_mode(old.st_mode) != FileType::RegularFile {
            return None;
        }
        match self {
            Self::Version(version) if version.file.is_empty() => None,
            Self::Version(version) => Some(File::Version(old.st_dev, version.file.clone())),
            Self::At(_) => (old.st_nlink > 1).then_some(File::Past(old.st_dev, old.st_ino)),
        }
    }

    /// Whether the name was given to another file since.
    fn is_left(self, list: &List, present: &Stat) -> bool {
        let mut since = list.versions.iter().filter(|version| match self {
            Self::Version(was) => version.number >= was.number,
            Self::At(time) => version.died > time,
        });
        // It may have come back.
        let is_back = since.clone().next().is_some_and(|was| number(&was.file) == Some(present.st_ino));
        !is_back && since.any(Version::ends_head)
    }
}

/// Returns the inode number in the text of a file.
fn number(file: &[u8]) -> Option<u64> {
    let (number, _) = std::str::from_utf8(file).ok()?.split_once('.')?;
    u64::from_str_radix(number, 16).ok()
}

/// The files with several names that were restored.
#[derive(Debug, Default)]
pub(crate) struct Links(HashMap<File, Restored>);

/// Where a file is now.
#[derive(Debug)]
struct Restored {
    path: PathBuf,
    inode: (u64, u64),
    /// Size and time of modification: its names can have left it with different contents.
    content: (i64, i64, u64),
}

fn inode(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn content(stat: &Stat) -> (i64, i64, u64) {
    (stat.st_size, stat.st_mtime, stat.st_mtime_nsec)
}

impl Links {
    /// Makes `name` a name of the file `file`, if that was restored already, as it is in `old`.
    /// `None` if it must be written.
    ///
    /// # Errors
    /// What has the name now can't be removed.
    pub(crate) fn join(&self, file: &File, old: &Stat, dir: &Dir, name: &[u8]) -> Result<Option<Put>, Failure> {
        let Some(restored) = self.0.get(file).filter(|restored| restored.content == content(old)) else {
            return Ok(None);
        };
        let present = dir.stat(name)?;
        if present.is_some_and(|present| inode(&present) == restored.inode) {
            return Ok(Some(Put::Same));
        }
        // Somebody may have renamed it meanwhile.
        let is_there = |stat: Stat| inode(&stat) == restored.inode;
        if !rustix::fs::lstat(&restored.path).is_ok_and(is_there) {
            return Ok(None);
        }
        if let Some(present) = present {
            remove(dir, name, &present)?;
        }
        // Too many links, or not this user's file: a copy is better than nothing.
        let linked = rustix::fs::linkat(CWD, &restored.path, dir, name, AtFlags::empty()).is_ok();
        Ok(linked.then_some(Put::Written(0)))
    }

    /// Whether a file was restored already.
    pub(crate) fn has(&self, file: &File) -> bool {
        self.0.contains_key(file)
    }

    /// Notes where a file was restored, or is already as it was.
    ///
    /// # Errors
    /// It can't be found.
    pub(crate) fn note(&mut self, file: File, old: &Stat, dir: &Dir, name: &[u8]) -> Result<(), Failure> {
        if let Some(present) = dir.stat(name)? {
            let (inode, content) = (inode(&present), content(old));
            self.0.insert(file, Restored { path: dir.path_of(name), inode, content });
        }
        Ok(())
    }
}

/// Takes the name from the file that has it now, if that is another one than that of `state` and
/// has other names.
///
/// # Errors
/// Names the path and the reason.
pub(crate) fn separate(state: State<'_>, dir: &Dir, name: &[u8]) -> Result<(), Failure> {
    let several = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink > 1;
    let Some(present) = dir.stat(name)?.filter(several) else { return Ok(()) };
    let Some(list) = dir.list(name)? else { return Ok(()) };
    if !state.is_left(&list, &present) {
        return Ok(());
    }
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(at(&dir.path_of(name), errno)),
    }
}
