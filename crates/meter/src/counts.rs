use crate::Operation;
use core::cell::Cell;
use core::fmt::{self, Write as _};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::time::Instant;
use tracing::Level;
use vnode::{MAY_BLOCK, Result};

/// Whether names are secret in this process.
static HIDES_NAMES: AtomicBool = AtomicBool::new(false);

/// Logs only the lengths of names from now on, in all meters of this process: for a layer that
/// encrypts names.
pub fn hide_names_in_trace() {
    HIDES_NAMES.store(true, Ordering::Relaxed);
}

/// Number of counter sets; threads are distributed over them to avoid sharing cache lines.
const STRIPES: usize = 8;

/// The counters of one meter.
pub struct Counts {
    /// Name of the metered layer, for the log.
    layer: String,
    stripes: [Stripe; STRIPES],
}

/// The counters of a group of threads. Aligned to two cache lines, since processors prefetch lines
/// in pairs.
#[repr(align(128))]
struct Stripe([Counter; Operation::COUNT]);

/// The counters of one operation.
#[derive(Default)]
struct Counter {
    done: AtomicU64,
    failed: AtomicU64,
    nanos: AtomicU64,
}

/// Count and time of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of executions, including failures.
    pub done: u64,
    /// Number of failures. A negative lookup is not a failure.
    pub failed: u64,
    /// Total time, including all layers below.
    pub time: Duration,
}

impl Counts {
    pub(crate) fn new(layer: &str) -> Self {
        let stripe = || Stripe(core::array::from_fn(|_| Counter::default()));
        Self { layer: layer.to_owned(), stripes: core::array::from_fn(|_| stripe()) }
    }

    /// Returns counters of a layer that is logged as `layer`.
    ///
    /// The counters (about 6 KiB) are never freed; a process creates a stack only once. With a
    /// reference count instead, every lookup would write to a cache line that all processors share.
    #[must_use]
    pub fn leaked(layer: &str) -> &'static Self {
        Box::leak(Box::new(Self::new(layer)))
    }

    /// Returns the name of the metered layer.
    #[must_use]
    pub fn layer(&self) -> &str {
        &self.layer
    }

    /// Returns the totals of one operation.
    #[must_use]
    pub fn of(&self, operation: Operation) -> Count {
        let mut sum = Count::default();
        for cell in self.stripes.iter().filter_map(|stripe| stripe.0.get(operation as usize)) {
            sum.done += cell.done.load(Ordering::Relaxed);
            sum.failed += cell.failed.load(Ordering::Relaxed);
            sum.time += Duration::from_nanos(cell.nanos.load(Ordering::Relaxed));
        }
        sum
    }

    /// Starts the measurement of an operation.
    pub(crate) fn begin(&'static self, operation: Operation) -> Tally<'static> {
        Tally { counts: self, operation, names: [&[]; 2], outside: Duration::ZERO, begun: Instant::now() }
    }

    fn cell(&self, operation: Operation) -> Option<&Counter> {
        self.stripes.get(stripe()).and_then(|stripe| stripe.0.get(operation as usize))
    }
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counts").field("layer", &self.layer).finish_non_exhaustive()
    }
}

/// Returns the index of this thread's stripe.
fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    const NONE: usize = usize::MAX;
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(NONE) };
    }
    MINE.with(|mine| {
        if mine.get() == NONE {
            mine.set(NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        mine.get()
    })
}

/// A running operation.
pub(crate) struct Tally<'a> {
    counts: &'static Counts,
    operation: Operation,
    /// The names that it was called with, for the log; unused ones are empty.
    names: [&'a [u8]; 2],
    /// Time spent in callbacks of the layers above.
    outside: Duration,
    begun: Instant,
}

impl<'a> Tally<'a> {
    /// Records the name that the operation was called with.
    pub(crate) fn at<'b>(self, name: &'b [u8]) -> Tally<'b>
    where
        'a: 'b,
    {
        Tally { names: [name, &[]], ..self }
    }

    /// Records the second name of a rename.
    pub(crate) const fn to(mut self, name: &'a [u8]) -> Self {
        self.names[1] = name;
        self
    }

    /// Runs a callback of the layers above, such as the sink of a listing, and excludes its time.
    pub(crate) fn outside<T>(&mut self, callback: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = callback();
        self.outside += begun.elapsed();
        result
    }

    /// Ends the measurement and adds it to the counters.
    pub(crate) fn end<T>(self, result: Result<T>) -> Result<T> {
        let time = self.begun.elapsed().saturating_sub(self.outside);
        let Some(cell) = self.counts.cell(self.operation) else { return result };
        cell.nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        match &result {
            Ok(_) => {
                cell.done.fetch_add(1, Ordering::Relaxed);
            }
            // The operation runs again and is counted then.
            Err(errno) if *errno == MAY_BLOCK => return result,
            Err(_) => {
                cell.done.fetch_add(1, Ordering::Relaxed);
                cell.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        if tracing::enabled!(Level::TRACE) {
            self.log(time, result.as_ref().err().copied());
        }
        result
    }

    #[cold]
    fn log(&self, time: Duration, error: Option<vnode::Errno>) {
        let (layer, operation) = (&*self.counts.layer, self.operation.name());
        let outcome = match error {
            None => "done".to_owned(),
            Some(errno) => format!("{:?}", nix::errno::Errno::from_raw(errno.raw_os_error())),
        };
        let mut names = String::new();
        for (name, before) in self.names.into_iter().zip(["; ", " -> "]).filter(|(name, _)| !name.is_empty()) {
            let _ = match HIDES_NAMES.load(Ordering::Relaxed) {
                true => write!(names, "{before}<{} bytes>", name.len()),
                false => write!(names, "{before}{:?}", String::from_utf8_lossy(name)),
            };
        }
        tracing::trace!("{layer}: {operation}: {outcome} in {time:?}{names}");
    }
}
