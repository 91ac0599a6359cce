//! The order in which a request tries replicas, and the time limit for each.

use crate::deadline::Deadline;
use crate::health::{Set, only};
use crate::node::Core;
use std::time::{Duration, Instant};
use vnode::{Cx, Errno, Result};

/// The attempts of one request on successive replicas.
pub(crate) struct Attempts<'a> {
    fs: &'a Core,
    deadline: &'a mut Deadline,
    number: u64,
    prefer: Option<usize>,
    tried: Set,
    /// A tried replica that may be retried once if no other is left.
    again: Option<usize>,
    /// Error of the last replica.
    errno: Errno,
    begun: bool,
}

impl<'a> Attempts<'a> {
    /// Returns the attempts for the file with this number, which is assigned to the replica
    /// `prefer`.
    pub(crate) fn new(fs: &'a Core, deadline: &'a mut Deadline, number: u64, prefer: Option<usize>) -> Self {
        Self { fs, deadline, number, prefer, tried: 0, again: None, errno: Errno::IO, begun: false }
    }

    /// Returns the time limit for a call to the replica.
    pub(crate) fn timeout(&mut self, replica: usize) -> Duration {
        let up = self.fs.health.up();
        let there = if up == 0 { self.fs.health.suspects() } else { up };
        self.deadline.share(there & !self.tried & !only(replica) == 0)
    }

    /// To be called before the first step.
    ///
    /// # Errors
    /// `ETIMEDOUT` if this request belongs to a system call that has already waited until a
    /// deadline.
    pub(crate) fn begin(&mut self, cx: &Cx<'_>) -> Result<()> {
        let again = !self.begun && self.fs.health.up() == 0 && self.fs.recent_timeouts.take_recent(cx.pid);
        self.begun = true;
        if again { Err(Errno::TIMEDOUT) } else { Ok(()) }
    }

    /// Returns the next replica to try. If none is up, waits for one until the deadline.
    ///
    /// # Errors
    /// The error of the last replica, if no other is left.
    pub(crate) fn next(&mut self, cx: &Cx<'_>) -> Result<usize> {
        self.begin(cx)?;
        loop {
            if let Some(replica) = self.fs.pick(self.number, self.prefer, self.tried) {
                return Ok(replica);
            }
            let up = self.fs.health.up();
            if let Some(replica) = self.again.take()
                && up & only(replica) != 0
            {
                return Ok(replica);
            }
            if up != 0 {
                return Err(self.errno);
            }
            cx.require_blocking()?;
            if !self.fs.health.wait_for_any(self.deadline.at()) {
                self.fs.recent_timeouts.note(cx.pid);
                return Err(self.errno);
            }
            self.tried = 0;
        }
    }

    /// Records a failure of the replica.
    pub(crate) fn failed(&mut self, replica: usize, errno: Errno) {
        self.tried |= only(replica);
        self.errno = errno;
    }

    /// Records a failure of an open file on the replica. If no other replica is left, the file is
    /// reopened there, since the server may have been restarted.
    pub(crate) fn file_failed(&mut self, replica: usize, errno: Errno) {
        if self.tried & only(replica) == 0 {
            self.again = Some(replica);
        }
        self.failed(replica, errno);
    }

    /// Records that the replica lacks the object.
    pub(crate) fn lacks(&mut self, replica: usize) {
        self.tried |= only(replica);
    }
}

impl Core {
    /// Returns a replica for the file with this number that is not in `tried`, or `None`.
    fn pick(&self, number: u64, prefer: Option<usize>, tried: Set) -> Option<usize> {
        let up = self.health.up() & !tried;
        if let Some(prefer) = prefer.filter(|prefer| up & only(*prefer) != 0) {
            return Some(prefer);
        }
        if up == 0 {
            return self.chooser.choose(self.health.suspects() & !tried, number, &self.replicas);
        }
        let key = self.chooser.selects_by_number().then_some(number);
        let admitted = self.health.admitted(up, key, Instant::now);
        self.chooser.choose(if admitted == 0 { up } else { admitted }, number, &self.replicas)
    }

    /// Whether calls to the replica are pointless, because it is not up (or suspect while none is
    /// up).
    pub(crate) fn is_unavailable(&self, replica: usize) -> bool {
        let up = self.health.up();
        up & only(replica) == 0 && (up != 0 || self.health.suspects() & only(replica) == 0)
    }
}
