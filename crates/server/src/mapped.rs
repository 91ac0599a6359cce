//! Files whose size and times may change without the kernel's knowledge: by a write to a shared mapping of a host file that it was given.
//! Writes by passthrough it does see.
//!
//! Such a mapping needs a file that is open for reading and writing. While one is, the kernel must not keep the file's attributes. The
//! mapping may outlive the open file, which nobody tells: from then on until the kernel forgets the file it may keep them briefly.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use vnode::{NumberMap, SHARDS, shard_of};

/// How long attributes may be believed of a file that may still be mapped.
const BRIEFLY: Duration = Duration::from_millis(100);

/// The files that are, or once were, open for reading and writing by passthrough: with how many of these open files.
#[derive(Default)]
pub(crate) struct Mapped {
    shards: [Mutex<NumberMap<u32>>; SHARDS],
    count: AtomicUsize,
}

impl Mapped {
    fn shard(&self, node: u64) -> MutexGuard<'_, NumberMap<u32>> {
        self.shards[shard_of(node)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An open file has come by which the node can be mapped.
    pub(crate) fn opened(&self, node: u64) {
        let mut shard = self.shard(node);
        let opens = shard.entry(node).or_insert_with(|| {
            self.count.fetch_add(1, Ordering::SeqCst);
            0
        });
        *opens = opens.saturating_add(1);
    }

    /// It is closed.
    pub(crate) fn closed(&self, node: u64) {
        if let Some(opens) = self.shard(node).get_mut(&node) {
            *opens = opens.saturating_sub(1);
        }
    }

    /// The kernel has forgotten the node, and with it the mappings.
    pub(crate) fn forget(&self, node: u64) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut shard = self.shard(node);
        if shard.remove(&node).is_some() {
            self.count.fetch_sub(1, Ordering::SeqCst);
            if shard.capacity() > 64 && shard.len() < shard.capacity() / 8 {
                let room = shard.len() * 2;
                shard.shrink_to(room);
            }
        }
    }

    /// By how many open files can the node be mapped?
    pub(crate) fn opens(&self, node: u64) -> u32 {
        if self.count.load(Ordering::SeqCst) == 0 { 0 } else { self.shard(node).get(&node).copied().unwrap_or(0) }
    }

    /// How long the kernel may believe attributes of the node, where that would be `cache` otherwise.
    pub(crate) fn lifetime(&self, node: u64, cache: Duration) -> Duration {
        if self.count.load(Ordering::SeqCst) == 0 {
            return cache;
        }
        match self.shard(node).get(&node) {
            None => cache,
            Some(0) => cache.min(BRIEFLY),
            Some(_) => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_believed_again_briefly_and_then_as_ever() {
        const CACHE: Duration = Duration::from_secs(10);
        let mapped = Mapped::default();
        assert_eq!(mapped.lifetime(7, CACHE), CACHE);
        mapped.opened(7);
        mapped.opened(7);
        assert_eq!((mapped.opens(7), mapped.lifetime(7, CACHE)), (2, Duration::ZERO));
        assert_eq!((mapped.opens(8), mapped.lifetime(8, CACHE)), (0, CACHE));
        mapped.closed(7);
        assert_eq!(mapped.lifetime(7, CACHE), Duration::ZERO);
        mapped.closed(7);
        assert_eq!((mapped.opens(7), mapped.lifetime(7, CACHE)), (0, BRIEFLY));
        assert_eq!(mapped.lifetime(7, Duration::ZERO), Duration::ZERO);
        mapped.forget(7);
        mapped.forget(7);
        assert_eq!(mapped.lifetime(7, CACHE), CACHE);
        // The kernel may tell that late.
        mapped.closed(7);
        assert_eq!((mapped.opens(7), mapped.count.load(Ordering::SeqCst)), (0, 0));
    }
}
