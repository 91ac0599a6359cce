//! Hard links in what is restored: names of one file become names of one file again. A file with
//! several names is written in place only if it is known to be the file that is restored.
//! Otherwise the restore would change another file.

use super::client::Dir;
use super::put::{self, Origin, Put, remove};
use crate::exit::Failure;
use jiff::Timestamp;
use rustix::fs::{AtFlags, CWD, FileType, Stat};
use std::collections::HashMap;
use std::path::PathBuf;
use versionclient::Version;

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
}

/// Returns the inode number in the text of a file.
fn number(file: &[u8]) -> Option<u64> {
    let (number, _) = std::str::from_utf8(file).ok()?.split_once('.')?;
    u64::from_str_radix(number, 16).ok()
}

/// Returns the attributes of the file that has the name, if it is one with several names.
fn shared(dir: &Dir, name: &[u8]) -> Result<Option<Stat>, Failure> {
    let is_shared = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink > 1;
    Ok(dir.stat(name)?.filter(is_shared))
}

/// Whether the name belongs to a file with others that may be another one than that of `state`,
/// which `origin` shows. With `elsewhere`, the name is not one that the file had.
///
/// # Errors
/// Names the path and the reason.
pub(crate) fn is_other(
    (state, origin): (State<'_>, Origin<'_>),
    dir: &Dir,
    name: &[u8],
    elsewhere: bool,
) -> Result<bool, Failure> {
    let Some(present) = shared(dir, name)? else { return Ok(false) };
    if elsewhere {
        return Ok(true);
    }
    let was = match state {
        State::Version(version) => Some(version.clone()),
        // The directory may be another one than that in which the name is now.
        State::At(time) => {
            let list = origin.dir.list(origin.entry)?;
            list.and_then(|list| list.versions.into_iter().rev().find(|version| version.covers(time)))
        }
    };
    // Numbers are used again.
    let is_old = |was: &Version| dir.born(name).is_none_or(|born| born <= was.died);
    Ok(!was.is_some_and(|was| number(&was.file) == Some(present.st_ino) && is_old(&was)))
}

/// The files with several names that were restored.
#[derive(Debug, Default)]
pub(crate) struct Links {
    restored: HashMap<File, Restored>,
    /// The present files with several names that are in use, by device and inode number: each for
    /// one file that had several names, or for one that had a single name.
    in_use: HashMap<(u64, u64), Option<File>>,
}

/// Where a file is now.
#[derive(Debug)]
struct Restored {
    path: PathBuf,
    inode: (u64, u64),
}

/// Returns device and inode number.
pub(crate) fn inode(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

impl Links {
    /// Makes `name` a name of the file `file`, if that was restored already, as `origin` shows it
    /// with the attributes `old`. `None` if it must be written.
    ///
    /// # Errors
    /// The old state can't be read.
    pub(crate) fn join(
        &self,
        file: &File,
        (origin, old): (Origin<'_>, &Stat),
        dir: &Dir,
        name: &[u8],
    ) -> Result<Option<Put>, Failure> {
        let Some(restored) = self.restored.get(file) else { return Ok(None) };
        let present = dir.stat(name)?;
        if present.is_some_and(|present| inode(&present) == restored.inode) {
            return Ok(Some(Put::Same));
        }
        // Somebody may have renamed it meanwhile.
        if !rustix::fs::lstat(&restored.path).is_ok_and(|stat| inode(&stat) == restored.inode) {
            return Ok(None);
        }
        // The names can have left the file at different times.
        if matches!(file, File::Version(..)) && !put::is_equal(origin, old, &restored.path)? {
            return Ok(None);
        }
        // The name stays if this user may not remove it; it may be possible to write to it.
        if present.is_some_and(|present| remove(dir, name, &present).is_err()) {
            return Ok(None);
        }
        // Too many links, or not this user's file: a copy is better than nothing.
        let linked = rustix::fs::linkat(CWD, &restored.path, dir, name, AtFlags::empty()).is_ok();
        Ok(linked.then_some(Put::Written(0)))
    }

    /// Whether the name must leave the present file: it is in use for another one than `file`, or
    /// `file` was restored already, as another one.
    pub(crate) fn is_another(&self, file: Option<&File>, present: &Stat) -> bool {
        let is_elsewhere = |file| self.restored.get(file).is_some_and(|restored| restored.inode != inode(present));
        let is_for_other = |user: &Option<File>| file.is_none() || user.as_ref() != file;
        file.is_some_and(is_elsewhere) || self.in_use.get(&inode(present)).is_some_and(is_for_other)
    }

    /// Notes where a file was restored, or is already as it was. `file` is the one with several
    /// names, if it had several.
    ///
    /// # Errors
    /// It can't be found.
    pub(crate) fn note(&mut self, file: Option<File>, dir: &Dir, name: &[u8]) -> Result<(), Failure> {
        let is_single = file.is_none();
        let Some(present) = dir.stat(name)?.filter(|present| !is_single || present.st_nlink > 1) else {
            return Ok(());
        };
        self.in_use.insert(inode(&present), file.clone());
        if let Some(file) = file {
            self.restored.insert(file, Restored { path: dir.path_of(name), inode: inode(&present) });
        }
        Ok(())
    }
}
