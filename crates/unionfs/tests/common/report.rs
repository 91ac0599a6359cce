//! Collects what went wrong, so that one run shows it all, and shortens it.

use std::collections::BTreeMap;

/// How many are printed in full.
const SHOWN: usize = 12;

/// Failures of one test.
#[derive(Default)]
pub struct Report {
    failures: Vec<String>,
    /// How many runs there were.
    pub runs: u64,
}

impl Report {
    /// Counts a run, and notes its failure.
    pub fn note(&mut self, what: impl FnOnce() -> String, outcome: Result<(), String>) {
        self.runs += 1;
        if let Err(e) = outcome {
            self.failures.push(format!("{}:\n{e}", what()));
        }
    }

    /// Prints and fails if there is anything to print.
    pub fn finish(self, test: &str) {
        println!("{test}: {} runs, {} failures", self.runs, self.failures.len());
        if self.failures.is_empty() {
            return;
        }
        let mut by_beginning: BTreeMap<&str, usize> = BTreeMap::new();
        for failure in &self.failures {
            *by_beginning.entry(failure.split(['{', '\n']).next().unwrap_or_default()).or_default() += 1;
        }
        for (beginning, count) in by_beginning {
            println!("{count:6} x {beginning}");
        }
        let step = self.failures.len().div_ceil(SHOWN);
        for failure in self.failures.iter().step_by(step) {
            println!("--- {failure}");
        }
        panic!("{test}: {} of {} runs failed", self.failures.len(), self.runs);
    }
}

/// A number from the environment.
pub fn env(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    let parsed = value.strip_prefix("0x").map_or_else(|| value.parse(), |hex| u64::from_str_radix(hex, 16));
    Some(parsed.unwrap_or_else(|_| panic!("{name} must be a number")))
}
