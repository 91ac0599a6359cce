//! A file whose policy is wanted, and its policy.

use crate::daytime::LocalTime;
use crate::range::Range;
use crate::settings::{Keep, NoSpace, Storage, Versions};
use std::sync::Arc;

/// The file whose policy is wanted. `uid`, `gid` and `groups` are those of the user whose policy
/// applies: the owner of the file.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'s> {
    /// The absolute path as programs see it, mount point included.
    pub path: &'s [u8],
    /// The last component of the path.
    pub name: &'s [u8],
    /// The size of the file in bytes.
    pub size: u64,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Supplementary groups of the owner; needed only if [`Needs::groups`](crate::Needs::groups).
    pub groups: &'s [u32],
    /// The name of the process that changes the file. `None`: rules for processes don't apply. The
    /// cleaner passes the one that is recorded with the newest version.
    pub process: Option<&'s [u8]>,
    /// The local time of the change. `None`: rules for times don't apply. The cleaner passes the
    /// time of the newest version.
    pub time: Option<LocalTime>,
}

/// The policy of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    /// Of what versions are made.
    pub versions: Versions,
    /// How versions are stored.
    pub storage: Storage,
    /// How many versions are kept.
    pub number: Range,
    /// How long versions are kept, in seconds since they were the head.
    pub age: Range,
    /// How much space the versions of the file take, in bytes.
    pub space: Range,
    /// Which versions beyond the minimums are kept.
    pub keep: Keep,
    /// Whether versions that were the head for long are kept when `keep` thins out the others.
    pub landmarks: bool,
    /// What happens to a change if there is no space for the version.
    pub nospace: NoSpace,
    /// The program that decides instead of `keep` and `landmarks`.
    pub external: Option<External>,
}

/// A program that decides which versions are discarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    /// Its absolute path.
    pub path: Arc<str>,
    /// The user who registered it and as whom it must run. `None`: the administrator.
    pub uid: Option<u32>,
}
