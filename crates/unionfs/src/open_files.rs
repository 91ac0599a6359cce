//! The open files of the union. A removal of a branch has to know those that lie on it.

use crate::branch::BranchId;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use vnode::{NumberMap, OpenFile, SHARDS, shard_of};

/// Open files, by address.
type Shard = NumberMap<Weak<dyn OpenFile>>;

/// All open files. The references are weak: they keep no file open.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    shards: Box<[Mutex<Shard>]>,
    /// Whether `barred` is not empty.
    is_barred: AtomicBool,
    barred: Mutex<Vec<BranchId>>,
}

/// While this exists, an open of a file on certain branches waits for the end of the change of the
/// set.
pub(crate) struct Barred<'a>(&'a OpenFiles);

fn key<F: OpenFile>(file: *const F) -> u64 {
    file.addr() as u64
}

impl OpenFiles {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            is_barred: AtomicBool::new(false),
            barred: Mutex::default(),
        }
    }

    /// Adds a file that was opened.
    pub(crate) fn add<F: OpenFile>(&self, file: &Arc<F>) {
        let key = key(Arc::as_ptr(file));
        if let Some(shard) = self.shards.get(shard_of(key)) {
            let weak: Weak<F> = Arc::downgrade(file);
            shard.lock().insert(key, weak);
        }
    }

    /// Removes a file that is being closed.
    pub(crate) fn remove<F: OpenFile>(&self, file: &F) {
        let key = key(file);
        if let Some(shard) = self.shards.get(shard_of(key)) {
            let mut shard = shard.lock();
            shard.remove(&key);
            if shard.capacity() > 256 && shard.len() < shard.capacity() / 4 {
                let room = shard.len() * 2;
                shard.shrink_to(room);
            }
        }
    }

    /// Returns all open files.
    pub(crate) fn all(&self) -> Vec<Arc<dyn OpenFile>> {
        // The files are dropped without the lock, because their `Drop` takes it.
        let open = |shard: &Mutex<Shard>| shard.lock().values().filter_map(Weak::upgrade).collect::<Vec<_>>();
        self.shards.iter().flat_map(open).collect()
    }

    /// Lets no file be opened on these branches until the result is dropped. The caller has closed
    /// the gate, and keeps it closed until then.
    ///
    /// A file that is opened without passing the gate is added here first; then its opener asks
    /// [`Self::is_barred`]; last it compares its set with the current one. The change of the set
    /// calls this first; then [`Self::all`]; then it replaces the set; last it drops the result.
    /// So if `all` does not return the file, it was added later, and the opener either finds the
    /// branch barred and waits at the gate, or finds that the set was replaced.
    pub(crate) fn bar(&self, branches: Vec<BranchId>) -> Barred<'_> {
        *self.barred.lock() = branches;
        self.is_barred.store(true, Ordering::SeqCst);
        Barred(self)
    }

    /// Whether no file may be opened on this branch at present.
    pub(crate) fn is_barred(&self, branch: BranchId) -> bool {
        self.is_barred.load(Ordering::SeqCst) && self.barred.lock().contains(&branch)
    }
}

impl Drop for Barred<'_> {
    fn drop(&mut self) {
        self.0.is_barred.store(false, Ordering::SeqCst);
        self.0.barred.lock().clear();
    }
}
