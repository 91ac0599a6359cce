//! Accounting of calls to replicas: counts, latency and failures.

use crate::fault::{Blame, Fault, blame};
use crate::node::Core;
use crate::replica::Opened;
use std::sync::atomic::Ordering;
use std::time::Instant;
use vnode::Errno;

/// A running call.
pub(crate) struct Call {
    replica: usize,
    began: Option<Instant>,
}

/// One in this many calls is timed, because reading the clock is expensive compared with calls of
/// one or two microseconds.
const TIMED: u64 = 8;

impl Core {
    /// Starts the accounting of a call.
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

    /// Starts the accounting of a read. Reads are not timed, since their duration depends on the
    /// size.
    pub(crate) fn begin_read(&self, replica: usize) -> Call {
        Call { began: None, ..self.begin(replica, false) }
    }

    /// Ends the accounting of a call, which failed with `fault` if that is given.
    #[expect(clippy::needless_pass_by_value, reason = "a call ends once")]
    pub(crate) fn end(&self, call: Call, opened: &Opened, fault: Option<Fault>) {
        let Some(replica) = self.replicas.get(call.replica) else { return };
        let blamed = match fault {
            Some(Fault::Errno(errno)) => blame(errno),
            Some(Fault::Missing) | None => Blame::Nobody,
        };
        if blamed == Blame::Nobody {
            replica.record_success();
            if let Some(began) = call.began {
                replica.stats.record_latency(began.elapsed());
            }
            return;
        }
        replica.stats.failures.fetch_add(1, Ordering::Relaxed);
        let Some(Fault::Errno(errno)) = fault else { return };
        if errno == Errno::TIMEDOUT {
            replica.stats.timeouts.fetch_add(1, Ordering::Relaxed);
        }
        let at_fault = blamed == Blame::Replica || replica.record_object_failure();
        if at_fault && replica.is_current(opened.number) && self.health.failed(call.replica, Instant::now()) {
            tracing::warn!("replica {}: failed: {errno}; probing it until it recovers", replica.name);
        }
    }
}
