//! Nodes of files whose data moved while the kernel had the old host file.
//!
//! The kernel allows one backing file per inode for as long as any open file of it lives. When a
//! layer copies a file up that is open with passthrough ([`vnode::Upcalls::data_moved`]), the
//! file's number gets another node: its *successor*. Whoever has the old node open stays there.
//! Opening the old node answers `ESTALE`; the kernel then looks the name up once more and finds
//! the successor, which shows the same `st_ino`.
//!
//! There are few of them: files that were copied up while somebody had them open for reading.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The node ids of successors count down from here. Numbers of objects are small or spread by a
/// hash; one that is met here all the same is passed over.
const FIRST: u64 = u64::MAX - 1;

/// What a number's node is where it is not the number itself.
#[derive(Default)]
struct State {
    /// The successor that new look-ups find, by number.
    current: HashMap<u64, u64>,
    /// The number of each successor.
    numbers: HashMap<u64, u64>,
    /// Nodes that must not be opened any more.
    superseded: HashSet<u64>,
    next: u64,
}

/// The successors of a mount.
#[derive(Default)]
pub(crate) struct Successors {
    state: RwLock<State>,
    /// How many superseded nodes and successors the kernel may know: without any, no lock is taken.
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

    /// The node of a number.
    pub(crate) fn node_of(&self, number: u64) -> u64 {
        self.read().and_then(|state| state.current.get(&number).copied()).unwrap_or(number)
    }

    /// The number of a node.
    pub(crate) fn number_of(&self, node: u64) -> u64 {
        self.read().and_then(|state| state.numbers.get(&node).copied()).unwrap_or(node)
    }

    /// Has the node a successor?
    pub(crate) fn is_superseded(&self, node: u64) -> bool {
        self.read().is_some_and(|state| state.superseded.contains(&node))
    }

    /// Gives the number another node; `is_taken` says which ids can't be used.
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

    /// The kernel has forgotten the node. `is_known` says which others it knows.
    ///
    /// A number has its own node again once the kernel knows neither a superseded one nor the
    /// successor. File handles of the successor are stale from then on.
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
    fn a_number_has_its_own_node_again_once_all_others_are_forgotten() {
        let successors = Successors::default();
        let none = |_| false;
        assert_eq!((successors.node_of(7), successors.number_of(7)), (7, 7));
        successors.supersede(7, none);
        let second = successors.node_of(7);
        assert!(second != 7 && successors.is_superseded(7) && !successors.is_superseded(second));
        assert_eq!(successors.number_of(second), 7);
        successors.supersede(7, |node| node == FIRST - 1);
        let third = successors.node_of(7);
        assert_eq!(third, FIRST - 2, "a number that something else has is passed over");
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
    fn a_successor_that_the_kernel_knows_stays() {
        let successors = Successors::default();
        successors.supersede(7, |_| false);
        let second = successors.node_of(7);
        successors.forget(7, |node| node == second);
        assert_eq!((successors.node_of(7), successors.is_superseded(7)), (second, false));
        successors.forget(second, |_| false);
        assert_eq!((successors.node_of(7), successors.number_of(second)), (7, second));
    }
}
