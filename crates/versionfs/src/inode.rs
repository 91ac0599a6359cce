//! What the layer knows of an object in use: its place and its open files.

use crate::session::Session;
use crate::set::Made;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use parking_lot::{Mutex, MutexGuard};
use std::sync::{Arc, Weak};
use versionset::Who;
use vnode::{Cx, MAY_BLOCK, Name, NumberMap, Result, SHARDS, Time, Vnode, shard_of};

/// A name in a lower directory.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) dir: Arc<dyn Vnode>,
    pub(crate) name: Arc<[u8]>,
    /// Whether the object was found there with its session locked. Then it is there until the place
    /// is set anew: who removes or renames it locks the session. A lookup is not sure, because the
    /// name may go before its result is noted.
    is_sure: bool,
}

impl Place {
    /// Whether `inode` is there: looks it up, unless that is sure. The caller has locked the
    /// session of the inode.
    pub(crate) fn has(&self, cx: &Cx<'_>, inode: &Inode) -> Result<bool> {
        if self.is_sure {
            return Ok(true);
        }
        let is_there = self.dir.lookup(cx, Name::new(&self.name)?)?.is_some_and(|entry| entry.vnode.id() == inode.id);
        let mut place = inode.place.lock();
        if place.as_ref().is_some_and(|place| place.is_at(&self.dir, &self.name)) {
            *place = is_there.then(|| Self { is_sure: true, ..self.clone() });
        }
        Ok(is_there)
    }

    fn is_at(&self, dir: &Arc<dyn Vnode>, name: &[u8]) -> bool {
        *self.name == *name && self.dir.id() == dir.id()
    }
}

/// An object in use, shared by its vnodes and open files.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) id: u64,
    /// The name by which it was reached last.
    place: Mutex<Option<Place>>,
    /// Whether no set of an inode with several names has versions of this file, if that is known.
    has_no_link_set: AtomicBool,
    /// Whether the inode has become a version: users see no name of it any more.
    buried: AtomicBool,
    /// Whether the directory has a store: 0 unknown, 1 no, 2 yes.
    store: AtomicU8,
    /// The version that the inode has become, if it may change yet.
    burial: Mutex<Option<Made>>,
    /// The size to which a truncation that is delayed has shortened the file; `u64::MAX`: none is.
    delayed: AtomicU64,
    /// The modification time that users see meanwhile, and who truncated the file.
    delay: Mutex<(Time, Who)>,
    /// Open files of which the kernel does the I/O, readers included. A new mapping uses the host
    /// file, too. Not in the session: the server counts one while it has a lock that it needs for
    /// [`vnode::Upcalls::stop_passthrough`], which is called with the session locked.
    bound: AtomicU32,
    /// Whether programs may have mapped the host file for writing. Such a mapping bypasses the
    /// layer, and outlives its open file.
    may_be_mapped: AtomicBool,
    session: Mutex<Session>,
    /// The generation, and the time of birth that it had when it was found. A union below replaces
    /// a file by a copy when it changes.
    born: Mutex<Option<(u32, Time)>>,
    /// The table that it is in.
    table: Arc<Table>,
}

impl Drop for Inode {
    fn drop(&mut self) {
        let Some(shard) = self.table.get(shard_of(self.id)) else { return };
        let mut shard = shard.lock();
        // Another object may be known by the number meanwhile. An entry would keep the memory.
        if shard.get(&self.id).is_some_and(|inode| inode.strong_count() == 0) {
            shard.remove(&self.id);
            if shard.capacity() > FEW && shard.len() < shard.capacity() / 8 {
                let room = shard.len() * 2;
                shard.shrink_to(room);
            }
        }
    }
}

impl Inode {
    fn new(id: u64, table: &Arc<Table>) -> Self {
        Self {
            id,
            place: Mutex::new(None),
            has_no_link_set: AtomicBool::new(false),
            buried: AtomicBool::new(false),
            store: AtomicU8::new(0),
            burial: Mutex::default(),
            delayed: AtomicU64::new(u64::MAX),
            delay: Mutex::default(),
            bound: AtomicU32::new(0),
            may_be_mapped: AtomicBool::new(false),
            session: Mutex::new(Session::default()),
            born: Mutex::new(None),
            table: Arc::clone(table),
        }
    }

    /// Notes the time of birth, unless it is known. Another generation is another object, which has
    /// got the number of one that nobody has forgotten yet.
    pub(crate) fn note_birth(&self, generation: u32, born: Option<Time>) {
        let mut known = self.born.lock();
        if known.is_none_or(|(other, _)| other != generation) {
            *known = born.map(|born| (generation, born));
        }
    }

    /// Returns the time of birth that was noted.
    pub(crate) fn born(&self) -> Option<Time> {
        self.born.lock().map(|(_, born)| born)
    }

