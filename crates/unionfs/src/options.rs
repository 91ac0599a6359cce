//! The options of a union, and the errors of building one.

use stack::OpenedFile;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use vnode::{Errno, Layer};

/// How a branch is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Files on it are changed in place. New files are created on it.
    ReadWrite,
    /// Never changed: files are copied up to a branch further left before a change.
    ReadOnly,
    /// As [`Mode::ReadOnly`], on a network file system: operations on it may take long.
    NfsReadOnly,
    /// As [`Mode::ReadOnly`]. If the branch is lost, it is treated as empty until it is back.
    ReadOnlySkip,
    /// As [`Mode::NfsReadOnly`]. If the branch is lost, it is treated as empty until it is back.
    NfsReadOnlySkip,
}

impl Mode {
    /// Whether the branch is on a network file system.
    pub(crate) const fn is_network(self) -> bool {
        matches!(self, Self::NfsReadOnly | Self::NfsReadOnlySkip)
    }

    /// What the branch looks like if it is lost.
    pub(crate) const fn on_loss(self) -> isolate::OnLoss {
        match self {
            Self::ReadWrite | Self::ReadOnly | Self::NfsReadOnly => isolate::OnLoss::Error,
            Self::ReadOnlySkip | Self::NfsReadOnlySkip => isolate::OnLoss::Empty,
        }
    }
}

/// Whether files leave a branch of a union in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Moving {
    /// No files are moved from it.
    #[default]
    Stays,
    /// Some of its files are moved to other branches.
    Moves,
    /// All of its files are moved to other branches, after which it is removed.
    Drained,
}

/// A branch of a union.
#[derive(Clone, Debug)]
pub struct Branch {
    /// The branch's file system, whose root is the branch's root.
    pub layer: Arc<dyn Layer>,
    /// The branch's path, for messages, and to recognise the branch when branches are listed in
    /// another order.
    pub path: PathBuf,
    /// How the branch is used.
    pub mode: Mode,
}

/// How a removal treats entries of the same name on branches to the right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delete {
    /// The visible entry is removed, and a whiteout hides the others.
    #[default]
    Whiteout,
    /// The entries on all read-write branches are removed. A whiteout is created only if others
    /// remain.
    All,
}

/// Owner and mode of a copy that the union creates of a file or directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copyup {
    /// The original's owner, mode, ACLs and capabilities.
    #[default]
    Preserve,
    /// The owner is the caller whose change caused the copy-up. The mode is the original's without
    /// the bits of the caller's umask, which is read from /proc.
    CurrentUser,
    /// For a server that serves its own user alone. The owner is the server's user. Group and mode
    /// are the original's, except for a group that this user may not give
    /// ([`without_group`]), and for set-ID bits if the owner changes. ACLs are kept. Some
    /// directories get the bit [`FOREIGN`].
    Sole {
        /// The server's user.
        uid: u32,
    },
    /// The same for all copies.
    Mounter {
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Permission bits of files. Directories can also be searched by users who can read them.
        mode: u32,
    },
}

/// The mode bit that marks copies of directories whose owner's permission bits had to change
/// ([`Copyup::Sole`]): set-user-ID, which has no meaning for directories on Linux. The rights of
/// the server's user on the original are those of the other bits.
pub const FOREIGN: u32 = 0o4000;

/// Returns the permission bits of a directory's copy for [`Copyup::Sole`]. The server must be able
/// to create entries in it, even if its user had no such right on the original: because that
/// belongs to somebody else, or because it is read-only for everybody.
#[must_use]
pub const fn sole_directory_mode(mode: u32, is_own: bool) -> u32 {
    let (owner, group, other) = (mode >> 6 & 7, mode >> 3 & 7, mode & 7);
    if is_own && (owner & 2 != 0 || owner != group || owner != other) {
        return mode & 0o3777;
    }
    mode & 0o3777 | 0o700 | FOREIGN
}

/// Whether users can create names that begin with `.wh.`, which are reserved for the union.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Whiteouts {
    /// No user can.
    #[default]
    Refuse,
    /// Root and the server's user can create whiteouts and opaque marks by name, to unpack image
    /// layers.
    Write,
}

