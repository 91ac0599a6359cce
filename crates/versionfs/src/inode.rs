//! What the layer knows of an object in use: its place and its open files.

use crate::session::Session;
use crate::set::Made;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use parking_lot::{Mutex, MutexGuard};
use std::sync::{Arc, Weak};
use vnode::{Cx, MAY_BLOCK, NumberMap, Result, SHARDS, Time, Vnode, shard_of};

/// A name in a lower directory.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) dir: Arc<dyn Vnode>,
    pub(crate) name: Arc<[u8]>,
}

/// An object in use, shared by its vnodes and open files.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) id: u64,
    /// The name by which it was reached last.
    place: Mutex<Option<Place>>,
    /// Whether the inode has become a version: users see no name of it any more.
    buried: AtomicBool,
    /// Whether the directory has a store: 0 unknown, 1 no, 2 yes.
    store: AtomicU8,
    /// The version that the inode has become, if it may change yet.
    burial: Mutex<Option<Made>>,
    /// The size to which a truncation that is delayed has shortened the file; `u64::MAX`: none is.
    delayed: AtomicU64,
    /// The modification time that users see meanwhile.
    delayed_time: Mutex<Time>,
    session: Mutex<Session>,
}

impl Inode {
    fn new(id: u64) -> Self {
        Self {
            id,
            place: Mutex::new(None),
            buried: AtomicBool::new(false),
            store: AtomicU8::new(0),
            burial: Mutex::default(),
            delayed: AtomicU64::new(u64::MAX),
            delayed_time: Mutex::new(Time::default()),
            session: Mutex::new(Session::default()),
        }
    }

    pub(crate) fn place(&self) -> Option<Place> {
        self.place.lock().clone()
    }

    pub(crate) fn set_place(&self, place: Option<Place>) {
        *self.place.lock() = place;
    }

    /// Sets the place where the object was found, unless it is known already.
    pub(crate) fn found_at(&self, dir: &Arc<dyn Vnode>, name: &[u8]) {
        let mut place = self.place.lock();
        if place.as_ref().is_none_or(|place| *place.name != *name || place.dir.id() != dir.id()) {
            *place = Some(Place { dir: Arc::clone(dir), name: name.into() });
        }
    }

    /// Locks the version that the inode has become, if it has not been given a file of its own.
    pub(crate) fn burial(&self) -> MutexGuard<'_, Option<Made>> {
        self.burial.lock()
    }

    pub(crate) fn is_buried(&self) -> bool {
        self.buried.load(Ordering::Acquire)
    }

    /// The inode has become a version.
    pub(crate) fn bury(&self, made: Option<Made>) {
        *self.burial.lock() = made;
        self.buried.store(true, Ordering::Release);
        self.set_place(None);
    }

    /// Whether the directory has a store, if that is known.
    pub(crate) fn has_store(&self) -> Option<bool> {
        match self.store.load(Ordering::Acquire) {
            0 => None,
            known => Some(known == 2),
        }
    }

    pub(crate) fn set_has_store(&self, has: bool) {
        self.store.store(1 + u8::from(has), Ordering::Release);
    }

    /// Returns the size that users see while a truncation is delayed.
    pub(crate) fn delayed(&self) -> Option<u64> {
        Some(self.delayed.load(Ordering::Acquire)).filter(|size| *size != u64::MAX)
    }

    /// Returns the modification time that users see while a truncation is delayed.
    pub(crate) fn delayed_time(&self) -> Time {
        *self.delayed_time.lock()
    }

    /// Delays a truncation: users see this size and modification time, while the lower file is as
    /// before.
    pub(crate) fn delay(&self, size: u64, time: Time) {
        *self.delayed_time.lock() = time;
        self.delayed.store(size, Ordering::Release);
    }

    /// Ends the delay.
    pub(crate) fn delay_is_over(&self) {
        self.delayed.store(u64::MAX, Ordering::Release);
    }

    /// Locks the state of the open files, and waits for that.
    pub(crate) fn wait_session(&self) -> MutexGuard<'_, Session> {
        self.session.lock()
    }

    /// Locks the state of the open files.
    ///
    /// # Errors
    /// `MAY_BLOCK` if that would block a thread that must not.
    pub(crate) fn session(&self, cx: &Cx<'_>) -> Result<MutexGuard<'_, Session>> {
        if cx.may_block { Ok(self.session.lock()) } else { self.session.try_lock().ok_or(MAY_BLOCK) }
    }
}

/// The objects in use by number.
#[derive(Debug, Default)]
pub(crate) struct Inodes([Mutex<NumberMap<Weak<Inode>>>; SHARDS]);

impl Inodes {
    /// Returns the object with this number.
    pub(crate) fn get(&self, id: u64) -> Arc<Inode> {
        let Some(shard) = self.0.get(shard_of(id)) else { return Arc::new(Inode::new(id)) };
        let mut shard = shard.lock();
        if let Some(inode) = shard.get(&id).and_then(Weak::upgrade) {
            return inode;
        }
        let inode = Arc::new(Inode::new(id));
        shard.insert(id, Arc::downgrade(&inode));
        inode
    }

    /// Returns the object with this number if it is in use.
    pub(crate) fn in_use(&self, id: u64) -> Option<Arc<Inode>> {
        self.0.get(shard_of(id))?.lock().get(&id)?.upgrade()
    }

    /// Forgets an object that is no longer in use.
    pub(crate) fn released(&self, id: u64) {
        if let Some(shard) = self.0.get(shard_of(id)) {
            let mut shard = shard.lock();
            if shard.get(&id).is_some_and(|inode| inode.strong_count() == 0) {
                shard.remove(&id);
            }
        }
    }
}
