//! Histograms of the times of operations, as text.

use core::fmt::Write as _;
use core::time::Duration;
use serde_json::Value;

/// Width of the longest bar.
const WIDTH: u64 = 40;

/// The times of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    name: String,
    count: u64,
    total: Duration,
    longest: Duration,
    /// Bucket N counts times of 2^N to 2^(N+1) - 1 nanoseconds.
    buckets: Vec<u64>,
}

impl Operation {
    /// Parses the reply to `server.latency`: whether times are measured now, and the operations by
    /// their total time.
    #[must_use]
    pub fn read(json: &str) -> Option<(bool, Vec<Self>)> {
        let reply: Value = serde_json::from_str(json).ok()?;
        let mut all = Vec::new();
        for (name, of) in reply.get("operations")?.as_object()? {
            let number = |field: &str| of.get(field)?.as_u64();
            all.push(Self {
                name: name.clone(),
                count: number("count")?,
                total: Duration::from_nanos(number("total")?),
                longest: Duration::from_nanos(number("longest")?),
                buckets: of.get("buckets")?.as_array()?.iter().map(Value::as_u64).collect::<Option<_>>()?,
            });
        }
        all.sort_by_key(|of| std::cmp::Reverse(of.total));
        Some((reply.get("measuring")?.as_bool()?, all))
    }

    fn mean(&self) -> Duration {
        let nanos = self.total.as_nanos().checked_div(u128::from(self.count)).unwrap_or(0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Estimates the time that this share of the operations, in percent, does not exceed. Within a
    /// bucket, times are assumed to be distributed evenly.
    fn percentile(&self, percent: u64) -> Duration {
        let wanted = (self.count * percent).div_ceil(100).max(1);
        let mut before = 0;
        for (exponent, count) in (0_u32..).zip(&self.buckets) {
            if before + count >= wanted {
                let low = 1_u64 << exponent;
                let inside = u128::from(low) * u128::from(wanted - before) / u128::from((*count).max(1));
                let nanos = low.saturating_add(u64::try_from(inside).unwrap_or(u64::MAX));
                return Duration::from_nanos(nanos).min(self.longest);
            }
            before += count;
        }
        self.longest
    }
}

/// Draws a table of all operations, then a histogram of each.
#[must_use]
pub fn draw(measuring: bool, operations: &[Operation]) -> String {
    let mut out = format!(
        "{:<14}{:>12}{:>10}{:>10}{:>10}{:>10}{:>11}\n",
        "operation", "count", "mean", "p50", "p99", "longest", "total"
    );
    for of in operations {
        let [mean, half, most, longest, total] =
            [of.mean(), of.percentile(50), of.percentile(99), of.longest, of.total].map(short);
        let _ = writeln!(out, "{:<14}{:>12}{mean:>10}{half:>10}{most:>10}{longest:>10}{total:>11}", of.name, of.count);
    }
    for of in operations {
        let _ = writeln!(out, "\n{}", of.name);
        bars(&mut out, of);
    }
    if !measuring {
        out.push_str("\nnot measured any more: see --start\n");
    }
    out
}

fn bars(out: &mut String, of: &Operation) {
    let most = of.buckets.iter().copied().max().unwrap_or(0).max(1);
    let first = of.buckets.iter().position(|count| *count > 0).unwrap_or(0);
    for (exponent, count) in (0_u32..).zip(&of.buckets).skip(first) {
        let width = usize::try_from((count * WIDTH).div_ceil(most)).unwrap_or(0);
        let end = Duration::from_nanos(1_u64.checked_shl(exponent + 1).unwrap_or(u64::MAX));
        let line = format!("  < {:>7}{count:>12}  {}", short(end), "#".repeat(width));
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

/// Formats a time in four characters and a unit.
fn short(time: Duration) -> String {
    let nanos = time.as_nanos();
    let (divisor, unit) = match nanos {
        0..1_000 => return format!("{nanos}ns"),
        1_000..1_000_000 => (1_000.0, "us"),
        1_000_000..1_000_000_000 => (1_000_000.0, "ms"),
        _ => (1_000_000_000.0, "s"),
    };
    let value = time.as_secs_f64() * 1e9 / divisor;
    if value < 10.0 { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLY: &str = r#"{"measuring":true,"operations":{
        "GETATTR":{"count":4,"total":6000,"longest":3000,"buckets":[0,0,0,0,0,0,0,0,0,2,1,1]},
        "LOOKUP":{"count":100,"total":2000000,"longest":900000,"buckets":[0,0,0,0,0,0,0,0,0,0,0,0,0,99,0,0,0,0,0,1]}}}"#;

    #[test]
    fn operations_are_sorted_by_their_total_time() {
        let (measuring, all) = Operation::read(REPLY).unwrap();
        assert!(measuring);
        assert_eq!(all.iter().map(|of| of.name.as_str()).collect::<Vec<_>>(), ["LOOKUP", "GETATTR"]);
        assert_eq!(all[0].mean(), Duration::from_micros(20));
        // Half of 99 entries of a bucket from 8192 to 16383 ns.
        assert_eq!(all[0].percentile(50), Duration::from_nanos(8192 + 8192 * 50 / 99));
        assert!(all[0].percentile(99) < Duration::from_micros(17));
        assert_eq!(all[0].percentile(100), Duration::from_micros(900));
        assert_eq!(Operation::read("{}"), None);
    }

    #[test]
    fn histograms_are_drawn() {
        let (_, all) = Operation::read(REPLY).unwrap();
        let drawn = draw(false, &all);
        let want = "\nGETATTR\n  <   1.0us           2  ########################################\n  <   2.0us           1  ####################\n  <   4.1us           1  ####################\n";
        assert!(drawn.contains(want), "{drawn}");
        assert!(drawn.ends_with("not measured any more: see --start\n"), "{drawn}");
        assert!(
            drawn.starts_with("operation            count      mean       p50       p99   longest      total\n"),
            "{drawn}"
        );
    }

    #[test]
    fn times_are_short() {
        let texts = [5, 999, 1_500, 99_400, 12_000_000, 3_200_000_000].map(|n| short(Duration::from_nanos(n)));
        assert_eq!(texts, ["5ns", "999ns", "1.5us", "99us", "12ms", "3.2s"]);
    }
}
