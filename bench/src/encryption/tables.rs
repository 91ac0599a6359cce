//! The tables, as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::EncryptionReport;
use super::entrant::Entrant;
use super::figures::{self, Figure};
use super::step::{Goal, Part, Step, Unit};
use crate::report::{contender_list, table, three_digits};
use crate::results::{ratio, spread};

/// Stands for what was not measured.
const NONE: &str = "–";

/// Returns the report with its figures.
pub(super) fn markdown(report: &EncryptionReport, figures: &[Figure]) -> String {
    let sizes = report.sizes;
    let mut text = format!(
        "{}; medians of {} repetitions; large file {} MiB, random access in {} MiB, {} small files",
        report.machine.text(),
        report.repetitions,
        sizes.stream_bytes >> 20,
        sizes.random_bytes >> 20,
        sizes.small_files
    );
    if let Some(tree) = report.tree {
        let _ = write!(text, ", source tree of {} files, {} MB", tree.files, tree.bytes / 1_000_000);
    }
    text += ".\n\n";
    text += &goals(report);
    for part in Part::ALL {
        let body = results(report, part);
        if body.is_empty() {
            continue;
        }
        let _ = write!(text, "### Encryption: {}\n\n", part.title());
        for figure in figures.iter().filter(|figure| figures::shows(figure.file, part)) {
            let _ = write!(text, "![{}]({})\n\n", figure.alt, figure.file);
        }
        let _ = write!(text, "{}\n\n{body}", caption(part));
        let _ = write!(text, "Processor seconds of server and programs, user + system:\n\n{}", processor(report, part));
    }
    text += &failures(report);
    let list = contender_list(&report.entrants, &report.absent);
    text + &list.replacen("### Contenders", "### Contenders of the encryption", 1)
}

fn caption(part: Part) -> &'static str {
    match part.unit() {
        Unit::Rate => "MB/s, and in parentheses the multiple of the native speed:",
        Unit::Seconds => "Seconds, and in parentheses the multiple of the native time:",
        Unit::Microseconds => "µs each, and in parentheses the multiple of the native:",
    }
}

fn steps(report: &EncryptionReport, part: Part) -> Vec<Step> {
    let measured = |step: &Step| report.samples.iter().any(|sample| sample.step == *step);
    Step::ALL.into_iter().filter(|step| step.part() == part && measured(step)).collect()
}

/// Formats a table of a part: a row for each entrant, a column for each step.
fn part_table(report: &EncryptionReport, part: Part, cell: impl Fn(Step, Entrant) -> Option<String>) -> String {
    let steps = steps(report, part);
    let head = std::iter::once("").chain(steps.iter().map(|step| step.label())).map(str::to_owned);
    let row = |entrant: Entrant| {
        let cells = steps.iter().map(|&step| cell(step, entrant).unwrap_or_else(|| NONE.to_owned()));
        std::iter::once(entrant.label().to_owned()).chain(cells).collect::<Vec<_>>()
    };
    let body: Vec<_> = report.measured(part).into_iter().map(row).collect();
    if body.is_empty() { String::new() } else { table(&head.collect::<Vec<_>>(), &body) }
}

fn results(report: &EncryptionReport, part: Part) -> String {
    let unit = part.unit();
    part_table(report, part, |step, entrant| {
        let of = |entrant| report.values(step, entrant, |done| done.value(unit));
        let median = spread(&of(entrant))?.median;
        let native = ratio(&of(entrant), &of(Entrant::Native));
        Some(
            native.map_or_else(
                || three_digits(median),
                |native| format!("{} ({:.2})", three_digits(median), native.median),
            ),
        )
    })
}

fn processor(report: &EncryptionReport, part: Part) -> String {
    part_table(report, part, |step, entrant| {
        let values = report.values(step, entrant, |done| done.processor.user + done.processor.system);
        Some(three_digits(spread(&values)?.median))
    })
}

/// Formats the steps that have a goal, and whether it is met.
fn goals(report: &EncryptionReport) -> String {
    let mut body = Vec::new();
    for step in Step::ALL {
        for entrant in report.measured(step.part()) {
            let Some(goal) = step.goal(entrant) else { continue };
            let own = report.seconds(step, entrant);
            let (base, what, compared) = match goal {
                Goal::Speed(base, _) => (base, "speed", ratio(&report.seconds(step, base), &own)),
                Goal::Time(base, _) => (base, "time", ratio(&own, &report.seconds(step, base))),
            };
            let Some(compared) = compared else { continue };
            let (wanted, met) = match goal {
                Goal::Speed(_, least) => (format!("at least {least}"), compared.median >= least),
                Goal::Time(_, most) => (format!("at most {most}"), compared.median <= most),
            };
            body.push(vec![
                format!("{}, {}", step.label(), entrant.label()),
                format!("{what}, times {}", base.label()),
                format!("{:.3} ({:.3} to {:.3})", compared.median, compared.min, compared.max),
                format!("{wanted}, {}", if met { "met" } else { "missed" }),
            ]);
        }
    }
    if body.is_empty() {
        return String::new();
    }
    let head = ["", "compared", "median (least to most)", "wanted"].map(str::to_owned);
    format!("### Encryption: goals\n\n{}", table(&head, &body))
}

