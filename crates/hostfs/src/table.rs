//! The table of live vnodes and pinned objects.

use crate::descriptors::{Budget, Kept};
use crate::vnode_impl::HostVnode;
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use vnode::{NumberMap, SHARDS, shard_of};

/// The live vnodes by number, and the descriptors ("pins") that keep removed objects available
/// while their vnode is referenced.
///
/// A pin is dropped with its vnode. There are at most `pins` of them; beyond that, the oldest is
/// closed. This loses an object that has no name and is not open, but is still referenced (for
/// example a removed working directory): operations on it return `ESTALE`.
#[derive(Debug)]
pub(crate) struct Table {
    shards: [Mutex<Shard>; SHARDS],
    pins_per_shard: usize,
    /// Number of pins being closed right now: freeing a large file takes time.
    closing: AtomicUsize,
    budget: Arc<Budget>,
}

/// The number of a removed object, and its descriptor.
type Pin = (u64, Arc<OwnedFd>, Kept);

#[derive(Debug, Default)]
struct Shard {
    live: NumberMap<Weak<HostVnode>>,
    pins: VecDeque<Pin>,
}

impl Table {
    pub(crate) fn new(pins: usize, budget: Arc<Budget>) -> Self {
        let pins_per_shard = (pins / SHARDS).max(1);
        Self { shards: Default::default(), pins_per_shard, closing: AtomicUsize::new(0), budget }
    }

    fn shard(&self, id: u64) -> MutexGuard<'_, Shard> {
        // The index is always in range; the first shard avoids a panic path.
        let shard = self.shards.get(shard_of(id)).unwrap_or(&self.shards[0]);
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the live vnode with this number.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<HostVnode>> {
        self.shard(id).live.get(&id).and_then(Weak::upgrade)
    }

    /// Returns the live vnode of the object that `fresh` describes, or `fresh` itself if there is
    /// none. If another object has the same number, its inode was removed out of band: its vnode is
    /// dropped from the table.
    pub(crate) fn intern(&self, fresh: HostVnode) -> Arc<HostVnode> {
        let id = fresh.number();
        let mut shard = self.shard(id);
        // A vnode released here must be dropped after the lock, because its drop takes the lock.
        let old = shard.live.get(&id).and_then(Weak::upgrade);
        if let Some(old) = &old
            && old.is_same_object(&fresh)
        {
            drop(shard);
            drop(fresh);
            return Arc::clone(old);
        }
        let fresh = Arc::new(fresh);
        shard.live.insert(id, Arc::downgrade(&fresh));
        drop(shard);
        fresh
    }

    /// Removes a vnode that is being dropped; `at` was its address while it was shared.
    pub(crate) fn forget(&self, vnode: &HostVnode, at: *const HostVnode) {
        let id = vnode.number();
        let mut shard = self.shard(id);
        if shard.live.get(&id).is_some_and(|weak| std::ptr::eq(weak.as_ptr(), at)) {
            shard.live.remove(&id);
            if shard.live.capacity() > 64 && shard.live.len() < shard.live.capacity() / 8 {
                let room = shard.live.len() * 2;
                shard.live.shrink_to(room);
            }
        }
        let pin = if vnode.is_pinned() {
            vnode.set_pinned(false);
            shard.take_pin(id)
        } else {
            None
        };
        // Closing may free the object on the host, so not under the lock.
        if pin.is_some() {
            self.closing.fetch_add(1, Ordering::SeqCst);
            drop(shard);
            drop(pin);
            self.closing.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Waits up to one second for removed objects that another thread is freeing.
    pub(crate) fn wait_for_room(&self) {
        for _ in 0..1000 {
            if self.closing.load(Ordering::SeqCst) == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Keeps a removed object while its vnode lives.
    pub(crate) fn pin(&self, vnode: &HostVnode, fd: OwnedFd) {
        let mut shard = self.shard(vnode.number());
        let oldest = if shard.pins.len() >= self.pins_per_shard { shard.pins.pop_front() } else { None };
        let same = shard.take_pin(vnode.number());
        // Pinned even beyond the budget, because nothing else keeps the object. The other caches
        // make room.
        let (kept, _room) = self.budget.keep();
        shard.pins.push_back((vnode.number(), Arc::new(fd), kept));
        vnode.set_pinned(true);
        drop(shard);
        drop((oldest, same));
    }

    /// Marks an object that never had a name, so that it is not mistaken for one removed out of
    /// band.
    pub(crate) fn note_unnamed(&self, vnode: &HostVnode) {
        let _shard = self.shard(vnode.number());
        vnode.set_pinned(true);
    }

    /// Closes the pins of removed regular files, so that the host frees those that nobody has open.
    pub(crate) fn release_files(&self) {
        let is_file = |fd: &OwnedFd| {
            rustix::fs::fstat(fd).is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file())
        };
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let (removed, kept) = std::mem::take(&mut shard.pins).into_iter().partition(|(_, fd, _)| is_file(fd));
            shard.pins = kept;
            drop(shard);
            drop::<VecDeque<_>>(removed);
        }
    }

    /// Drops the pin of an object that has a name again.
    pub(crate) fn unpin(&self, vnode: &HostVnode) {
        let mut shard = self.shard(vnode.number());
        vnode.set_pinned(false);
        let pin = shard.take_pin(vnode.number());
        drop(shard);
        drop(pin);
    }

    /// Returns the descriptor of a removed object.
    pub(crate) fn pinned(&self, id: u64) -> Option<Arc<OwnedFd>> {
        let shard = self.shard(id);
        shard.pins.iter().find(|(of, ..)| *of == id).map(|(_, fd, _)| Arc::clone(fd))
    }

    /// Returns the numbers of live vnodes and pins.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (usize, usize) {
        let mut counts = (0, 0);
        for shard in &self.shards {
            let shard = shard.lock().unwrap();
            counts = (counts.0 + shard.live.len(), counts.1 + shard.pins.len());
        }
        counts
    }
}

impl Shard {
    fn take_pin(&mut self, id: u64) -> Option<Pin> {
        let at = self.pins.iter().position(|(of, ..)| *of == id)?;
        self.pins.remove(at)
    }
}
