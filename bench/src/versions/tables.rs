//! The tables, as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::VersionReport;
use super::entrant::{Entrant, Storage};
use super::figures::{self, Figure};
use super::peers::Peer;
use super::programs::{self, Program, Run};
use super::recover::{self, What};
use crate::report::{contender_list, table, three_digits as number};
use crate::results::{Values, ratio, spread};

/// Stands for what was not measured.
const NONE: &str = "–";
const MEGABYTE: f64 = 1e6;
/// Goal for a recovery beyond the reading, in microseconds.
pub(super) const RECOVERY_GOAL: f64 = 100.0;

/// Returns a program's name.
pub(super) fn title(program: Program) -> &'static str {
    match program {
        Program::Build => "OpenSSH, configure and make -j2",
        Program::Postmark => "Postmark",
        Program::Copy => "Copying releases",
        Program::CopySpace => "Copying releases, 140 KiB",
    }
}

/// Returns the report with its figures.
pub(super) fn markdown(report: &VersionReport, figures: &[Figure]) -> String {
    let mut text = format!(
        "{}; medians of {} repetitions; {} releases; versions bounded as in the paper.\n\n",
        report.machine.text(),
        report.repetitions,
        report.releases.len()
    );
    let image = |file: &str| {
        let found = figures.iter().find(|figure| figure.file == file);
        found.map_or_else(String::new, |figure| format!("![{}]({file})\n\n", figure.alt))
    };
    for program in Program::ALL {
        let section = program_table(report, program);
        if !section.is_empty() {
            let _ = write!(text, "### Versions: {}\n\n{}{section}", title(program), image(figures::file(program)));
        }
    }
    let sections = [
        ("Copy-on-write and copy-on-change", figures::COPY_ON, copy_on_table(report)),
        ("Space of the same history elsewhere", figures::PEERS, peer_table(report)),
        ("Recovering versions", figures::RECOVER, recovery_table(report)),
        ("Heads and listings", "", heads_table(report)),
    ];
    for (title, file, section) in sections {
        if !section.is_empty() {
            let _ = write!(text, "### {title}\n\n{}{section}", image(file));
        }
    }
    text += &failures(report);
    let list = contender_list(&report.entrants, &report.absent);
    text += &list.replacen("### Contenders", "### Contenders of the versions", 1);
    text
}

/// Formats a median.
fn cell(values: &Values) -> String {
    spread(values).map_or_else(|| NONE.to_owned(), |all| number(all.median))
}

/// Formats the median of the ratios.
fn quotient(values: &Values, base: &Values) -> String {
    ratio(values, base).map_or_else(|| NONE.to_owned(), |all| format!("{:.2}", all.median))
}

/// Formats a goal, and whether a measurement meets it.
fn verdict(goal: Option<f64>, measured: Option<f64>) -> String {
    match (goal, measured) {
        (Some(goal), Some(measured)) if measured <= goal => format!("{goal:.2}, met"),
        (Some(goal), Some(_)) => format!("{goal:.2}, missed"),
        (Some(goal), None) => format!("{goal:.2}"),
        (None, _) => NONE.to_owned(),
    }
}

fn median(values: &Values) -> Option<f64> {
    Some(spread(values)?.median)
}

fn program_table(report: &VersionReport, program: Program) -> String {
    let of = |entrant, figure: fn(&Run) -> f64| programs::values(&report.programs, program, entrant, figure);
    let seconds = |entrant| of(entrant, |run| run.seconds);
    let total = |entrant| of(entrant, |run| run.space.total() as f64 / MEGABYTE);
    let mut body = Vec::new();
    for entrant in report.measured().into_iter().filter(|entrant| !seconds(*entrant).is_empty()) {
        let Some(all) = spread(&seconds(entrant)) else { continue };
        let slower = ratio(&seconds(entrant), &seconds(Entrant::Null)).map(|all| all.median);
        // Postmark removes all files, so there is nothing to compare with.
        let native = if program == Program::Postmark { Values::new() } else { total(Entrant::Native) };
        let larger = ratio(&total(entrant), &native).map(|all| all.median);
        body.push(vec![
            entrant.label().to_owned(),
            format!("{} ({} to {})", number(all.median), number(all.min), number(all.max)),
            quotient(&seconds(entrant), &seconds(Entrant::Null)),
            verdict(program.goal(entrant), slower),
            cell(&of(entrant, |run| run.processor.user)),
            cell(&of(entrant, |run| run.processor.system)),
            cell(&of(entrant, |run| run.conversion_seconds)),
            cell(&of(entrant, |run| run.conversion_processor.user + run.conversion_processor.system)),
            cell(&of(entrant, |run| run.space.heads as f64 / MEGABYTE)),
            cell(&of(entrant, |run| run.space.history as f64 / MEGABYTE)),
            cell(&of(entrant, |run| run.space.history_sizes as f64 / MEGABYTE)),
            cell(&of(entrant, |run| run.space.history_inodes as f64)),
            quotient(&total(entrant), &native),
            verdict(program.space_goal(entrant), larger),
        ]);
    }
    let head = [
        "",
        "seconds (least to most)",
        "times null layer",
        "wanted",
        "user s",
        "system s",
        "conversion s",
        "its processor s",
        "heads MB",
        "history MB",
        "its sizes MB",
        "its inodes",
        "space, times native",
        "wanted",
    ];
    if body.is_empty() { String::new() } else { table(&head.map(str::to_owned), &body) }
}

