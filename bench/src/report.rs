//! The tables: the same text for a terminal and for a Markdown page.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::cli::Options;
use crate::contender::{Absent, Kind};
use crate::operation::Operation;
use crate::plot;
use crate::results::{ContenderInfo, Floor, Report, Row, Spread};

/// Prints the report and writes the requested files.
pub(crate) fn write(report: &Report, options: &Options) -> Result<()> {
    write_text(report, &markdown(report), options)?;
    if let Some(path) = &options.svg {
        fs::write(path, plot::draw(report)).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// Prints a report, given as text, and writes the requested Markdown and JSON files.
pub(crate) fn write_text(report: &impl Serialize, text: &str, options: &Options) -> Result<()> {
    print!("{text}");
    if let Some(path) = &options.markdown {
        fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    if let Some(path) = &options.json {
        let json = serde_json::to_string_pretty(report).context("write the report as JSON")?;
        fs::write(path, json + "\n").with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

fn markdown(report: &Report) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}; {} repetitions, {} files per operation, large files of {} MiB.\n",
        report.machine.text(),
        report.repetitions,
        report.files,
        report.large_bytes >> 20
    );
    for threads in thread_counts(report) {
        let _ = writeln!(text, "### {}: share of the native rate (median)\n", workers(threads));
        text += &ratios(report, threads);
    }
    for threads in thread_counts(report) {
        let _ = writeln!(text, "### {}: rates, median (least to most)\n", workers(threads));
        text += &rates(report, threads);
    }
    text += &scaling(report);
    text += &floors(report);
    text += &workloads(report);
    text += &memory(report);
    text += &contender_list(&report.contenders, &report.absent);
    text
}

fn workers(threads: u32) -> String {
    if threads == 1 { "One thread".to_owned() } else { format!("{threads} threads") }
}

fn thread_counts(report: &Report) -> Vec<u32> {
    let mut counts: Vec<u32> = report.rows.iter().map(|row| row.threads).collect();
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Returns the rows of one operation, in the order of the contenders.
fn rows_of(report: &Report, operation: Operation, threads: u32) -> impl Iterator<Item = &Row> {
    report.rows.iter().filter(move |row| row.operation == operation && row.threads == threads)
}

fn names(report: &Report) -> impl Iterator<Item = String> {
    report.contenders.iter().map(|entrant| entrant.name.to_owned())
}

fn ratios(report: &Report, threads: u32) -> String {
    let mut head = vec!["operation".to_owned(), "native rate".to_owned()];
    head.extend(names(report).skip(1));
    head.push("wanted".to_owned());
    head.push("unionfs / wrapfs".to_owned());
    let body = Operation::ALL.into_iter().filter_map(|operation| {
        let rows: Vec<&Row> = rows_of(report, operation, threads).collect();
        let (native, others) = rows.split_first()?;
        let mut line = vec![operation.label().to_owned(), rate_text(native, |rate| number(rate.median))];
        let text = |row: &&Row| row.ratio.map_or_else(|| "failed".to_owned(), |ratio| format!("{:.2}", ratio.median));
        line.extend(others.iter().map(text));
        line.push(target_text(&rows));
        line.push(relative_to_wrapfs(&rows));
        Some(line)
    });
    table(&head, &body.collect::<Vec<_>>())
}

fn find<'a>(rows: &[&'a Row], kind: Kind) -> Option<&'a Row> {
    rows.iter().find(|row| row.contender == kind).copied()
}

/// Returns the target for the union, and whether it is reached.
fn target_text(rows: &[&Row]) -> String {
    let Some(target) = rows.first().and_then(|row| row.target) else { return String::new() };
    match find(rows, Kind::Unionfs).and_then(|row| row.ratio) {
        Some(ratio) if ratio.median >= target => format!("{target:.2}, reached"),
        Some(_) => format!("{target:.2}, missed"),
        None => format!("{target:.2}"),
    }
}

