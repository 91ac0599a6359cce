//! The tables, as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::entrant::Entrant;
use super::figures::{self, Figure};
use super::microbenchmarks::Which;
use super::passes::Action;
use super::tree::{Distribution, FILES, Tree};
use super::{BranchReport, Values, microbenchmarks, programs, ratio, snapshots, spread};
use crate::report::{contender_list, table};
use crate::workload::Workload;

/// Stands for what was not measured.
const NONE: &str = "–";

/// Returns the report with its figures.
pub(crate) fn markdown(report: &BranchReport, figures: &[Figure]) -> String {
    let mut text = format!("{}; medians of {} repetitions.\n\n", report.machine.text(), report.repetitions);
    let image = |file: &str| {
        let found = figures.iter().find(|figure| figure.file == file);
        found.map_or_else(String::new, |figure| format!("![{}]({file})\n\n", figure.alt))
    };
    let workloads = [Workload::Postmark, Workload::Openssh].map(|program| program_section(report, program)).concat();
    let workloads = workloads + &snapshot_section(report);
    if !workloads.is_empty() {
        text += "### Programs over several branches\n\n";
        text += &image(figures::WORKLOADS);
        text += &workloads;
    }
    for action in Action::ALL {
        let tables = microbenchmark_tables(report, action);
        if !tables.is_empty() {
            let _ = write!(text, "### {} over many branches\n\n{}", action.name(), image(figures::file(action)));
            text += &tables;
        }
    }
    text += &trees(report);
    text += &failures(report);
    text += &contender_list(&report.entrants, &report.absent).replacen(
        "### Contenders",
        "### Contenders over many branches",
        1,
    );
    text
}

/// Returns the numbers of branches that a program was run on.
pub(crate) fn program_counts(report: &BranchReport, program: Workload) -> Vec<usize> {
    let samples = report.programs.iter().filter(|sample| sample.program == program);
    let mut counts: Vec<usize> = samples.map(|sample| sample.branches).collect();
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Returns the head of a table with a column for each number of branches.
fn head(what: String, counts: &[usize]) -> Vec<String> {
    let names = counts.iter().map(|&count| if count == 1 { "1 branch".to_owned() } else { count.to_string() });
    std::iter::once(what).chain(names).collect()
}

/// Returns a line of such a table, unless it has no values.
fn line(label: &str, counts: &[usize], cell: impl Fn(usize) -> Option<String>) -> Option<Vec<String>> {
    let cells: Vec<_> = counts.iter().map(|&count| cell(count)).collect();
    let has_values = cells.iter().any(Option::is_some);
    let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| NONE.to_owned()));
    has_values.then(|| std::iter::once(label.to_owned()).chain(cells).collect())
}

fn program_section(report: &BranchReport, program: Workload) -> String {
    let counts = program_counts(report, program);
    let Some(&one) = counts.first() else { return String::new() };
    let values = |entrant, count, figure: fn(&programs::Run) -> f64| {
        programs::values(&report.programs, program, entrant, count, figure)
    };
    let seconds = |entrant, count| values(entrant, count, |run| run.seconds);
    // The native build is measured once per repetition.
    let native = |count| {
        let own = seconds(Entrant::Native, count);
        if own.is_empty() { seconds(Entrant::Native, one) } else { own }
    };
    let mut body = Vec::new();
    for entrant in programs::ENTRANTS {
        let label = |what: &str| format!("{}: {what}", entrant.label());
        body.extend(line(&label("seconds (least to most)"), &counts, |count| {
            let all = spread(&seconds(entrant, count))?;
            Some(format!("{:.1} ({:.1} to {:.1})", all.median, all.min, all.max))
        }));
        body.extend(line(&label("processor seconds, user + system"), &counts, |count| {
            let user = spread(&values(entrant, count, |run| run.processor.user))?.median;
            Some(format!("{user:.1} + {:.1}", spread(&values(entrant, count, |run| run.processor.system))?.median))
        }));
        if entrant != Entrant::Native {
            let times_native = |count| quotient(&seconds(entrant, count), &native(count));
            body.extend(line(&label("times native"), &counts, times_native));
            let times_one = |count| quotient(&seconds(entrant, count), &seconds(entrant, one));
            body.extend(line(&label("times one branch"), &counts, times_one));
        }
    }
    table(&head(program.over_branches().to_owned(), &counts), &body)
}

