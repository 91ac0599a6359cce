//! Calls of a file system that may hang, for callers that can be interrupted.

use crate::pool::{Panicked, PendingCall, Pool};
use core::time::Duration;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;
use vnode::{Cx, Errno, Result};

/// A call that has run for longer makes the file system count as stuck.
pub const STUCK_AFTER: Duration = Duration::from_secs(3);
/// Maximum number of threads of a file system.
const THREADS: usize = 16;
/// Maximum number of callers that wait while the file system is stuck. Others get `ETIMEDOUT`: a
/// waiting caller occupies a thread of the server.
const WAITING: usize = 48;
/// How often a waiting caller checks whether it was interrupted.
const TICK: Duration = Duration::from_millis(20);

/// The calls of one file system.
#[derive(Debug)]
pub(crate) struct Calls {
    name: String,
    pool: Arc<Pool>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of waiting callers.
    waiting: usize,
    /// The start times of the running calls, by number.
    running: Vec<(u64, Instant)>,
    next: u64,
    /// The start of the call for which the log says that the file system is stuck.
    reported: Option<Instant>,
}

impl State {
    fn oldest(&self) -> Option<Instant> {
        self.running.iter().map(|&(_, begun)| begun).min()
    }

    fn is_stuck(&self) -> bool {
        self.oldest().is_some_and(|begun| begun.elapsed() >= STUCK_AFTER)
    }
}

/// A running call, until dropped.
struct Running<'a> {
    calls: &'a Calls,
    number: u64,
}

impl Calls {
    /// Returns the calls of the file system that messages call `name`.
    pub(crate) fn new(name: &str) -> Arc<Self> {
        let pool = Pool::new("strata-branch".to_owned(), THREADS);
        Arc::new(Self { name: name.to_owned(), pool, state: Mutex::default() })
    }

    /// Whether a call has run for [`STUCK_AFTER`].
    pub(crate) fn is_stuck(&self) -> bool {
        self.state.lock().is_stuck()
    }

    /// Runs `work` on a thread and waits for its result.
    ///
    /// # Errors
    /// `EINTR` if the caller is interrupted, `ETIMEDOUT` if the file system is stuck and the caller
    /// does not want to wait or too many do, `EIO` if the call panicked or no thread can be
    /// created.
    pub(crate) fn call<T: Send + 'static>(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        cx.require_blocking()?;
        {
            let mut state = self.state.lock();
            if state.is_stuck() && (!cx.may_wait() || state.waiting >= WAITING) {
                return Err(Errno::TIMEDOUT);
            }
            state.waiting += 1;
        }
        let calls = Arc::clone(self);
        let pending = self.pool.start(move || {
            let _running = calls.begin();
            work()
        });
        let result = pending.map_or(Err(Errno::IO), |pending| self.wait(cx, pending));
        self.state.lock().waiting -= 1;
        result
    }

    fn wait<T>(&self, cx: &Cx<'_>, mut pending: PendingCall<T>) -> Result<T> {
        let begun = Instant::now();
        loop {
            let give_up = if cx.is_cancelled() {
                Some(Errno::INTR)
            } else if begun.elapsed() >= STUCK_AFTER {
                self.report_stuck();
                (!cx.may_wait()).then_some(Errno::TIMEDOUT)
            } else {
                None
            };
            if let Some(errno) = give_up {
                return pending.abandon().map_or(Err(errno), |result| result.map_err(|Panicked| Errno::IO));
            }
            if let Some(result) = pending.wait_until(Instant::now() + TICK) {
                return result.map_err(|Panicked| Errno::IO);
            }
        }
    }

    /// Logs once that the file system is stuck.
    fn report_stuck(&self) {
        let mut state = self.state.lock();
        if state.reported.is_none()
            && let Some(since) = state.oldest().filter(|_| state.is_stuck())
        {
            state.reported = Some(since);
            drop(state);
            tracing::warn!(
                "{} has not answered for {} seconds: operations that need it wait, and can be interrupted",
                self.name,
                STUCK_AFTER.as_secs()
            );
        }
    }

    /// Drops a value on another thread, since the drop may hang.
    pub(crate) fn dispose(&self, what: impl Send + 'static) {
        self.pool.dispose(what);
    }

    fn begin(&self) -> Running<'_> {
        let mut state = self.state.lock();
        state.next += 1;
        let number = state.next;
        state.running.push((number, Instant::now()));
        Running { calls: self, number }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.calls.state.lock();
        state.running.retain(|&(running, _)| running != self.number);
        if !state.is_stuck()
            && let Some(since) = state.reported.take()
        {
            drop(state);
            tracing::warn!("{} answers again, after {} seconds", self.calls.name, since.elapsed().as_secs());
        }
    }
}