/// Returns the union's rate as a share of the null layer's.
fn relative_to_wrapfs(rows: &[&Row]) -> String {
    let rate = |kind| Some(find(rows, kind)?.rate?.median);
    match (rate(Kind::Unionfs), rate(Kind::Wrapfs)) {
        (Some(unionfs), Some(wrapfs)) => format!("{:.2}", unionfs / wrapfs),
        _ => String::new(),
    }
}

fn rates(report: &Report, threads: u32) -> String {
    let mut head = vec!["operation".to_owned(), "unit".to_owned()];
    head.extend(names(report));
    let body = Operation::ALL.into_iter().filter_map(|operation| {
        let mut rows = rows_of(report, operation, threads).peekable();
        rows.peek()?;
        let mut line = vec![operation.label().to_owned(), operation.unit().name().to_owned()];
        let spread = |rate: Spread| format!("{} ({} to {})", number(rate.median), number(rate.min), number(rate.max));
        line.extend(rows.map(|row| row.rate.map_or_else(|| "failed".to_owned(), spread)));
        Some(line)
    });
    table(&head, &body.collect::<Vec<_>>())
}

fn rate_text(row: &Row, text: impl Fn(Spread) -> String) -> String {
    row.rate.map_or_else(|| "failed".to_owned(), |rate| format!("{} {}", text(rate), row.unit.name()))
}

/// Formats the rate of the highest number of workers relative to that of the lowest.
fn scaling(report: &Report) -> String {
    let counts = thread_counts(report);
    let (Some(&one), Some(&most)) = (counts.first(), counts.last()) else { return String::new() };
    if one == most {
        return String::new();
    }
    let mut head = vec!["operation".to_owned()];
    head.extend(names(report));
    let body = Operation::ALL.into_iter().filter_map(|operation| {
        let mut pairs = rows_of(report, operation, one).zip(rows_of(report, operation, most)).peekable();
        pairs.peek()?;
        let mut line = vec![operation.label().to_owned()];
        line.extend(pairs.map(|(few, many)| match (few.rate, many.rate) {
            (Some(few), Some(many)) => format!("{:.2}", many.median / few.median),
            _ => "failed".to_owned(),
        }));
        Some(line)
    });
    format!("### Rate of {most} threads as a multiple of that of {one}\n\n{}", table(&head, &body.collect::<Vec<_>>()))
}

/// Formats the distance of Strata's operations from their floors.
fn floors(report: &Report) -> String {
    let mut text = String::new();
    for threads in thread_counts(report) {
        let head =
            ["operation", "contender", "µs", "floor, µs", "distance", "in pipe round trips", "requests per operation"]
                .map(str::to_owned);
        let mut body = Vec::new();
        let mut shown = None;
        for row in report.rows.iter().filter(|row| row.threads == threads) {
            let (Some(floor), Some(requests), Some(time)) = (row.floor, &row.requests, row.microseconds) else {
                continue;
            };
            shown = shown.or(Some(floor));
            let sent: Vec<String> = requests.iter().map(|(opcode, count)| format!("{opcode} {count:.2}")).collect();
            body.push(vec![
                row.operation.label().to_owned(),
                row.contender.name().to_owned(),
                format!("{time:.2}"),
                format!("{:.2}", floor.microseconds),
                format!("{:.2}", floor.distance),
                format!("{:.2} (floor {:.2})", floor.pipe_round_trips, floor.floor_pipe_round_trips),
                if sent.is_empty() { "none".to_owned() } else { sent.join(", ") },
            ]);
        }
        if let Some(Floor { round_trip_microseconds, pipe_microseconds, .. }) = shown {
            let _ = writeln!(
                text,
                "### {}: distance from the floor\n\nA request to a server that replies from memory takes \
                 {round_trip_microseconds:.2} µs, a byte through a pipe and back {pipe_microseconds:.2} µs.\n",
                workers(threads)
            );
            text += &table(&head, &body);
        }
    }
    text
}

