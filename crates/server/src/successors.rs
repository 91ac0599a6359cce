//! Nodes of files whose data moved while the kernel had passthrough to the old host file.
//!
//! The kernel allows one backing file per inode while any open file of it exists. When a layer
//! copies up a file that is open with passthrough ([`vnode::Upcalls::data_moved`]), the file's
//! number gets a new node, its *successor*. Existing open files keep the old node. Opening the old
//! node returns `ESTALE`; the kernel then repeats the lookup and finds the successor, which has the
//! same `st_ino`.
//!
//! Successors are rare: files copied up while a reader had them open.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Node ids of successors count down from here. Object numbers are small or spread by a hash; an id
/// that is in use is skipped.
const FIRST: u64 = u64::MAX - 1;

/// Mapping between numbers and nodes, where they differ.
#[derive(Default)]
struct State {
    /// Successor that new lookups find, by number.
    current: HashMap<u64, u64>,
    /// Number of each successor.
    numbers: HashMap<u64, u64>,
    /// Nodes that must not be opened any more.
    superseded: HashSet<u64>,
    next: u64,
}

/// Successor nodes of a mount.
#[derive(Default)]
pub(crate) struct Successors {
    state: RwLock<State>,
    /// Number of superseded nodes and successors that the kernel may know. If it is 0, no lock is
    /// taken.
    count: AtomicUsize,
}

impl Successors {
    fn read(&self) -> Option<RwLockReadGuard<'_, State>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        Some(self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the node of a number.
    pub(crate) fn node_of(&self, number: u64) -> u64 {
        self.read().and_then(|state| state.current.get(&number).copied()).unwrap_or(number)
    }

    /// Returns the number of a node.
    pub(crate) fn number_of(&self, node: u64) -> u64 {
        self.read().and_then(|state| state.numbers.get(&node).copied()).unwrap_or(node)
    }

    /// Whether the node has a successor.
    pub(crate) fn is_superseded(&self, node: u64) -> bool {
        self.read().is_some_and(|state| state.superseded.contains(&node))
    }

    /// Assigns a new node to the number; `is_taken`: whether an id is in use.
    pub(crate) fn supersede(&self, number: u64, is_taken: impl Fn(u64) -> bool) {
        let mut state = self.write();
        let old = state.current.get(&number).copied().unwrap_or(number);
        let new = loop {
            let candidate = FIRST - state.next;
            state.next += 1;
            if candidate != number && !is_taken(candidate) {
                break candidate;
            }
        };
        state.superseded.insert(old);
        state.numbers.insert(new, number);
        state.current.insert(number, new);
        self.count.store(state.superseded.len() + state.numbers.len(), Ordering::Release);
    }

    /// Forgets a node after the kernel did; `is_known`: whether the kernel knows another node.
    ///
    /// A number returns to its original node once the kernel knows neither superseded nodes nor the
    /// successor. File handles of the successor become stale then.
    pub(crate) fn forget(&self, node: u64, is_known: impl Fn(u64) -> bool) {
        if self.read().is_none() {
            return;
        }
        let mut state = self.write();
        let number = state.numbers.get(&node).copied().unwrap_or(node);
        let Some(&current) = state.current.get(&number) else { return };
        if node != current {
            state.superseded.remove(&node);
            state.numbers.remove(&node);
        }
        let line_lives = state.superseded.iter().any(|old| state.numbers.get(old).unwrap_or(old) == &number);
        if !line_lives && !is_known(current) {
            state.current.remove(&number);
            state.numbers.remove(&current);
        }
        self.count.store(state.superseded.len() + state.numbers.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_returns_to_its_own_node_once_all_others_are_forgotten() {
        let successors = Successors::default();
        let none = |_| false;
        assert_eq!((successors.node_of(7), successors.number_of(7)), (7, 7));
        successors.supersede(7, none);
        let second = successors.node_of(7);
        assert!(second != 7 && successors.is_superseded(7) && !successors.is_superseded(second));
        assert_eq!(successors.number_of(second), 7);
        successors.supersede(7, |node| node == FIRST - 1);
        let third = successors.node_of(7);
        assert_eq!(third, FIRST - 2, "an id in use is skipped");
        assert!(successors.is_superseded(second) && successors.number_of(second) == 7);
        successors.forget(8, none);
        successors.forget(7, |node| node == third);
        assert!(!successors.is_superseded(7) && successors.node_of(7) == third);
        successors.forget(third, none);
        assert_eq!(successors.node_of(7), third, "the second may still be open");
        successors.forget(second, none);
        assert_eq!((successors.node_of(7), successors.count.load(Ordering::Relaxed)), (7, 0));
    }

    #[test]
    fn a_successor_known_to_the_kernel_is_kept() {
        let successors = Successors::default();
        successors.supersede(7, |_| false);
        let second = successors.node_of(7);
        successors.forget(7, |node| node == second);
        assert_eq!((successors.node_of(7), successors.is_superseded(7)), (second, false));
        successors.forget(second, |_| false);
        assert_eq!((successors.node_of(7), successors.number_of(second)), (7, second));
    }
}
