use std::path::PathBuf;
use std::sync::Arc;
use vnode::{Errno, Layer};

/// What may be done with a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Files on it are changed in place, new ones are made on it.
    ReadWrite,
    /// Never changed: what is to be changed is copied up to the left.
    ReadOnly,
    /// As [`Mode::ReadOnly`], and it lies on a network: operations on it may take long.
    NfsReadOnly,
}

/// One of the directories that a union merges.
#[derive(Clone, Debug)]
pub struct Branch {
    /// The branch's file system; its root is the branch's root.
    pub layer: Arc<dyn Layer>,
    /// Its path, for messages, and to know it again when the branches are listed in another order.
    pub path: PathBuf,
    /// What may be done with it.
    pub mode: Mode,
}

/// How a removal hides or removes what lies to the right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delete {
    /// The leftmost instance is removed, the others are hidden by a whiteout.
    #[default]
    Whiteout,
    /// Every instance on a read-write branch is removed; a whiteout is made only where that was not possible.
    All,
}

/// Who owns a copy that the union makes of a file or directory on a branch to the right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copyup {
    /// The original's owner, and its mode, ACLs and capabilities.
    #[default]
    Preserve,
    /// The caller whose change made the copy necessary; the original's mode without the bits of the caller's umask, which is
    /// asked of /proc.
    CurrentUser,
    /// Always the same.
    Mounter {
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Permission bits of files; directories can also be searched by whom they can be read.
        mode: u32,
    },
}

/// What is done about names that begin with `.wh.`, which a union keeps for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Whiteouts {
    /// Nobody can make them.
    #[default]
    Refuse,
    /// Root and the server's user can make whiteouts and opaque marks by name, to unpack image layers.
    Write,
}

/// How large the numbers are that users see: of objects, and of positions in directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numbers {
    /// 64 bits.
    #[default]
    Wide,
    /// 32 bits as long as they suffice, for programs of 32 bits without large-file support.
    Narrow,
}

/// How open files on branches that are never changed are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LowerFiles {
    /// Every open file shows the file's data as they are, also after it was copied up.
    #[default]
    Exact,
    /// Whoever has the file open for reading shares the branch's pages, and stays on the original
    /// when it is copied up.
    Shared,
}

/// Of which files a change of attributes copies the attributes only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metacopy {
    /// Of none: every copy has its data.
    Off,
    /// Of files of more than so many bytes, where they have one name.
    Above(u64),
}

impl Default for Metacopy {
    /// A file of up to a page takes no more room than its attributes.
    fn default() -> Self {
        Self::Above(4096)
    }
}

/// How a union behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// What a removal does.
    pub delete: Delete,
    /// Who owns copies.
    pub copyup: Copyup,
    /// Who can write whiteouts by name.
    pub whiteouts: Whiteouts,
    /// How large numbers are.
    pub numbers: Numbers,
    /// How files on branches that are never changed are read.
    pub lower_files: LowerFiles,
    /// Which copies are made without data.
    pub metacopy: Metacopy,
}

/// Why a union could not be made.
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
    /// The leftmost branch is to be written, but can't be.
    NotWritable(PathBuf, Errno),
    /// A read-write branch takes files, but none with a name of the union's own.
    NamesRefused(PathBuf),
    /// No branch of the union has this path.
    NoSuchBranch(PathBuf),
    /// Operations under way did not end in time: the branches were not changed.
    Busy,
    /// A step of preparing this branch failed.
    Step {
        /// What was to be done.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What came back.
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
                write!(f, "the leftmost branch {} must be read-write, since another one is", p.display())
            }
            Self::NotWritable(p, e) => write!(f, "the leftmost branch {} can't be written: {e}", p.display()),
            Self::NamesRefused(p) => write!(
                f,
                "branch {} refuses names that begin with .wh., which a union needs: it lies in another union, which keeps these \
                 names for itself; put the branch on a file system outside of that union",
                p.display()
            ),
            Self::NoSuchBranch(p) => write!(f, "{} is not a branch of this union", p.display()),
            Self::Busy => write!(f, "operations under way did not end in time; try again"),
            Self::Step { what, path, errno } => write!(f, "{}: {what}: {errno}", path.display()),
        }
    }
}

impl std::error::Error for BuildError {}
