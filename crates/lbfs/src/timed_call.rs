//! Calls on the thread pool of a replica, with a time limit.
//!
//! A caller waits until the deadline and then abandons the thread, which counts as stuck until its
//! call returns. A pool whose threads are all stuck refuses calls.

use core::time::Duration;
use isolate::{Panicked, Pool};
use std::sync::Arc;
use std::time::Instant;

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

/// Runs `work` on a thread of the pool and waits for the result, for at most `timeout`.
pub(crate) fn call<T: Send + 'static>(
    pool: &Arc<Pool>,
    timeout: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, CallError> {
    let deadline = Instant::now() + timeout;
    if pool.is_exhausted() {
        return Err(CallError::Full);
    }
    let mut pending = pool.start(work).ok_or(CallError::Full)?;
    let result = pending.wait_until(deadline).or_else(|| pending.abandon());
    result.ok_or(CallError::TimedOut)?.map_err(|Panicked| CallError::Panicked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, mpsc};

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(30);

    #[test]
    fn calls_return_results_and_panics() {
        let pool = Pool::new("test".to_owned(), 2);
        assert_eq!(call(&pool, LONG, || 7), Ok(7));
        assert_eq!(call(&pool, LONG, || -> i32 { panic!("expected") }), Err(CallError::Panicked));
        assert_eq!(call(&pool, LONG, || 8), Ok(8));
    }

    #[test]
    fn a_pool_of_stuck_threads_refuses_calls_until_one_returns() {
        let pool = Pool::new("test".to_owned(), 2);
        let (release, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        while pool.stuck() < 2 {
            let gate = Arc::clone(&gate);
            let blocked = call(&pool, SHORT, move || gate.lock().map(|gate| gate.recv()).is_ok());
            assert_eq!(blocked, Err(CallError::TimedOut));
        }
        let began = Instant::now();
        assert_eq!(call(&pool, LONG, || ()), Err(CallError::Full));
        assert!(began.elapsed() < LONG / 2);
        drop(release);
        while pool.stuck() > 0 {
            std::thread::yield_now();
        }
        assert_eq!(call(&pool, LONG, || 9), Ok(9));
    }
}
