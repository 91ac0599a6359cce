#![forbid(unsafe_code)]
//! A layer over a file system that may hang, such as one on a network, or that may be lost.
//!
//! * **Hanging.** A system call on such a file system may take long or never return, and can't be
//!   cancelled. Every operation that reads runs on another thread (`calls`, [`Pool`]). The caller
//!   waits until it is done, or abandons the thread when it is interrupted. If a call has run for
//!   [`STUCK_AFTER`], the file system counts as *stuck*. Callers that can do without the answer
//!   ([`vnode::Cx::without_waiting`]) then get `ETIMEDOUT` at once; others wait.
//! * **Loss.** If an operation fails and its error is one of a lost file system (such as
//!   `ENOTCONN`, `ESTALE` or `EIO`), the root is queried. If that fails as well, the file system
//!   counts as *lost* until its root answers again. It then fails with `EIO`, or appears empty
//!   ([`OnLoss`]).
//! * Changes are forwarded on the caller's thread: one that was abandoned could take effect later.
//!
//! Each change of the state is logged once.
//!
//! Other layers over file systems that may hang use the thread pool ([`Pool`]) as well, and call on
//! behalf of a caller on another thread ([`Caller`]).

mod caller;
mod calls;
mod file;
mod guard;
mod layer;
mod pool;
mod vnode_impl;

pub use caller::{Caller, CallerResult};
pub use calls::STUCK_AFTER;
pub use guard::{Health, OnLoss};
pub use layer::Isolate;
pub use pool::{Panicked, PendingCall, Pool};

#[cfg(test)]
mod tests;
