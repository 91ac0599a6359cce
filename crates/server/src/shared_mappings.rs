//! Files whose size and times can change without the kernel's knowledge, by a write to a shared
//! mapping with passthrough. The kernel does notice write(2) with passthrough.
//!
//! Such a mapping needs a file open for reading and writing. While one is open, the kernel must not
//! cache the file's attributes. The mapping can outlive the open file without notice, so from then
//! on until the kernel forgets the node, attributes may be cached only briefly.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use vnode::{NumberMap, SHARDS, shard_of};

/// Maximum attribute lifetime of a file that may still be mapped.
const MAPPED_ATTR_VALIDITY: Duration = Duration::from_millis(100);

/// Number of open files for reading and writing with passthrough, per node that ever had one.
#[derive(Default)]
pub(crate) struct SharedMappings {
    shards: [Mutex<NumberMap<u32>>; SHARDS],
    count: AtomicUsize,
}

impl SharedMappings {
    fn shard(&self, node: u64) -> MutexGuard<'_, NumberMap<u32>> {
        self.shards[shard_of(node)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an open file through which the node can be mapped.
    pub(crate) fn opened(&self, node: u64) {
        let mut shard = self.shard(node);
        let opens = shard.entry(node).or_insert_with(|| {
            self.count.fetch_add(1, Ordering::SeqCst);
            0
        });
        *opens = opens.saturating_add(1);
    }

    /// Counts its close.
    pub(crate) fn closed(&self, node: u64) {
        if let Some(opens) = self.shard(node).get_mut(&node) {
            *opens = opens.saturating_sub(1);
        }
    }

    /// Forgets a node: the kernel has evicted it, so no mapping is left.
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

    /// Returns the nodes that may be mapped: all that were ever open for that, and that the kernel
    /// has not evicted. A mapping keeps its node from being evicted.
    pub(crate) fn nodes(&self) -> Vec<u64> {
        let shards = self.shards.iter();
        shards
            .flat_map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect::<Vec<_>>())
            .collect()
    }

    /// Returns the number of open files through which the node can be mapped.
    pub(crate) fn opens(&self, node: u64) -> u32 {
        if self.count.load(Ordering::SeqCst) == 0 { 0 } else { self.shard(node).get(&node).copied().unwrap_or(0) }
    }

    /// Returns how long the kernel may cache the node's attributes, where `cache` is the configured
    /// time.
    pub(crate) fn lifetime(&self, node: u64, cache: Duration) -> Duration {
        if self.count.load(Ordering::SeqCst) == 0 {
            return cache;
        }
        match self.shard(node).get(&node) {
            None => cache,
            Some(0) => cache.min(MAPPED_ATTR_VALIDITY),
            Some(_) => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribute_lifetime_after_a_shared_mapping() {
        const CACHE: Duration = Duration::from_secs(10);
        let mappings = SharedMappings::default();
        assert_eq!(mappings.lifetime(7, CACHE), CACHE);
        mappings.opened(7);
        mappings.opened(7);
        assert_eq!((mappings.opens(7), mappings.lifetime(7, CACHE)), (2, Duration::ZERO));
        assert_eq!((mappings.opens(8), mappings.lifetime(8, CACHE)), (0, CACHE));
        mappings.closed(7);
        assert_eq!(mappings.lifetime(7, CACHE), Duration::ZERO);
        mappings.closed(7);
        assert_eq!((mappings.opens(7), mappings.lifetime(7, CACHE)), (0, MAPPED_ATTR_VALIDITY));
        assert_eq!(mappings.nodes(), [7]);
        assert_eq!(mappings.lifetime(7, Duration::ZERO), Duration::ZERO);
        mappings.forget(7);
        mappings.forget(7);
        assert_eq!(mappings.lifetime(7, CACHE), CACHE);
        // The RELEASE may arrive after the FORGET.
        mappings.closed(7);
        assert_eq!((mappings.opens(7), mappings.count.load(Ordering::SeqCst)), (0, 0));
    }
}
