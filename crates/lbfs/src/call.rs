//! Calls of replicas: counting and timing them, and blaming a replica for those that fail.

use crate::fault::{Blame, Fault, blame};
use crate::node::Core;
use crate::replica::Opened;
use std::sync::atomic::Ordering;
use std::time::Instant;
use vnode::Errno;

/// A call that is under way.
pub(crate) struct Call {
    replica: usize,
    began: Option<Instant>,
}

/// One of so many calls that take a microsecond or two is timed.
const TIMED: u64 = 8;

impl Core {
    /// Begins a call.
    pub(crate) fn begin(&self, replica: usize, always_timed: bool) -> Call {
        let mut began = None;
        if let Some(replica) = self.replicas.get(replica) {
            let nth = replica.stats.requests.fetch_add(1, Ordering::Relaxed);
            self.chooser.used(replica);
            if always_timed || nth.is_multiple_of(TIMED) {
                began = Some(Instant::now());
            }
        }
        Call { replica, began }
    }

    /// Begins a read. It is not timed: its duration depends on its size.
    pub(crate) fn begin_read(&self, replica: usize) -> Call {
        Call { began: None, ..self.begin(replica, false) }
    }

    /// Ends a call, which failed with `fault` if that is given.
    #[expect(clippy::needless_pass_by_value, reason = "a call ends once")]
    pub(crate) fn end(&self, call: Call, opened: &Opened, fault: Option<Fault>) {
        let Some(replica) = self.replicas.get(call.replica) else { return };
        let blamed = match fault {
            Some(Fault::Errno(errno)) => blame(errno),
            Some(Fault::Missing) | None => Blame::Nobody,
        };
        if blamed == Blame::Nobody {
            replica.trust();
            if let Some(began) = call.began {
                replica.stats.took(began.elapsed());
            }
            return;
        }
        replica.stats.failures.fetch_add(1, Ordering::Relaxed);
        let Some(Fault::Errno(errno)) = fault else { return };
        if errno == Errno::TIMEDOUT {
            replica.stats.timeouts.fetch_add(1, Ordering::Relaxed);
        }
        let at_fault = blamed == Blame::Replica || replica.doubt();
        if at_fault && replica.is_current(opened.number) && self.board.failed(call.replica, Instant::now()) {
            tracing::warn!("replica {} is left alone: {errno}", replica.name);
        }
    }
}
