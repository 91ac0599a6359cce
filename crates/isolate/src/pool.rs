//! A thread pool whose threads can be abandoned.
//!
//! A system call on a dead network file system may never return, and can't be cancelled. A caller
//! can therefore abandon its call. The thread of an abandoned call counts as stuck until the call
//! returns.
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

/// A thread pool for calls of one file system.
#[derive(Debug)]
pub struct Pool {
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

impl Pool {
    /// Returns a pool of at most `max` threads, which are created on demand and have this name.
    #[must_use]
    pub fn new(name: String, max: usize) -> Arc<Self> {
        Arc::new(Self { name, max: max.max(1), state: Mutex::default(), changed: Condvar::new() })
    }

    /// Queues a call. Returns `None` if there is no thread for it and none can be created.
    pub fn start<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<PendingCall<T>> {
        let promise = Arc::new(Promise { stage: Mutex::new(Stage::Queued), completed: Condvar::new() });
        let (kept, pool) = (Arc::clone(&promise), Arc::clone(self));
        let queued = self.submit(Box::new(move || kept.fulfil(&pool, work)));
        queued.then(|| PendingCall { promise, pool: Arc::clone(self) })
    }

    /// Queues `job` without waiting for it. Returns false if there is no thread for it and none can
    /// be created.
    pub fn submit(self: &Arc<Self>, job: Job) -> bool {
        let mut state = self.state.lock();
        self.push(&mut state, job);
        if state.threads > 0 {
            return true;
        }
        // Drop the jobs after unlocking, since their drop may use this pool.
        let unstarted = core::mem::take(&mut state.queue);
        drop(state);
        drop(unstarted);
        false
    }

    /// Queues `job` if a thread is free. Returns whether it was queued.
    pub fn submit_if_free(self: &Arc<Self>, job: Job) -> bool {
        let free = {
            let state = self.state.lock();
            state.queue.is_empty() && (state.idle > 0 || state.threads < self.max)
        };
        free && self.submit(job)
    }

    /// Drops a value on a thread of the pool, since the drop may hang.
    pub fn dispose(self: &Arc<Self>, what: impl Send + 'static) {
        let mut state = self.state.lock();
        self.push(&mut state, Box::new(move || drop(what)));
    }

    /// Number of stuck threads.
    #[must_use]
    pub fn stuck(&self) -> usize {
        self.state.lock().stuck
    }

    /// Whether all threads are stuck, and no more may be created.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.stuck() >= self.max
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

/// The error of a call that panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panicked;

/// A call that is queued or running. Dropping it abandons the call.
#[derive(Debug)]
pub struct PendingCall<T> {
    promise: Arc<Promise<T>>,
    pool: Arc<Pool>,
}

/// The slot for the result of a call.
#[derive(Debug)]
struct Promise<T> {
    stage: Mutex<Stage<T>>,
    completed: Condvar,
}

#[derive(Debug)]
enum Stage<T> {
    Queued,
    Running,
    Done(Result<T, Panicked>),
    /// The caller takes no result, or has taken it.
    Abandoned,
}

impl<T> PendingCall<T> {
    /// Waits for the result until `deadline`. Returns `None` if it is not there by then, or was
    /// returned before.
    pub fn wait_until(&mut self, deadline: Instant) -> Option<Result<T, Panicked>> {
        let mut stage = self.promise.stage.lock();
        loop {
            match core::mem::replace(&mut *stage, Stage::Abandoned) {
                Stage::Done(result) => return Some(result),
                Stage::Abandoned => return None,
                unfinished => *stage = unfinished,
            }
            if self.promise.completed.wait_until(&mut stage, deadline).timed_out() && !matches!(*stage, Stage::Done(_))
            {
                return None;
            }
        }
    }

    /// Abandons the call, which is not started if it is still queued. Returns the result if it has
    /// come in the meantime.
    pub fn abandon(mut self) -> Option<Result<T, Panicked>> {
        self.give_up()
    }

    fn give_up(&mut self) -> Option<Result<T, Panicked>> {
        let mut stage = self.promise.stage.lock();
        match core::mem::replace(&mut *stage, Stage::Abandoned) {
            Stage::Done(result) => return Some(result),
            // Counted before the stage is unlocked: the thread subtracts it afterwards.
            Stage::Running => self.pool.state.lock().stuck += 1,
            Stage::Queued | Stage::Abandoned => {}
        }
        None
    }
}

impl<T> Drop for PendingCall<T> {
    fn drop(&mut self) {
        drop(self.give_up());
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
        let result = catch_unwind(AssertUnwindSafe(work)).map_err(|_| Panicked);
        let mut stage = self.stage.lock();
        if matches!(*stage, Stage::Abandoned) {
            drop(stage);
            let mut state = pool.state.lock();
            state.stuck = state.stuck.saturating_sub(1);
            drop(state);
            // Drop the result on this thread, since that may hang.
            drop(result);
            return;
        }
        *stage = Stage::Done(result);
        drop(stage);
        self.completed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const SHORT: Duration = Duration::from_millis(30);

    fn pool(max: usize) -> Arc<Pool> {
        Pool::new("test".to_owned(), max)
    }

    /// Returns the result of a call that returns.
    fn result<T: Send + 'static>(pool: &Arc<Pool>, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Panicked> {
        pool.start(work).unwrap().wait_until(Instant::now() + Duration::from_secs(60)).unwrap()
    }

    fn await_release(pool: &Pool) {
        while pool.stuck() > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn calls_return_results_and_panics() {
        let pool = pool(2);
        assert_eq!(result(&pool, || 7), Ok(7));
        assert_eq!(result(&pool, || -> i32 { panic!("expected") }), Err(Panicked));
        assert_eq!(result(&pool, || 8), Ok(8));
        assert_eq!(pool.stuck(), 0);
    }

    #[test]
    fn threads_of_abandoned_calls_are_stuck_until_the_calls_return() {
        let pool = pool(2);
        let (release, gate) = mpsc::channel::<()>();
        let (gate, (begun, begins)) = (Arc::new(Mutex::new(gate)), mpsc::channel());
        for stuck in 1..=2 {
            let (gate, begun) = (Arc::clone(&gate), begun.clone());
            let mut call = pool
                .start(move || {
                    begun.send(()).unwrap();
                    gate.lock().recv()
                })
                .unwrap();
            begins.recv().unwrap();
            assert!(call.wait_until(Instant::now() + SHORT).is_none() && !pool.is_exhausted());
            assert!(call.abandon().is_none());
            assert_eq!(pool.stuck(), stuck);
        }
        assert!(pool.is_exhausted());
        assert!(!pool.submit_if_free(Box::new(|| ())));
        drop(release);
        await_release(&pool);
        assert_eq!(result(&pool, || 9), Ok(9));
    }

    #[test]
    fn an_abandoned_call_is_not_started() {
        let pool = pool(1);
        let (release, gate) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel();
        let first = pool.start(move || {
            begun.send(()).unwrap();
            gate.recv()
        });
        begins.recv().unwrap();
        drop(first);
        let (started, starts) = mpsc::channel::<()>();
        drop(pool.start(move || started.send(())).unwrap());
        assert_eq!(pool.stuck(), 1);
        drop(release);
        assert_eq!(result(&pool, || 1), Ok(1));
        assert!(starts.try_recv().is_err());
        await_release(&pool);
    }
}
