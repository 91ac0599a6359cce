//! Processor time of the whole machine: of a program, of the servers that it uses, and of the
//! kernel's own threads.

use anyhow::{Context, Result};
use serde::Serialize;

/// Seconds of all CPUs together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Processor {
    pub(crate) user: f64,
    pub(crate) system: f64,
}

impl Processor {
    /// Returns the time since the machine was started.
    pub(crate) fn now() -> Result<Self> {
        let stat = std::fs::read_to_string("/proc/stat").context("read /proc/stat")?;
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        Self::parse(&stat, ticks).context("/proc/stat has an unexpected format")
    }

    /// Parses the first line: user, nice, system, idle, iowait, irq, softirq, ...
    fn parse(stat: &str, ticks: f64) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let fields: Vec<f64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
        let sum = |fields: [Option<&f64>; 3]| fields.into_iter().flatten().sum::<f64>() / ticks;
        fields.get(6)?;
        let user = sum([fields.first(), fields.get(1), None]);
        Some(Self { user, system: sum([fields.get(2), fields.get(5), fields.get(6)]) })
    }

    /// Returns the time between two readings.
    pub(crate) fn since(self, before: Self) -> Self {
        Self { user: self.user - before.user, system: self.system - before.system }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_are_system_time_and_waiting_is_neither() {
        let stat = "cpu  100 20 30 5000 700 8 9 0 0 0\ncpu0 1 1 1 1 1 1 1 0 0 0\n";
        let expected = Processor { user: 1.2, system: 0.47 };
        assert_eq!(Processor::parse(stat, 100.0), Some(expected));
        assert_eq!(Processor::parse("cpu  1 2 3\n", 100.0), None);
    }
}
