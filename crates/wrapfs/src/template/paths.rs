//! Last known paths of objects in use (for the guarantees see [`crate::hooks::Object::path`]).

use parking_lot::Mutex;
use std::collections::HashMap;
use vnode::{Name, NumberMap};

/// Maximum number of path components. A longer path means that directories were moved out of band
/// so that they form a cycle.
const MAX_DEPTH: usize = 4096;

/// The last known name of each object: at most one name per object, and one object per name.
#[derive(Debug)]
pub(crate) struct Paths {
    root: u64,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    /// Directory and name, keyed by object.
    of: NumberMap<(u64, Box<[u8]>)>,
    /// Object, keyed by directory and name.
    at: NumberMap<HashMap<Box<[u8]>, u64>>,
}

impl Places {
    fn remove_at(&mut self, dir: u64, name: &[u8]) -> Option<u64> {
        let names = self.at.get_mut(&dir)?;
        let id = names.remove(name)?;
        if names.is_empty() {
            self.at.remove(&dir);
        }
        self.of.remove(&id);
        Some(id)
    }

    fn put(&mut self, id: u64, dir: u64, name: &[u8]) {
        self.remove_of(id);
        self.remove_at(dir, name);
        self.of.insert(id, (dir, name.into()));
        self.at.entry(dir).or_default().insert(name.into(), id);
    }

    fn remove_of(&mut self, id: u64) {
        if let Some((dir, name)) = self.of.get(&id).cloned() {
            self.remove_at(dir, &name);
        }
    }
}

impl Paths {
    pub(crate) fn new(root: u64) -> Self {
        Self { root, places: Mutex::default() }
    }

    /// Records that an object was found or created under this name.
    pub(crate) fn added(&self, id: u64, dir: u64, name: Name<'_>) {
        let mut places = self.places.lock();
        if places.of.get(&id).is_none_or(|(at, called)| *at != dir || **called != *name.as_bytes()) {
            places.put(id, dir, name.as_bytes());
        }
    }

    /// Records that this name was removed.
    pub(crate) fn removed(&self, dir: u64, name: Name<'_>) {
        self.places.lock().remove_at(dir, name.as_bytes());
    }

    /// Records a rename, or an exchange of two entries.
    pub(crate) fn moved(&self, from: (u64, Name<'_>), to: (u64, Name<'_>), exchange: bool) {
        let mut places = self.places.lock();
        let moved = places.remove_at(from.0, from.1.as_bytes());
        let replaced = places.remove_at(to.0, to.1.as_bytes());
        if let Some(id) = moved {
            places.put(id, to.0, to.1.as_bytes());
        }
        if let Some(id) = replaced.filter(|_| exchange) {
            places.put(id, from.0, from.1.as_bytes());
        }
    }

    /// Removes an object that is no longer in use.
    pub(crate) fn released(&self, id: u64) {
        self.places.lock().remove_of(id);
    }

    pub(crate) fn path(&self, id: u64) -> Option<Vec<u8>> {
        if id == self.root {
            return Some(b"/".to_vec());
        }
        let places = self.places.lock();
        let (mut at, mut names) = (id, Vec::new());
        while at != self.root {
            let (dir, name) = places.of.get(&at).filter(|_| names.len() < MAX_DEPTH)?;
            names.push(&**name);
            at = *dir;
        }
        Some(names.iter().rev().flat_map(|name| [&b"/"[..], name]).collect::<Vec<_>>().concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name<'_> {
        Name::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn paths_follow_changes() {
        let paths = Paths::new(1);
        let path = |id| paths.path(id).map(|path| String::from_utf8(path).unwrap());
        assert_eq!((path(1), path(2)), (Some("/".into()), None));
        paths.added(2, 1, name("d"));
        paths.added(3, 2, name("f"));
        paths.added(4, 1, name("e"));
        assert_eq!(path(3).unwrap(), "/d/f");
        paths.moved((1, name("d")), (4, name("x")), false);
        assert_eq!((path(3).unwrap(), path(2).unwrap()), ("/e/x/f".to_owned(), "/e/x".to_owned()));
        paths.moved((2, name("f")), (1, name("e")), true);
        // The paths form a cycle, which cannot exist: no path is returned.
        assert_eq!((path(3).unwrap(), path(4)), ("/e".to_owned(), None));
        paths.added(4, 1, name("e"));
        assert_eq!((path(3), path(4).unwrap()), (None, "/e".to_owned()));
        // A second name replaces the first.
        paths.added(3, 1, name("g"));
        paths.added(3, 4, name("h"));
        paths.removed(1, name("g"));
        assert_eq!(path(3).unwrap(), "/e/h");
        paths.removed(4, name("h"));
        assert_eq!(path(3), None);
        for id in [2, 3, 4] {
            paths.released(id);
        }
        let places = paths.places.lock();
        assert!(places.of.is_empty() && places.at.is_empty());
    }
}
