//! Whether the lower directory is a copy, such as a backup that was restored.
//!
//! What has neither versions nor a recorded birth has existed since the host file's time of birth.
//! In a copy that is the time of copying. So the lower root's inode and time of birth are kept in
//! an extended attribute of it. A mount that finds another root knows a copy, and that what is
//! older than this mount came with it.

use crate::content_time::{time_of, time_to_bytes};
use vnode::{Attr, Cx, Kind, Time, Vnode, XattrFlags};

/// The extended attribute of the lower root. No name of the mount shows it.
pub(crate) const ROOT: &[u8] = b"trusted.versionfs.root";

/// A time before all that is recorded.
const UNKNOWN: Time = Time { sec: 0, nsec: 0 };

/// What the extended attribute says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Root {
    inode: u64,
    generation: u32,
    born: Time,
    /// The first mount after the last copy; [`UNKNOWN`]: it is no copy.
    copied: Time,
}

impl Root {
    fn to_bytes(self) -> Vec<u8> {
        let mut out = self.inode.to_le_bytes().to_vec();
        out.extend_from_slice(&self.generation.to_le_bytes());
        for time in [self.born, self.copied] {
            out.extend_from_slice(&time_to_bytes(time));
        }
        out
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (inode, rest) = bytes.split_first_chunk()?;
        let (generation, rest) = rest.split_first_chunk()?;
        let (born, copied) = rest.split_first_chunk()?;
        Some(Self {
            inode: u64::from_le_bytes(*inode),
            generation: u32::from_le_bytes(*generation),
            born: time_of(*born),
            copied: time_of(copied.try_into().ok()?),
        })
    }
}

/// When a copy of the lower directory was mounted first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Copied(Option<Time>);

impl Copied {
    /// Finds out whether the directory with this root is a copy, and notes the root unless
    /// `read_only`. Without permission for that, or on a file system without times of birth, a copy
    /// is not recognised.
    pub(crate) fn find(cx: &Cx<'_>, root: &dyn Vnode, now: Time, read_only: bool) -> Self {
        let Some(born) = root.getattr(cx).ok().and_then(|attr| attr.btime) else { return Self::default() };
        let known = vnode::read_value(|out| root.getxattr(cx, ROOT, out)).ok().and_then(|bytes| Root::parse(&bytes));
        let own = Root { inode: root.id(), generation: root.generation(), born, copied: UNKNOWN };
        let own = match known {
            Some(known) if (Root { copied: UNKNOWN, ..known }) == own => known,
            Some(_) => Root { copied: now, ..own },
            None => own,
        };
        if known != Some(own) && !read_only {
            let _best_effort = root.setxattr(cx, ROOT, &own.to_bytes(), XattrFlags::default());
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
