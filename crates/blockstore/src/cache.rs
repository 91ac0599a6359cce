//! A cache of what was decoded last.

use core::hash::Hash;
use std::collections::HashMap;
use std::sync::Arc;

/// Keeps values up to a number of bytes. It has two generations: a value that is not used while a
/// generation fills up is dropped with the older one.
#[derive(Debug)]
pub(crate) struct Cache<K, V> {
    limit: usize,
    used: usize,
    young: HashMap<K, (Arc<V>, usize)>,
    old: HashMap<K, (Arc<V>, usize)>,
}

impl<K: Eq + Hash + Copy, V> Cache<K, V> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, used: 0, young: HashMap::new(), old: HashMap::new() }
    }

    pub(crate) fn get(&mut self, key: &K) -> Option<Arc<V>> {
        if let Some((value, _)) = self.young.get(key) {
            return Some(Arc::clone(value));
        }
        let (value, size) = self.old.remove(key)?;
        self.put(*key, &value, size);
        Some(value)
    }

    pub(crate) fn put(&mut self, key: K, value: &Arc<V>, size: usize) {
        if self.used + size > self.limit / 2 {
            self.old = core::mem::take(&mut self.young);
            self.used = 0;
        }
        if size <= self.limit / 2 && self.young.insert(key, (Arc::clone(value), size)).is_none() {
            self.used += size;
        }
    }

    pub(crate) fn remove(&mut self, key: &K) {
        self.old.remove(key);
        if let Some((_, size)) = self.young.remove(key) {
            self.used -= size;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_values_stay_within_the_limit() {
        let mut cache = Cache::new(100);
        for key in 0..1000 {
            cache.put(key, &Arc::new(key), 10);
            assert_eq!(cache.get(&0).as_deref(), Some(&0), "{key}");
            assert!(cache.young.len() + cache.old.len() <= 10);
        }
        assert_eq!(cache.get(&5), None);
        cache.put(7, &Arc::new(7), 51);
        assert_eq!(cache.get(&7), None);
    }
}
