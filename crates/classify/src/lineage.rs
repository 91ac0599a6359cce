//! Processes and their ancestors.

use core::fmt;

/// A process (a thread group), and its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its process ID.
    pub id: u32,
    /// When it started, in clock ticks since boot. Distinguishes it from a later process with the
    /// same ID.
    pub start: u64,
    /// The ID of its parent; 0 for a process without one.
    pub parent: u32,
}

impl Process {
    /// Returns what identifies the process for as long as the machine runs.
    #[must_use]
    pub const fn key(&self) -> (u32, u64) {
        (self.id, self.start)
    }
}

/// Where processes are looked up: /proc, or a test.
pub trait ProcessTable: Send + Sync + fmt::Debug {
    /// Returns the process that a thread belongs to. `None` if it has exited or is not visible.
    fn process(&self, thread: u32) -> Option<Process>;

    /// Returns the user and group ID that a process accesses files with.
    fn credentials(&self, process: u32) -> Option<(u32, u32)>;

    /// Returns all processes.
    fn all(&self) -> Vec<Process>;
}

/// Maximum number of ancestors that are followed.
pub(crate) const MAX_ANCESTORS: usize = 4096;

/// The parent of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parent {
    /// It is running.
    Is(Process),
    /// It has exited since the process was looked up.
    Exited,
    /// There is none, or it is not visible.
    None,
}

/// Returns the parent of a process.
pub(crate) fn parent(table: &dyn ProcessTable, process: Process) -> Parent {
    if process.parent == 0 || process.parent == process.id {
        return Parent::None;
    }
    match table.process(process.parent) {
        // A process that started later is not the parent: the ID was reused in between.
        Some(parent) if parent.start <= process.start => Parent::Is(parent),
        _ => Parent::Exited,
    }
}

/// Returns the ancestors of a process, nearest first.
pub(crate) fn ancestors(table: &dyn ProcessTable, process: Process) -> impl Iterator<Item = Process> {
    let mut last = process;
    let next = move || match parent(table, last) {
        Parent::Is(parent) => {
            last = parent;
            Some(parent)
        }
        Parent::Exited | Parent::None => None,
    };
    core::iter::from_fn(next).take(MAX_ANCESTORS)
}
