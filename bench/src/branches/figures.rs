//! The figures, as the papers have them.

use super::entrant::Entrant;
use super::passes::Action;
use super::tree::Distribution;
use super::{BranchReport, microbenchmarks, programs, ratio, snapshots, spread};
use crate::chart::{self, Axis, Line, Look, Mark, Panel, Scale};
use crate::plot::colour;
use crate::results::Spread;
use crate::workload::Workload;

/// A figure and its file in the directory of the figures.
pub(crate) struct Figure {
    pub(crate) file: &'static str,
    /// Description for those who do not see it.
    pub(crate) alt: &'static str,
    pub(crate) svg: String,
}

/// File of the figure of the programs and of the snapshots.
pub(crate) const WORKLOADS: &str = "many-branches-workloads.svg";

/// Returns the file of the figure of a micro-benchmark.
pub(crate) fn file(action: Action) -> &'static str {
    match action {
        Action::Stat => "many-branches-stat.svg",
        Action::Readdir => "many-branches-readdir.svg",
        Action::Unlink => "many-branches-unlink.svg",
    }
}

/// Draws the figures of the experiments that were run.
pub(crate) fn draw(report: &BranchReport) -> Vec<Figure> {
    let workloads = workloads(report).into_iter();
    workloads.chain(Action::ALL.into_iter().filter_map(|action| microbenchmark(report, action))).collect()
}

fn look(entrant: Entrant) -> Look {
    let mark = match entrant {
        Entrant::Native | Entrant::Unionfs => Mark::Circle,
        Entrant::Overlayfs | Entrant::UnionfsAll => Mark::Square,
        Entrant::Mergerfs => Mark::Triangle,
        Entrant::UnionfsRo => Mark::Diamond,
    };
    let colour = match entrant {
        // The plot's black is not visible on a dark page.
        Entrant::Native => "#8a8f98",
        Entrant::Overlayfs => "#4c9f70",
        Entrant::Mergerfs | Entrant::Unionfs => colour(entrant.kind()),
        Entrant::UnionfsAll => "#c44e52",
        Entrant::UnionfsRo => "#8172b3",
    };
    Look { label: entrant.label(), colour, mark, dashed: entrant == Entrant::Native }
}

/// Returns a line if it has points.
fn line(look: Look, points: impl Iterator<Item = (f64, Option<Spread>)>) -> Option<Line> {
    let points: Vec<_> = points.filter_map(|(x, spread)| Some((x, spread?))).collect();
    (!points.is_empty()).then_some(Line { look, points })
}

fn note(report: &BranchReport) -> String {
    let (runs, machine) = (report.repetitions, &report.machine);
    format!("median of {runs}, thin lines: least to most; Linux {}, {}", machine.kernel, machine.processor)
}

fn microbenchmark(report: &BranchReport, action: Action) -> Option<Figure> {
    let counts: Vec<usize> = report.trees.iter().map(|(count, _)| *count).collect();
    let mut panels = Vec::new();
    for distribution in Distribution::ALL {
        for &state in action.states() {
            let of = |entrant: Entrant| {
                let times = |count| {
                    microbenchmarks::times(&report.microbenchmarks, (action, state, distribution), entrant, count)
                };
                line(look(entrant), counts.iter().map(|&count| (count as f64, spread(&times(count)))))
            };
            let lines: Vec<_> = Entrant::ALL.into_iter().filter_map(of).collect();
            if !lines.is_empty() {
                panels.push(Panel {
                    title: format!("{}, {}", distribution.name(), state.label()),
                    x: Axis { label: "branches", scale: Scale::Log },
                    y: Axis { label: y_label(action), scale: Scale::Log },
                    ticks: counts.iter().map(|&count| count as f64).collect(),
                    lines,
                });
            }
        }
    }
    let (title, alt) = match action {
        Action::Stat => ("STAT: time per file or directory", "Time of a stat over the number of branches"),
        Action::Readdir => ("READDIR: time per directory of 32 files", "Time of a listing over the number of branches"),
        Action::Unlink => ("UNLINK: time per file or directory", "Time of a removal over the number of branches"),
    };
    let svg = chart::draw(title, &note(report), &panels, action.states().len());
    (!panels.is_empty()).then_some(Figure { file: file(action), alt, svg })
}

fn y_label(action: Action) -> &'static str {
    match action {
        Action::Stat | Action::Unlink => "µs per file or directory",
        Action::Readdir => "µs per directory",
    }
}

fn workloads(report: &BranchReport) -> Option<Figure> {
    let programs =
        [Workload::Postmark, Workload::Openssh].into_iter().filter_map(|program| program_panel(report, program));
    let panels: Vec<_> = programs.chain(snapshot_panel(report)).collect();
    let svg =
        chart::draw("Programs over several branches, and with snapshots", &note(report), &panels, panels.len().max(1));
    let alt = "Times of Postmark and of the OpenSSH build over the number of branches, and of Postmark over the number of \
               snapshots";
    (!panels.is_empty()).then_some(Figure { file: WORKLOADS, alt, svg })
}

fn program_panel(report: &BranchReport, program: Workload) -> Option<Panel> {
    let counts = super::tables::program_counts(report, program);
    let of = |entrant: Entrant| {
        let seconds = |count| spread(&programs::values(&report.programs, program, entrant, count, |run| run.seconds));
        let measured: Vec<_> = counts.iter().map(|&count| (count as f64, seconds(count))).collect();
        // A single tree is the reference for every number of branches.
        let only = if entrant == Entrant::Native { measured.first().and_then(|(_, first)| *first) } else { None };
        line(look(entrant), measured.into_iter().map(|(x, spread)| (x, spread.or(only))))
    };
    let lines: Vec<_> = programs::ENTRANTS.into_iter().filter_map(of).collect();
    (!lines.is_empty()).then(|| Panel {
        title: program.over_branches().to_owned(),
        x: Axis { label: "branches", scale: Scale::Log },
        y: Axis { label: "seconds", scale: Scale::Linear },
        ticks: counts.iter().map(|&count| count as f64).collect(),
        lines,
    })
}

fn snapshot_panel(report: &BranchReport) -> Option<Panel> {
    let samples = &report.snapshots;
    let native = snapshots::seconds(samples, Entrant::Native, 0);
    let planned = snapshots::all_planned(samples);
    let points = planned.iter().filter_map(|&planned| {
        let taken = spread(&snapshots::taken(samples, planned))?.median;
        Some((taken, ratio(&snapshots::seconds(samples, Entrant::Unionfs, planned), &native)))
    });
    let unions = line(look(Entrant::Unionfs), points)?;
    let one = Spread { median: 1.0, min: 1.0, max: 1.0 };
    let ends = unions.points.iter().map(|(x, _)| (*x, Some(one)));
    let natives = line(look(Entrant::Native), ends);
    Some(Panel {
        title: "Postmark with snapshots, XFS".to_owned(),
        x: Axis { label: "snapshots during the run", scale: Scale::Linear },
        y: Axis { label: "time, native is 1", scale: Scale::Linear },
        ticks: planned.iter().map(|&planned| f64::from(planned)).collect(),
        lines: natives.into_iter().chain([unions]).collect(),
    })
}
