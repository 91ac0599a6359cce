//! Caches of directory descriptors and of idle listings.

use crate::descriptors::{Budget, Kept};
use rustix::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

const SHARDS: usize = 8;

/// A directory's number and descriptor.
type Open = (u64, Arc<OwnedFd>, Kept);

/// A bounded cache of descriptors of recently used directories, by vnode number. Each shard evicts
/// its least recently used entry.
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
        // The index is always in range; the first shard avoids a panic path.
        self.shards.get((id ^ (id >> 9)) as usize % SHARDS).unwrap_or(&self.shards[0])
    }

    pub(crate) fn get(&self, id: u64) -> Option<Arc<OwnedFd>> {
        let mut shard = self.shard(id).lock().unwrap_or_else(PoisonError::into_inner);
        let at = shard.iter().position(|(of, ..)| *of == id)?;
        // The most recently used entry is last. Moving an entry half way there works as well, and
        // is cheaper.
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

    /// Drops the descriptor of a removed directory.
    pub(crate) fn remove(&self, id: u64) {
        let mut shard = self.shard(id).lock().unwrap_or_else(PoisonError::into_inner);
        let removed = shard.iter().position(|(of, ..)| *of == id).map(|at| shard.remove(at));
        drop(shard);
        drop(removed);
    }
}

/// Idle descriptors of directory listings that may be continued. A listing in use is taken out, so
/// that two readers of a directory never share a position.
#[derive(Debug)]
pub(crate) struct Listings {
    idle: Mutex<Vec<(Listing, Kept)>>,
    capacity: usize,
    budget: Arc<Budget>,
}

/// A directory open for listing, and its position.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) id: u64,
    pub(crate) fd: OwnedFd,
    /// The host's cookie of the last entry read; 0 at the start.
    pub(crate) position: u64,
}

impl Listings {
    pub(crate) fn new(capacity: usize, budget: Arc<Budget>) -> Self {
        Self { idle: Mutex::new(Vec::new()), capacity: capacity.max(1), budget }
    }

    /// Takes an idle listing of the directory, preferably one at `position`.
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

    /// Drops the idle listings of a removed directory.
    pub(crate) fn remove(&self, id: u64) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let (removed, kept) = std::mem::take(&mut *idle).into_iter().partition(|(l, _)| l.id == id);
        *idle = kept;
        drop(idle);
        drop::<Vec<_>>(removed);
    }
}
