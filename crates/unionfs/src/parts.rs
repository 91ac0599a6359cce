//! Finds the directories of the union that merge a given lower directory.

use crate::branch::{BranchId, Lower};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use vnode::{SHARDS, shard_of};

/// Branch and number of a lower directory, and the number of a union directory.
type Key = (u16, u64, u64);

/// The parts of all live directories. A report of an out-of-band change names a lower directory,
/// from whose number that of the merged directory does not follow.
///
/// An entry has a count, because a number can have a new vnode before the old one is dropped.
#[derive(Debug)]
pub(crate) struct Parts {
    shards: Box<[Mutex<BTreeMap<Key, u32>>]>,
}

impl Parts {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, lower: u64) -> Option<&Mutex<BTreeMap<Key, u32>>> {
        self.shards.get(shard_of(lower))
    }

    /// Notes that the directory with this number merges these parts.
    pub(crate) fn add(&self, number: u64, stack: &[Lower]) {
        for Lower { vnode, branch } in stack {
            let lower = vnode.id();
            let Some(shard) = self.shard(lower) else { continue };
            *shard.lock().entry((branch.0, lower, number)).or_insert(0) += 1;
        }
    }

    /// Reverts [`Self::add`].
    pub(crate) fn remove(&self, number: u64, stack: &[Lower]) {
        for Lower { vnode, branch } in stack {
            let lower = vnode.id();
            let Some(shard) = self.shard(lower) else { continue };
            let mut shard = shard.lock();
            let key = (branch.0, lower, number);
            match shard.get_mut(&key) {
                Some(count @ 2..) => *count -= 1,
                _ => drop(shard.remove(&key)),
            }
        }
    }

    /// Returns the numbers of the directories that merge this lower directory.
    pub(crate) fn merged_in(&self, branch: BranchId, lower: u64) -> Vec<u64> {
        let Some(shard) = self.shard(lower) else { return Vec::new() };
        let range = (branch.0, lower, 0)..=(branch.0, lower, u64::MAX);
        shard.lock().range(range).map(|(&(.., number), _)| number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfs::MemFs;
    use vnode::Layer;

    #[test]
    fn parts_are_counted() {
        let (parts, root) = (Parts::new(), MemFs::new().root());
        let part = |branch| Lower { vnode: root.clone(), branch: BranchId(branch) };
        parts.add(7, &[part(0), part(1)]);
        parts.add(8, &[part(1)]);
        parts.add(8, &[part(1)]);
        assert_eq!(parts.merged_in(BranchId(1), root.id()), [7, 8]);
        parts.remove(8, &[part(1)]);
        parts.remove(7, &[part(0), part(1)]);
        assert_eq!(parts.merged_in(BranchId(1), root.id()), [8]);
        parts.remove(8, &[part(1)]);
        assert!(parts.merged_in(BranchId(1), root.id()).is_empty());
        assert!(parts.shards.iter().all(|shard| shard.lock().is_empty()));
    }
}
