//! Work on many blocks of a request, shared between the thread of the request and helper threads.

use parking_lot::Mutex;
use rayon::{ThreadPool, ThreadPoolBuilder};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use vnode::{Errno, Result};

/// Minimum time of remaining work that is shared. Waking a helper takes about 10 microseconds, and
/// on a virtual machine, whose idle processors are halted, the helper begins later still.
const LEAST: Duration = Duration::from_micros(60);

/// Maximum number of helpers. More would compete with the threads that serve other requests.
const HELPERS: usize = 3;

/// A thread that waits this long for its helpers has found no idle processor.
const LATE: Duration = Duration::from_micros(300);

/// How long no work is shared after helpers were late.
const BACK_OFF: Duration = Duration::from_millis(100);

/// The helper threads of the process, which all layers share.
#[derive(Debug)]
struct Helpers {
    pool: ThreadPool,
    /// Number of helpers without work.
    idle: AtomicUsize,
    start: Instant,
    /// Microseconds after `start` before which no work is shared.
    resume: AtomicU64,
}

/// The processors that the process may use. A thread that serves requests may be bound to one.
static CPUS: OnceLock<Option<CpuSet>> = OnceLock::new();

/// Called when a layer is built, on a thread that may use all processors of the process.
pub(crate) fn prepare() {
    CPUS.get_or_init(|| sched_getaffinity(None).ok());
}

/// Returns the helpers, started at the first use; `None` on a machine with one processor.
fn helpers() -> Option<&'static Helpers> {
    static ALL: OnceLock<Option<Helpers>> = OnceLock::new();
    ALL.get_or_init(|| {
        let cpus = (*CPUS.get()?)?;
        let count = (cpus.count() as usize).saturating_sub(1).min(HELPERS);
        let unbind = move |_| {
            // If it fails, helpers share the processors of the thread that started them.
            let _ = sched_setaffinity(None, &cpus);
        };
        let pool = ThreadPoolBuilder::new().num_threads(count).thread_name(|index| format!("blocks-{index}"));
        let pool = (count > 0).then(|| pool.start_handler(unbind).build())?;
        let pool = pool.inspect_err(|why| tracing::warn!("no helper threads: {why}")).ok()?;
        Some(Helpers { pool, idle: count.into(), start: Instant::now(), resume: AtomicU64::new(0) })
    })
    .as_ref()
}

/// Calls `work` for each piece. The calling thread does the first piece; if the time that it takes
/// promises a gain, helpers take part in the rest. After an error, the remaining pieces are left
/// out.
///
/// # Errors
/// An error of `work`.
pub(crate) fn for_each<P: Send>(
    mut pieces: impl Iterator<Item = P> + Send,
    work: impl Fn(P) -> Result<()> + Sync,
) -> Result<()> {
    let rest = pieces.size_hint().0.saturating_sub(1);
    if rest < 2 {
        return pieces.try_for_each(work);
    }
    let begun = Instant::now();
    pieces.next().map_or(Ok(()), &work)?;
    let is_long = begun.elapsed() * u32::try_from(rest).unwrap_or(u32::MAX) >= LEAST;
    let helpers = if is_long { helpers() } else { None };
    match helpers.and_then(|helpers| helpers.reserve().map(|count| (helpers, count))) {
        Some((helpers, count)) => helpers.share(count, pieces, work),
        None => pieces.try_for_each(work),
    }
}

impl Helpers {
    fn now(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// Reserves one or more idle helpers. Without this bound, concurrent requests would queue up
    /// behind each other's pieces.
    fn reserve(&self) -> Option<usize> {
        if self.now() < self.resume.load(Ordering::Relaxed) {
            return None;
        }
        let take = |idle: usize| (idle > 0).then_some(0);
        self.idle.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()
    }

    fn share<P: Send>(
        &self,
        count: usize,
        pieces: impl Iterator<Item = P> + Send,
        work: impl Fn(P) -> Result<()> + Sync,
    ) -> Result<()> {
        let (pieces, failed) = (Mutex::new(pieces), Mutex::new(None::<Errno>));
        let next = || if failed.lock().is_some() { None } else { pieces.lock().next() };
        let run = || {
            while let Some(piece) = next() {
                if let Err(errno) = work(piece) {
                    *failed.lock() = Some(errno);
                }
            }
        };
        let mut ready = Instant::now();
        self.pool.in_place_scope(|scope| {
            for _ in 0..count {
                scope.spawn(|_| run());
            }
            run();
            ready = Instant::now();
        });
        self.idle.fetch_add(count, Ordering::Relaxed);
        if ready.elapsed() > LATE {
            self.resume.store(self.now() + BACK_OFF.as_micros() as u64, Ordering::Relaxed);
        }
        failed.into_inner().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Work that is worth sharing.
    fn slow() {
        std::thread::sleep(Duration::from_micros(200));
    }

    #[test]
    fn each_piece_is_processed_once() {
        prepare();
        let mut threads = BTreeSet::new();
        for len in 0..100_u64 {
            let (seen, on) = (Mutex::new(Vec::new()), Mutex::new(BTreeSet::new()));
            let work = |piece| {
                slow();
                seen.lock().push(piece);
                on.lock().insert(format!("{:?}", std::thread::current().id()));
                Ok(())
            };
            assert_eq!(for_each(0..len, work), Ok(()));
            let mut seen = seen.into_inner();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..len));
            threads.extend(on.into_inner());
        }
        let cpus = CPUS.get().copied().flatten().unwrap().count() as usize;
        assert!(threads.len() >= cpus.min(2) && threads.len() <= 1 + HELPERS, "{threads:?} on {cpus} processors");
    }

    #[test]
    fn after_an_error_the_rest_is_left_out() {
        prepare();
        for fails in [0, 1, 10] {
            let count = AtomicUsize::new(0);
            let work = |piece| {
                slow();
                count.fetch_add(1, Ordering::Relaxed);
                if piece == fails { Err(Errno::NOKEY) } else { Ok(()) }
            };
            assert_eq!(for_each(0..1000, work), Err(Errno::NOKEY));
            let count = count.into_inner();
            // A thread that fails can be interrupted before the others see it.
            assert!(count > fails && count < 1000, "{count} of {fails}");
        }
    }

    #[test]
    fn concurrent_requests_do_not_wait_for_helpers() {
        prepare();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let sum = AtomicU64::new(0);
                        let work = |piece| {
                            slow();
                            sum.fetch_add(piece, Ordering::Relaxed);
                            Ok(())
                        };
                        assert_eq!(for_each(0..20, work), Ok(()));
                        assert_eq!(sum.into_inner(), 190);
                    }
                });
            }
        });
    }
}
