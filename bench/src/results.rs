//! From samples to rows: medians, ratios to native, and distances from the floor.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cli::Options;
use crate::contender::{Absent, Contender, Kind};
use crate::operation::{Operation, Unit};
use crate::operations::{Measured, Sample};
use crate::reference::Reference;

/// All results of a run, as written to the JSON file.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) repetitions: u32,
    pub(crate) files: u32,
    pub(crate) large_bytes: u64,
    pub(crate) contenders: Vec<ContenderInfo>,
    pub(crate) absent: Vec<Absent>,
    /// Lower bounds, for each repetition.
    pub(crate) references: Vec<Reference>,
    pub(crate) rows: Vec<Row>,
    pub(crate) memory: Vec<crate::memory::MemoryRow>,
    pub(crate) workloads: Vec<crate::workload::WorkloadRow>,
}

/// The machine.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) processor: String,
    pub(crate) cpus: usize,
    /// Load average of the minute before the run: activity of other programs.
    pub(crate) load_before: Option<f64>,
}

/// A contender that took part.
#[derive(Debug, Serialize)]
pub(crate) struct ContenderInfo {
    pub(crate) name: &'static str,
    pub(crate) settings: String,
    pub(crate) version: Option<String>,
}

/// Median, minimum and maximum of several measurements.
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
    /// Operations or megabytes per second, one value per repetition.
    pub(crate) rates: Vec<f64>,
    pub(crate) rate: Option<Spread>,
    /// The rate as a share of the native rate of the same repetition.
    pub(crate) ratio: Option<Spread>,
    /// Target of the ratio.
    pub(crate) target: Option<f64>,
    /// Median duration of one operation in microseconds.
    pub(crate) microseconds: Option<f64>,
    /// Requests per operation, by opcode.
    pub(crate) requests: Option<BTreeMap<String, f64>>,
    pub(crate) floor: Option<Floor>,
    /// Reason why it could not be measured.
    pub(crate) error: Option<String>,
}

/// Lower bound for an operation with the requests that the kernel sends, and the contender's
/// distance from it. Each value is the median over the repetitions.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Floor {
    /// A request to a server that replies from memory.
    pub(crate) round_trip_microseconds: f64,
    /// A byte through a pipe and back.
    pub(crate) pipe_microseconds: f64,
    /// The native time plus a round trip per request.
    pub(crate) microseconds: f64,
    /// Measured time / floor.
    pub(crate) distance: f64,
    /// Measured time / pipe round trip.
    pub(crate) pipe_round_trips: f64,
    /// Floor / pipe round trip.
    pub(crate) floor_pipe_round_trips: f64,
}

impl Spread {
    /// Returns `None` for no values.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (low, high) = (sorted.get((sorted.len() - 1) / 2)?, sorted.get(sorted.len() / 2)?);
        Some(Self { median: f64::midpoint(*low, *high), min, max })
    }
}

/// One value for each repetition that has one.
pub(crate) type Values = BTreeMap<u32, f64>;

/// Returns the median, minimum and maximum of the ratios within each repetition.
pub(crate) fn ratio(values: &Values, base: &Values) -> Option<Spread> {
    Spread::of(&values.iter().filter_map(|(rep, value)| Some(value / base.get(rep)?)).collect::<Vec<_>>())
}

/// Returns the median, minimum and maximum.
pub(crate) fn spread(values: &Values) -> Option<Spread> {
    Spread::of(&values.values().copied().collect::<Vec<_>>())
}

impl Report {
    /// Returns a report without rows.
    pub(crate) fn new(options: &Options, contenders: &[Contender], absent: Vec<Absent>) -> Self {
        let contender_list = contenders.iter().map(|contender| ContenderInfo {
            name: contender.kind.name(),
            settings: contender.kind.settings(),
            version: Self::version(options, contender.kind.name()),
        });
        Self {
            machine: Machine::this(),
            repetitions: options.repetitions(),
            files: options.files(),
            large_bytes: options.large_bytes(),
            contenders: contender_list.collect(),
            absent,
            references: Vec::new(),
            rows: Vec::new(),
            memory: Vec::new(),
            workloads: Vec::new(),
        }
    }

