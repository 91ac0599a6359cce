//! Processor time: of the whole machine, which includes the kernel's own threads, or of a program
//! and the servers that it uses.

use std::ops::Range;

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

    /// Returns the time of all processes of the namespace: the programs that ended, and the
    /// servers. Unlike [`Self::now`], does not depend on what else the machine does.
    pub(crate) fn of_processes() -> Result<Self> {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let read = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/stat"));
        let own = read("self").context("read /proc/self/stat")?;
        // Of this process only its children count, which are the programs.
        let mut sum = Self::parse_process(&own, 2..4, ticks).context("/proc/self/stat has an unexpected format")?;
        for pid in crate::process::servers() {
            // A process that has just ended is counted as a child of its parent.
            let Ok(stat) = read(&pid.to_string()) else { continue };
            let Some(one) = Self::parse_process(&stat, 0..4, ticks) else { continue };
            sum = Self { user: sum.user + one.user, system: sum.system + one.system };
        }
        Ok(sum)
    }

    /// Parses `utime stime cutime cstime`, and adds up those within `which`.
    fn parse_process(stat: &str, which: Range<usize>, ticks: f64) -> Option<Self> {
        // The name, in parentheses, may contain blanks. Field 14 is the twelfth after it.
        let (_, rest) = stat.rsplit_once(')')?;
        let times: Vec<f64> = rest.split_whitespace().skip(11).take(4).map_while(|field| field.parse().ok()).collect();
        let times = if times.len() == 4 { times.get(which)? } else { return None };
        let sum = |first: usize| times.iter().skip(first).step_by(2).sum::<f64>() / ticks;
        Some(Self { user: sum(0), system: sum(1) })
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

    #[test]
    fn a_process_counts_with_its_children_and_this_one_without_itself() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4 5 6 7 8 100 20 3000 400 20 0 1 0";
        assert_eq!(Processor::parse_process(stat, 0..4, 100.0), Some(Processor { user: 31.0, system: 4.2 }));
        assert_eq!(Processor::parse_process(stat, 2..4, 100.0), Some(Processor { user: 30.0, system: 4.0 }));
        assert_eq!(Processor::parse_process("7 (a) S 1 2", 0..4, 100.0), None);
    }
}
