//! The link index in memory: which files with several names were copied up, and to which branch.

use crate::branch::BranchId;
use crate::log::Record;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;

/// The copied-up files that had several names, by number, with the branch of the copy.
pub(crate) type Index = HashMap<u64, BranchId>;

/// The current index, and the operations on link counts under way.
#[derive(Debug, Default)]
pub(crate) struct Links {
    index: RwLock<Index>,
    len: AtomicUsize,
    /// Locked while a link count is read, changed and written: names of one file may be removed
    /// from several directories at once.
    pub(crate) counting: Mutex<Pending>,
    /// Entries on branches that an error kept from being removed, by number.
    unremoved: Mutex<Vec<(u64, BranchId)>>,
}

/// The unfinished [`Record::Using`], by the thread that runs the operation. Each thread has one at
/// most.
pub(crate) type Pending = HashMap<ThreadId, Record>;

impl Links {
    /// Returns the branch that holds the copy of this file.
    pub(crate) fn branch(&self, number: u64) -> Option<BranchId> {
        if self.len.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.index.read().get(&number).copied()
    }

    /// Whether the branch holds a copy that the index has.
    pub(crate) fn any_on(&self, branch: BranchId) -> bool {
        self.index.read().values().any(|&at| at == branch)
    }

    /// Returns the numbers of the files that the index has.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.index.read().keys().copied().collect()
    }

    /// Notes that an entry, which the index has no longer, could not be removed from its branch.
    pub(crate) fn note_unremoved(&self, number: u64, branch: BranchId) {
        self.unremoved.lock().push((number, branch));
    }

    /// Takes the entries to be removed from their branches that the index does not have again.
    pub(crate) fn take_unremoved(&self) -> Vec<(u64, BranchId)> {
        let mut all = std::mem::take(&mut *self.unremoved.lock());
        all.retain(|&(number, branch)| self.branch(number) != Some(branch));
        all
    }

    /// Whether the index is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Replaces the index.
    pub(crate) fn replace(&self, index: Index) {
        let mut present = self.index.write();
        *present = index;
        self.len.store(present.len(), Ordering::Release);
    }

    /// Sets or removes the branch of the copy of this file.
    pub(crate) fn set(&self, number: u64, branch: Option<BranchId>) {
        let mut index = self.index.write();
        match branch {
            Some(branch) => drop(index.insert(number, branch)),
            None => drop(index.remove(&number)),
        }
        self.len.store(index.len(), Ordering::Release);
    }
}