fn workloads(report: &Report) -> String {
    if report.workloads.is_empty() {
        return String::new();
    }
    let head = ["workload", "contender", "seconds (least to most)", "times native", "wanted"].map(str::to_owned);
    let body = report.workloads.iter().map(|row| {
        let seconds = row.spread.map(|s| format!("{:.1} ({:.1} to {:.1})", s.median, s.min, s.max));
        vec![
            row.workload.label().to_owned(),
            row.contender.name().to_owned(),
            seconds.unwrap_or_else(|| "failed".to_owned()),
            row.ratio.map_or_else(String::new, |ratio| format!("{:.2}", ratio.median)),
            format!("{:.2}", row.target),
        ]
    });
    format!("### Workloads\n\n{}", table(&head, &body.collect::<Vec<_>>()))
}

fn memory(report: &Report) -> String {
    let Some(first) = report.memory.first() else { return String::new() };
    let head = [
        "contender",
        "idle, KiB (anonymous)",
        "bytes per inode",
        "all known, KiB",
        "forgotten, KiB",
        "descriptors idle, known, forgotten",
    ]
    .map(str::to_owned);
    let body = report.memory.iter().map(|row| {
        let descriptors = [row.idle, row.known, row.forgotten].map(|resident| resident.descriptors.to_string());
        vec![
            row.contender.name().to_owned(),
            format!("{} ({})", row.idle.kib, row.idle.anonymous_kib),
            format!("{:.0}", row.bytes_per_inode),
            row.known.kib.to_string(),
            row.forgotten.kib.to_string(),
            descriptors.join(", "),
        ]
    });
    format!("### Memory of the servers, with {} inodes\n\n{}", first.inodes, table(&head, &body.collect::<Vec<_>>()))
}

/// Formats the settings of all contenders.
pub(crate) fn contender_list(present: &[ContenderInfo], absent: &[Absent]) -> String {
    let mut text = "### Contenders\n\n".to_owned();
    for entrant in present {
        let version = entrant.version.as_ref().map_or_else(String::new, |version| format!(" {version}"));
        let settings = if entrant.settings.is_empty() {
            "a plain directory".to_owned()
        } else {
            format!("`{}`", entrant.settings)
        };
        let _ = writeln!(text, "- {}{version}: {settings}", entrant.name);
    }
    for absent in absent {
        let _ = writeln!(text, "- {}: skipped: {}", absent.name, absent.reason);
    }
    text
}

/// Formats a number with three significant digits.
pub(crate) fn number(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.2}M", v / 1e6),
        v if v >= 1e5 => format!("{:.0}k", v / 1e3),
        v if v >= 1e4 => format!("{:.1}k", v / 1e3),
        v if v >= 1e3 => format!("{:.2}k", v / 1e3),
        v => format!("{v:.0}"),
    }
}

/// Formats a number with three significant digits and without a unit prefix.
pub(crate) fn three_digits(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        v if v.abs() >= 100.0 => format!("{v:.0}"),
        v if v.abs() >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// Formats a Markdown table with aligned columns, readable as plain text.
pub(crate) fn table(head: &[String], body: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = body.iter().filter_map(|line| line.get(column)).chain(head.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0).max(3)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &[String]| {
        let padded = cells.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column == 0 { format!(" {cell:<width$} ") } else { format!(" {cell:>width$} ") }
        });
        format!("|{}|\n", padded.collect::<Vec<_>>().join("|"))
    };
    let rule = widths.iter().enumerate().map(|(column, &width)| {
        if column == 0 { "-".repeat(width + 2) } else { format!("{}:", "-".repeat(width + 1)) }
    });
    let rule = format!("|{}|\n", rule.collect::<Vec<_>>().join("|"));
    format!("{}{rule}{}\n", line(head), body.iter().map(|cells| line(cells)).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned() {
        let head = ["what".to_owned(), "n".to_owned()];
        let body = [vec!["µ".to_owned(), "1".to_owned()], vec!["longer".to_owned(), "12345".to_owned()]];
        let expected = "| what   |     n |\n|--------|------:|\n| µ      |     1 |\n| longer | 12345 |\n\n";
        assert_eq!(table(&head, &body), expected);
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(
            [0.4, 999.0, 4057.0, 52_061.0, 599_697.0, 2_000_000.0].map(number),
            ["0", "999", "4.06k", "52.1k", "600k", "2.00M"]
        );
    }
}
