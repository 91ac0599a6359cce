use crate::version::Version;
use parking_lot::Mutex;
use std::collections::HashMap;

/// Maximum number of entries. When it is exceeded, all entries are dropped; live objects keep their
/// number.
const MAX: usize = 100_000;

/// Numbers of files with several hard links, by replica and inode number there. The version detects
/// reused inode numbers.
#[derive(Debug, Default)]
pub(crate) struct HardLinks(Mutex<HashMap<(usize, u64), (Version, u64)>>);

impl HardLinks {
    /// Returns the number of the file with one of these inode numbers.
    pub(crate) fn get(&self, on: &[(usize, u64)], version: Version) -> Option<u64> {
        let known = self.0.lock();
        on.iter().find_map(|key| known.get(key).filter(|(seen, _)| *seen == version).map(|(_, number)| *number))
    }

    /// Returns the number of the file; an unknown file is recorded with the number `fresh`.
    pub(crate) fn get_or_insert(&self, on: &[(usize, u64)], version: Version, fresh: impl FnOnce() -> u64) -> u64 {
        let number = self.get(on, version).unwrap_or_else(fresh);
        let mut known = self.0.lock();
        if known.len() + on.len() > MAX {
            known.clear();
        }
        known.extend(on.iter().map(|key| (*key, (version, number))));
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V: Version = Version { size: 1, mtime: 2 };

    #[test]
    fn any_inode_number_identifies_a_file() {
        let links = HardLinks::default();
        assert_eq!(links.get_or_insert(&[(0, 7), (1, 9)], V, || 70), 70);
        assert_eq!(links.get_or_insert(&[(1, 9), (2, 5)], V, || 71), 70);
        assert_eq!(links.get(&[(2, 5)], V), Some(70));
        assert_eq!(links.get(&[(0, 9)], V), None);
        // Another file with the reused inode number.
        assert_eq!(links.get(&[(0, 7)], Version { size: 3, ..V }), None);
    }

    #[test]
    fn memory_is_bounded() {
        let links = HardLinks::default();
        for i in 0..2 * MAX as u64 {
            links.get_or_insert(&[(0, i)], V, || i);
        }
        assert!(links.0.lock().len() <= MAX);
    }
}
