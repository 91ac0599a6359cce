use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use vnode::{NumberMap, SHARDS, shard_of};

/// Shared state of files in use, keyed by number. Holds weak references: each value removes itself
/// when dropped.
#[derive(Debug)]
pub(crate) struct Table<T> {
    shards: Box<[Mutex<NumberMap<Weak<T>>>]>,
}

impl<T> Table<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() })
    }

    pub(crate) fn get(&self, id: u64) -> Option<Arc<T>> {
        self.shards.get(shard_of(id))?.lock().get(&id)?.upgrade()
    }

    /// Returns the value for this number, inserting `new` if there is none. No value is dropped
    /// while the shard is locked, because its `Drop` takes that lock.
    pub(crate) fn insert(&self, id: u64, new: Arc<T>) -> Arc<T> {
        let Some(shard) = self.shards.get(shard_of(id)) else { return new };
        let mut shard = shard.lock();
        if let Some(live) = shard.get(&id).and_then(Weak::upgrade) {
            drop(shard);
            return live;
        }
        shard.insert(id, Arc::downgrade(&new));
        new
    }

    /// Called by the value at `gone` from its `Drop`. Returns false if another value has already
    /// replaced it.
    pub(crate) fn forget(&self, id: u64, gone: *const T) -> bool {
        let Some(shard) = self.shards.get(shard_of(id)) else { return false };
        let mut shard = shard.lock();
        let is_last = shard.get(&id).is_some_and(|weak| std::ptr::eq(weak.as_ptr(), gone));
        if is_last {
            shard.remove(&id);
        }
        is_last
    }
}