    /// Returns the version of an unpacked peer.
    pub(crate) fn version(options: &Options, name: &str) -> Option<String> {
        let versions = std::fs::read_to_string(options.cache.join("peers/versions")).ok()?;
        versions.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(' ')?.to_owned()))
    }
}

impl Machine {
    /// Prints a warning if other programs are running.
    pub(crate) fn warn_if_busy(&self) {
        if let Some(load) = self.load_before.filter(|load| *load > 0.5) {
            eprintln!("strata-bench: the machine is busy (load {load:.1}): results will vary");
        }
    }

    /// Describes it in half a sentence.
    pub(crate) fn text(&self) -> String {
        let load = self.load_before.map_or_else(|| "unknown".to_owned(), |load| format!("{load:.1}"));
        format!("Linux {}, {} CPUs ({}), load {load} before the run", self.kernel, self.cpus, self.processor)
    }

    pub(crate) fn this() -> Self {
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
    /// Operations or megabytes (10^6 bytes) per second.
    fn rate(&self, unit: Unit) -> f64 {
        let amount = match unit {
            Unit::Operations => self.ops as f64,
            Unit::Megabytes => self.bytes as f64 / 1e6,
        };
        amount / self.seconds
    }

    /// Returns the duration of one operation of one worker.
    pub(crate) fn microseconds(&self, threads: u32) -> f64 {
        self.seconds * 1e6 * f64::from(threads) / self.ops.max(1) as f64
    }
}

/// Returns one row for each operation, number of workers and contender.
pub(crate) fn rows(samples: &[Sample], references: &[Reference], contenders: &[Contender]) -> Vec<Row> {
    let mut keys: Vec<(u32, Operation)> = samples.iter().map(|sample| (sample.threads, sample.operation)).collect();
    keys.sort_unstable();
    keys.dedup();
    let rows = keys.into_iter().flat_map(|(threads, operation)| {
        contenders.iter().map(move |contender| row(samples, references, operation, threads, contender.kind))
    });
    rows.collect()
}

/// Returns the successful samples of one contender, by repetition.
fn measured(samples: &[Sample], operation: Operation, threads: u32, kind: Kind) -> BTreeMap<u32, &Measured> {
    samples
        .iter()
        .filter(|sample| sample.operation == operation && sample.threads == threads && sample.contender == kind)
        .filter_map(|sample| Some((sample.rep, sample.result.as_ref().ok()?)))
        .collect()
}

/// Returns the median of `of` over the values for which it is defined.
fn median<T>(values: &[T], of: impl Fn(&T) -> f64) -> Option<f64> {
    Some(Spread::of(&values.iter().map(of).collect::<Vec<_>>())?.median)
}

/// Returns the floor of an operation of one contender; `None` unless the server counts its
/// requests.
fn floor(
    (own, native): (&BTreeMap<u32, &Measured>, &BTreeMap<u32, &Measured>),
    references: &BTreeMap<u32, &Reference>,
    sent: f64,
) -> Option<Floor> {
    let mut all = Vec::new();
    for (rep, one) in own {
        let (Some(native), Some(reference)) = (native.get(rep), references.get(rep)) else { continue };
        let (time, pipe) = (one.microseconds(reference.threads), reference.pipe_microseconds);
        let floor = native.microseconds(reference.threads) + sent * reference.round_trip();
        all.push(Floor {
            round_trip_microseconds: reference.round_trip(),
            pipe_microseconds: pipe,
            microseconds: floor,
            distance: time / floor,
            pipe_round_trips: time / pipe,
            floor_pipe_round_trips: floor / pipe,
        });
    }
    Some(Floor {
        round_trip_microseconds: median(&all, |floor| floor.round_trip_microseconds)?,
        pipe_microseconds: median(&all, |floor| floor.pipe_microseconds)?,
        microseconds: median(&all, |floor| floor.microseconds)?,
        distance: median(&all, |floor| floor.distance)?,
        pipe_round_trips: median(&all, |floor| floor.pipe_round_trips)?,
        floor_pipe_round_trips: median(&all, |floor| floor.floor_pipe_round_trips)?,
    })
}

fn row(samples: &[Sample], references: &[Reference], operation: Operation, threads: u32, kind: Kind) -> Row {
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
    let requests = requests_per_operation(&own);
    let floor = requests.as_ref().and_then(|requests| {
        let reached = |one: &&Reference| one.threads == threads && Some(one.transport) == kind.transport();
        let references = references.iter().filter(reached).map(|one| (one.rep, one)).collect();
        floor((&own, &native), &references, requests.values().sum())
    });
    Row {
        operation,
        threads,
        contender: kind,
        unit,
        rate: Spread::of(&rates),
        ratio: Spread::of(&ratios),
        target: operation.target(),
        microseconds: median(&own.values().collect::<Vec<_>>(), |one| one.microseconds(threads)),
        floor,
        requests,
        rates,
        error,
    }
}

/// Returns the mean over all repetitions; `None` unless the server counts its requests.
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
    use crate::reference::Transport;

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
    fn ratios_need_both_values_of_a_repetition() {
        let values = Values::from([(0, 4.0), (1, 9.0), (2, 5.0)]);
        let base = Values::from([(0, 2.0), (1, 3.0)]);
        assert_eq!(ratio(&values, &base), Some(Spread { median: 2.5, min: 2.0, max: 3.0 }));
        assert_eq!(ratio(&values, &Values::new()), None);
    }