    pub(crate) fn place(&self) -> Option<Place> {
        self.place.lock().clone()
    }

    /// Forgets the place: the name went, or another one came.
    pub(crate) fn forget_place(&self) {
        *self.place.lock() = None;
    }

    /// Sets the place where the object was found, unless it is known already.
    pub(crate) fn found_at(&self, dir: &Arc<dyn Vnode>, name: &[u8]) {
        let mut place = self.place.lock();
        if place.as_ref().is_none_or(|place| !place.is_at(dir, name)) {
            *place = Some(Place { dir: Arc::clone(dir), name: name.into(), is_sure: false });
        }
    }

    pub(crate) fn has_no_link_set(&self) -> bool {
        self.has_no_link_set.load(Ordering::Acquire)
    }

    pub(crate) fn set_has_no_link_set(&self, has_none: bool) {
        self.has_no_link_set.store(has_none, Ordering::Release);
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
        self.forget_place();
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
        self.delay.lock().0
    }

    /// Returns who truncated the file while that is delayed: its end, at the last close, has no
    /// caller.
    pub(crate) fn delayed_by(&self) -> Option<Who> {
        self.delayed().map(|_| self.delay.lock().1.clone())
    }

    /// Delays a truncation by `who`: users see an empty file, while the lower file is as before.
    pub(crate) fn delay(&self, time: Time, who: Who) {
        *self.delay.lock() = (time, who);
        self.delayed.store(0, Ordering::Release);
    }

    /// Goes on with the delay: users see this size and modification time.
    pub(crate) fn delay_on(&self, size: u64, time: Time) {
        self.delay.lock().0 = time;
        self.delayed.store(size, Ordering::Release);
    }

    /// Ends the delay.
    pub(crate) fn delay_is_over(&self) {
        self.delayed.store(u64::MAX, Ordering::Release);
    }

    /// The kernel does the I/O of an open file from now on. With `maps`, programs can map the host
    /// file for writing through it.
    pub(crate) fn bind(&self, maps: bool) {
        self.bound.fetch_add(1, Ordering::AcqRel);
        if maps {
            self.may_be_mapped.store(true, Ordering::Release);
        }
    }

    /// An open file of which the kernel did the I/O was closed.
    pub(crate) fn unbind(&self) {
        self.bound.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether the kernel does the I/O of an open file.
    pub(crate) fn is_bound(&self) -> bool {
        self.bound.load(Ordering::Acquire) > 0
    }

    /// Whether programs may have mapped the host file for writing.
    pub(crate) fn may_be_mapped(&self) -> bool {
        self.may_be_mapped.load(Ordering::Acquire)
    }

    /// No program has the host file mapped for writing.
    pub(crate) fn is_unmapped(&self) {
        self.may_be_mapped.store(false, Ordering::Release);
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

/// Objects of a shard below which its memory does not matter.
const FEW: usize = 64;

/// The objects in use by number. An object removes itself at its end.
type Table = [Mutex<NumberMap<Weak<Inode>>>; SHARDS];

/// The objects in use.
#[derive(Debug, Default)]
pub(crate) struct Inodes(Arc<Table>);

impl Inodes {
    /// Returns the object with this number.
    pub(crate) fn get(&self, id: u64) -> Arc<Inode> {
        let Some(shard) = self.0.get(shard_of(id)) else { return Arc::new(Inode::new(id, &self.0)) };
        let mut shard = shard.lock();
        if let Some(inode) = shard.get(&id).and_then(Weak::upgrade) {
            return inode;
        }
        let inode = Arc::new(Inode::new(id, &self.0));
        shard.insert(id, Arc::downgrade(&inode));
        inode
    }

    /// Returns the object with this number if it is in use.
    pub(crate) fn in_use(&self, id: u64) -> Option<Arc<Inode>> {
        self.0.get(shard_of(id))?.lock().get(&id)?.upgrade()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_that_are_no_longer_in_use_take_no_memory() {
        let inodes = Inodes::default();
        let mut kept: Vec<_> = (0..100_000).map(|id| inodes.get(id)).collect();
        kept.truncate(100);
        let count = |size: fn(&NumberMap<Weak<Inode>>) -> usize| -> usize {
            inodes.0.iter().map(|shard| size(&shard.lock())).sum()
        };
        assert_eq!(count(NumberMap::len), 100);
        assert!(count(NumberMap::capacity) <= 2 * FEW * SHARDS);
        assert!(kept.iter().all(|inode| Arc::ptr_eq(inode, &inodes.get(inode.id))));
        // The number is used again before the end of the old object.
        let shard = inodes.0.get(shard_of(7)).unwrap();
        let old = kept.remove(7);
        shard.lock().remove(&7);
        let new = inodes.get(7);
        drop(old);
        assert!(Arc::ptr_eq(&new, &inodes.get(7)));
    }
}