/// Formats the space with copy-on-write and with copy-on-change.
fn copy_on_table(report: &VersionReport) -> String {
    let mut body = Vec::new();
    for program in [Program::Copy, Program::Build] {
        let total =
            |entrant| programs::values(&report.programs, program, entrant, |run| run.space.total() as f64 / MEGABYTE);
        if !Storage::COMPARED.iter().any(|&storage| !total(Entrant::OnWrite(storage)).is_empty()) {
            continue;
        }
        let cells = Storage::COMPARED
            .iter()
            .flat_map(|&storage| [cell(&total(Entrant::OnWrite(storage))), cell(&total(Entrant::OnChange(storage)))]);
        body.push(std::iter::once(title(program).to_owned()).chain(cells).collect::<Vec<_>>());
    }
    let head = [
        "space in MB",
        "full, on write",
        "full, on change",
        "compress, on write",
        "compress, on change",
        "sparse, on write",
        "sparse, on change",
    ];
    if body.is_empty() { String::new() } else { table(&head.map(str::to_owned), &body) }
}

/// Formats the space that other programs need, and that of the history.
fn peer_table(report: &VersionReport) -> String {
    let git = report.peers.iter().find(|sample| sample.peer == Peer::Git).and_then(|sample| sample.run);
    let git = git.map(|run| run.blocks as f64 / MEGABYTE);
    let mut body = Vec::new();
    for sample in &report.peers {
        let Some(run) = sample.run else { continue };
        let blocks = run.blocks as f64 / MEGABYTE;
        body.push(vec![
            sample.peer.package().to_owned(),
            number(blocks),
            number(run.sizes as f64 / MEGABYTE),
            git.map_or_else(|| NONE.to_owned(), |git| format!("{:.2}", blocks / git)),
            NONE.to_owned(),
            number(run.seconds),
        ]);
    }
    if body.is_empty() {
        return String::new();
    }
    for entrant in report.measured().into_iter().filter(|entrant| matches!(entrant, Entrant::OnChange(_))) {
        let of = |figure: fn(&Run) -> f64| programs::values(&report.programs, Program::Copy, entrant, figure);
        let Some(blocks) = median(&of(|run| run.space.history as f64 / MEGABYTE)) else { continue };
        let times_git = git.map(|git| blocks / git);
        let goal = (entrant == Entrant::OnChange(Storage::Blocks)).then_some(1.0);
        body.push(vec![
            format!("versionfs, {}", entrant.label()),
            number(blocks),
            cell(&of(|run| run.space.history_sizes as f64 / MEGABYTE)),
            times_git.map_or_else(|| NONE.to_owned(), |times| format!("{times:.2}")),
            verdict(goal, times_git),
            cell(&of(|run| run.seconds + run.conversion_seconds)),
        ]);
    }
    let head = ["", "space MB", "sizes of the files MB", "times git", "wanted", "seconds in all"];
    table(&head.map(str::to_owned), &body)
}

