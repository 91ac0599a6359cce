use crate::sys::{self, Scheduling};
use core::time::Duration;
use rustix::thread::CpuSet;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// How long a worker without work stays.
const IDLE: Duration = Duration::from_secs(5);

/// What a worker does.
pub(crate) trait Job: Send + 'static {
    /// Does it.
    fn run(self);
}

/// Threads that may wait. Their number follows the work, up to a limit.
pub(crate) struct Workers<J> {
    state: Mutex<State<J>>,
    changed: Condvar,
    max: usize,
    /// The CPUs that the program itself may use: a worker is born on a pinned thread, and must not inherit that.
    cpus: Option<CpuSet>,
    /// Nor that the thread may be giving way just then.
    scheduling: Scheduling,
}

struct State<J> {
    queue: VecDeque<J>,
    threads: usize,
    idle: usize,
    born: usize,
    closed: bool,
}

impl<J: Job> Workers<J> {
    pub(crate) fn new(max: usize, cpus: Option<CpuSet>) -> Arc<Self> {
        let state = State { queue: VecDeque::new(), threads: 0, idle: 0, born: 0, closed: false };
        let scheduling = sys::scheduling();
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new(), max: max.max(1), cpus, scheduling })
    }

    /// Has `job` done by a worker, by a new one if all are busy.
    pub(crate) fn submit(self: &Arc<Self>, job: J) {
        let mut state = self.lock();
        state.queue.push_back(job);
        if state.queue.len() > state.idle && state.threads < self.max {
            state.threads += 1;
            state.born += 1;
            let name = format!("fuse-work-{}", state.born);
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

    /// No thread could be made: the others will do the work, or if there are none, the caller must.
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
            // Without it the worker shares one CPU with a queue: slower, not wrong.
            let _pinned = rustix::thread::sched_setaffinity(None, cpus);
        }
        while let Some(job) = self.next() {
            // A worker that dies of a panic would be waited for at the end.
            if catch_unwind(AssertUnwindSafe(|| job.run())).is_err() {
                tracing::error!("a worker's job panicked");
            }
        }
    }

    /// The next job, or `None` if this worker is to end.
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

    /// Ends the workers as soon as their work is done, and waits for that at most so long. False: some still work.
    pub(crate) fn close(&self, patience: Duration) -> bool {
        let mut state = self.lock();
        state.closed = true;
        self.changed.notify_all();
        let deadline = std::time::Instant::now() + patience;
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
    fn a_panic_ends_no_worker() {
        let workers = Workers::new(1, None);
        let (done, results) = mpsc::channel();
        workers.submit(Call(Box::new(|| panic!("expected"))));
        workers.submit(Call(Box::new(move || done.send(()).unwrap())));
        results.recv().unwrap();
        assert!(workers.close(Duration::from_secs(60)));
    }

    #[test]
    fn a_worker_does_not_inherit_that_a_queue_gives_way() {
        let of_a_worker = |usual_gives_way: bool| {
            let (done, results) = mpsc::channel();
            let made = std::thread::spawn(move || {
                let gave_way = if usual_gives_way { sys::set_sched_idle(true) } else { Ok(()) };
                let workers = Workers::new(1, None);
                gave_way.and_then(|()| sys::set_sched_idle(true)).unwrap();
                workers.submit(Call(Box::new(move || done.send(sys::scheduling()).unwrap())));
                workers.close(Duration::from_secs(60))
            });
            assert!(made.join().unwrap());
            results.recv().unwrap()
        };
        assert_eq!(of_a_worker(true), Scheduling::Idle);
        if crate::ring::sched_idle::can_leave_sched_idle() {
            assert_eq!(of_a_worker(false), Scheduling::Normal);
        }
    }

    #[test]
    fn grows_to_the_limit_and_ends() {
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
