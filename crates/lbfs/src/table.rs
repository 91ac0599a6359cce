use crate::identity::{Identity, PathKey};
use parking_lot::{Mutex, MutexGuard};
use std::sync::{Arc, Weak};
use vnode::{NumberMap, SHARDS, shard_of};

/// A vnode that a [`Table`] can hold.
pub(crate) trait Identified {
    /// Returns its identity, which never changes.
    fn identity(&self) -> Identity;
}

/// The live vnodes by path. A live file keeps its replica and its number.
#[derive(Debug)]
pub(crate) struct Table<V> {
    shards: [Mutex<NumberMap<Weak<V>>>; SHARDS],
}

impl<V> Table<V> {
    pub(crate) fn new() -> Self {
        Self { shards: core::array::from_fn(|_| Mutex::default()) }
    }

    fn shard(&self, number: u64) -> MutexGuard<'_, NumberMap<Weak<V>>> {
        // The index is always in range; the first shard is a fallback that avoids a panic.
        self.shards.get(shard_of(number)).unwrap_or(&self.shards[0]).lock()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

impl<V: Identified> Table<V> {
    /// Returns the live vnode of a path.
    pub(crate) fn get(&self, path: PathKey) -> Option<Arc<V>> {
        let number = path.number();
        let node = self.shard(number).get(&number).and_then(Weak::upgrade);
        node.filter(|node| node.identity().path == path)
    }

    /// Returns the live vnode with a number, if the number is that of its path.
    pub(crate) fn by_number(&self, number: u64) -> Option<Arc<V>> {
        let node = self.shard(number).get(&number).and_then(Weak::upgrade);
        node.filter(|node| node.identity().number == number)
    }

    /// Inserts `node` as the live vnode of its path, in place of `former`. If another thread has
    /// replaced `former` concurrently, returns that vnode instead and inserts nothing.
    pub(crate) fn insert(&self, node: &Arc<V>, former: Option<&Arc<V>>) -> Option<Arc<V>> {
        let new = node.identity();
        let number = new.path.number();
        let mut shard = self.shard(number);
        let there = shard.get(&number).and_then(Weak::upgrade);
        if let Some(there) = &there
            && there.identity().path == new.path
            && there.identity().kind == new.kind
            && former.is_none_or(|former| !Arc::ptr_eq(former, there))
        {
            let there = Arc::clone(there);
            drop(shard);
            return Some(there);
        }
        shard.insert(number, Arc::downgrade(node));
        drop(shard);
        // This may be the last reference, and its drop takes the lock.
        drop(there);
        None
    }

    /// Removes a vnode. Called when it is dropped.
    pub(crate) fn forget(&self, node: &V) {
        let number = node.identity().path.number();
        let mut shard = self.shard(number);
        // The address can't identify it, since the vnode's Drop moves its parents.
        if shard.get(&number).is_some_and(|weak| weak.strong_count() == 0) {
            shard.remove(&number);
            if shard.capacity() > 64 && shard.len() < shard.capacity() / 8 {
                let room = shard.len() * 2;
                shard.shrink_to(room);
            }
        }
    }
}
