//! The figures, as the paper has them.

use super::VersionReport;
use super::entrant::{Entrant, Storage};
use super::programs::{self, Program, Run};
use super::recover::{self, What};
use super::tables::{RECOVERY_GOAL, title};
use crate::bars::{self, Group, Panel};
use crate::results::{Spread, spread};

/// A figure and its file in the directory of the figures.
pub(super) struct Figure {
    pub(super) file: &'static str,
    /// Description for those who do not see it.
    pub(super) alt: &'static str,
    pub(super) svg: String,
}

/// Files of the figures that do not belong to one program.
pub(super) const COPY_ON: &str = "versions-copy-on.svg";
pub(super) const PEERS: &str = "versions-peers.svg";
pub(super) const RECOVER: &str = "versions-recover.svg";

/// Returns the file of the figure of a program.
pub(super) fn file(program: Program) -> &'static str {
    match program {
        Program::Build => "versions-build.svg",
        Program::Postmark => "versions-postmark.svg",
        Program::Copy => "versions-copy.svg",
        Program::CopySpace => "versions-copy-space.svg",
    }
}

/// Draws the figures of the experiments that were run.
pub(super) fn draw(report: &VersionReport) -> Vec<Figure> {
    let programs = Program::ALL.into_iter().filter_map(|program| program_figure(report, program));
    programs.chain(copy_on_figure(report)).chain(peer_figure(report)).chain(recovery_figure(report)).collect()
}

fn note(report: &VersionReport) -> String {
    let (runs, machine) = (report.repetitions, &report.machine);
    format!("median of {runs}, thin lines: least to most; Linux {}, {}", machine.kernel, machine.processor)
}

fn median(report: &VersionReport, program: Program, entrant: Entrant, figure: impl Fn(&Run) -> f64) -> Option<f64> {
    Some(spread(&programs::values(&report.programs, program, entrant, figure))?.median)
}

fn megabytes(report: &VersionReport, program: Program, entrant: Entrant) -> Option<f64> {
    median(report, program, entrant, |run| run.space.total() as f64 / 1e6)
}

fn program_figure(report: &VersionReport, program: Program) -> Option<Figure> {
    let null = median(report, program, Entrant::Null, |run| run.seconds);
    let group = |entrant: Entrant| {
        let elapsed = spread(&programs::values(&report.programs, program, entrant, |run| run.seconds))?;
        let user = median(report, program, entrant, |run| run.processor.user)?;
        let system = median(report, program, entrant, |run| run.processor.system)?;
        Some(Group {
            label: entrant.label().to_owned(),
            elapsed: Some(elapsed),
            goal: program.goal(entrant).zip(null).map(|(goal, null)| goal * null),
            processor: Some((user, system)),
            space: megabytes(report, program, entrant),
        })
    };
    let entrants = report.measured().into_iter().filter(|entrant| !matches!(entrant, Entrant::OnWrite(_)));
    let groups: Vec<Group> = entrants.filter_map(group).collect();
    let alt = match program {
        Program::Build => "Time and space of a build with each storage policy",
        Program::Postmark => "Time and space of Postmark with each storage policy",
        Program::Copy => "Time and space of copying releases with each storage policy, 64 versions of a file",
        Program::CopySpace => "Time and space of copying releases with each storage policy, 140 KiB for a file",
    };
    let panel = Panel { title: title(program).to_owned(), time: "seconds", space: "MB", groups };
    (!panel.groups.is_empty())
        .then(|| figure(report, file(program), alt, "Time and space of keeping versions", &[panel]))
}

fn figure(report: &VersionReport, file: &'static str, alt: &'static str, title: &str, panels: &[Panel]) -> Figure {
    Figure { file, alt, svg: bars::draw(title, &note(report), panels) }
}

/// Returns a group with a bar for the space only.
fn space(label: String, megabytes: f64) -> Group {
    Group { label, elapsed: None, goal: None, processor: None, space: Some(megabytes) }
}

fn copy_on_figure(report: &VersionReport) -> Option<Figure> {
    let panel = |program: Program| {
        let pairs = Storage::COMPARED.iter().filter_map(|&storage| {
            let [write, change] = [Entrant::OnWrite(storage), Entrant::OnChange(storage)]
                .map(|entrant| Some((entrant, megabytes(report, program, entrant)?)));
            Some([write?, change?])
        });
        let groups: Vec<Group> =
            pairs.flatten().map(|(entrant, space_used)| space(entrant.label().to_owned(), space_used)).collect();
        let title = title(program).to_owned();
        (!groups.is_empty()).then_some(Panel { title, time: "", space: "MB", groups })
    };
    let panels: Vec<Panel> = [Program::Copy, Program::Build].into_iter().filter_map(panel).collect();
    let alt = "Space with copy-on-write and with copy-on-change";
    (!panels.is_empty()).then(|| figure(report, COPY_ON, alt, "Copy-on-write and copy-on-change", &panels))
}

fn peer_figure(report: &VersionReport) -> Option<Figure> {
    let peers = report
        .peers
        .iter()
        .filter_map(|sample| Some(space(sample.peer.package().to_owned(), sample.run?.blocks as f64 / 1e6)));
    let history = |entrant| median(report, Program::Copy, entrant, |run| run.space.history as f64 / 1e6);
    let policies = report.measured().into_iter().filter(|entrant| matches!(entrant, Entrant::OnChange(_)));
    let policies = policies.filter_map(|entrant| Some(space(entrant.label().to_owned(), history(entrant)?)));
    let groups: Vec<Group> = peers.chain(policies).collect();
    let has_peers = report.peers.iter().any(|sample| sample.run.is_some());
    let panel = Panel { title: "History of the releases".to_owned(), time: "", space: "MB", groups };
    let alt = "Space of the history of the releases, in git, in backup programs and in versionfs";
    has_peers.then(|| figure(report, PEERS, alt, "Space of the same history", &[panel]))
}

fn recovery_figure(report: &VersionReport) -> Option<Figure> {
    let times = |what, entrant| spread(&recover::microseconds(&report.recoveries, what, entrant));
    let panel = |what: What, title: &str| {
        let null = times(what, Entrant::Null);
        let group = |entrant: Entrant| {
            Some(Group {
                label: if entrant.keeps_versions() {
                    entrant.label().to_owned()
                } else {
                    format!("read, {}", entrant.label())
                },
                elapsed: Some(times(what, entrant)?),
                goal: null.filter(|_| entrant.keeps_versions()).map(|null: Spread| null.median + RECOVERY_GOAL),
                processor: None,
                space: None,
            })
        };
        let groups: Vec<Group> = report.measured().into_iter().filter_map(group).collect();
        (!groups.is_empty()).then(|| Panel { title: title.to_owned(), time: "µs per version", space: "", groups })
    };
    let panels: Vec<Panel> = [
        (What::Recover, "All versions of the releases, cold"),
        (What::RecoverAgain, "Again"),
        (What::Oldest, "Oldest of a long history"),
    ]
    .into_iter()
    .filter_map(|(what, title)| panel(what, title))
    .collect();
    let alt = "Time to recover a version with each storage policy";
    (!panels.is_empty()).then(|| figure(report, RECOVER, alt, "Recovering versions", &panels))
}
