//! Chooses a view for the caller of each operation.
//!
//! [`Classifier`] is the interface: one question, the view of a caller. A [`Chain`] asks its
//! classifiers in order until one answers:
//!
//! | classifier | decides by | file |
//! |---|---|---|
//! | [`Moves`] | processes that were moved to a view, and their descendants | `moves` |
//! | [`Rules`] | a list of rules: user, group, process, cgroup, executable | `rules`, `rule` |
//! | [`External`] | the reply of another program, such as an intrusion detection system | `external`, `socket` |
//!
//! A classifier that can't determine what it needs to know says so ([`Answer::Unknown`]). The
//! chain then stops, because a later, more permissive answer could be wrong.
//!
//! `lineage` follows a process to its ancestors; `proc` reads /proc, the only access to the host
//! besides the socket.
#![forbid(unsafe_code)]

mod chain;
mod external;
mod lineage;
mod moves;
mod proc;
mod rule;
mod rules;
mod socket;

pub use chain::{Chain, Decision};
pub use external::{Ask, External};
pub use lineage::{Process, ProcessTable};
pub use moves::{MoveError, Moved, Moves};
pub use proc::Proc;
pub use rule::{Condition, Rule};
pub use rules::Rules;
pub use socket::Socket;

use core::fmt;
use vnode::{Cx, Result};

/// The number of a view, from 0 in the order of the mount's options.
pub type ViewId = usize;

/// What a classifier says about a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The caller gets this view.
    View(ViewId),
    /// The classifier has nothing to say; the next one is asked.
    Pass,
    /// The classifier might have something to say, but can't find out. No other one is asked.
    Unknown,
}

/// Chooses the view of callers.
pub trait Classifier: Send + Sync + fmt::Debug {
    /// Returns the view of the caller of an operation.
    ///
    /// # Errors
    /// [`vnode::MAY_BLOCK`] if the answer takes time and the thread must not wait; `EINTR` if the
    /// caller was interrupted. No other error.
    fn classify(&self, cx: &Cx<'_>) -> Result<Answer>;
}

/// Whether an operation is the server's own work, or the kernel's, for no caller.
#[must_use]
pub fn is_servers_own(cx: &Cx<'_>) -> bool {
    cx.pid == 0 && cx.is_internal()
}
