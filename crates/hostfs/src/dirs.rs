use crate::descriptors::{Budget, Kept};
use rustix::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

const SHARDS: usize = 8;

/// A directory's number and descriptor.
type Open = (u64, Arc<OwnedFd>, Kept);

/// Descriptors of recently used directories, by vnode number: a bounded number of them, the least recently used of a shard
/// goes first.
#[derive(Debug)]
pub(crate) struct DirCache {
    shards: [Mutex<Vec<Open>>; SHARDS],
    per_shard: usize,
    budget: Arc<Budget>,
}

impl DirCache {
    pub(crate) fn new(capacity: usize, budget: Arc<Budget>) -> Self {
        Self { shards: Default::default(), per_shard: capacity.div_ceil(SHARDS).max(1), budget }
    }

    fn shard(&self, id: u64) -> &Mutex<Vec<Open>> {
        // The index is always in range; the first shard stands in for what can't be.
        self.shards.get((id ^ (id >> 9)) as usize % SHARDS).unwrap_or(&self.shards[0])
    }

    pub(crate) fn get(&self, id: u64) -> Option<Arc<OwnedFd>> {
        let mut shard = self.shard(id).lock().unwrap_or_else(PoisonError::into_inner);
        let at = shard.iter().position(|(of, ..)| *of == id)?;
        // The most recently used stands last; moving it half way there is as good, and moves less.
        let to = at + (shard.len() - at) / 2;
        shard.swap(at, to);
        shard.get(to).map(|(_, fd, _)| Arc::clone(fd))
    }

    pub(crate) fn put(&self, id: u64, fd: Arc<OwnedFd>) {
        let mut shard = self.shard(id).lock().unwrap_or_else(PoisonError::into_inner);
        let same = shard.iter().position(|(of, ..)| *of == id).map(|at| shard.remove(at));
        let (kept, room) = self.budget.keep();
        let full = (shard.len() >= self.per_shard || !room) && !shard.is_empty();
        let oldest = full.then(|| shard.remove(0));
        if room || full {
            shard.push((id, fd, kept));
        }
        drop(shard);
        drop((same, oldest));
    }

    /// The directory is gone.
    pub(crate) fn remove(&self, id: u64) {
        let mut shard = self.shard(id).lock().unwrap_or_else(PoisonError::into_inner);
        let gone = shard.iter().position(|(of, ..)| *of == id).map(|at| shard.remove(at));
        drop(shard);
        drop(gone);
    }
}

/// Descriptors on which directories were listed and may be listed further. One that is in use is not in here, so that two
/// readers of a directory never share a position.
#[derive(Debug)]
pub(crate) struct Listings {
    idle: Mutex<Vec<(Listing, Kept)>>,
    capacity: usize,
    budget: Arc<Budget>,
}

/// A directory open for listing, and where it stands.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) id: u64,
    pub(crate) fd: OwnedFd,
    /// The host's cookie of the entry read last, 0 at the start.
    pub(crate) position: u64,
}

impl Listings {
    pub(crate) fn new(capacity: usize, budget: Arc<Budget>) -> Self {
        Self { idle: Mutex::new(Vec::new()), capacity: capacity.max(1), budget }
    }

    /// An idle one of that directory: one that stands at `position` if there is any.
    pub(crate) fn take(&self, id: u64, position: u64) -> Option<Listing> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let exact = idle.iter().position(|(l, _)| l.id == id && l.position == position);
        let at = exact.or_else(|| idle.iter().position(|(l, _)| l.id == id))?;
        Some(idle.remove(at).0)
    }

    pub(crate) fn put(&self, listing: Listing) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let (kept, room) = self.budget.keep();
        let full = (idle.len() >= self.capacity || !room) && !idle.is_empty();
        let oldest = full.then(|| idle.remove(0));
        let unkept = if room || full {
            idle.push((listing, kept));
            None
        } else {
            Some(listing)
        };
        drop(idle);
        drop((oldest, unkept));
    }

    /// The directory is gone.
    pub(crate) fn remove(&self, id: u64) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let (gone, kept) = std::mem::take(&mut *idle).into_iter().partition(|(l, _)| l.id == id);
        *idle = kept;
        drop(idle);
        drop::<Vec<_>>(gone);
    }
}
