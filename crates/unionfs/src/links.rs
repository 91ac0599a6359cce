//! Which files of several names were copied up, and where to.

use crate::branch::BranchId;
use crate::log::Record;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;

/// The copied-up files that had several names: number to the branch with the copy.
pub(crate) type Index = HashMap<u64, BranchId>;

/// The present index.
#[derive(Debug, Default)]
pub(crate) struct Links {
    index: RwLock<Index>,
    len: AtomicUsize,
    /// Held while a count of names is read, changed and written: names of one file may go from several directories at once.
    pub(crate) counting: Mutex<Pending>,
}

/// The [`Record::Using`] that are not yet ended, by the thread whose operation each belongs to: it has one at most.
pub(crate) type Pending = HashMap<ThreadId, Record>;

impl Links {
    /// The branch that holds the copy of the file of that number.
    pub(crate) fn branch(&self, number: u64) -> Option<BranchId> {
        if self.len.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.index.read().get(&number).copied()
    }

    /// Is the index empty?
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Another index takes the place of this one.
    pub(crate) fn replace(&self, index: Index) {
        let mut present = self.index.write();
        *present = index;
        self.len.store(present.len(), Ordering::Release);
    }

    pub(crate) fn set(&self, number: u64, branch: Option<BranchId>) {
        let mut index = self.index.write();
        match branch {
            Some(branch) => drop(index.insert(number, branch)),
            None => drop(index.remove(&number)),
        }
        self.len.store(index.len(), Ordering::Release);
    }
}