/// Returns the permission bits of a copy that can't have its original's group ([`Copyup::Sole`]):
/// the group's are those of others. Otherwise the copy's group, which is one of the server's user,
/// would get the rights of the original's.
#[must_use]
pub const fn without_group(mode: u32) -> u32 {
    mode & !0o2070 | (mode & 7) << 3
}

/// Size of the inode numbers and directory positions that users see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numbers {
    /// 64 bits.
    #[default]
    Wide,
    /// 32 bits where possible, for 32-bit programs without large-file support.
    Narrow,
}

/// Positions in directories that lie on one branch and can't merge parts while the set of branches
/// stays the same. Merged directories have positions computed from names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Positions {
    /// Those of the branch. They mean nothing after the directory has become a merged one.
    #[default]
    Branch,
    /// Computed from names.
    Names,
}

/// How files on read-only branches are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LowerFiles {
    /// An open file always shows the current data, also after a copy-up.
    #[default]
    Exact,
    /// Files open for reading share the branch's page cache, and remain on the original after a
    /// copy-up.
    Shared,
}

/// Which files get a metacopy: a copy of their attributes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metacopy {
    /// None: every copy has its data.
    Off,
    /// Files of more than this many bytes, with one name.
    Above(u64),
}

impl Default for Metacopy {
    /// A file of up to one page takes no more space than its attributes.
    fn default() -> Self {
        Self::Above(4096)
    }
}

/// The order in which branches are considered for a new object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Only the branch that has the directory's leftmost part.
    #[default]
    Inherit,
    /// From the left.
    First,
    /// The branch with the most free space first.
    MostFree,
    /// The branch with the least free space first.
    LeastFree,
    /// The branches in turn.
    RoundRobin,
    /// A random branch, with a probability proportional to its free space.
    Proportional,
}

/// The branch of a new object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Create {
    /// The order of the branches.
    pub order: Order,
    /// Only branches that have the directory are considered.
    pub existing_path: bool,
    /// Free space that a branch needs to be considered, in bytes.
    pub min_free: u64,
}

impl Create {
    /// Whether directories get parts on any branch, also right of their leftmost part.
    pub(crate) fn spreads(&self) -> bool {
        self.order != Order::Inherit && !self.existing_path
    }
}

/// Options of a union.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The branch of a new object.
    pub create: Create,
    /// How removals work.
    pub delete: Delete,
    /// Owner and mode of copies.
    pub copyup: Copyup,
    /// Whether users can create whiteouts by name.
    pub whiteouts: Whiteouts,
    /// Size of inode numbers.
    pub numbers: Numbers,
    /// Positions in directories that lie on one branch.
    pub positions: Positions,
    /// How files on read-only branches are read.
    pub lower_files: LowerFiles,
    /// Which files get a metacopy.
    pub metacopy: Metacopy,
    /// No host file is handed out for writing (`passthrough=off`). Files that are open for writing
    /// can then move to another branch at any time.
    pub no_passthrough: bool,
    /// How long the union trusts what it knows of a directory's parts before it verifies their
    /// times. Out-of-band changes are visible after this time. 0: it verifies them each time, and
    /// keeps no name indexes.
    pub check_interval: Duration,
}

