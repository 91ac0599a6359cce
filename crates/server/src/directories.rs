//! Where the kernel knows directories: their parents and names.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vnode::{NumberMap, SHARDS, shard_of};

/// The place of a directory. It has no name if it was found by number, or if another object has the
/// name by now.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    parent: u64,
    name: Option<Arc<[u8]>>,
}

/// Directories by the node ids of their parents and by name.
type Names = NumberMap<HashMap<Arc<[u8]>, u64>>;

/// The directories that the kernel knows, by node id and by name.
///
/// A place is what counts; a name leads to a directory only if that has this place. Lock order: a
/// shard of `names`, then one of `places`.
#[derive(Debug)]
pub(crate) struct Directories {
    /// By node id.
    places: [Mutex<NumberMap<Place>>; SHARDS],
    names: [Mutex<Names>; SHARDS],
}

impl Default for Directories {
    fn default() -> Self {
        Self { places: std::array::from_fn(|_| Mutex::default()), names: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl Directories {
    fn places(&self, node: u64) -> MutexGuard<'_, NumberMap<Place>> {
        // The index is below SHARDS. A poisoned lock only means that a handler panicked elsewhere.
        self.places[shard_of(node)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self, parent: u64) -> MutexGuard<'_, Names> {
        self.names[shard_of(parent)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_at(&self, node: u64, parent: u64, name: &[u8]) -> bool {
        let at = |place: &Place| place.parent == parent && place.name.as_deref() == Some(name);
        self.places(node).get(&node).is_some_and(at)
    }

    /// Records that the directory has this name.
    pub(crate) fn found(&self, node: u64, parent: u64, name: &[u8]) {
        if self.is_at(node, parent, name) {
            return;
        }
        let name: Arc<[u8]> = name.into();
        let place = Place { parent, name: Some(Arc::clone(&name)) };
        let before = self.places(node).insert(node, place);
        {
            let mut names = self.names(parent);
            let other = names.entry(parent).or_default().insert(Arc::clone(&name), node);
            if let Some(other) = other.filter(|&other| other != node) {
                self.lose_name(other, parent, &name);
            }
        }
        self.drop_name(node, before);
    }

    /// Records that no directory, or none that is known, has this name.
    pub(crate) fn lost(&self, parent: u64, name: &[u8]) {
        let mut names = self.names(parent);
        let Some(all) = names.get_mut(&parent) else { return };
        if let Some(node) = all.remove(name) {
            self.lose_name(node, parent, name);
        }
        if all.is_empty() {
            names.remove(&parent);
        }
    }

    /// Records a rename.
    pub(crate) fn renamed(&self, old: (u64, &[u8]), new: (u64, &[u8]), exchange: bool) {
        if old == new {
            return;
        }
        let [moved, replaced] = [old, new].map(|(parent, name)| self.at(parent, name));
        for (directory, (parent, name)) in [(moved, new), (replaced.filter(|_| exchange), old)] {
            match directory {
                Some(node) => self.found(node, parent, name),
                None => self.lost(parent, name),
            }
        }
    }

    /// Returns the directory that has this name.
    pub(crate) fn at(&self, parent: u64, name: &[u8]) -> Option<u64> {
        let node = self.names(parent).get(&parent)?.get(name).copied()?;
        self.is_at(node, parent, name).then_some(node)
    }

    /// Returns the parent of a directory, if known.
    pub(crate) fn parent_of(&self, node: u64) -> Option<u64> {
        Some(self.places(node).get(&node)?.parent)
    }

    /// Records the parent of a directory that was found by number, unless it is known.
    pub(crate) fn set_parent(&self, node: u64, parent: u64) {
        self.places(node).entry(node).or_insert(Place { parent, name: None });
    }

    /// Removes a directory that the kernel has forgotten.
    pub(crate) fn forget(&self, node: u64) {
        let place = {
            let mut places = self.places(node);
            let place = places.remove(&node);
            if places.len() * 8 < places.capacity() {
                places.shrink_to_fit();
            }
            place
        };
        self.drop_name(node, place);
    }

    /// Makes a directory have no name, if it has this one.
    fn lose_name(&self, node: u64, parent: u64, name: &[u8]) {
        if let Some(place) = self.places(node).get_mut(&node)
            && place.parent == parent
            && place.name.as_deref() == Some(name)
        {
            place.name = None;
        }
    }

    /// Removes the name of a place that the directory had, unless it has it again.
    fn drop_name(&self, node: u64, place: Option<Place>) {
        let Some(Place { parent, name: Some(name) }) = place else { return };
        let mut names = self.names(parent);
        let Some(all) = names.get_mut(&parent) else { return };
        if all.get(&name) == Some(&node) && !self.is_at(node, parent, &name) {
            all.remove(&name);
        }
        if all.is_empty() {
            names.remove(&parent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use testkit::Rng;

    #[test]
    fn a_directory_is_found_by_its_last_name() {
        let known = Directories::default();
        known.found(7, 1, b"a");
        known.found(8, 7, b"b");
        assert_eq!([known.at(1, b"a"), known.at(7, b"b"), known.at(1, b"b")], [Some(7), Some(8), None]);
        known.found(8, 1, b"c");
        assert_eq!([known.at(7, b"b"), known.at(1, b"c")], [None, Some(8)]);
        assert_eq!(known.parent_of(8), Some(1));
        known.renamed((1, b"a"), (8, b"a"), false);
        assert_eq!((known.at(1, b"a"), known.at(8, b"a"), known.parent_of(7)), (None, Some(7), Some(8)));
        known.renamed((8, b"a"), (1, b"c"), true);
        assert_eq!([known.at(8, b"a"), known.at(1, b"c")], [Some(8), Some(7)]);
        known.forget(7);
        assert_eq!((known.at(1, b"c"), known.parent_of(7)), (None, None));
    }

    #[test]
    fn a_name_that_another_object_has_leads_to_it() {
        let known = Directories::default();
        known.found(7, 1, b"a");
        known.found(8, 1, b"a");
        assert_eq!((known.at(1, b"a"), known.parent_of(7)), (Some(8), Some(1)));
        known.forget(7);
        assert_eq!(known.at(1, b"a"), Some(8));
        known.lost(1, b"a");
        assert_eq!((known.at(1, b"a"), known.parent_of(8)), (None, Some(1)));
        known.found(8, 1, b"a");
        assert_eq!(known.at(1, b"a"), Some(8));
        // A file is renamed over nothing that is known, and a directory is replaced.
        known.renamed((1, b"file"), (1, b"a"), false);
        assert_eq!(known.at(1, b"a"), None);
    }

    #[test]
    fn a_directory_found_by_number_has_a_parent_and_no_name() {
        let known = Directories::default();
        known.set_parent(7, 1);
        known.set_parent(7, 2);
        assert_eq!(known.parent_of(7), Some(1));
        known.found(7, 3, b"a");
        known.set_parent(7, 1);
        assert_eq!((known.parent_of(7), known.at(3, b"a")), (Some(3), Some(7)));
    }

    /// Random operations against a model that maps names to directories.
    #[test]
    fn names_and_places_agree() {
        let mut rng = Rng::new(29);
        for _ in 0..200 {
            let known = Directories::default();
            let mut model: BTreeMap<(u64, Vec<u8>), u64> = BTreeMap::new();
            for _ in 0..200 {
                let mut place = || (rng.below(3), vec![b'a' + u8::try_from(rng.below(4)).unwrap()]);
                let (old, new) = (place(), place());
                let node = 10 + rng.below(6);
                match rng.below(6) {
                    0..3 => {
                        known.found(node, old.0, &old.1);
                        model.retain(|_, known| *known != node);
                        model.insert(old, node);
                    }
                    3 => {
                        known.lost(old.0, &old.1);
                        model.remove(&old);
                    }
                    4 => {
                        known.forget(node);
                        model.retain(|_, known| *known != node);
                    }
                    _ => {
                        let exchange = rng.one_in(2);
                        known.renamed((old.0, &old.1), (new.0, &new.1), exchange);
                        let (moved, replaced) = (model.remove(&old), model.remove(&new));
                        model.extend(moved.map(|node| (new.clone(), node)));
                        model.extend(replaced.filter(|_| exchange).map(|node| (old, node)));
                    }
                }
                for parent in 0..3 {
                    for name in b"abcd" {
                        let found = known.at(parent, &[*name]);
                        assert_eq!(found, model.get(&(parent, vec![*name])).copied());
                    }
                }
            }
        }
    }
}
