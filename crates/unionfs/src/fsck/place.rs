//! The place of a directory in a tree. Trees can be very deep, so a place shares its beginning with
//! those of other directories, and paths are built only for messages.

use std::cell::OnceCell;
use std::rc::Rc;

/// The place of a directory.
pub(super) struct Place {
    parent: Option<Rc<Place>>,
    /// Empty for the root.
    name: Box<[u8]>,
    /// The path of the directory's redirect, if it has an effect.
    redirect: OnceCell<Box<[u8]>>,
}

impl Place {
    pub(super) fn root() -> Rc<Self> {
        Rc::new(Self { parent: None, name: Box::default(), redirect: OnceCell::new() })
    }

    /// Returns the place of an entry.
    pub(super) fn child(self: &Rc<Self>, name: &[u8]) -> Rc<Self> {
        Rc::new(Self { parent: Some(self.clone()), name: name.into(), redirect: OnceCell::new() })
    }

    pub(super) fn is_root(&self) -> bool {
        self.parent.is_none()
    }

    pub(super) fn name(&self) -> &[u8] {
        &self.name
    }

    /// Sets the path at which the branches to the right have the directory's other parts.
    pub(super) fn set_redirect(&self, path: &[u8]) {
        let _ = self.redirect.set(path.into());
    }

    /// Returns the path, without a slash at the end.
    pub(super) fn path(&self) -> Vec<u8> {
        self.path_from(|_| None)
    }

    /// Returns the path at which the branches to the right would have the directory's other parts
    /// if it had no redirect.
    pub(super) fn by_name(&self) -> Vec<u8> {
        let above = self.parent.as_ref().map(|parent| parent.path_from(|place| place.redirect.get()));
        let mut path = above.unwrap_or_default();
        if !self.is_root() {
            path.push(b'/');
            path.extend_from_slice(&self.name);
        }
        path
    }

    /// Returns the path. It begins with that of the last directory for which `start` returns one.
    fn path_from(&self, start: impl Fn(&Self) -> Option<&Box<[u8]>>) -> Vec<u8> {
        let (mut names, mut place) = (Vec::new(), self);
        let begin = loop {
            if let Some(path) = start(place) {
                break path.to_vec();
            }
            let Some(parent) = &place.parent else { break Vec::new() };
            names.push(&place.name);
            place = parent;
        };
        names.into_iter().rev().fold(begin, |mut path, name| {
            path.push(b'/');
            path.extend_from_slice(name);
            path
        })
    }
}

impl Drop for Place {
    /// Drops the places above without recursion.
    fn drop(&mut self) {
        let mut above = self.parent.take();
        while let Some(place) = above {
            above = Rc::try_unwrap(place).ok().and_then(|mut place| place.parent.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_built_from_names_and_redirects() {
        let a = Place::root().child(b"a");
        let b = a.child(b"b");
        assert_eq!((Place::root().path(), b.path()), (Vec::new(), b"/a/b".to_vec()));
        a.set_redirect(b"/x/y");
        assert_eq!((a.by_name(), b.by_name()), (b"/a".to_vec(), b"/x/y/b".to_vec()));
        assert_eq!((b.path(), b.child(b"c").by_name()), (b"/a/b".to_vec(), b"/x/y/b/c".to_vec()));
    }

    #[test]
    fn deep_places_are_dropped() {
        let mut place = Place::root();
        for _ in 0..1_000_000 {
            place = place.child(b"d");
        }
    }
}
