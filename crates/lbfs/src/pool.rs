//! A thread pool whose threads can be abandoned.
//!
//! A system call on a dead network file system may never return, and can't be cancelled. Each
//! replica therefore has a thread pool for its calls. A caller waits until the deadline and then
//! abandons the thread, which counts as stuck until its call returns. A pool whose threads are all
//! stuck refuses calls.
//!
//! The threads are never joined; they end with the process.

use core::time::Duration;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

/// Time after which an idle thread exits.
const IDLE: Duration = Duration::from_secs(10);

/// Stack size of a thread in bytes; calls nest as deeply as the stack of layers.
const STACK: usize = 512 << 10;

type Job = Box<dyn FnOnce() + Send>;

/// Reason for a call without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallError {
    /// The call exceeded its time limit.
    TimedOut,
    /// All threads are stuck, or none can be created. The call was not started.
    Full,
    /// The call panicked.
    Panicked,
}

/// The thread pool of one replica.
#[derive(Debug)]
pub(crate) struct Pool {
    name: String,
    max: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    stuck: usize,
}

impl core::fmt::Debug for State {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} queued, {} threads, {} idle, {} stuck", self.queue.len(), self.threads, self.idle, self.stuck)
    }
}

/// The slot for the result of a call.
struct Promise<T> {
    stage: Mutex<Stage<T>>,
    completed: Condvar,
}

enum Stage<T> {
    Queued,
    Running,
    Done(Option<T>),
    Abandoned,
}

impl Pool {
    /// Returns a pool of at most `max` threads, which are created on demand.
    pub(crate) fn new(name: String, max: usize) -> Arc<Self> {
        Arc::new(Self { name, max: max.max(1), state: Mutex::default(), changed: Condvar::new() })
    }

    /// Runs `work` on a thread and waits for the result, for at most `timeout`.
    pub(crate) fn call<T: Send + 'static>(
        self: &Arc<Self>,
        timeout: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CallError> {
        let deadline = Instant::now() + timeout;
        let promise = Arc::new(Promise { stage: Mutex::new(Stage::Queued), completed: Condvar::new() });
        let (kept, pool) = (Arc::clone(&promise), Arc::clone(self));
        if !self.submit(Box::new(move || kept.fulfil(&pool, work))) {
            return Err(CallError::Full);
        }
        let mut stage = promise.stage.lock();
        loop {
            match &mut *stage {
                Stage::Done(answer) => return answer.take().ok_or(CallError::Panicked),
                Stage::Queued | Stage::Running | Stage::Abandoned => {}
            }
            if promise.completed.wait_until(&mut stage, deadline).timed_out() {
                match core::mem::replace(&mut *stage, Stage::Abandoned) {
                    Stage::Done(answer) => return answer.ok_or(CallError::Panicked),
                    Stage::Running => self.state.lock().stuck += 1,
                    Stage::Queued | Stage::Abandoned => {}
                }
                return Err(CallError::TimedOut);
            }
        }
    }

    /// Queues `job` without waiting for it. Returns false if the job was refused because all
    /// threads are stuck.
    pub(crate) fn submit(self: &Arc<Self>, job: Job) -> bool {
        let mut state = self.state.lock();
        if state.stuck >= self.max {
            return false;
        }
        self.push(&mut state, job);
        if state.threads > 0 {
            return true;
        }
        // There is no thread, and none could be created. Drop the jobs after unlocking, since their
        // drop may use this pool.
        let unstarted = core::mem::take(&mut state.queue);
        drop(state);
        drop(unstarted);
        false
    }

    /// Queues `job` if a thread is free. Returns whether it was queued.
    pub(crate) fn submit_if_free(self: &Arc<Self>, job: Job) -> bool {
        let free = {
            let state = self.state.lock();
            state.queue.is_empty() && (state.idle > 0 || state.threads < self.max)
        };
        free && self.submit(job)
    }

