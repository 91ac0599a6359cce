//! The current set of branches, which can be replaced while operations use it.

use crate::set::BranchSet;
use parking_lot::RwLock;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The current set of branches.
///
/// An operation takes it once, when it begins. That costs one atomic load and no lock: each thread
/// remembers the set that it used last. It holds a weak reference, so an idle thread keeps no
/// removed branch in use.
#[derive(Debug)]
pub(crate) struct Current {
    /// Identifies the union in this process. Never reused.
    union: u64,
    generation: AtomicU64,
    set: RwLock<Arc<BranchSet>>,
}

/// The set that this thread used last, and of which union.
struct Last {
    union: u64,
    generation: u64,
    set: Weak<BranchSet>,
}

static UNIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

impl Current {
    pub(crate) fn new(set: BranchSet) -> Self {
        Self {
            union: UNIONS.fetch_add(1, Ordering::Relaxed),
            generation: AtomicU64::new(set.generation),
            set: RwLock::new(Arc::new(set)),
        }
    }

    /// Returns the generation of the current set.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the current set.
    pub(crate) fn get(&self) -> Arc<BranchSet> {
        let generation = self.generation();
        LAST.with_borrow_mut(|last| {
            let known = last.as_ref().filter(|last| last.union == self.union && last.generation == generation);
            if let Some(set) = known.and_then(|last| last.set.upgrade()) {
                return set;
            }
            let set = self.set.read().clone();
            *last = Some(Last { union: self.union, generation: set.generation, set: Arc::downgrade(&set) });
            set
        })
    }

    /// Replaces the set. `replace_dependent` replaces the state that depends on it. An operation
    /// that sees any of that new state also sees that its own set is no longer the current one.
    pub(crate) fn replace(&self, set: Arc<BranchSet>, replace_dependent: impl FnOnce()) {
        let mut present = self.set.write();
        self.generation.store(set.generation, Ordering::SeqCst);
        replace_dependent();
        let old = std::mem::replace(&mut *present, set);
        drop(present);
        drop(old);
    }
}
