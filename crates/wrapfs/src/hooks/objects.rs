use super::State;
use core::fmt;

/// Keeps state for objects in use ([`super::Object::attach`]) and is notified when it can be freed.
pub trait Objects: Send + Sync + fmt::Debug {
    /// The object is no longer in use: its last vnode and its last open file in this layer have
    /// been dropped.
    ///
    /// Called exactly once for each attached state, at the latest when the layer itself is dropped,
    /// and after every hook called with the object has returned. No hook sees this state again. The
    /// object may already be in use again, without state, so the freed state must not be the only
    /// copy of anything.
    ///
    /// Called by the thread that dropped the last reference, which may be a thread that serves
    /// requests. It must not block, and must not take a lock that is held while an operation of
    /// this layer is called.
    fn freed(&self, id: u64, state: State);
}