    /// Drops a value on a thread of the pool, since the drop may hang.
    pub(crate) fn dispose(self: &Arc<Self>, what: impl Send + 'static) {
        let mut state = self.state.lock();
        self.push(&mut state, Box::new(move || drop(what)));
    }

    /// Number of stuck threads.
    pub(crate) fn stuck(&self) -> usize {
        self.state.lock().stuck
    }

    fn push(self: &Arc<Self>, state: &mut State, job: Job) {
        state.queue.push_back(job);
        if state.idle >= state.queue.len() || state.threads >= self.max {
            self.changed.notify_one();
            return;
        }
        state.threads += 1;
        let pool = Arc::clone(self);
        let builder = std::thread::Builder::new().name(self.name.clone()).stack_size(STACK);
        if let Err(error) = builder.spawn(move || pool.work()) {
            tracing::warn!("{}: can't start a thread: {error}", self.name);
            state.threads -= 1;
        }
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!("{}: a job panicked", self.name);
            }
        }
    }

    /// Waits for the next job. Returns `None` if this thread should exit.
    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                return Some(job);
            }
            state.idle += 1;
            let timed_out = self.changed.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if timed_out && state.queue.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }
}

impl<T> Promise<T> {
    /// Runs the work, unless the caller has given up.
    fn fulfil(&self, pool: &Pool, work: impl FnOnce() -> T) {
        {
            let mut stage = self.stage.lock();
            if matches!(*stage, Stage::Abandoned) {
                return;
            }
            *stage = Stage::Running;
        }
        let answer = catch_unwind(AssertUnwindSafe(work)).ok();
        let mut stage = self.stage.lock();
        if matches!(*stage, Stage::Abandoned) {
            drop(stage);
            let mut state = pool.state.lock();
            state.stuck = state.stuck.saturating_sub(1);
            drop(state);
            // Drop the result on this thread, since that may hang.
            drop(answer);
            return;
        }
        *stage = Stage::Done(answer);
        drop(stage);
        self.completed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(30);

    #[test]
    fn calls_return_results_and_panics() {
        let pool = Pool::new("test".to_owned(), 2);
        assert_eq!(pool.call(LONG, || 7), Ok(7));
        assert_eq!(pool.call(LONG, || -> i32 { panic!("expected") }), Err(CallError::Panicked));
        assert_eq!(pool.call(LONG, || 8), Ok(8));
        assert_eq!(pool.stuck(), 0);
    }

    #[test]
    fn a_pool_of_stuck_threads_refuses_calls_until_one_returns() {
        let pool = Pool::new("test".to_owned(), 2);
        let (release, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        for _ in 0..2 {
            let gate = Arc::clone(&gate);
            assert_eq!(pool.call(SHORT, move || gate.lock().recv()).err(), Some(CallError::TimedOut));
        }
        assert_eq!(pool.stuck(), 2);
        let began = Instant::now();
        assert_eq!(pool.call(LONG, || ()), Err(CallError::Full));
        assert!(began.elapsed() < LONG / 2);
        drop(release);
        while pool.stuck() > 0 {
            std::thread::yield_now();
        }
        assert_eq!(pool.call(LONG, || 9), Ok(9));
    }

    #[test]
    fn an_abandoned_job_is_not_started() {
        let pool = Pool::new("test".to_owned(), 1);
        let (release, gate) = mpsc::channel::<()>();
        assert_eq!(pool.call(SHORT, move || gate.recv()).err(), Some(CallError::TimedOut));
        // Reset the count, so that the pool accepts a job behind the stuck thread.
        pool.state.lock().stuck = 0;
        let (done, begun) = mpsc::channel::<()>();
        assert_eq!(pool.call(SHORT, move || done.send(())).err(), Some(CallError::TimedOut));
        pool.state.lock().stuck += 1;
        drop(release);
        while pool.stuck() > 0 {
            std::thread::yield_now();
        }
        assert_eq!(pool.call(LONG, || 1), Ok(1));
        assert!(begun.try_recv().is_err());
    }
}