/// Why a union could not be built or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// The list of branches is empty.
    NoBranches,
    /// More than 32,766 branches.
    TooManyBranches,
    /// The same path is listed twice.
    Duplicate(PathBuf),
    /// The root of this branch is not a directory.
    NotDirectory(PathBuf),
    /// A branch is read-write, but the leftmost is not.
    LeftmostReadOnly(PathBuf),
    /// The leftmost branch is read-write, but can't be written.
    NotWritable(PathBuf, Errno),
    /// A read-write branch refuses the union's own names, but no others.
    NamesRefused(PathBuf),
    /// No branch of the union has this path.
    NoSuchBranch(PathBuf),
    /// Operations under way did not end in time. The branches were not changed.
    Busy,
    /// These files are open on branches that were to be removed, and would exist nowhere else. The
    /// branches were not changed. Not empty.
    InUse(Vec<OpenedFile>),
    /// This branch has a property that the mount was not prepared for when it began. The second
    /// value describes the property.
    NeedsRemount(PathBuf, &'static str),
    /// The branches have changed since the caller looked at them.
    Changed,
    /// The new branch of a snapshot is not empty.
    NotEmpty(PathBuf),
    /// A snapshot is a change of its own.
    SnapshotNotAlone,
    /// This read-only branch has to be completed or emptied after an interrupted snapshot.
    UnfinishedSnapshot(PathBuf),
    /// The snapshot was taken, but this branch still has files that programs write to.
    Incomplete(PathBuf, Errno),
    /// This branch, which is being drained, still holds objects.
    NotDrained(PathBuf),
    /// A step of preparing this branch failed.
    Step {
        /// The step.
        what: &'static str,
        /// The branch.
        path: PathBuf,
        /// The error.
        errno: Errno,
    },
}

impl std::fmt::Display for BuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoBranches => write!(f, "no branches given"),
            Self::TooManyBranches => write!(f, "too many branches: at most 32766"),
            Self::Duplicate(p) => write!(f, "{} is listed twice", p.display()),
            Self::NotDirectory(p) => write!(f, "{} is not a directory", p.display()),
            Self::LeftmostReadOnly(p) => {
                write!(f, "the leftmost branch {} must be rw, because another one is", p.display())
            }
            Self::NotWritable(p, e) => write!(f, "the leftmost branch {} can't be written: {e}", p.display()),
            Self::NamesRefused(p) => write!(
                f,
                "branch {} refuses names that begin with .wh., which a union needs: it lies in another union, which reserves these \
                 names; put the branch on a file system outside of that union",
                p.display()
            ),
            Self::NoSuchBranch(p) => write!(f, "{} is not a branch of this union", p.display()),
            Self::Busy => write!(f, "operations under way did not end in time: the branches are unchanged; try again"),
            Self::InUse(files) => in_use(f, files),
            Self::NeedsRemount(p, why) => write!(
                f,
                "branch {} {why}, for which the union has to be prepared when it is mounted: unmount it, and mount it again \
                 with this branch",
                p.display()
            ),
            Self::NotDrained(p) => write!(
                f,
                "branch {} is being drained and still holds files: continue with unionctl --drain, or end it with \
                 unionctl --mode {} rw",
                p.display(),
                p.display()
            ),
            Self::Changed => write!(f, "the branches have changed meanwhile: list them and try again"),
            Self::NotEmpty(p) => {
                write!(f, "{} is not empty; a snapshot needs an empty directory for later changes", p.display())
            }
            Self::SnapshotNotAlone => write!(f, "a snapshot can't be combined with other changes of the branches"),
            Self::UnfinishedSnapshot(p) => write!(
                f,
                "branch {}: the server was killed while it took a snapshot; mount the union once with this branch as rw, \
                 which completes or reverts it, or run fsck.unionfs -p with it as rw",
                p.display()
            ),
            Self::Incomplete(p, e) => write!(
                f,
                "the snapshot was taken, but {} still contains open files that programs change: {e}; unmount, and mount \
                 the union once with this branch as rw, which completes it",
                p.display()
            ),
            Self::Step { what, path, errno } => write!(f, "{}: {what}: {errno}", path.display()),
        }
    }
}

/// Describes the first of these files and counts the others.
fn in_use(f: &mut std::fmt::Formatter<'_>, files: &[OpenedFile]) -> std::fmt::Result {
    let Some(first) = files.first() else { return write!(f, "files are open") };
    write!(f, "branch {} is in use: ", first.branch.display())?;
    match first.path.is_empty() {
        true => write!(f, "a file without a name (inode {})", first.number)?,
        false => write!(f, "{}", first.path.escape_ascii())?,
    }
    match files.len() - 1 {
        0 => write!(f, " is open"),
        more => write!(f, " and {more} more files are open"),
    }
}

impl std::error::Error for BuildError {}
