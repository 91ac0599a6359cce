//! Changing the branches of a layer in use.

use crate::{BranchMode, Opened};
use core::fmt;
use core::time::Duration;
use std::path::PathBuf;

/// A layer in use whose branches can be added, removed and switched to another mode. The layer's
/// builder returns it with the layer ([`crate::Made`]).
pub trait LiveBranches: fmt::Debug + Send + Sync {
    /// Returns the current branches.
    fn list(&self) -> BranchList;

    /// Applies all of `changes`, in order and in one step, or none.
    ///
    /// # Errors
    /// [`ChangeError`]. The branches are unchanged then.
    fn change(&self, changes: Vec<BranchChange>, policy: &ChangePolicy) -> Result<(), ChangeError>;
}

/// The branches of a layer from one change to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BranchList {
    /// Number of this list among those of the layer since it was mounted. The first is 1.
    pub generation: u64,
    /// The branches, highest precedence first.
    pub branches: Vec<ListedBranch>,
}

/// A branch in a [`BranchList`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedBranch {
    /// [`crate::Branch::name`]
    pub name: PathBuf,
    /// How it is used.
    pub mode: BranchMode,
    /// The branch is listed as writable, but its file system turned out to be read-only.
    pub turned_read_only: bool,
    /// What is wrong with it: `"hung"` or `"lost"`.
    pub trouble: Option<&'static str>,
    /// Number of files that are open on it.
    pub open_files: u64,
}

/// A change of the branches.
#[derive(Clone, Debug)]
pub enum BranchChange {
    /// Inserts a branch.
    Insert {
        /// At most this many branches have precedence over it.
        at: usize,
        /// The branch.
        branch: Opened,
    },
    /// Inserts this branch, which is an empty directory, with precedence over all others, and makes
    /// all others read-only, in the state of one moment. It is the only change.
    Snapshot(Opened),
    /// Removes the branch with this name. Its contents remain.
    Remove(PathBuf),
    /// Switches the branch with this name to another mode.
    Mode(PathBuf, BranchMode),
    /// Moves the branch with this name: at most this many branches then have precedence over it.
    Move(PathBuf, usize),
}

/// Conditions for a change of the branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangePolicy {
    /// How long the change waits for operations under way that change something. It is refused
    /// afterwards.
    pub patience: Duration,
    /// Open files on branches that are removed.
    pub in_use: InUse,
    /// The change is refused unless the current list has this [`BranchList::generation`].
    pub expected_generation: Option<u64>,
}

impl Default for ChangePolicy {
    fn default() -> Self {
        Self { patience: Duration::from_secs(10), in_use: InUse::Refuse, expected_generation: None }
    }
}

/// What a change does with files that are open on a branch that it removes, if no other branch has
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InUse {
    /// The change is refused.
    #[default]
    Refuse,
    /// The files are copied, with their data, to a writable branch that remains or is inserted, and
    /// programs that have them open continue on the copy. If that is impossible for a file, the
    /// change is refused.
    CopyUp,
    /// They remain on the removed branch until they are closed. Changes of them are visible
    /// nowhere.
    Keep,
}

/// Why the branches could not be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeError {
    /// These files are open on a removed branch.
    InUse(Vec<OpenedFile>),
    /// The list has another generation by now.
    Outdated,
    /// The branches were changed, but something remains to be done: a sentence for the user.
    Incomplete(String),
    /// Another reason: a sentence for the user.
    Refused(String),
}

/// An open file that prevents the removal of its branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedFile {
    /// The name of the branch.
    pub branch: PathBuf,
    /// Its path in the mount, with a leading `/`. Empty if it has no name, or if its name leads to
    /// another object by now.
    pub path: Vec<u8>,
    /// Its inode number (`st_ino`).
    pub number: u64,
    /// Whether it is open for writing.
    pub writing: bool,
}