fn quotient(values: &Values, base: &Values) -> Option<String> {
    Some(format!("{:.2}", ratio(values, base)?.median))
}

fn snapshot_section(report: &BranchReport) -> String {
    let samples = &report.snapshots;
    let native = snapshots::seconds(samples, Entrant::Native, 0);
    let undisturbed = snapshots::seconds(samples, Entrant::Unionfs, 0);
    let cell = |values: &Values, digits: usize| {
        spread(values).map_or_else(|| NONE.to_owned(), |all| format!("{:.digits$}", all.median))
    };
    let head = [
        "Postmark with snapshots, XFS",
        "interval, s",
        "snapshots taken",
        "seconds",
        "times native",
        "overhead over native",
        "times without snapshots",
        "longest snapshot, s",
    ]
    .map(str::to_owned);
    let row = |entrant: Entrant, planned: u32| {
        let seconds = snapshots::seconds(samples, entrant, planned);
        let of = |figure: fn(&snapshots::Sample) -> Option<f64>| snapshots::values(samples, entrant, planned, figure);
        let is_union = entrant != Entrant::Native;
        let overhead = ratio(&seconds, &native).filter(|_| is_union);
        vec![
            if is_union { format!("unionfs, {planned} planned") } else { entrant.label().to_owned() },
            cell(&of(|sample| sample.interval_seconds), 1),
            if is_union { mean(&snapshots::taken(samples, planned)) } else { NONE.to_owned() },
            cell(&seconds, 1),
            quotient(&seconds, &native).unwrap_or_else(|| NONE.to_owned()),
            overhead.map_or_else(|| NONE.to_owned(), |all| format!("{:.1} %", (all.median - 1.0) * 100.0)),
            quotient(&seconds, &undisturbed).filter(|_| is_union).unwrap_or_else(|| NONE.to_owned()),
            cell(&of(snapshots::Sample::longest), 2),
        ]
    };
    let planned = snapshots::all_planned(samples);
    if planned.is_empty() {
        return String::new();
    }
    let natives = if native.is_empty() { None } else { Some(row(Entrant::Native, 0)) };
    let unions = planned.into_iter().map(|planned| row(Entrant::Unionfs, planned));
    table(&head, &natives.into_iter().chain(unions).collect::<Vec<_>>())
}

/// Formats the mean, as the papers give the number of snapshots.
fn mean(values: &Values) -> String {
    if values.is_empty() {
        NONE.to_owned()
    } else {
        format!("{:.1}", values.values().sum::<f64>() / values.len() as f64)
    }
}

/// Formats the times of a micro-benchmark, and the requests that reached the union's server.
fn microbenchmark_tables(report: &BranchReport, action: Action) -> String {
    let states = action.states().iter();
    let tables = Distribution::ALL.into_iter().flat_map(|distribution| {
        states.clone().map(move |&state| microbenchmark_table(report, (action, state, distribution)))
    });
    let tables: String = tables.collect();
    if tables.is_empty() {
        return tables;
    }
    let unit = action.unit();
    format!(
        "{} in microseconds per {unit}, and in parentheses the ratio to one branch. \"Requests\": to the union's \
         server, per {unit}.\n\n{tables}",
        action.name()
    )
}

fn microbenchmark_table(report: &BranchReport, which: Which) -> String {
    let counts: Vec<usize> = report.trees.iter().map(|(count, _)| *count).collect();
    let samples = &report.microbenchmarks;
    let times = |entrant, count| microbenchmarks::times(samples, which, entrant, count);
    let mut body = Vec::new();
    for entrant in Entrant::ALL {
        body.extend(line(entrant.label(), &counts, |count| {
            let all = spread(&times(entrant, count))?;
            let one = ratio(&times(entrant, count), &times(entrant, *counts.first()?));
            let one = one.map_or_else(String::new, |one| format!(" ({:.1})", one.median));
            Some(format!("{}{one}", micros(all.median)))
        }));
    }
    for entrant in Entrant::ALL {
        body.extend(line(&format!("requests: {}", entrant.label()), &counts, |count| {
            let sent = spread(&microbenchmarks::requests(samples, which, entrant, count))?;
            Some(format!("{:.2}", sent.median))
        }));
    }
    if body.is_empty() {
        return String::new();
    }
    let (action, state, distribution) = which;
    table(&head(format!("{}, {}, {}", action.name(), distribution.name(), state.label()), &counts), &body)
}

