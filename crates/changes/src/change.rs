//! A change, and a conflict with one below.

use core::fmt;
use vnode::{Attr, Kind, Time};

/// What happened to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChangeKind {
    /// It did not exist below.
    Added,
    /// Its data, link target, device number or type changed.
    Changed,
    /// Only its attributes changed: owner, mode, modification time (not of directories), extended
    /// attributes.
    Attributes,
    /// It no longer exists. Entries of a removed directory are not listed.
    Removed,
    /// It had another path. Changes in a renamed directory are listed with their new paths.
    Renamed,
}

/// What is known about an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its type.
    pub kind: Kind,
    /// Its size in bytes; 0 for directories.
    pub size: u64,
    /// Its permission bits.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its modification time.
    pub mtime: Time,
}

impl Facts {
    pub(crate) fn of(attr: &Attr) -> Self {
        let kind = attr.kind();
        let size = if kind == Kind::Directory { 0 } else { attr.size };
        Self { kind, size, mode: attr.perm(), uid: attr.uid, gid: attr.gid, mtime: attr.mtime }
    }
}

/// A change that the upper branch makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The path in the union, without a leading slash.
    pub path: Vec<u8>,
    /// What happened.
    pub kind: ChangeKind,
    /// The path below of a renamed object.
    pub from: Option<Vec<u8>>,
    /// The object below.
    pub before: Option<Facts>,
    /// The object in the union.
    pub after: Option<Facts>,
    /// Whether the data of a file differ from those below: also for renamed files.
    pub content: bool,
}

impl Change {
    /// Whether the object is or was a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.after.or(self.before).is_some_and(|facts| facts.kind == Kind::Directory)
    }

    /// Whether a directory was renamed.
    pub(crate) fn moves_dir(&self) -> bool {
        self.kind == ChangeKind::Renamed && self.is_dir()
    }
}

/// What happened below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConflictKind {
    /// The file below, which the upper branch changes or removes, has changed.
    Changed,
    /// The object below was created, or replaced by a new one, after the upper branch got its
    /// version.
    Created,
}

/// A path that has changed below as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The path in the union, without a leading slash.
    pub path: Vec<u8>,
    /// What happened below.
    pub kind: ConflictKind,
    /// When the object below changed.
    pub changed: Time,
    /// When the upper branch got its version, or the time that the caller gave.
    pub since: Time,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            ConflictKind::Changed => "has changed below since the upper branch got its version",
            ConflictKind::Created => "was created below after the upper branch got its version",
        };
        write!(f, "/{}: {what}", self.path.escape_ascii())
    }
}
