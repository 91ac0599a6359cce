//! Collects the failures of many runs and prints them grouped by kind.

use std::collections::BTreeMap;

/// Number of kinds of failure that are printed.
const MAX_PRINTED: usize = 12;

/// The failures of one test.
#[derive(Default)]
pub struct Report {
    failures: Vec<String>,
    /// Number of runs.
    pub runs: u64,
}

impl Report {
    /// Counts a run and keeps its failure.
    pub fn record(&mut self, what: impl FnOnce() -> String, outcome: Result<(), String>) {
        self.runs += 1;
        if let Err(e) = outcome {
            self.failures.push(format!("{}:\n{e}", what()));
        }
    }

    /// Prints a summary and panics if a run has failed.
    pub fn finish(self, test: &str) {
        println!("{test}: {} runs, {} failures", self.runs, self.failures.len());
        if self.failures.is_empty() {
            return;
        }
        let mut kinds: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for failure in &self.failures {
            kinds.entry(shape(failure)).or_default().push(failure);
        }
        let mut kinds: Vec<_> = kinds.into_values().collect();
        kinds.sort_by_key(|of_kind| std::cmp::Reverse(of_kind.len()));
        for of_kind in kinds.iter().take(MAX_PRINTED) {
            // The shortest is the easiest to understand.
            let shortest = of_kind.iter().min_by_key(|failure| failure.len());
            println!("--- {} of this kind: {}", of_kind.len(), shortest.unwrap_or(&""));
        }
        panic!("{test}: {} of {} runs failed", self.failures.len(), self.runs);
    }
}

/// Returns the kind of a failure: the operation and the first line of the message, without names
/// and numbers.
fn shape(failure: &str) -> String {
    let mut lines = failure.lines();
    let operation = lines.next().unwrap_or_default().split([' ', '{']).next().unwrap_or_default();
    let mut message = String::new();
    let mut quoted = false;
    for c in lines.next().unwrap_or_default().chars() {
        match c {
            '"' => quoted = !quoted,
            _ if quoted || c.is_ascii_hexdigit() && !c.is_ascii_lowercase() => {}
            _ => message.push(c),
        }
    }
    format!("{operation} {message}")
}

/// Whether this run tries the case `what`. A hash selects one case in `n`, with another selection
/// for each `salt`. `STRATA_THIN` overrides `n`, `STRATA_FULL` sets it to 1, `STRATA_PART` selects
/// another part.
pub fn is_sampled(salt: &str, what: &str, n: u64) -> bool {
    let n = if testkit::number("STRATA_FULL").is_some() { 1 } else { testkit::number("STRATA_THIN").unwrap_or(n) };
    // FNV-1a is the same on every machine, so a run can be repeated.
    let hash = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
    let sum = salt.bytes().chain(what.bytes()).fold(0xcbf2_9ce4_8422_2325, hash);
    (sum >> 20) % n.max(1) == testkit::number("STRATA_PART").unwrap_or(0) % n.max(1)
}
