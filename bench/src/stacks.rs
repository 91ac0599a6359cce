//! Cost of each additional layer of a stack: 1 to 8 null layers in one server, with and without
//! meters between them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::cli::Options;
use crate::layout::{self, Amounts, Branches};
use crate::operation::Operation;
use crate::operations;
use crate::process;
use crate::progress::Progress;
use crate::scratch::{Mounted, ScratchFs, Size};

/// Maximum number of layers.
const MOST: u32 = 8;
/// Measured operations: one request of each kind that layers take part in, and a sequence of
/// several.
const OPERATIONS: [Operation; 6] = [
    Operation::GetattrForced,
    Operation::StatFirst,
    Operation::OpenReadRw,
    Operation::Chmod,
    Operation::Create,
    Operation::Unlink,
];

/// Microseconds per operation, one value per repetition, by operation, meters and number of layers.
type Times = BTreeMap<(Operation, bool, u32), Vec<f64>>;

/// Runs the measurement and prints a Markdown table.
pub(crate) fn run(options: &Options) -> Result<()> {
    let (base, progress) = (crate::isolation::base()?, Progress::new());
    let mut times = Times::new();
    for rep in 0..options.repetitions() {
        for metered in [false, true] {
            for layers in 1..=MOST {
                let meters = if metered { "with" } else { "without" };
                progress.show(&format!("{}/{}  {layers} layers {meters} meters", rep + 1, options.repetitions()));
                measure(options, &base, layers, metered, &mut times)?;
            }
        }
    }
    progress.clear();
    print!("{}", table(&times));
    Ok(())
}

fn measure(options: &Options, base: &Path, layers: u32, metered: bool, times: &mut Times) -> Result<()> {
    let inodes = u64::from(options.files()) * 20 + 10_000;
    let scratch = ScratchFs::new(base, Size { bytes: (512 << 20) + inodes * 8192, inodes })?;
    let dir = scratch.disk().join("only");
    let branches = Branches { rw: dir.clone(), ro: dir.clone() };
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let amounts = Amounts { workers: 1, files: options.files(), large_bytes: 1 << 20 };
    OPERATIONS.iter().try_for_each(|&operation| layout::populate(operation, &branches, &amounts))?;
    let disk = scratch.open()?;
    let point = scratch.base().join("mnt");
    fs::create_dir_all(&point).with_context(|| format!("create {}", point.display()))?;
    let mut command = Command::new(&options.wrapfs);
    let meter = if metered { "on" } else { "off" };
    command.arg0("mount.strata").arg(format!("{}{}", "wrapfs / ".repeat(layers as usize), dir.display())).arg(&point);
    process::run(command.arg("-o").arg(format!("cache=86400,meter={meter}")), &scratch.log())
        .context("mount the stack")?;
    let mounted = Mounted { at: point.clone() };
    for operation in OPERATIONS {
        let done = operations::measure(options, operation, 1, &point, &disk)?;
        times.entry((operation, metered, layers)).or_default().push(done.seconds * 1e6 / done.ops as f64);
    }
    drop(mounted);
    process::wait_for_servers();
    Ok(())
}

fn table(times: &Times) -> String {
    let mut out = String::from("| operation | meters |");
    (1..=MOST).for_each(|layers| out += &format!(" {layers} |"));
    out += " each further layer |\n|---|---|";
    out += &"---|".repeat(MOST as usize + 1);
    out.push('\n');
    for operation in OPERATIONS {
        let one = median(times, operation, false, 1);
        for metered in [false, true] {
            out += &format!("| {} | {} |", operation.label(), if metered { "on" } else { "off" });
            let points: Vec<_> = (1..=MOST).map(|n| (f64::from(n), median(times, operation, metered, n))).collect();
            points.iter().for_each(|(_, time)| out += &format!(" {time:.2} |"));
            let slope = slope(&points);
            out += &format!(" {slope:.2} µs ({:.1} %) |\n", slope * 100.0 / one);
        }
    }
    out
}

/// Returns the median of the repetitions.
fn median(times: &Times, operation: Operation, metered: bool, layers: u32) -> f64 {
    let mut all = times.get(&(operation, metered, layers)).cloned().unwrap_or_default();
    all.sort_by(f64::total_cmp);
    let middle = all.len() / 2;
    match (all.get(middle), middle.checked_sub(1).and_then(|before| all.get(before))) {
        (Some(upper), Some(lower)) if all.len().is_multiple_of(2) => f64::midpoint(*upper, *lower),
        (Some(middle), _) => *middle,
        (None, _) => f64::NAN,
    }
}

/// Returns the slope of the least-squares line.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0 / count, y + point.1 / count));
    let (above, below) = points.iter().fold((0.0, 0.0), |(above, below), point| {
        (above + (point.0 - x) * (point.1 - y), below + (point.0 - x) * (point.0 - x))
    });
    above / below
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_of_a_line() {
        let points: Vec<_> = (1..=8).map(|n| (f64::from(n), 13.0 + 0.25 * f64::from(n))).collect();
        assert!((slope(&points) - 0.25).abs() < 1e-9);
    }

    #[test]
    fn the_median_of_repetitions() {
        let mut times = Times::new();
        times.insert((Operation::Chmod, true, 2), vec![3.0, 1.0, 2.0]);
        times.insert((Operation::Chmod, true, 3), vec![4.0, 1.0, 2.0, 3.0]);
        assert!((median(&times, Operation::Chmod, true, 2) - 2.0).abs() < 1e-9);
        assert!((median(&times, Operation::Chmod, true, 3) - 2.5).abs() < 1e-9);
        assert!(median(&times, Operation::Chmod, false, 2).is_nan());
    }
}