/// Lists what failed, and how often.
fn failures(report: &EncryptionReport) -> String {
    let mut counts = BTreeMap::new();
    for failure in &report.failures {
        let what = format!("{}, {}: {}", failure.part.title(), failure.entrant.label(), failure.error);
        *counts.entry(what).or_insert(0_u32) += 1;
    }
    if counts.is_empty() {
        return String::new();
    }
    let list: String = counts.iter().map(|(failure, count)| format!("- {failure} ({count} times)\n")).collect();
    format!("### Failed with encryption\n\n{list}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encryption::step::Done;
    use crate::encryption::{Failure, Sample, Sizes};
    use crate::processor::Processor;
    use crate::results::Machine;

    fn report(samples: &[(Step, Entrant, u32, f64)]) -> EncryptionReport {
        let sample = |&(step, entrant, rep, seconds): &(Step, Entrant, u32, f64)| {
            let processor = Processor { user: 0.5 * seconds, system: 1.0 };
            Sample { step, entrant, rep, done: Done { seconds, operations: 1000, bytes: 500_000_000, processor } }
        };
        EncryptionReport {
            machine: Machine::this(),
            repetitions: 2,
            entrants: Vec::new(),
            absent: Vec::new(),
            sizes: Sizes::new(true),
            tree: None,
            samples: samples.iter().map(sample).collect(),
            failures: Vec::new(),
        }
    }

    /// Returns the cells of each line that begins with `label`.
    fn rows(text: &str, label: &str) -> Vec<Vec<String>> {
        let lines = text.lines().filter(|line| line.starts_with(&format!("| {label} ")));
        lines
            .map(|line| line.trim_matches('|').split('|').skip(1).map(|cell| cell.trim().to_owned()).collect())
            .collect()
    }

    #[test]
    fn streams_are_compared_with_gocryptfs_of_the_same_cipher() {
        let step = Step::ReadCold;
        let report = report(&[
            (step, Entrant::Native, 0, 0.5),
            (step, Entrant::Native, 1, 1.0),
            // The machine is half as fast in the second repetition: the ratio is the same.
            (step, Entrant::Mount, 0, 1.0),
            (step, Entrant::Mount, 1, 2.0),
            (step, Entrant::Xchacha, 0, 1.0),
            (step, Entrant::Gocryptfs, 0, 2.5),
            (step, Entrant::Gocryptfs, 1, 5.0),
            (step, Entrant::GocryptfsXchacha, 0, 1.5),
        ]);
        let text = markdown(&report, &figures::draw(&report));
        let goal = |label: &str| rows(&text, label);
        assert_eq!(
            goal("read, cold, cryptfs, key=mount"),
            [["speed, times gocryptfs", "2.500 (2.500 to 2.500)", "at least 2, met"]]
        );
        assert_eq!(
            goal("read, cold, cryptfs, xchacha"),
            [["speed, times gocryptfs, xchacha", "1.500 (1.500 to 1.500)", "at least 2, missed"]]
        );
        assert_eq!(rows(&text, "cryptfs, key=mount"), [["375 (0.50)"], ["1.75"]]);
        assert!(text.contains("(encryption-read.svg)") && !text.contains("(encryption-build.svg)"), "{text}");
    }

    #[test]
    fn a_build_is_compared_with_the_null_layer() {
        let report = report(&[
            (Step::Build, Entrant::Null, 0, 10.0),
            (Step::Build, Entrant::Mount, 0, 10.9),
            (Step::Build, Entrant::Session, 0, 11.0),
            (Step::Build, Entrant::Gocryptfs, 0, 15.0),
        ]);
        let text = markdown(&report, &figures::draw(&report));
        let wanted = |label: &str| rows(&text, label).concat();
        assert_eq!(
            wanted("build, cryptfs, key=mount"),
            ["time, times null layer", "1.090 (1.090 to 1.090)", "at most 1.092, met"]
        );
        assert_eq!(wanted("build, cryptfs, key=session")[2], "at most 1.092, missed");
        assert!(wanted("build, gocryptfs").is_empty(), "{text}");
        assert_eq!(rows(&text, "gocryptfs")[0], ["15.0"], "without a native run");
    }

    #[test]
    fn failures_are_listed() {
        let mut report = report(&[]);
        for rep in 0..2 {
            let error = "no space".to_owned();
            report.failures.push(Failure { part: Part::Tree, entrant: Entrant::Encfs, rep, error });
        }
        let text = markdown(&report, &figures::draw(&report));
        assert!(text.contains("\n- a source tree, encfs: no space (2 times)\n"), "{text}");
        assert!(!text.contains("goals"), "{text}");
    }
}
