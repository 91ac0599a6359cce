//! Which replica to ask next, and how long to wait for it.

use crate::deadline::Deadline;
use crate::health::{Set, only};
use crate::node::Core;
use std::time::{Duration, Instant};
use vnode::{Cx, Errno, Result};

/// The attempts of one request, on one replica after the other.
pub(crate) struct Attempts<'a> {
    fs: &'a Core,
    deadline: &'a mut Deadline,
    number: u64,
    prefer: Option<usize>,
    tried: Set,
    /// Tried already, but may be tried once more when no other is left.
    again: Option<usize>,
    /// What the last replica failed with.
    errno: Errno,
    begun: bool,
}

impl<'a> Attempts<'a> {
    /// For the file of that number, which belongs to the replica `prefer`.
    pub(crate) fn new(fs: &'a Core, deadline: &'a mut Deadline, number: u64, prefer: Option<usize>) -> Self {
        Self { fs, deadline, number, prefer, tried: 0, again: None, errno: Errno::IO, begun: false }
    }

    /// How long to wait for that replica.
    pub(crate) fn patience(&mut self, replica: usize) -> Duration {
        let up = self.fs.board.up();
        let there = if up == 0 { self.fs.board.suspects() } else { up };
        self.deadline.share(there & !self.tried & !only(replica) == 0)
    }

    /// To be asked before the first step.
    ///
    /// # Errors
    /// `ETIMEDOUT` if this is the rest of a system call that has waited until a deadline already.
    pub(crate) fn begin(&mut self, cx: &Cx<'_>) -> Result<()> {
        let again = !self.begun && self.fs.board.up() == 0 && self.fs.gave_up.has_just(cx.pid);
        self.begun = true;
        if again { Err(Errno::TIMEDOUT) } else { Ok(()) }
    }

    /// The next replica to ask.
    ///
    /// # Errors
    /// What the last one failed with, if there is none left. If none is up at all, that is waited for until the deadline.
    pub(crate) fn next(&mut self, cx: &Cx<'_>) -> Result<usize> {
        self.begin(cx)?;
        loop {
            if let Some(replica) = self.fs.pick(self.number, self.prefer, self.tried) {
                return Ok(replica);
            }
            let up = self.fs.board.up();
            if let Some(replica) = self.again.take()
                && up & only(replica) != 0
            {
                return Ok(replica);
            }
            if up != 0 {
                return Err(self.errno);
            }
            cx.require_blocking()?;
            if !self.fs.board.wait_for_any(self.deadline.at()) {
                self.fs.gave_up.note(cx.pid);
                return Err(self.errno);
            }
            self.tried = 0;
        }
    }

    /// That one failed.
    pub(crate) fn failed(&mut self, replica: usize, errno: Errno) {
        self.tried |= only(replica);
        self.errno = errno;
    }

    /// An open file failed on that one. If no other is left, opening the file there anew may help: the server may have been
    /// restarted.
    pub(crate) fn file_failed(&mut self, replica: usize, errno: Errno) {
        if self.tried & only(replica) == 0 {
            self.again = Some(replica);
        }
        self.failed(replica, errno);
    }

    /// That one lacks the object.
    pub(crate) fn lacks(&mut self, replica: usize) {
        self.tried |= only(replica);
    }
}

impl Core {
    /// A replica to ask for the file of that number, not one of `tried`; `None` if there is none left.
    fn pick(&self, number: u64, prefer: Option<usize>, tried: Set) -> Option<usize> {
        let up = self.board.up() & !tried;
        if let Some(prefer) = prefer.filter(|prefer| up & only(*prefer) != 0) {
            return Some(prefer);
        }
        if up == 0 {
            return self.chooser.choose(self.board.suspects() & !tried, number, &self.replicas);
        }
        let key = self.chooser.goes_by_number().then_some(number);
        let admitted = self.board.admitted(up, key, Instant::now);
        self.chooser.choose(if admitted == 0 { up } else { admitted }, number, &self.replicas)
    }

    /// Is that replica known to be down, so that it need not be asked?
    pub(crate) fn is_hopeless(&self, replica: usize) -> bool {
        let up = self.board.up();
        up & only(replica) == 0 && (up != 0 || self.board.suspects() & only(replica) == 0)
    }
}
