use crate::Operation;
use core::cell::Cell;
use core::fmt::{self, Write as _};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::time::Instant;
use tracing::Level;
use vnode::{MAY_BLOCK, Result};

/// How many threads can count side by side without taking each other's cache lines.
const STRIPES: usize = 8;

/// What one meter has counted.
pub struct Counts {
    /// The layer that is measured, for the log.
    layer: String,
    stripes: [Stripe; STRIPES],
}

/// The counters of some threads. Two cache lines apart from the next: processors fetch pairs.
#[repr(align(128))]
struct Stripe([Counter; Operation::COUNT]);

/// Of one operation.
#[derive(Default)]
struct Counter {
    done: AtomicU64,
    failed: AtomicU64,
    nanos: AtomicU64,
}

/// How often an operation was done, and how long that took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How often, failures included.
    pub done: u64,
    /// How often with an error. That a name is missing is none.
    pub failed: u64,
    /// The time of all of them, together with all layers below.
    pub time: Duration,
}

impl Counts {
    pub(crate) fn new(layer: &str) -> Self {
        let stripe = || Stripe(core::array::from_fn(|_| Counter::default()));
        Self { layer: layer.to_owned(), stripes: core::array::from_fn(|_| stripe()) }
    }

    /// Counters of a layer, which the log calls `layer`.
    ///
    /// They (about 6 KiB) stay for the life of the process, in which a stack is made once: a vnode that counted who uses them
    /// would cost every look-up a write to a cache line that all processors share.
    #[must_use]
    pub fn leaked(layer: &str) -> &'static Self {
        Box::leak(Box::new(Self::new(layer)))
    }

    /// The measured layer's name.
    #[must_use]
    pub fn layer(&self) -> &str {
        &self.layer
    }

    /// What was counted of one operation.
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

    /// Begins to measure an operation.
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

/// The stripe of this thread.
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

/// An operation under way.
pub(crate) struct Tally<'a> {
    counts: &'static Counts,
    operation: Operation,
    /// The names that it is called with, for the log; empty: none.
    names: [&'a [u8]; 2],
    /// Time that layers above spent in the meantime.
    outside: Duration,
    begun: Instant,
}

impl<'a> Tally<'a> {
    /// Notes the name that the operation is called with.
    pub(crate) fn at<'b>(self, name: &'b [u8]) -> Tally<'b>
    where
        'a: 'b,
    {
        Tally { names: [name, &[]], ..self }
    }

    /// Notes the second name of a rename.
    pub(crate) const fn to(mut self, name: &'a [u8]) -> Self {
        self.names[1] = name;
        self
    }

    /// Runs what belongs to the layers above: a listing's receiver.
    pub(crate) fn outside<T>(&mut self, what: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let answer = what();
        self.outside += begun.elapsed();
        answer
    }

    /// Counts it.
    pub(crate) fn end<T>(self, result: Result<T>) -> Result<T> {
        let time = self.begun.elapsed().saturating_sub(self.outside);
        let Some(cell) = self.counts.cell(self.operation) else { return result };
        cell.nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        match &result {
            Ok(_) => {
                cell.done.fetch_add(1, Ordering::Relaxed);
            }
            // It will be run again, and counted then.
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
            let _ = write!(names, "{before}{:?}", String::from_utf8_lossy(name));
        }
        tracing::trace!("{layer}: {operation}: {outcome} in {time:?}{names}");
    }
}
