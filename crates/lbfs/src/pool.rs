//! Threads that can be given up.
//!
//! A system call on a dead network file system may never return, and nothing can end it. So such calls are made on threads of the
//! replica's own pool. Who waits for an answer waits until the deadline, then leaves the thread to itself: it counts as
//! stuck until its call returns, if ever. A pool that is stuck altogether takes no more calls.
//!
//! Nobody ever joins these threads: they end with the process.

use core::time::Duration;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(10);

/// Stack of a thread, in bytes. The depth of calls is that of a stack of layers.
const STACK: usize = 512 << 10;

type Job = Box<dyn FnOnce() + Send>;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// It did not come in time.
    Late,
    /// All threads are stuck, or none can be made: it was not asked.
    Full,
    /// The call panicked.
    Panicked,
}

/// Threads for the calls of one replica.
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

/// Where the answer of a call is put.
struct Promise<T> {
    stage: Mutex<Stage<T>>,
    answered: Condvar,
}

enum Stage<T> {
    Queued,
    Running,
    Answered(Option<T>),
    GivenUp,
}

impl Pool {
    /// At most `max` threads, made when they are needed.
    pub(crate) fn new(name: String, max: usize) -> Arc<Self> {
        Arc::new(Self { name, max: max.max(1), state: Mutex::default(), changed: Condvar::new() })
    }

    /// Has `work` done, and waits for it at most so long.
    pub(crate) fn call<T: Send + 'static>(
        self: &Arc<Self>,
        patience: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let deadline = Instant::now() + patience;
        let promise = Arc::new(Promise { stage: Mutex::new(Stage::Queued), answered: Condvar::new() });
        let (kept, pool) = (Arc::clone(&promise), Arc::clone(self));
        if !self.submit(Box::new(move || kept.keep(&pool, work))) {
            return Err(NoAnswer::Full);
        }
        let mut stage = promise.stage.lock();
        loop {
            match &mut *stage {
                Stage::Answered(answer) => return answer.take().ok_or(NoAnswer::Panicked),
                Stage::Queued | Stage::Running | Stage::GivenUp => {}
            }
            if promise.answered.wait_until(&mut stage, deadline).timed_out() {
                match core::mem::replace(&mut *stage, Stage::GivenUp) {
                    Stage::Answered(answer) => return answer.ok_or(NoAnswer::Panicked),
                    Stage::Running => self.state.lock().stuck += 1,
                    Stage::Queued | Stage::GivenUp => {}
                }
                return Err(NoAnswer::Late);
            }
        }
    }

    /// Has `job` done some time, without anybody who waits for it. False: it was not taken, since all threads are stuck.
    pub(crate) fn submit(self: &Arc<Self>, job: Job) -> bool {
        let mut state = self.state.lock();
        if state.stuck >= self.max {
            return false;
        }
        self.push(&mut state, job);
        if state.threads > 0 {
            return true;
        }
        // No thread could be made, and there is none that would come to it. What a job holds may have to be disposed of here when it goes.
        let unmade = core::mem::take(&mut state.queue);
        drop(state);
        drop(unmade);
        false
    }

    /// The same, but only if a thread is free for it.
    pub(crate) fn submit_if_free(self: &Arc<Self>, job: Job) -> bool {
        let free = {
            let state = self.state.lock();
            state.queue.is_empty() && (state.idle > 0 || state.threads < self.max)
        };
        free && self.submit(job)
    }

    /// Has something let go of by a thread of the pool, since that may hang, too.
    pub(crate) fn dispose(self: &Arc<Self>, what: impl Send + 'static) {
        let mut state = self.state.lock();
        self.push(&mut state, Box::new(move || drop(what)));
    }

    /// How many threads are stuck.
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
            tracing::warn!("{}: no further thread: {error}", self.name);
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

    /// The next job; `None` if this thread is to end.
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
    /// Does the work, unless nobody waits any more.
    fn keep(&self, pool: &Pool, work: impl FnOnce() -> T) {
        {
            let mut stage = self.stage.lock();
            if matches!(*stage, Stage::GivenUp) {
                return;
            }
            *stage = Stage::Running;
        }
        let answer = catch_unwind(AssertUnwindSafe(work)).ok();
        let mut stage = self.stage.lock();
        if matches!(*stage, Stage::GivenUp) {
            drop(stage);
            let mut state = pool.state.lock();
            state.stuck = state.stuck.saturating_sub(1);
            drop(state);
            // Whatever came of it is let go of here, where it may hang.
            drop(answer);
            return;
        }
        *stage = Stage::Answered(answer);
        drop(stage);
        self.answered.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(30);

    #[test]
    fn answers_come_back() {
        let pool = Pool::new("test".to_owned(), 2);
        assert_eq!(pool.call(LONG, || 7), Ok(7));
        assert_eq!(pool.call(LONG, || -> i32 { panic!("expected") }), Err(NoAnswer::Panicked));
        assert_eq!(pool.call(LONG, || 8), Ok(8));
        assert_eq!(pool.stuck(), 0);
    }

    #[test]
    fn a_full_pool_refuses_until_a_thread_comes_back() {
        let pool = Pool::new("test".to_owned(), 2);
        let (release, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        for _ in 0..2 {
            let gate = Arc::clone(&gate);
            assert_eq!(pool.call(SHORT, move || gate.lock().recv()).err(), Some(NoAnswer::Late));
        }
        assert_eq!(pool.stuck(), 2);
        let asked = Instant::now();
        assert_eq!(pool.call(LONG, || ()), Err(NoAnswer::Full));
        assert!(asked.elapsed() < LONG / 2);
        drop(release);
        while pool.stuck() > 0 {
            std::thread::yield_now();
        }
        assert_eq!(pool.call(LONG, || 9), Ok(9));
    }

    #[test]
    fn what_nobody_waits_for_is_not_begun() {
        let pool = Pool::new("test".to_owned(), 1);
        let (release, gate) = mpsc::channel::<()>();
        assert_eq!(pool.call(SHORT, move || gate.recv()).err(), Some(NoAnswer::Late));
        // Not counted as stuck by the pool's own books: make room to queue one behind the stuck thread.
        pool.state.lock().stuck = 0;
        let (done, begun) = mpsc::channel::<()>();
        assert_eq!(pool.call(SHORT, move || done.send(())).err(), Some(NoAnswer::Late));
        pool.state.lock().stuck += 1;
        drop(release);
        while pool.stuck() > 0 {
            std::thread::yield_now();
        }
        assert_eq!(pool.call(LONG, || 1), Ok(1));
        assert!(begun.try_recv().is_err());
    }
}