/// Formats microseconds with three significant digits.
fn micros(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// Formats the sizes of the trees.
fn trees(report: &BranchReport) -> String {
    if report.microbenchmarks.is_empty() {
        return String::new();
    }
    let size = |(count, tree): &(usize, Tree)| {
        format!("{} files in {} directories for {count}", tree.directories * FILES, tree.directories)
    };
    let sizes: Vec<String> = report.trees.iter().map(size).collect();
    format!("Trees, by the number of branches: {}.\n\n", sizes.join(", "))
}

/// Lists what failed, and how often.
fn failures(report: &BranchReport) -> String {
    let microbenchmarks = report.microbenchmarks.iter().filter_map(|sample| {
        let what = format!("{}, {}, {}", sample.action.name(), sample.distribution.name(), sample.state.label());
        Some((format!("{what}, {} branches, {}", sample.branches, sample.entrant.label()), sample.error.as_ref()?))
    });
    let programs = report.programs.iter().filter_map(|sample| {
        let what = format!("{}, {} branches", sample.program.over_branches(), sample.branches);
        Some((format!("{what}, {}", sample.entrant.label()), sample.error.as_ref()?))
    });
    let snapshots = report.snapshots.iter().filter_map(|sample| {
        let what = format!("Postmark, {} snapshots planned", sample.planned);
        Some((format!("{what}, {}", sample.entrant.label()), sample.error.as_ref()?))
    });
    let mut counts = BTreeMap::new();
    for (what, error) in microbenchmarks.chain(programs).chain(snapshots) {
        *counts.entry(format!("{what}: {error}")).or_insert(0_u32) += 1;
    }
    if counts.is_empty() {
        return String::new();
    }
    let list: String = counts.iter().map(|(failure, count)| format!("- {failure} ({count} times)\n")).collect();
    format!("### Failed\n\n{list}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branches::passes::State;
    use crate::processor::Processor;
    use crate::results::Machine;

    fn report() -> BranchReport {
        BranchReport {
            machine: Machine::this(),
            repetitions: 3,
            entrants: Vec::new(),
            absent: Vec::new(),
            trees: [1, 4].map(|count| (count, Tree { directories: 2 })).to_vec(),
            microbenchmarks: Vec::new(),
            postmark: programs::postmark(false),
            programs: Vec::new(),
            snapshots: Vec::new(),
        }
    }

    fn stat(entrant: Entrant, branches: usize, rep: u32, microseconds: f64, lookups: u64) -> microbenchmarks::Sample {
        let requests = (lookups > 0).then(|| [("LOOKUP".to_owned(), lookups)].into());
        microbenchmarks::Sample {
            entrant,
            action: Action::Stat,
            state: State::Union,
            distribution: Distribution::Dup,
            branches,
            rep,
            operations: Some(66),
            microseconds: Some(microseconds),
            requests,
            error: None,
        }
    }

    fn build(entrant: Entrant, branches: usize, rep: u32, seconds: f64) -> programs::Sample {
        let processor = Processor { user: seconds / 2.0, system: 1.0 };
        let run = Some(programs::Run { seconds, processor });
        programs::Sample { program: Workload::Openssh, entrant, branches, rep, run, error: None }
    }

    fn snapshots(planned: u32, rep: u32, seconds: f64, taken: &[f64]) -> snapshots::Sample {
        let run = Some(snapshots::Run { seconds, snapshot_seconds: taken.to_vec() });
        let interval_seconds = (planned > 0).then_some(4.0);
        snapshots::Sample { entrant: Entrant::Unionfs, planned, rep, interval_seconds, run, error: None }
    }

    /// Returns the cells of the line that begins with `label`.
    fn cells(text: &str, label: &str) -> Vec<String> {
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(&format!("| {label} "))).collect();
        let [line] = lines[..] else { panic!("{label}: {lines:?} in {text}") };
        line.trim_matches('|').split('|').skip(1).map(|cell| cell.trim().to_owned()).collect()
    }

    #[test]
    fn a_microbenchmark_has_medians_and_ratios_to_one_branch() {
        let mut report = report();
        for (rep, (one, four)) in [(10.0, 20.0), (12.0, 30.0), (11.0, 5.5)].into_iter().enumerate() {
            let rep = u32::try_from(rep).unwrap();
            report.microbenchmarks.push(stat(Entrant::Unionfs, 1, rep, one, 66));
            report.microbenchmarks.push(stat(Entrant::Unionfs, 4, rep, four, 33));
            report.microbenchmarks.push(stat(Entrant::Overlayfs, 1, rep, 2.0, 0));
        }
        let text = markdown(&report, &figures::draw(&report));
        // The ratios within the repetitions are 2, 2.5 and 0.5.
        assert_eq!(cells(&text, "unionfs"), ["11.0 (1.0)", "20.0 (2.0)"]);
        assert_eq!(cells(&text, "overlayfs"), ["2.00 (1.0)", "–"]);
        assert_eq!(cells(&text, "requests: unionfs"), ["1.00", "0.50"]);
        assert!(text.contains("![Time of a stat over the number of branches](many-branches-stat.svg)"), "{text}");
        assert!(!text.contains("requests: overlayfs") && !text.contains("READDIR"), "{text}");
        assert!(!text.contains("### Failed"), "{text}");
    }

    #[test]
    fn failures_are_listed_once_with_their_number() {
        let mut report = report();
        for rep in 0..2 {
            let failed = microbenchmarks::Sample {
                microseconds: None,
                error: Some("lost".to_owned()),
                ..stat(Entrant::Mergerfs, 4, rep, 0.0, 0)
            };
            report.microbenchmarks.extend([failed, stat(Entrant::Mergerfs, 1, rep, 5.0, 0)]);
        }
        let text = markdown(&report, &[]);
        assert_eq!(cells(&text, "mergerfs"), ["5.00 (1.0)", "–"]);
        assert!(text.contains("\n- STAT, DUP, known to the union, 4 branches, mergerfs: lost (2 times)\n"), "{text}");
    }

    #[test]
    fn programs_are_compared_with_one_branch_and_with_the_native_run_of_the_repetition() {
        let mut report = report();
        for (rep, slower) in [(0, 1.0), (1, 2.0), (2, 4.0)] {
            report.programs.push(build(Entrant::Native, 1, rep, 10.0 * slower));
            report.programs.push(build(Entrant::UnionfsAll, 1, rep, 11.0 * slower));
            report.programs.push(build(Entrant::UnionfsAll, 16, rep, 22.0 * slower));
        }
        let text = markdown(&report, &[]);
        let of = |what: &str| cells(&text, &format!("unionfs, delete=all: {what}"));
        assert_eq!(of("seconds (least to most)"), ["22.0 (11.0 to 44.0)", "44.0 (22.0 to 88.0)"]);
        assert_eq!(of("times native"), ["1.10", "2.20"]);
        assert_eq!(of("times one branch"), ["1.00", "2.00"]);
        assert_eq!(of("processor seconds, user + system"), ["11.0 + 1.0", "22.0 + 1.0"]);
        assert_eq!(cells(&text, "native: seconds (least to most)"), ["20.0 (10.0 to 40.0)", "–"]);
    }

    #[test]
    fn snapshots_have_their_mean_number_and_the_overhead() {
        let mut report = report();
        for (rep, taken) in [(0, [0.1, 0.3].as_slice()), (1, &[0.2]), (2, &[0.2, 0.1])] {
            let mut native = snapshots(0, rep, 5.0, &[]);
            native.entrant = Entrant::Native;
            report.snapshots.extend([native, snapshots(0, rep, 10.0, &[]), snapshots(2, rep, 15.0, taken)]);
        }
        let text = markdown(&report, &[]);
        assert_eq!(cells(&text, "native"), ["–", "–", "5.0", "1.00", "–", "–", "–"]);
        assert_eq!(cells(&text, "unionfs, 0 planned"), ["–", "0.0", "10.0", "2.00", "100.0 %", "1.00", "–"]);
        assert_eq!(cells(&text, "unionfs, 2 planned"), ["4.0", "1.7", "15.0", "3.00", "200.0 %", "1.50", "0.20"]);
    }
}
