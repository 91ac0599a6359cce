//! The directories in use, by name and by number.
//!
//! A name in a directory leads to one vnode that all views share (`shared`). A view gets a vnode of
//! its own (`apart`) for a name if
//!
//! * it is about to remove or move the directory, and other views have it too, or
//! * the shared vnode has another directory of this view already: one that the view removed or
//!   moved away, but that may still be a working directory.
//!
//! The table holds weak references. A vnode that is dropped removes itself, so no strong reference
//! may be dropped under the lock.

use crate::number;
use classify::ViewId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// A directory vnode, as the table sees it.
pub(crate) trait Directory {
    /// Whether the vnode has a lower directory of the view: `Some(true)` if it is the wanted one.
    fn has(&self, view: ViewId, wanted: &dyn vnode::Vnode) -> Option<bool>;
    /// Gives the vnode a lower directory of a view that has none yet.
    fn attach(&self, view: ViewId, lower: Arc<dyn vnode::Vnode>);
    /// The views that have a lower directory.
    fn views(&self) -> Vec<ViewId>;
    /// Sets whether only this view may use the vnode.
    fn set_apart(&self, view: Option<ViewId>);
}

/// The name of a directory: the number of its parent, and the name there.
pub(crate) type Place = (u64, Box<[u8]>);

#[derive(Debug)]
pub(crate) struct Table<N> {
    state: Mutex<State<N>>,
}

#[derive(Debug)]
struct State<N> {
    places: HashMap<Place, Slot<N>>,
    numbers: HashMap<u64, Weak<N>>,
    next: u64,
}

#[derive(Debug)]
struct Slot<N> {
    shared: Weak<N>,
    apart: Vec<Apart<N>>,
}

/// A view that has a vnode of its own.
#[derive(Debug)]
struct Apart<N> {
    view: ViewId,
    /// Dead until the view looks the name up.
    node: Weak<N>,
    /// Whether the view asked for a vnode of its own, and has not changed the entry since.
    requested: bool,
}

impl<N> Default for Table<N> {
    fn default() -> Self {
        Self { state: Mutex::new(State { places: HashMap::new(), numbers: HashMap::new(), next: 0 }) }
    }
}

impl<N> Slot<N> {
    const fn new() -> Self {
        Self { shared: Weak::new(), apart: Vec::new() }
    }

    fn is_unused(&self) -> bool {
        self.shared.strong_count() == 0
            && self.apart.iter().all(|apart| !apart.requested && apart.node.strong_count() == 0)
    }

    fn set_apart(&mut self, view: ViewId, node: Weak<N>, requested: bool) {
        self.apart.retain(|apart| apart.view != view);
        self.apart.push(Apart { view, node, requested });
    }
}

/// How a view is about to change the entry of a directory.
#[derive(Debug)]
pub(crate) enum Claim<N> {
    /// No vnode of it is in use.
    Unknown,
    /// The view has a vnode of its own.
    Own(Arc<N>),
    /// The view gets a vnode of its own when it looks the name up again.
    LookUpAgain,
}

impl<N: Directory> Table<N> {
    /// Returns the vnode for a directory that a view found, or `create`s it with the given number
    /// and for this view alone, or for all.
    pub(crate) fn find(
        &self,
        place: Place,
        (view, lower): (ViewId, &Arc<dyn vnode::Vnode>),
        create: impl FnOnce(u64, Option<ViewId>) -> Arc<N>,
    ) -> Arc<N> {
        // Dropped after the lock.
        let mut used = Vec::new();
        let mut state = self.state.lock();
        let state = &mut *state;
        let slot = state.places.entry(place).or_insert_with(Slot::new);
        let (mut alone, mut requested) = (None, false);
        if let Some(at) = slot.apart.iter().position(|apart| apart.view == view)
            && let Some(apart) = slot.apart.get(at)
        {
            if let Some(node) = apart.node.upgrade() {
                if node.has(view, &**lower) == Some(true) {
                    return node;
                }
                used.push(node);
            }
            if apart.requested {
                (alone, requested) = (Some(view), true);
            }
            slot.apart.swap_remove(at);
        }
        if alone.is_none()
            && let Some(node) = slot.shared.upgrade()
        {
            match node.has(view, &**lower) {
                Some(true) => return node,
                None => {
                    node.attach(view, Arc::clone(lower));
                    return node;
                }
                Some(false) => {
                    used.push(node);
                    alone = Some(view);
                }
            }
        }
        let usual = number::convert(view, lower.id());
        let mut number = usual;
        while state.numbers.get(&number).is_some_and(|node| node.strong_count() > 0) {
            number = number::FRESH | state.next;
            state.next += 1;
        }
        let node = create(number, alone);
        match alone {
            None => slot.shared = Arc::downgrade(&node),
            // A request stays until the change was made or failed: the kernel may look the name up
            // more than once, and forget the vnode in between.
            Some(view) => slot.set_apart(view, Arc::downgrade(&node), requested),
        }
        state.numbers.insert(number, Arc::downgrade(&node));
        node
    }

