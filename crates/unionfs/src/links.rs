//! The link index in memory: which files with several names were copied up, and to which branch.

use crate::branch::BranchId;
use crate::log::Record;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;
use std::time::Duration;
use vnode::{Cx, Errno, Result};

/// The copied-up files that had several names, by number, with the branch of the copy.
pub(crate) type Index = HashMap<u64, BranchId>;

/// The current index, and the operations on link counts under way.
#[derive(Debug, Default)]
pub(crate) struct Links {
    index: RwLock<Index>,
    len: AtomicUsize,
    /// Locked while a link count is read, changed and written: names of one file may be removed
    /// from several directories at once.
    pub(crate) counting: Mutex<Counting>,
    /// Signalled when an operation on a link count has ended.
    pub(crate) ended: Condvar,
    /// Entries on branches that an error kept from being removed, by number.
    unremoved: Mutex<Vec<(u64, BranchId)>>,
    /// Numbers of files that may have no name any more.
    doubtful: Mutex<BTreeSet<u64>>,
}

/// The operations on link counts under way.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    /// The unfinished [`Record::Using`], by the thread that runs the operation. Each thread has one
    /// at most.
    pub(crate) pending: HashMap<ThreadId, Record>,
    /// As `pending`, for a name that the log does not count: the file's number.
    pub(crate) uncounted: HashMap<ThreadId, u64>,
    /// The files of which a copy is being added to the index, by number.
    copying: HashSet<u64>,
}

/// How often a thread that waits for another operation looks whether its caller was interrupted.
const INTERVAL: Duration = Duration::from_millis(50);

/// Whether a record is a [`Record::Using`] of this file.
pub(crate) fn is_of(record: &Record, number: u64) -> bool {
    matches!(record, Record::Using { number: of, .. } if *of == number)
}

/// While this exists, no name of a file is being hidden, replaced or removed.
pub(crate) struct CopyAdded<'a> {
    links: &'a Links,
    number: u64,
}

impl Drop for CopyAdded<'_> {
    fn drop(&mut self) {
        self.links.counting.lock().copying.remove(&self.number);
        self.links.ended.notify_all();
    }
}

impl Links {
    /// Returns the branch that holds the copy of this file.
    pub(crate) fn branch(&self, number: u64) -> Option<BranchId> {
        if self.len.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.index.read().get(&number).copied()
    }

    /// Waits until no other thread hides, replaces or removes a name of this file, or adds a copy
    /// of it to the index, and then keeps them from that.
    ///
    /// Such a thread takes no lock meanwhile that the caller may hold.
    ///
    /// # Errors
    ///
    /// `EINTR` if the caller is interrupted.
    pub(crate) fn begin_copy(&self, cx: &Cx<'_>, number: u64) -> Result<CopyAdded<'_>> {
        let this = std::thread::current().id();
        let is_other = |(thread, record): (&ThreadId, &Record)| *thread != this && is_of(record, number);
        let is_uncounted = |(thread, of): (&ThreadId, &u64)| *thread != this && *of == number;
        let is_busy = |counting: &Counting| {
            counting.copying.contains(&number)
                || counting.pending.iter().any(is_other)
                || counting.uncounted.iter().any(is_uncounted)
        };
        self.counting_unless(cx, is_busy)?.copying.insert(number);
        Ok(CopyAdded { links: self, number })
    }

    /// Locks the link counts for an operation that hides, replaces or removes a name of this file,
    /// once no copy of it is being added to the index.
    ///
    /// # Errors
    ///
    /// `EINTR` if the caller is interrupted.
    pub(crate) fn begin_use(&self, cx: &Cx<'_>, number: u64) -> Result<MutexGuard<'_, Counting>> {
        self.counting_unless(cx, |counting| counting.copying.contains(&number))
    }

    /// Forgets this thread's operation. The log still has it: the next mount completes it.
    pub(crate) fn forget_use(&self) {
        let (mut counting, this) = (self.counting.lock(), std::thread::current().id());
        let (logged, other) = (counting.pending.remove(&this), counting.uncounted.remove(&this));
        if logged.is_some() || other.is_some() {
            self.ended.notify_all();
        }
    }

    fn counting_unless(&self, cx: &Cx<'_>, is_busy: impl Fn(&Counting) -> bool) -> Result<MutexGuard<'_, Counting>> {
        let mut counting = self.counting.lock();
        while is_busy(&counting) {
            if cx.is_cancelled() {
                return Err(Errno::INTR);
            }
            self.ended.wait_for(&mut counting, INTERVAL);
        }
        Ok(counting)
    }

    /// Whether the branch holds a copy that the index has.
    pub(crate) fn any_on(&self, branch: BranchId) -> bool {
        self.index.read().values().any(|&at| at == branch)
    }

    /// Returns a copy of the index.
    pub(crate) fn all(&self) -> Index {
        self.index.read().clone()
    }

    /// Returns the numbers of the files that the index has.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.index.read().keys().copied().collect()
    }

    /// Notes that an entry, which the index has no longer, could not be removed from its branch.
    pub(crate) fn note_unremoved(&self, number: u64, branch: BranchId) {
        self.unremoved.lock().push((number, branch));
    }

    /// Notes that a file may have no name any more.
    pub(crate) fn doubt(&self, number: u64) {
        self.doubtful.lock().insert(number);
    }

    /// Takes the numbers of the files that may have no name any more.
    pub(crate) fn take_doubtful(&self) -> BTreeSet<u64> {
        std::mem::take(&mut *self.doubtful.lock())
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
