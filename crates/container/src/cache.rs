//! Caches of index groups and decoded blocks.

use crate::group::Group;
use parking_lot::Mutex;
use std::sync::Arc;

/// Maximum number of cached index groups, 5 KiB each.
const GROUPS: usize = 16;

/// Maximum size of cached decoded blocks in bytes; at least one block is kept.
const PLAIN: usize = 256 << 10;

/// Cached data of a container, all of which can be read again from the lower file.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    groups: Mutex<Vec<Arc<Group>>>,
    plain: Mutex<Vec<(u64, Arc<Vec<u8>>)>>,
}

impl Cache {
    pub(crate) fn group(&self, number: u64) -> Option<Arc<Group>> {
        let mut groups = self.groups.lock();
        let at = groups.iter().position(|group| group.number == number)?;
        let last = groups.len() - 1;
        groups.get_mut(at..)?.rotate_left(1);
        groups.get(last).cloned()
    }

    /// Like [`Self::group`], without counting as a use.
    pub(crate) fn peek(&self, number: u64) -> Option<Arc<Group>> {
        self.groups.lock().iter().find(|group| group.number == number).cloned()
    }

    pub(crate) fn put_group(&self, group: Arc<Group>) {
        let mut groups = self.groups.lock();
        groups.retain(|other| other.number != group.number);
        if groups.len() == GROUPS {
            groups.remove(0);
        }
        groups.push(group);
    }

    /// Drops groups whose content in the lower file is unknown now.
    pub(crate) fn forget_groups(&self, numbers: impl core::ops::RangeBounds<u64>) {
        self.groups.lock().retain(|group| !numbers.contains(&group.number));
    }

    /// Returns a decoded block without its trailing zeros.
    pub(crate) fn plain(&self, block: u64) -> Option<Arc<Vec<u8>>> {
        let mut plain = self.plain.lock();
        let at = plain.iter().position(|(number, _)| *number == block)?;
        let last = plain.len() - 1;
        plain.get_mut(at..)?.rotate_left(1);
        plain.get(last).map(|(_, bytes)| Arc::clone(bytes))
    }

    pub(crate) fn put_plain(&self, block: u64, bytes: Arc<Vec<u8>>) {
        let mut plain = self.plain.lock();
        plain.retain(|(number, _)| *number != block);
        plain.push((block, bytes));
        while plain.len() > 1 && plain.iter().map(|(_, bytes)| bytes.capacity()).sum::<usize>() > PLAIN {
            plain.remove(0);
        }
    }

    /// Drops blocks whose contents change.
    pub(crate) fn forget_plain(&self, blocks: impl core::ops::RangeBounds<u64>) {
        self.plain.lock().retain(|(number, _)| !blocks.contains(number));
    }

    pub(crate) fn clear(&self) {
        self.groups.lock().clear();
        self.plain.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_bounded_and_evicts_the_least_recently_used() {
        let cache = Cache::default();
        for block in 0..10 {
            cache.put_plain(block, Arc::new(vec![block as u8; PLAIN / 4]));
            cache.plain(0);
        }
        let kept: Vec<u64> = (0..10).filter(|&block| cache.plain(block).is_some()).collect();
        assert_eq!(kept, [0, 7, 8, 9]);
        cache.put_plain(10, Arc::new(vec![1; 2 * PLAIN]));
        assert!(cache.plain(10).is_some() && cache.plain(0).is_none());
        cache.forget_plain(5..);
        assert!(cache.plain(10).is_none());
    }
}
