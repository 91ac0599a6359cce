//! From samples to rows: medians, ratios to native, and distances from the floor.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cli::Options;
use crate::contender::{Absent, Contender, Kind};
use crate::operation::{Operation, Unit};
use crate::operations::{Measured, Sample};

/// Everything that one run has found; this is what the JSON holds.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) repetitions: u32,
    pub(crate) files: u32,
    pub(crate) large_bytes: u64,
    pub(crate) contenders: Vec<Entrant>,
    pub(crate) absent: Vec<Absent>,
    pub(crate) rows: Vec<Row>,
    pub(crate) memory: Vec<crate::memory::MemoryRow>,
    pub(crate) workloads: Vec<crate::workload::WorkloadRow>,
}

/// Where it ran.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) processor: String,
    pub(crate) cpus: usize,
    /// The load average of the minute before the run: what others were doing.
    pub(crate) load_before: Option<f64>,
}

/// A contender that took part.
#[derive(Debug, Serialize)]
pub(crate) struct Entrant {
    pub(crate) name: &'static str,
    pub(crate) settings: String,
    pub(crate) version: Option<String>,
}

/// The middle and the ends of several measurements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// One operation of one contender with one number of workers.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) operation: Operation,
    pub(crate) threads: u32,
    pub(crate) contender: Kind,
    pub(crate) unit: Unit,
    /// What it moved or did per second, one for each repetition.
    pub(crate) rates: Vec<f64>,
    pub(crate) rate: Option<Spread>,
    /// The rate as a share of the native one of the same repetition.
    pub(crate) ratio: Option<Spread>,
    /// What is wanted of the ratio.
    pub(crate) target: Option<f64>,
    /// How long one operation took, microseconds (median).
    pub(crate) microseconds: Option<f64>,
    /// Requests per operation, by opcode.
    pub(crate) requests: Option<BTreeMap<String, f64>>,
    pub(crate) floor: Option<Floor>,
    /// Why it could not be measured.
    pub(crate) error: Option<String>,
}

/// What an operation can't be cheaper than, and how far from it the contender is.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Floor {
    pub(crate) round_trip_microseconds: f64,
    pub(crate) microseconds: f64,
    /// Measured time / floor.
    pub(crate) distance: f64,
}

impl Spread {
    /// `None` of nothing.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (low, high) = (sorted.get((sorted.len() - 1) / 2)?, sorted.get(sorted.len() / 2)?);
        Some(Self { median: f64::midpoint(*low, *high), min, max })
    }
}

impl Report {
    /// A report without rows.
    pub(crate) fn new(options: &Options, contenders: &[Contender], absent: Vec<Absent>) -> Self {
        let versions = std::fs::read_to_string(options.cache.join("peers/versions")).unwrap_or_default();
        let version =
            |name: &str| versions.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(' ')?.to_owned()));
        let entrants = contenders.iter().map(|contender| Entrant {
            name: contender.kind.name(),
            settings: contender.kind.settings(),
            version: version(contender.kind.name()),
        });
        Self {
            machine: Machine::this(),
            repetitions: options.repetitions(),
            files: options.files(),
            large_bytes: options.large_bytes(),
            contenders: entrants.collect(),
            absent,
            rows: Vec::new(),
            memory: Vec::new(),
            workloads: Vec::new(),
        }
    }
}

impl Machine {
    fn this() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned());
        Self {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            processor,
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            load_before: load(),
        }
    }
}

fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

impl Measured {
    /// Operations or megabytes (a million bytes) per second.
    fn rate(&self, unit: Unit) -> f64 {
        let amount = match unit {
            Unit::Operations => self.ops as f64,
            Unit::Megabytes => self.bytes as f64 / 1e6,
        };
        amount / self.seconds
    }

    /// How long one operation took a worker.
    fn microseconds(&self, threads: u32) -> f64 {
        self.seconds * 1e6 * f64::from(threads) / self.ops.max(1) as f64
    }
}

/// One row for each operation, number of workers and contender.
pub(crate) fn rows(samples: &[Sample], contenders: &[Contender]) -> Vec<Row> {
    let mut keys: Vec<(u32, Operation)> = samples.iter().map(|sample| (sample.threads, sample.operation)).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut rows = Vec::new();
    for (threads, operation) in keys {
        let round_trip = round_trip(samples, threads);
        for contender in contenders {
            rows.push(row(samples, operation, threads, contender.kind, round_trip));
        }
    }
    rows
}

/// The samples of one contender that could be measured, by repetition.
fn measured(samples: &[Sample], operation: Operation, threads: u32, kind: Kind) -> BTreeMap<u32, &Measured> {
    samples
        .iter()
        .filter(|sample| sample.operation == operation && sample.threads == threads && sample.contender == kind)
        .filter_map(|sample| Some((sample.rep, sample.result.as_ref().ok()?)))
        .collect()
}

