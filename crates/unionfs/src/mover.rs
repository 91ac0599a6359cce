//! The state of moving files from one branch to others: `unionctl --drain` and `--rebalance`. The
//! work is done in steps (`move_steps`), so this remembers where the last one ended.

use crate::branch::BranchId;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;
use vnode::Errno;

/// Maximum number of objects that are reported as not moved. The others are counted.
const NAMED: usize = 200;

/// What files are moved for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// The branch is to be empty.
    Drain,
    /// Another branch's file system is to be nearly as full: within this many percentage points.
    Balance {
        /// The branch that takes the files.
        to: BranchId,
        within: f64,
    },
}

/// Why an object was not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// A program reads or writes the file on the branch directly.
    InUse,
    /// The file has several names, and no branch further left can take it.
    SeveralNames,
    /// An object of the same name further left hides it.
    Hidden,
    /// It hides objects of the same name, and would not do so on any other branch.
    Hides,
    /// A renamed directory, whose redirect leads to its other parts.
    Redirect,
    /// A renamed directory may lead to it, or to what it hides.
    BesideRedirect,
    /// No other branch has enough free space.
    NoSpace,
    /// No other branch can have a part of the directory.
    NoBranch,
    /// An operation on a branch failed.
    Failed(Errno),
}

/// Whether an object was moved, or does not have to be.
pub(crate) type Outcome = Result<(), Obstacle>;

/// An object that was not moved, by its path in the union.
pub(crate) struct Remaining {
    pub(crate) path: Vec<u8>,
    pub(crate) obstacle: Obstacle,
}

/// A directory whose part on the branch is being emptied.
pub(crate) struct Frame<V> {
    pub(crate) dir: Arc<V>,
    /// The lower names still to be considered, the next one last.
    pub(crate) names: Vec<Box<[u8]>>,
}

/// Files being moved.
pub(crate) struct Mover<V> {
    pub(crate) id: u64,
    pub(crate) from: BranchId,
    pub(crate) goal: Goal,
    /// When the client's last request ended.
    pub(crate) last_request: Instant,
    pub(crate) stack: Vec<Frame<V>>,
    /// Directories, by number, and branches whose names are durable up to the root.
    pub(crate) durable: HashSet<(u64, BranchId)>,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) remaining: Vec<Remaining>,
    pub(crate) remaining_count: u64,
    /// Number of redirects found on the branch.
    pub(crate) redirects: u64,
    /// The branch has no redirects. A redirect leads to paths on other branches, so while there is
    /// one, whiteouts and empty directories remain.
    pub(crate) redirect_free: bool,
    /// The path of the object that was considered last.
    pub(crate) at: Vec<u8>,
    /// Number of attempts to move it.
    pub(crate) attempts: u32,
    /// Nothing more can be moved.
    pub(crate) done: bool,
}

impl<V> Mover<V> {
    pub(crate) fn new(id: u64, from: BranchId, goal: Goal, first: Frame<V>) -> Self {
        Self {
            id,
            from,
            goal,
            last_request: Instant::now(),
            stack: vec![first],
            durable: HashSet::new(),
            files: 0,
            bytes: 0,
            remaining: Vec::new(),
            remaining_count: 0,
            redirects: 0,
            redirect_free: false,
            at: Vec::new(),
            attempts: 0,
            done: false,
        }
    }

    /// Whether a complete walk has found no redirect on the branch.
    pub(crate) fn is_redirect_free(&self) -> bool {
        self.done && self.redirects == 0
    }

    /// Notes that an object was not moved.
    pub(crate) fn leave(&mut self, path: Vec<u8>, obstacle: Obstacle) {
        self.remaining_count += 1;
        if self.remaining.len() < NAMED {
            self.remaining.push(Remaining { path, obstacle });
        }
    }
}

impl<V> std::fmt::Debug for Mover<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mover({:?}, {:?}, {} files)", self.from, self.goal, self.files)
    }
}
