use super::State;
use core::fmt;

/// Keeps state with objects that are in use ([`super::Object::attach`]) and learns when it may be freed.
pub trait Objects: Send + Sync + fmt::Debug {
    /// The object is no longer in use: its last vnode and its last open file in this layer are gone.
    ///
    /// This is called exactly once for each state that was attached, at the latest when the layer itself goes, and after every
    /// hook that was called with that object has returned; no hook sees this state again. The same object may be in use
    /// again by then, without a state: what is freed must not be the only copy of anything.
    ///
    /// It is called by whichever thread used the object last, which may be one that serves others: it must not wait, and
    /// must not wait for a lock that is held while an operation of this layer is called.
    fn freed(&self, id: u64, state: State);
}
