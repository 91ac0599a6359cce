//! Whether the lower directory is a copy, such as a backup that was restored.
//!
//! What has neither versions nor a recorded birth has existed since the host file's time of birth.
//! In a copy that is the time of copying. So the lower root's inode and time of birth are kept in
//! an extended attribute of it. A mount that finds another root knows a copy, and that what is
//! older than this mount came with it.

use versionset::{ROOT_IDENTITY, RootIdentity};
use vnode::{Attr, Cx, Kind, Time, Vnode, XattrFlags};

/// A time before all that is recorded.
const UNKNOWN: Time = Time { sec: 0, nsec: 0 };

/// When a copy of the lower directory was mounted first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Copied(Option<Time>);

impl Copied {
    /// Finds out whether the directory with this root is a copy, and notes the root unless
    /// `read_only`. Without permission for that, or on a file system without times of birth, a copy
    /// is not recognised.
    pub(crate) fn find(cx: &Cx<'_>, root: &dyn Vnode, now: Time, read_only: bool) -> Self {
        let Some(born) = root.getattr(cx).ok().and_then(|attr| attr.btime) else { return Self::default() };
        let known = vnode::read_value(|out| root.getxattr(cx, ROOT_IDENTITY, out))
            .ok()
            .and_then(|bytes| RootIdentity::parse(&bytes));
        let own = RootIdentity { inode: root.id(), generation: root.generation(), born, copied: UNKNOWN };
        let own = match known {
            Some(known) if (RootIdentity { copied: UNKNOWN, ..known }) == own => known,
            Some(_) => RootIdentity { copied: now, ..own },
            None => own,
        };
        if known != Some(own) && !read_only {
            let _best_effort = root.setxattr(cx, ROOT_IDENTITY, &own.to_bytes(), XattrFlags::default());
        }
        Self(Some(own.copied).filter(|copied| *copied != UNKNOWN))
    }

    /// Returns since when an object may have existed that has no recorded birth; `None` if the
    /// lower file system does not tell. What came with a copy is no younger than its modification
    /// time, unless that has changed since; how old a directory is, nothing tells.
    pub(crate) fn birth(self, attr: &Attr) -> Option<Time> {
        let born = attr.btime?;
        let came = self.0.is_some_and(|copied| born < copied);
        let is_as_copied = attr.kind() != Kind::Directory && attr.mtime < born;
        Some(match (came, is_as_copied) {
            (false, _) => born,
            (true, true) => attr.mtime,
            (true, false) => UNKNOWN,
        })
    }
}
