//! How long the handlers of requests take: a histogram per opcode.
//!
//! The time begins when a handler gets the request and ends when the reply is complete. Of a
//! request that is repeated on a blocking thread, only the second run counts.
//!
//! Nothing is measured until [`Latencies::start`]: two readings of the clock and three additions
//! cost 60 to 250 ns for each request, depending on the machine's clock.

use crate::Opcode;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::OnceLock;
use std::time::Instant;

/// Number of sets of histograms; processors are distributed over them to avoid sharing cache lines.
const STRIPES: usize = 8;
/// Number of buckets. Bucket N counts times of 2^N to 2^(N+1) - 1 nanoseconds; the last one also
/// longer ones (from 9 minutes).
pub const BUCKETS: usize = 40;

/// The histograms of a session.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    measuring: AtomicBool,
    /// 140 KiB, allocated when the measurement starts for the first time.
    stripes: OnceLock<Box<[Stripe]>>,
}

#[derive(Debug)]
#[repr(align(128))]
struct Stripe(Box<[Histogram]>);

#[derive(Debug)]
struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
    longest: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], nanos: AtomicU64::new(0), longest: AtomicU64::new(0) }
    }
}

/// The times of one opcode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencySnapshot {
    /// The opcode.
    pub opcode: Opcode,
    /// Number of requests per bucket: see [`BUCKETS`].
    pub buckets: [u64; BUCKETS],
    /// The sum of all times.
    pub total: Duration,
    /// The longest time.
    pub longest: Duration,
}

impl Latencies {
    /// Starts measuring, from zero.
    pub(crate) fn start(&self) {
        let stripe = || Stripe((0..Opcode::COUNT).map(|_| Histogram::default()).collect());
        let stripes = self.stripes.get_or_init(|| (0..STRIPES).map(|_| stripe()).collect());
        for histogram in stripes.iter().flat_map(|stripe| &stripe.0) {
            let all = histogram.buckets.iter().chain([&histogram.nanos, &histogram.longest]);
            all.for_each(|counter| counter.store(0, Ordering::Relaxed));
        }
        self.measuring.store(true, Ordering::Relaxed);
    }

    /// Stops measuring. The results remain.
    pub(crate) fn stop(&self) {
        self.measuring.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_measuring(&self) -> bool {
        self.measuring.load(Ordering::Relaxed)
    }

    /// Returns the beginning of a request, if it is measured.
    pub(crate) fn begin(&self) -> Option<Instant> {
        self.is_measuring().then(Instant::now)
    }

    /// Adds the time of a request.
    pub(crate) fn record(&self, opcode: Opcode, time: Duration) {
        let stripe = self.stripes.get().and_then(|stripes| stripes.get(stripe()));
        let Some(histogram) = stripe.and_then(|stripe| stripe.0.get(opcode as usize)) else { return };
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if let Some(bucket) = histogram.buckets.get(bucket_of(nanos)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        histogram.nanos.fetch_add(nanos, Ordering::Relaxed);
        if histogram.longest.load(Ordering::Relaxed) < nanos {
            histogram.longest.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    /// Returns the times of each opcode that occurred.
    pub(crate) fn snapshot(&self) -> Vec<LatencySnapshot> {
        Opcode::ALL.iter().filter_map(|&opcode| self.of(opcode)).collect()
    }

    fn of(&self, opcode: Opcode) -> Option<LatencySnapshot> {
        let (mut buckets, mut nanos, mut longest) = ([0; BUCKETS], 0_u64, 0);
        let stripes = self.stripes.get()?.iter();
        for histogram in stripes.filter_map(|stripe| stripe.0.get(opcode as usize)) {
            for (sum, bucket) in buckets.iter_mut().zip(&histogram.buckets) {
                *sum += bucket.load(Ordering::Relaxed);
            }
            nanos = nanos.saturating_add(histogram.nanos.load(Ordering::Relaxed));
            longest = longest.max(histogram.longest.load(Ordering::Relaxed));
        }
        let (total, longest) = (Duration::from_nanos(nanos), Duration::from_nanos(longest));
        buckets.iter().any(|count| *count > 0).then_some(LatencySnapshot { opcode, buckets, total, longest })
    }
}

fn bucket_of(nanos: u64) -> usize {
    usize::try_from(nanos.max(1).ilog2()).map_or(0, |bucket| bucket.min(BUCKETS - 1))
}

/// Returns the index of this processor's stripe. Two processors may have the same one.
fn stripe() -> usize {
    rustix::thread::sched_getcpu() % STRIPES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_threads_are_summed() {
        let latencies = Latencies::default();
        latencies.record(Opcode::Lookup, Duration::MAX);
        assert!(latencies.begin().is_none() && latencies.snapshot().is_empty());
        latencies.start();
        let micros = Duration::from_micros;
        std::thread::scope(|scope| {
            for n in 1..=4 {
                let latencies = &latencies;
                scope.spawn(move || latencies.record(Opcode::Lookup, micros(n)));
            }
        });
        latencies.record(Opcode::Read, Duration::MAX);
        let all = latencies.snapshot();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].total, all[0].longest), (micros(10), micros(4)));
        // 1000 is below 2^10; 2000 and 3000 below 2^11 and 2^12; 4000 below 2^12.
        assert_eq!((all[0].buckets[9], all[0].buckets[10], all[0].buckets[11]), (1, 1, 2));
        assert_eq!((all[1].buckets[BUCKETS - 1], all[1].opcode), (1, Opcode::Read));
        latencies.stop();
        assert!(latencies.begin().is_none() && latencies.snapshot().len() == 2);
        latencies.start();
        assert!(latencies.begin().is_some() && latencies.snapshot().is_empty());
    }

    #[test]
    fn buckets_are_powers_of_two() {
        assert_eq!([0, 1, 2, 3, 4, 1023, 1024].map(bucket_of), [0, 0, 1, 1, 2, 9, 10]);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }
}
