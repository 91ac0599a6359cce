use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use vnode::{NumberMap, SHARDS, shard_of};

type Shard<V> = NumberMap<Weak<V>>;

/// The live vnodes by number. The references are weak: they keep no vnode alive.
#[derive(Debug)]
pub(crate) struct Table<V> {
    shards: Box<[Mutex<Shard<V>>]>,
}

/// The result of [`Table::intern`].
pub(crate) enum Interned<V> {
    /// No vnode had the number: a new one.
    New(Arc<V>),
    /// The live vnode with the number.
    Present(Arc<V>),
}

impl<V> Table<V> {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, id: u64) -> Option<&Mutex<Shard<V>>> {
        self.shards.get(shard_of(id))
    }

    /// Returns the live vnode with this number.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<V>> {
        self.shard(id)?.lock().get(&id)?.upgrade()
    }

    /// Returns the live vnode with this number, or a new one. No vnode is dropped while the shard
    /// is locked: `Drop` locks the shard too.
    pub(crate) fn intern(&self, id: u64, make: impl FnOnce() -> Arc<V>) -> Interned<V> {
        let Some(shard) = self.shard(id) else { return Interned::New(make()) };
        let mut shard = shard.lock();
        if let Some(live) = shard.get(&id).and_then(Weak::upgrade) {
            return Interned::Present(live);
        }
        let new = make();
        shard.insert(id, Arc::downgrade(&new));
        Interned::New(new)
    }

    /// Returns all live vnodes.
    pub(crate) fn live(&self) -> Vec<Arc<V>> {
        // The vnodes are dropped without the lock, because their `Drop` takes it.
        let live = |shard: &Mutex<Shard<V>>| shard.lock().values().filter_map(Weak::upgrade).collect::<Vec<_>>();
        self.shards.iter().flat_map(live).collect()
    }

    /// Removes the vnode at `gone`, which is being dropped. A lookup may have put another one in
    /// its place by then.
    pub(crate) fn forget(&self, id: u64, gone: *const V) {
        let Some(shard) = self.shard(id) else { return };
        let mut shard = shard.lock();
        if shard.get(&id).is_some_and(|weak| std::ptr::eq(weak.as_ptr(), gone)) {
            shard.remove(&id);
            if shard.capacity() > 256 && shard.len() < shard.capacity() / 4 {
                let room = shard.len() * 2;
                shard.shrink_to(room);
            }
        }
    }
}