fn recovery_table(report: &VersionReport) -> String {
    let samples = &report.recoveries;
    let time = |what, entrant| recover::microseconds(samples, what, entrant);
    let beyond = |entrant: Entrant| {
        let extra = Some(median(&time(What::Recover, entrant))? - median(&time(What::Recover, Entrant::Null))?);
        extra.filter(|_| entrant.keeps_versions())
    };
    let mut body = Vec::new();
    for entrant in report.measured() {
        if time(What::Recover, entrant).is_empty() && time(What::Oldest, entrant).is_empty() {
            continue;
        }
        let files = recover::values(samples, What::Recover, entrant, |sample| Some(sample.operations? as f64));
        let bytes = recover::values(samples, What::Recover, entrant, |sample| Some(sample.bytes? as f64 / MEGABYTE));
        let mean = time(What::Recover, entrant);
        body.push(vec![
            entrant.label().to_owned(),
            median(&files).map_or_else(|| NONE.to_owned(), |files| format!("{files:.0}")),
            cell(&bytes),
            cell(&files.iter().filter_map(|(rep, files)| Some((*rep, files * mean.get(rep)? / 1e6))).collect()),
            cell(&mean),
            beyond(entrant).map_or_else(|| NONE.to_owned(), number),
            verdict(entrant.keeps_versions().then_some(RECOVERY_GOAL), beyond(entrant)),
            cell(&time(What::RecoverAgain, entrant)),
            cell(&time(What::Newest, entrant)),
            cell(&time(What::Oldest, entrant)),
        ]);
    }
    let head = [
        "",
        "versions",
        "MB",
        "seconds",
        "µs each",
        "more than the null layer's read, µs",
        "wanted",
        "again, µs each",
        "newest of a long history, µs",
        "oldest, µs",
    ];
    if body.is_empty() { String::new() } else { table(&head.map(str::to_owned), &body) }
}

fn heads_table(report: &VersionReport) -> String {
    const SUBJECTS: [(What, &str); 6] = [
        (What::Heads, "head read, cold, µs"),
        (What::HeadsAgain, "again, µs"),
        (What::ListPlain, "directory without versions listed, cold, µs"),
        (What::ListLong, "with versions, cold, µs"),
        (What::ListPlainAgain, "without, again, µs"),
        (What::ListLongAgain, "with, again, µs"),
    ];
    let time = |what, entrant| recover::microseconds(&report.recoveries, what, entrant);
    let mut body = Vec::new();
    for entrant in report.measured() {
        if SUBJECTS.iter().all(|(what, _)| time(*what, entrant).is_empty()) {
            continue;
        }
        let cells = SUBJECTS.iter().map(|(what, _)| {
            let mine = time(*what, entrant);
            let null = ratio(&mine, &time(*what, Entrant::Null));
            let null = null.map_or_else(String::new, |null| format!(" ({:.2})", null.median));
            format!("{}{null}", cell(&mine))
        });
        body.push(std::iter::once(entrant.label().to_owned()).chain(cells).collect::<Vec<_>>());
    }
    if body.is_empty() {
        return String::new();
    }
    let amounts = report.histories;
    let text = format!(
        "Per file or directory, and in parentheses the ratio to the null layer. Directories have {} files; those with \
         versions have {} versions of each.\n\n",
        amounts.files, amounts.versions
    );
    let head = std::iter::once("").chain(SUBJECTS.iter().map(|(_, label)| *label)).map(str::to_owned);
    text + &table(&head.collect::<Vec<_>>(), &body)
}

