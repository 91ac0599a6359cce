//! Worker threads for requests that may block.

use crate::sys::{self, Scheduling};
use core::time::Duration;
use rustix::thread::CpuSet;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// How long an idle worker lives.
const IDLE: Duration = Duration::from_secs(5);

/// Work for a worker thread.
pub(crate) trait Job: Send + 'static {
    /// Runs the job.
    fn run(self);
}

/// Pool of threads that may block. It grows with the load, up to a limit.
pub(crate) struct Workers<J> {
    state: Mutex<State<J>>,
    changed: Condvar,
    max: usize,
    /// The process's CPU affinity. A worker is spawned by a pinned thread and must not inherit its
    /// affinity.
    cpus: Option<CpuSet>,
    /// The process's scheduling class, which a worker must not inherit from a queue thread either.
    scheduling: Scheduling,
}

struct State<J> {
    queue: VecDeque<J>,
    threads: usize,
    idle: usize,
    started: usize,
    closed: bool,
}

impl<J: Job> Workers<J> {
    pub(crate) fn new(max: usize, cpus: Option<CpuSet>) -> Arc<Self> {
        let state = State { queue: VecDeque::new(), threads: 0, idle: 0, started: 0, closed: false };
        let scheduling = sys::scheduling();
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new(), max: max.max(1), cpus, scheduling })
    }

    /// Queues `job`, and starts another worker if all are busy.
    pub(crate) fn submit(self: &Arc<Self>, job: J) {
        let mut state = self.lock();
        state.queue.push_back(job);
        if state.queue.len() > state.idle && state.threads < self.max {
            state.threads += 1;
            state.started += 1;
            let name = format!("fuse-work-{}", state.started);
            drop(state);
            let workers = self.clone();
            if std::thread::Builder::new().name(name).spawn(move || workers.work()).is_err() {
                self.without_a_new_thread();
            }
        } else {
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Handles a failed thread creation: the other workers run the job, or the caller if there are
    /// none.
    fn without_a_new_thread(&self) {
        let mut state = self.lock();
        state.threads -= 1;
        let job = if state.threads == 0 { state.queue.pop_front() } else { None };
        drop(state);
        if let Some(job) = job {
            job.run();
        }
    }

    fn work(&self) {
        sys::block_signals();
        sys::reset_inherited_policy(self.scheduling);
        if let Some(cpus) = &self.cpus {
            // If it fails, the worker shares one CPU with a queue: slow, but correct.
            let _pinned = rustix::thread::sched_setaffinity(None, cpus);
        }
        while let Some(job) = self.next() {
            // `close` would wait forever for a worker that died of a panic.
            if catch_unwind(AssertUnwindSafe(|| job.run())).is_err() {
                tracing::error!("a worker's job panicked");
            }
        }
    }

    /// Returns the next job, or `None` if this worker has to end.
    fn next(&self) -> Option<J> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                return Some(job);
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let (guard, timeout) = self.changed.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            if timeout.timed_out() && state.queue.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        self.changed.notify_all();
        None
    }

    /// Ends the workers once the queue is empty, and waits for them. Returns false if some are
    /// still running after `timeout`.
    pub(crate) fn close(&self, timeout: Duration) -> bool {
        let mut state = self.lock();
        state.closed = true;
        self.changed.notify_all();
        let deadline = std::time::Instant::now() + timeout;
        while state.threads > 0 {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    struct Call(Box<dyn FnOnce() + Send>);

    impl Job for Call {
        fn run(self) {
            (self.0)();
        }
    }

    #[test]
    fn a_worker_survives_a_panicking_job() {
        let workers = Workers::new(1, None);
        let (done, results) = mpsc::channel();
        workers.submit(Call(Box::new(|| panic!("expected"))));
        workers.submit(Call(Box::new(move || done.send(()).unwrap())));
        results.recv().unwrap();
        assert!(workers.close(Duration::from_secs(60)));
    }

    #[test]
    fn a_worker_does_not_inherit_a_queue_threads_sched_idle() {
        let of_a_worker = |process_is_idle: bool| {
            let (done, results) = mpsc::channel();
            let submitting = std::thread::spawn(move || {
                let switched = if process_is_idle { sys::set_sched_idle(true) } else { Ok(()) };
                let workers = Workers::new(1, None);
                switched.and_then(|()| sys::set_sched_idle(true)).unwrap();
                workers.submit(Call(Box::new(move || done.send(sys::scheduling()).unwrap())));
                workers.close(Duration::from_secs(60))
            });
            assert!(submitting.join().unwrap());
            results.recv().unwrap()
        };
        assert_eq!(of_a_worker(true), Scheduling::Idle);
        if crate::ring::sched_idle::can_leave_sched_idle() {
            assert_eq!(of_a_worker(false), Scheduling::Normal);
        }
    }

    #[test]
    fn the_pool_grows_to_its_limit_and_ends() {
        let workers = Workers::new(4, None);
        let barrier = Arc::new(std::sync::Barrier::new(4));
        let (done, results) = mpsc::channel();
        for i in 0..4 {
            let (barrier, done) = (barrier.clone(), done.clone());
            // All four must run at the same time to get past the barrier.
            workers.submit(Call(Box::new(move || {
                barrier.wait();
                done.send(i).unwrap();
            })));
        }
        let mut all: Vec<i32> = results.iter().take(4).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3]);
        assert!(workers.close(Duration::from_secs(60)));
        assert_eq!(workers.lock().threads, 0);
    }
}
