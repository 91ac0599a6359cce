//! Requests in progress, and their cancellation by INTERRUPT.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long an interrupt waits for its request. The kernel sends one only after it has delivered
/// the request, so a thread begins that request within moments. An interrupt without a request
/// after this time belongs to one that has completed. While an interrupt waits, every request takes
/// a lock, so the time must be short.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(1);

/// Slot for one request at a time: a ring entry, or a thread that reads the device.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    unique: AtomicU64,
    cancelled: AtomicBool,
}

impl Slot {
    /// Returns the flag behind [`crate::Request::cancelled`].
    pub(crate) const fn cancelled(&self) -> &AtomicBool {
        &self.cancelled
    }
}

/// Requests in progress, so that an interrupt finds the one it belongs to.
///
/// The common case, no interrupts, takes no lock. The accesses to `unique` and `attention` are
/// sequentially consistent: either the interrupt sees the request in its slot, or the request sees
/// the interrupt.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    state: Mutex<State>,
    /// Number of interrupts that wait for their request, plus one while an interrupt is being
    /// handled.
    attention: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    slots: Vec<Arc<Slot>>,
    early: Vec<(u64, Instant)>,
}

impl InFlight {
    /// Adds a slot.
    pub(crate) fn add_slot(&self) -> Arc<Slot> {
        let slot = Arc::new(Slot::default());
        self.lock().slots.push(slot.clone());
        slot
    }

    /// Removes a slot.
    pub(crate) fn remove_slot(&self, slot: &Arc<Slot>) {
        self.lock().slots.retain(|s| !Arc::ptr_eq(s, slot));
    }

    /// Puts a request into its slot.
    pub(crate) fn begin(&self, slot: &Slot, unique: u64) {
        if self.attention.load(Ordering::SeqCst) != 0 {
            // An interrupt of the previous request may be about to set the flag: let it finish
            // first.
            drop(self.lock());
        }
        slot.cancelled.store(false, Ordering::Relaxed);
        slot.unique.store(unique, Ordering::SeqCst);
        if self.attention.load(Ordering::SeqCst) != 0 {
            let mut state = self.lock();
            if state.early.iter().any(|&(early, _)| early == unique) {
                slot.cancelled.store(true, Ordering::Relaxed);
            }
            state.early.retain(|&(early, since)| early != unique && since.elapsed() < INTERRUPT_TIMEOUT);
            self.attention.store(state.early.len(), Ordering::SeqCst);
        }
    }

    /// Clears the slot, before the reply is sent.
    pub(crate) fn end(slot: &Slot) {
        slot.unique.store(0, Ordering::SeqCst);
    }

    /// Marks request `unique` as cancelled by its caller.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut state = self.lock();
        self.attention.fetch_add(1, Ordering::SeqCst);
        // From here on, a request that begins waits for this lock (see `begin`), or is visible in
        // its slot.
        let found = state.slots.iter().find(|slot| slot.unique.load(Ordering::SeqCst) == unique);
        match found {
            Some(slot) => slot.cancelled.store(true, Ordering::SeqCst),
            None => state.early.push((unique, Instant::now())),
        }
        state.early.retain(|&(_, since)| since.elapsed() < INTERRUPT_TIMEOUT);
        self.attention.store(state.early.len(), Ordering::SeqCst);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_finds_its_request() {
        let table = InFlight::default();
        let (a, b) = (table.add_slot(), table.add_slot());
        table.begin(&a, 2);
        table.begin(&b, 4);
        table.interrupt(4);
        assert!(!a.cancelled().load(Ordering::Relaxed));
        assert!(b.cancelled().load(Ordering::Relaxed));
        InFlight::end(&b);
        table.begin(&b, 6);
        assert!(!b.cancelled().load(Ordering::Relaxed));
    }

    #[test]
    fn an_early_interrupt_waits_for_its_request() {
        let table = InFlight::default();
        let slot = table.add_slot();
        table.interrupt(8);
        table.begin(&slot, 6);
        assert!(!slot.cancelled().load(Ordering::Relaxed));
        InFlight::end(&slot);
        table.begin(&slot, 8);
        assert!(slot.cancelled().load(Ordering::Relaxed));
        assert_eq!(table.attention.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_interrupt_never_hits_the_next_request() {
        let table = Arc::new(InFlight::default());
        let slot = table.add_slot();
        std::thread::scope(|scope| {
            let interrupter = scope.spawn(|| {
                for unique in (2..20_000).step_by(4) {
                    table.interrupt(unique);
                }
            });
            // Odd places in the sequence are never interrupted.
            for unique in (2..20_000).step_by(2) {
                table.begin(&slot, unique);
                if unique % 4 == 0 {
                    assert!(!slot.cancelled().load(Ordering::Relaxed));
                }
                InFlight::end(&slot);
            }
            interrupter.join().unwrap();
        });
    }
}