/// Lists what failed, and how often.
fn failures(report: &VersionReport) -> String {
    let programs = report.programs.iter().filter_map(|sample| {
        Some((format!("{}, {}", title(sample.program), sample.entrant.label()), sample.error.as_ref()?))
    });
    let recoveries = report
        .recoveries
        .iter()
        .filter_map(|sample| Some((format!("{:?}, {}", sample.what, sample.entrant.label()), sample.error.as_ref()?)));
    let peers =
        report.peers.iter().filter_map(|sample| Some((sample.peer.package().to_owned(), sample.error.as_ref()?)));
    let mut counts = BTreeMap::new();
    for (what, error) in programs.chain(recoveries).chain(peers) {
        *counts.entry(format!("{what}: {error}")).or_insert(0_u32) += 1;
    }
    if counts.is_empty() {
        return String::new();
    }
    let list: String = counts.iter().map(|(failure, count)| format!("- {failure} ({count} times)\n")).collect();
    format!("### Failed in the versions\n\n{list}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processor::Processor;
    use crate::results::Machine;
    use crate::versions::space::Space;
    use crate::versions::{peers, releases};

    fn report() -> VersionReport {
        VersionReport {
            machine: Machine::this(),
            repetitions: 2,
            entrants: Vec::new(),
            absent: Vec::new(),
            releases: releases::archives(true),
            postmark: programs::postmark(true),
            histories: recover::histories(true),
            programs: Vec::new(),
            peers: Vec::new(),
            recoveries: Vec::new(),
        }
    }

    fn copy(entrant: Entrant, rep: u32, seconds: f64, history: u64) -> programs::Sample {
        let processor = Processor { user: 1.0, system: 2.0 };
        let space = Space { heads: 5_000_000, history, history_sizes: history / 2, history_inodes: 7 };
        let conversion_processor = Processor { user: 0.25, system: 0.25 };
        let run = Run { seconds, processor, conversion_seconds: 0.5, conversion_processor, space };
        programs::Sample { program: Program::Copy, entrant, rep, run: Some(run), error: None }
    }

    fn recovery(what: What, entrant: Entrant, microseconds: f64) -> recover::Sample {
        let (operations, bytes) = (Some(1000), Some(2_000_000));
        let microseconds = Some(microseconds);
        recover::Sample { what, entrant, rep: 0, operations, bytes, microseconds, requests: None, error: None }
    }

    /// Returns the cells of the only line that begins with `label`, below `heading`.
    fn cells(text: &str, heading: &str, label: &str) -> Vec<String> {
        let (_, section) = text.split_once(&format!("### {heading}\n")).unwrap();
        let section = section.split("###").next().unwrap();
        let lines: Vec<&str> = section.lines().filter(|line| line.starts_with(&format!("| {label} "))).collect();
        let [line] = lines[..] else { panic!("{label}: {lines:?} in {text}") };
        line.trim_matches('|').split('|').skip(1).map(|cell| cell.trim().to_owned()).collect()
    }

    #[test]
    fn a_copy_is_compared_with_the_null_layer_and_its_space_with_native() {
        let mut report = report();
        for (rep, slower) in [(0, 1.0), (1, 3.0)] {
            report.programs.push(copy(Entrant::Native, rep, slower, 0));
            report.programs.push(copy(Entrant::Null, rep, 2.0 * slower, 0));
            report.programs.push(copy(Entrant::OnChange(Storage::Compress), rep, 2.1 * slower, 5_000_000));
            report.programs.push(copy(Entrant::OnChange(Storage::Sparse), rep, 2.4 * slower, 40_000_000));
            report.programs.push(copy(Entrant::OnWrite(Storage::Sparse), rep, 2.4 * slower, 90_000_000));
        }
        let text = markdown(&report, &figures::draw(&report));
        let row = |label: &str| cells(&text, "Versions: Copying releases", label);
        let compress = row("compress");
        assert_eq!(compress[1..5], ["1.05", "1.10, met", "1.00", "2.00"]);
        assert_eq!(compress[5..], ["0.50", "0.50", "5.00", "5.00", "2.50", "7.00", "2.00", "2.25, met"]);
        assert_eq!((row("sparse")[2].as_str(), row("sparse")[12].as_str()), ("1.10, missed", "6.46, missed"));
        assert_eq!((row("null layer")[1].as_str(), row("native")[2].as_str()), ("1.00", NONE));
        let on = cells(&text, "Copy-on-write and copy-on-change", "Copying releases");
        assert_eq!(on[2..], [NONE, "10.0", "95.0", "45.0"]);
        assert!(text.contains("(versions-copy.svg)") && text.contains("(versions-copy-on.svg)"), "{text}");
        assert!(!text.contains("Postmark") && !text.contains("### Failed"), "{text}");
    }

    #[test]
    fn recoveries_are_compared_with_reading_regular_files() {
        let mut report = report();
        let full = Entrant::OnChange(Storage::Full);
        for (entrant, time) in [(Entrant::Null, 40.0), (full, 150.0)] {
            report.recoveries.push(recovery(What::Recover, entrant, time));
            report.recoveries.push(recovery(What::Heads, entrant, 20.0));
        }
        let text = markdown(&report, &figures::draw(&report));
        let row = cells(&text, "Recovering versions", "full");
        assert_eq!(row[..6], ["1000", "2.00", "0.15", "150", "110", "100.00, missed"]);
        assert_eq!(cells(&text, "Heads and listings", "full")[0], "20.0 (1.00)");
    }

    #[test]
    fn the_block_store_is_compared_with_git_and_failures_are_listed() {
        let mut report = report();
        let processor = Processor { user: 1.0, system: 1.0 };
        let run = peers::Run { seconds: 3.0, processor, blocks: 8_000_000, sizes: 7_000_000 };
        report.peers.push(peers::Sample { peer: Peer::Git, run: Some(run), error: None });
        report.peers.push(peers::Sample { peer: Peer::Borg, run: None, error: Some("absent".to_owned()) });
        report.programs.push(copy(Entrant::OnChange(Storage::Blocks), 0, 1.0, 6_000_000));
        let text = markdown(&report, &figures::draw(&report));
        let row = cells(&text, "Space of the same history elsewhere", "versionfs, blocks");
        assert_eq!(row, ["6.00", "3.00", "0.75", "1.00, met", "1.50"]);
        assert!(text.contains("\n- borgbackup: absent (1 times)\n"), "{text}");
    }
}
