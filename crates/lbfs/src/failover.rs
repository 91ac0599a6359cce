//! Calls with failover: they are retried on other replicas until one succeeds.

use crate::attempts::Attempts;
use crate::deadline::Deadline;
use crate::fault::{Blame, Fault, Outcome, blame, errno_of};
use crate::node::Node;
use crate::replica::{Opened, Replica};
use crate::timed_call;
use isolate::Caller;
use std::sync::Arc;
use std::time::Duration;
use vnode::{Cx, Errno, Result, Vnode};

/// A result, with the replica that returned it.
pub(crate) struct Reply<T> {
    pub(crate) value: T,
    pub(crate) replica: usize,
    pub(crate) opened: Arc<Opened>,
}

impl Node {
    /// Runs `op` on the replica that the object is assigned to, and on others if that replica
    /// fails.
    pub(crate) fn with_failover<T: Send + 'static>(
        &self,
        cx: &Cx<'_>,
        op: impl Fn(&Arc<dyn Vnode>, &Cx<'_>) -> Result<T> + Clone + Send + 'static,
    ) -> Result<T> {
        let prefer = self.choice();
        let answer =
            self.with_failover_for(cx, &mut Deadline::new(self.fs.options.timeout), self.path().number(), prefer, op)?;
        if prefer != Some(answer.replica) {
            self.choose(answer.replica);
        }
        Ok(answer.value)
    }

    /// As [`Self::with_failover`], for the file with this number, which is assigned to the replica
    /// `prefer`.
    pub(crate) fn with_failover_for<T: Send + 'static>(
        &self,
        cx: &Cx<'_>,
        deadline: &mut Deadline,
        number: u64,
        prefer: Option<usize>,
        op: impl Fn(&Arc<dyn Vnode>, &Cx<'_>) -> Result<T> + Clone + Send + 'static,
    ) -> Result<Reply<T>> {
        let mut attempts = Attempts::new(&self.fs, deadline, number, prefer);
        loop {
            let replica = attempts.next(cx)?;
            match self.attempt(cx, replica, || attempts.timeout(replica), &op) {
                Ok((value, opened)) => return Ok(Reply { value, replica, opened }),
                // Another replica may have the object, but a replica that is up is authoritative.
                // On ESTALE, the kernel walks the path again.
                Err(Fault::Missing) => return Err(Errno::STALE),
                Err(Fault::Errno(errno)) if blame(errno) == Blame::Nobody => return Err(errno),
                Err(Fault::Errno(errno)) => attempts.failed(replica, errno),
            }
        }
    }

    /// Runs `op` on one replica. `timeout` limits the time if the replica may hang.
    pub(crate) fn attempt<T: Send + 'static>(
        &self,
        cx: &Cx<'_>,
        replica: usize,
        timeout: impl FnOnce() -> Duration,
        op: &(impl Fn(&Arc<dyn Vnode>, &Cx<'_>) -> Result<T> + Clone + Send + 'static),
    ) -> Outcome<(T, Arc<Opened>)> {
        let Some(opened) = self.fs.replicas.get(replica).and_then(Replica::opened) else {
            return Err(Fault::Errno(Errno::NOTCONN));
        };
        if opened.pool.is_some() {
            cx.require_blocking().map_err(Fault::Errno)?;
        }
        let call = self.fs.begin(replica, opened.pool.is_some());
        let done = match &opened.pool {
            None => self.perform(replica, &opened, cx, op),
            Some(pool) => {
                let node = self.to_arc().map_err(Fault::Errno)?;
                let (caller, opened, op) = (Caller::of(cx), Arc::clone(&opened), op.clone());
                let work = move || caller.run(|cx| node.perform(replica, &opened, cx, &op));
                let result = timed_call::call(pool, timeout(), work).map_err(|none| Fault::Errno(errno_of(none)));
                result.and_then(|result| result.take(cx))
            }
        };
        self.fs.end(call, &opened, done.as_ref().err().copied());
        done.map(|value| (value, opened))
    }
}