    #[test]
    fn ratios_are_taken_within_a_repetition() {
        // The machine is half as fast in the second repetition: the ratio is the same.
        let samples = [
            sample(Kind::Native, Operation::Chmod, 0, 1.0, None),
            sample(Kind::Overlayfs, Operation::Chmod, 0, 2.0, None),
            sample(Kind::Native, Operation::Chmod, 1, 2.0, None),
            sample(Kind::Overlayfs, Operation::Chmod, 1, 4.0, None),
        ];
        let row = row(&samples, &[], Operation::Chmod, 1, Kind::Overlayfs);
        assert_eq!(row.ratio, Some(Spread { median: 0.5, min: 0.5, max: 0.5 }));
        assert_eq!(row.rate.map(|rate| rate.max), Some(500.0));
    }

    #[test]
    fn the_floor_is_native_plus_the_round_trips() {
        let samples = [
            sample(Kind::Native, Operation::Chmod, 0, 0.005, None),
            sample(Kind::Unionfs, Operation::Chmod, 0, 0.050, Some(2000)),
            // The machine is half as fast: the distance is the same.
            sample(Kind::Native, Operation::Chmod, 1, 0.010, None),
            sample(Kind::Unionfs, Operation::Chmod, 1, 0.100, Some(2000)),
        ];
        let reference = |rep, slower, transport| Reference {
            rep,
            threads: 1,
            transport,
            pipe_microseconds: 5.0 * slower,
            native_microseconds: 1.0 * slower,
            nullping_microseconds: 11.0 * slower,
        };
        let references = [
            reference(0, 1.0, Transport::Auto),
            reference(0, 7.0, Transport::Device),
            reference(1, 2.0, Transport::Auto),
        ];
        let floor = row(&samples, &references, Operation::Chmod, 1, Kind::Unionfs).floor.unwrap();
        // 5 us natively and two requests of 10 us each; measured: twice that.
        let expected = [
            (floor.round_trip_microseconds, 15.0),
            (floor.microseconds, 37.5),
            (floor.distance, 2.0),
            (floor.pipe_round_trips, 10.0),
            (floor.floor_pipe_round_trips, 5.0),
        ];
        for (is, should) in expected {
            assert!((is - should).abs() < 1e-6, "{floor:?}");
        }
        assert!(row(&samples, &[], Operation::Chmod, 1, Kind::Unionfs).floor.is_none());
        assert!(row(&samples, &references, Operation::Chmod, 1, Kind::Native).floor.is_none());
    }
}