    /// Whether a vnode for a directory of this name is in use.
    pub(crate) fn knows(&self, place: &Place) -> bool {
        self.state.lock().places.contains_key(place)
    }

    /// Returns the vnode that a view uses for its directory `lower` at `place`, if any is in use.
    pub(crate) fn get(&self, place: &Place, view: ViewId, lower: &dyn vnode::Vnode) -> Option<Arc<N>> {
        let mut used = Vec::new();
        let state = self.state.lock();
        let slot = state.places.get(place)?;
        let own = slot.apart.iter().filter(|apart| apart.view == view).map(|apart| &apart.node);
        for node in own.chain([&slot.shared]).filter_map(Weak::upgrade) {
            if node.has(view, lower) == Some(true) {
                return Some(node);
            }
            used.push(node);
        }
        None
    }

    /// Prepares the removal or move of `lower`, a directory of the view at `place`, so that the
    /// kernel applies it to a vnode that no other view uses.
    pub(crate) fn claim(&self, place: &Place, view: ViewId, lower: &dyn vnode::Vnode) -> Claim<N> {
        let mut used = Vec::new();
        let mut state = self.state.lock();
        let Some(slot) = state.places.get_mut(place) else { return Claim::Unknown };
        if let Some(apart) = slot.apart.iter().find(|apart| apart.view == view) {
            if let Some(node) = apart.node.upgrade() {
                if node.has(view, lower) == Some(true) {
                    return Claim::Own(node);
                }
                used.push(node);
            }
            if apart.requested {
                return Claim::LookUpAgain;
            }
        }
        let Some(node) = slot.shared.upgrade() else { return Claim::Unknown };
        if node.has(view, lower) != Some(true) {
            used.push(node);
            return Claim::Unknown;
        }
        if node.views() == [view] {
            node.set_apart(Some(view));
            slot.shared = Weak::new();
            slot.set_apart(view, Arc::downgrade(&node), false);
            return Claim::Own(node);
        }
        used.push(node);
        slot.set_apart(view, Weak::new(), true);
        Claim::LookUpAgain
    }

    /// Reverts a claim after the change failed: the view shares the vnode again, or the vnode
    /// becomes the shared one.
    pub(crate) fn unclaim(&self, place: &Place, view: ViewId) {
        let mut used = Vec::new();
        let mut state = self.state.lock();
        let Some(slot) = state.places.get_mut(place) else { return };
        let Some(at) = slot.apart.iter().position(|apart| apart.view == view) else { return };
        let own = slot.apart.swap_remove(at);
        if slot.shared.strong_count() == 0
            && let Some(node) = own.node.upgrade()
        {
            node.set_apart(None);
            slot.shared = own.node;
            used.push(node);
        }
    }

    /// The view has removed the directory.
    pub(crate) fn removed(&self, place: &Place, view: ViewId) {
        let mut state = self.state.lock();
        if let Some(slot) = state.places.get_mut(place) {
            slot.apart.retain(|apart| apart.view != view);
            if slot.is_unused() {
                state.places.remove(place);
            }
        }
    }

    /// The view has moved its own vnode to another place.
    pub(crate) fn moved(&self, to: Place, view: ViewId, node: &Arc<N>) {
        let mut state = self.state.lock();
        state.places.entry(to).or_insert_with(Slot::new).set_apart(view, Arc::downgrade(node), false);
    }

    /// Returns the vnode with this number.
    pub(crate) fn by_number(&self, number: u64) -> Option<Arc<N>> {
        self.state.lock().numbers.get(&number).and_then(Weak::upgrade)
    }

    /// Removes a vnode that is being dropped.
    pub(crate) fn forget(&self, number: u64, place: Option<&Place>) {
        let mut state = self.state.lock();
        if state.numbers.get(&number).is_some_and(|node| node.strong_count() == 0) {
            state.numbers.remove(&number);
        }
        if let Some(place) = place
            && state.places.get(place).is_some_and(Slot::is_unused)
        {
            state.places.remove(place);
        }
    }
}
