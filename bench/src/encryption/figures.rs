//! The figures: bars of the times, with the goals.

use super::EncryptionReport;
use super::entrant::Entrant;
use super::step::{Goal, Step};
use crate::bars::{self, Group, Panel};
use crate::results::spread;

/// A figure and its file in the directory of the figures.
pub(super) struct Figure {
    pub(super) file: &'static str,
    /// Description for those who do not see it.
    pub(super) alt: &'static str,
    pub(super) svg: String,
}

/// The files, their descriptions, and the steps that they show.
const FIGURES: [(&str, &str, &[Step]); 5] = [
    ("encryption-write.svg", "Time to write and to overwrite a large file", &[Step::WriteSync, Step::OverwriteSync]),
    ("encryption-read.svg", "Time to read a large file, warm and cold", &[Step::ReadWarm, Step::ReadCold]),
    ("encryption-unpack.svg", "Time to unpack and to check a source tree", &[Step::Untar, Step::Md5sum]),
    ("encryption-walk.svg", "Time to list and to remove a source tree", &[Step::List, Step::Remove]),
    ("encryption-build.svg", "Time of a build on encrypted files", &[Step::Build]),
];

/// Draws the figures of the steps that were measured.
pub(super) fn draw(report: &EncryptionReport) -> Vec<Figure> {
    let figure = |(file, alt, steps): (&'static str, &'static str, &[Step])| {
        let panels: Vec<Panel> = steps.iter().filter_map(|&step| panel(report, step)).collect();
        let (runs, machine) = (report.repetitions, &report.machine);
        let note =
            format!("median of {runs}, thin lines: least to most; Linux {}, {}", machine.kernel, machine.processor);
        (!panels.is_empty()).then(|| Figure { file, alt, svg: bars::draw(alt, &note, &panels) })
    };
    FIGURES.into_iter().filter_map(figure).collect()
}

/// Returns the files that show steps of a part.
pub(super) fn shows(file: &str, part: super::Part) -> bool {
    FIGURES.iter().any(|(name, _, steps)| *name == file && steps.iter().any(|step| step.part() == part))
}

fn panel(report: &EncryptionReport, step: Step) -> Option<Panel> {
    let goal = |entrant: Entrant| {
        let (base, factor) = match step.goal(entrant)? {
            Goal::Speed(base, least) => (base, 1.0 / least),
            Goal::Time(base, most) => (base, most),
        };
        Some(spread(&report.seconds(step, base))?.median * factor)
    };
    let processor = |entrant: Entrant| {
        let median = |values| Some(spread(&values)?.median);
        let user = median(report.values(step, entrant, |done| done.processor.user))?;
        Some((user, median(report.values(step, entrant, |done| done.processor.system))?))
    };
    let groups = report.measured(step.part()).into_iter().filter_map(|entrant| {
        Some(Group {
            label: entrant.label().to_owned(),
            elapsed: Some(spread(&report.seconds(step, entrant))?),
            goal: goal(entrant),
            processor: processor(entrant),
            space: None,
        })
    });
    let groups: Vec<Group> = groups.collect();
    (!groups.is_empty()).then(|| Panel { title: step.label().to_owned(), time: "seconds", space: "", groups })
}
