//! Requests read from the device while every thread was busy, queued for the first thread that
//! becomes free. One thread keeps reading meanwhile, so that interrupts are received.

use crate::inflight::{InFlight, Slot};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of queued requests. Further requests stay in the kernel.
const MAX_REQUESTS: usize = 1024;
/// Maximum size of all queued requests, in bytes.
const MAX_BYTES: usize = 16 << 20;

/// A queued request.
pub(crate) struct QueuedRequest {
    message: Box<[u8]>,
    /// Lets an interrupt find the request, both queued and in progress.
    pub(crate) slot: Arc<Slot>,
    /// The descriptor that the request was read from: each one accepts replies to its own requests
    /// only.
    pub(crate) device: Arc<OwnedFd>,
}

impl QueuedRequest {
    pub(crate) fn new(inflight: &InFlight, unique: u64, message: &[u8], device: Arc<OwnedFd>) -> Self {
        let slot = inflight.add_slot();
        inflight.begin(&slot, unique);
        Self { message: message.into(), slot, device }
    }

    pub(crate) fn message(&self) -> &[u8] {
        &self.message
    }
}

/// First-in, first-out queue of requests.
#[derive(Default)]
pub(crate) struct Backlog {
    queue: Mutex<Queue>,
    /// Length of the queue. It is sequentially consistent with the count of idle threads: either
    /// the thread that queues a request sees the idle thread, or the idle thread sees the request.
    len: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<QueuedRequest>,
    bytes: usize,
}

impl Backlog {
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::SeqCst) == 0
    }

    /// Whether there is room for one more request.
    pub(crate) fn has_room(&self) -> bool {
        let queue = self.lock();
        queue.requests.len() < MAX_REQUESTS && queue.bytes < MAX_BYTES
    }

    pub(crate) fn put(&self, request: QueuedRequest) {
        let mut queue = self.lock();
        queue.bytes += request.message.len();
        queue.requests.push_back(request);
        self.len.store(queue.requests.len(), Ordering::SeqCst);
    }

    pub(crate) fn take(&self) -> Option<QueuedRequest> {
        if self.is_empty() {
            return None;
        }
        let mut queue = self.lock();
        let first = queue.requests.pop_front()?;
        queue.bytes -= first.message.len();
        self.len.store(queue.requests.len(), Ordering::SeqCst);
        Some(first)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(inflight: &InFlight, unique: u64, message: &[u8]) -> QueuedRequest {
        let nowhere = std::fs::File::open("/dev/null").unwrap();
        QueuedRequest::new(inflight, unique, message, Arc::new(nowhere.into()))
    }

    #[test]
    fn fifo_order_and_limits() {
        let (inflight, backlog) = (InFlight::default(), Backlog::default());
        assert!(backlog.take().is_none());
        for unique in 0..MAX_REQUESTS as u64 {
            assert!(backlog.has_room());
            backlog.put(request(&inflight, 2 + unique, &unique.to_ne_bytes()));
        }
        assert!(!backlog.has_room());
        for unique in 0..MAX_REQUESTS as u64 {
            assert_eq!(backlog.take().unwrap().message(), unique.to_ne_bytes());
        }
        assert!(backlog.take().is_none());
        backlog.put(request(&inflight, 2, &vec![0; MAX_BYTES]));
        assert!(!backlog.has_room());
        assert!(backlog.take().is_some() && backlog.has_room());
    }

    #[test]
    fn a_queued_request_can_be_interrupted() {
        let (inflight, backlog) = (InFlight::default(), Backlog::default());
        backlog.put(request(&inflight, 4, b"a"));
        backlog.put(request(&inflight, 6, b"b"));
        inflight.interrupt(6);
        let gave_up = [(); 2].map(|()| backlog.take().unwrap().slot.cancelled().load(Ordering::Relaxed));
        assert_eq!(gave_up, [false, true]);
    }
}
