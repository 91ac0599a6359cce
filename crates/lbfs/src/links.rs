use crate::version::Version;
use parking_lot::Mutex;
use std::collections::HashMap;

/// How many numbers on replicas are remembered. Past that all are forgotten: files that are in use keep their number.
const MAX: usize = 100_000;

/// The files with several names that were seen: replica and number there, and what it was then, since numbers are given anew.
#[derive(Debug, Default)]
pub(crate) struct Links(Mutex<HashMap<(usize, u64), (Version, u64)>>);

impl Links {
    /// The number of the file that is this on some of these replicas.
    pub(crate) fn get(&self, on: &[(usize, u64)], version: Version) -> Option<u64> {
        let known = self.0.lock();
        on.iter().find_map(|key| known.get(key).filter(|(seen, _)| *seen == version).map(|(_, number)| *number))
    }

    /// The same; if it is not known, it gets the number `fresh`.
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
    fn a_file_is_known_by_any_of_its_numbers() {
        let links = Links::default();
        assert_eq!(links.get_or_insert(&[(0, 7), (1, 9)], V, || 70), 70);
        assert_eq!(links.get_or_insert(&[(1, 9), (2, 5)], V, || 71), 70);
        assert_eq!(links.get(&[(2, 5)], V), Some(70));
        assert_eq!(links.get(&[(0, 9)], V), None);
        // Another file that was given the number.
        assert_eq!(links.get(&[(0, 7)], Version { size: 3, ..V }), None);
    }

    #[test]
    fn it_does_not_grow_for_ever() {
        let links = Links::default();
        for i in 0..2 * MAX as u64 {
            links.get_or_insert(&[(0, i)], V, || i);
        }
        assert!(links.0.lock().len() <= MAX);
    }
}
