use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use vnode::{NumberMap, SHARDS, shard_of};

/// What is kept for files that are in use, by number. Holds none alive: each takes itself out as it goes.
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

    /// What is there for that number, or else the new one. None is dropped while the shard is locked: its `Drop` comes here.
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

    /// Called by the one at `gone` as it goes. Another one may have taken its place by then: answers false.
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