fn median_microseconds(samples: &[Sample], operation: Operation, threads: u32, kind: Kind) -> Option<f64> {
    let measured = measured(samples, operation, threads, kind);
    Some(Spread::of(&measured.values().map(|one| one.microseconds(threads)).collect::<Vec<_>>())?.median)
}

/// What one request and its answer cost: an attribute that the kernel must ask the null layer for, less a native one.
fn round_trip(samples: &[Sample], threads: u32) -> Option<f64> {
    let of = |kind| median_microseconds(samples, Operation::GetattrForced, threads, kind);
    Some((of(Kind::Wrapfs)? - of(Kind::Native)?).max(0.0))
}

fn row(samples: &[Sample], operation: Operation, threads: u32, kind: Kind, round_trip: Option<f64>) -> Row {
    let unit = operation.unit();
    let own = measured(samples, operation, threads, kind);
    let native = measured(samples, operation, threads, Kind::Native);
    let rates: Vec<f64> = own.values().map(|one| one.rate(unit)).collect();
    let ratios: Vec<f64> =
        own.iter().filter_map(|(rep, one)| Some(one.rate(unit) / native.get(rep)?.rate(unit))).collect();
    let error = samples
        .iter()
        .filter(|sample| sample.operation == operation && sample.threads == threads && sample.contender == kind)
        .find_map(|sample| sample.result.as_ref().err().cloned());
    let microseconds = median_microseconds(samples, operation, threads, kind);
    let requests = requests_per_operation(&own);
    let floor = || {
        let round_trip = round_trip?;
        let sent: f64 = requests.as_ref()?.values().sum();
        let floor = median_microseconds(samples, operation, threads, Kind::Native)? + sent * round_trip;
        let distance = microseconds? / floor;
        Some(Floor { round_trip_microseconds: round_trip, microseconds: floor, distance })
    };
    Row {
        operation,
        threads,
        contender: kind,
        unit,
        rate: Spread::of(&rates),
        ratio: Spread::of(&ratios),
        target: operation.target(),
        microseconds,
        floor: floor(),
        requests,
        rates,
        error,
    }
}

/// The mean over all repetitions; `None` unless the server counts.
fn requests_per_operation(own: &BTreeMap<u32, &Measured>) -> Option<BTreeMap<String, f64>> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    let mut ops = 0;
    for one in own.values() {
        ops += one.ops;
        for (opcode, count) in one.requests.as_ref()? {
            *sums.entry(opcode.clone()).or_default() += count;
        }
    }
    (ops > 0).then(|| sums.into_iter().map(|(opcode, count)| (opcode, count as f64 / ops as f64)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(contender: Kind, operation: Operation, rep: u32, seconds: f64, getattrs: Option<u64>) -> Sample {
        let requests = getattrs.map(|count| BTreeMap::from([("GETATTR".to_owned(), count)]));
        let measured = Measured { seconds, ops: 1000, bytes: 0, requests };
        Sample { contender, operation, threads: 1, rep, result: Ok(measured) }
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn ratios_are_taken_within_a_repetition() {
        // The machine is half as fast in the second repetition: the ratio does not change.
        let samples = [
            sample(Kind::Native, Operation::Chmod, 0, 1.0, None),
            sample(Kind::Overlayfs, Operation::Chmod, 0, 2.0, None),
            sample(Kind::Native, Operation::Chmod, 1, 2.0, None),
            sample(Kind::Overlayfs, Operation::Chmod, 1, 4.0, None),
        ];
        let row = row(&samples, Operation::Chmod, 1, Kind::Overlayfs, None);
        assert_eq!(row.ratio, Some(Spread { median: 0.5, min: 0.5, max: 0.5 }));
        assert_eq!(row.rate.map(|rate| rate.max), Some(500.0));
    }

    #[test]
    fn the_floor_is_native_plus_the_round_trips() {
        let samples = [
            sample(Kind::Native, Operation::GetattrForced, 0, 0.001, None),
            sample(Kind::Wrapfs, Operation::GetattrForced, 0, 0.011, Some(1000)),
            sample(Kind::Native, Operation::Chmod, 0, 0.005, None),
            sample(Kind::Unionfs, Operation::Chmod, 0, 0.050, Some(2000)),
        ];
        let round_trip = round_trip(&samples, 1);
        let floor = row(&samples, Operation::Chmod, 1, Kind::Unionfs, round_trip).floor.unwrap();
        // 5 us natively and two requests of 10 us each.
        assert!((floor.microseconds - 25.0).abs() < 1e-6, "{floor:?}");
        assert!((floor.distance - 2.0).abs() < 1e-6, "{floor:?}");
    }
}
