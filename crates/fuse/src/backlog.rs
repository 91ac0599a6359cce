//! Requests that were read from the device while every thread was busy, and wait for the first that is free. One thread
//! goes on reading meanwhile, so that those who give up are heard.

use crate::inflight::{InFlight, Slot};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// More than this, in requests or in bytes, is not taken from the kernel before there is a thread for it.
const MOST: usize = 1024;
const MOST_BYTES: usize = 16 << 20;

/// A request as it was read.
pub(crate) struct Waiting {
    message: Box<[u8]>,
    /// By which an interrupt finds it while it waits, and while it is served.
    pub(crate) slot: Arc<Slot>,
    /// Where it was read: each descriptor of the connection takes replies to its own requests only.
    pub(crate) device: Arc<OwnedFd>,
}

impl Waiting {
    pub(crate) fn new(inflight: &InFlight, unique: u64, message: &[u8], device: Arc<OwnedFd>) -> Self {
        let slot = inflight.add_slot();
        inflight.begin(&slot, unique);
        Self { message: message.into(), slot, device }
    }

    pub(crate) fn message(&self) -> &[u8] {
        &self.message
    }
}

/// First come, first served.
#[derive(Default)]
pub(crate) struct Backlog {
    queue: Mutex<Queue>,
    /// How long the queue is. Its sequentially consistent order with the count of idle threads makes sure that either who puts
    /// a request here sees the idle thread, or that thread sees the request.
    len: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    bytes: usize,
}

impl Backlog {
    /// Is there room for one more?
    pub(crate) fn has_room(&self) -> bool {
        let queue = self.lock();
        queue.waiting.len() < MOST && queue.bytes < MOST_BYTES
    }

    pub(crate) fn put(&self, waiting: Waiting) {
        let mut queue = self.lock();
        queue.bytes += waiting.message.len();
        queue.waiting.push_back(waiting);
        self.len.store(queue.waiting.len(), Ordering::SeqCst);
    }

    pub(crate) fn take(&self) -> Option<Waiting> {
        if self.len.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut queue = self.lock();
        let first = queue.waiting.pop_front()?;
        queue.bytes -= first.message.len();
        self.len.store(queue.waiting.len(), Ordering::SeqCst);
        Some(first)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(inflight: &InFlight, unique: u64, message: &[u8]) -> Waiting {
        let nowhere = std::fs::File::open("/dev/null").unwrap();
        Waiting::new(inflight, unique, message, Arc::new(nowhere.into()))
    }

    #[test]
    fn has_an_order_and_an_end() {
        let (inflight, backlog) = (InFlight::default(), Backlog::default());
        assert!(backlog.take().is_none());
        for unique in 0..MOST as u64 {
            assert!(backlog.has_room());
            backlog.put(waiting(&inflight, 2 + unique, &unique.to_ne_bytes()));
        }
        assert!(!backlog.has_room());
        for unique in 0..MOST as u64 {
            assert_eq!(backlog.take().unwrap().message(), unique.to_ne_bytes());
        }
        assert!(backlog.take().is_none());
        backlog.put(waiting(&inflight, 2, &vec![0; MOST_BYTES]));
        assert!(!backlog.has_room());
        assert!(backlog.take().is_some() && backlog.has_room());
    }

    #[test]
    fn who_waits_can_give_up() {
        let (inflight, backlog) = (InFlight::default(), Backlog::default());
        backlog.put(waiting(&inflight, 4, b"a"));
        backlog.put(waiting(&inflight, 6, b"b"));
        inflight.interrupt(6);
        let gave_up = [(); 2].map(|()| backlog.take().unwrap().slot.cancelled().load(Ordering::Relaxed));
        assert_eq!(gave_up, [false, true]);
    }
}
