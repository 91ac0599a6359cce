//! The experiments of the papers on Unionfs: what the number of branches, the two ways to remove a
//! name, and snapshots cost.
//!
//! - [`microbenchmarks`]: STAT, READDIR and UNLINK on a [`tree`] that is distributed over the
//!   branches. A worker ([`passes`]) makes the timed passes.
//! - [`programs`]: Postmark and the OpenSSH build.
//! - [`snapshots`]: Postmark while snapshots are taken.
//!
//! Each [`Entrant`] is a contender with certain settings. The report has [`tables`] and
//! [`figures`].

mod entrant;
mod figures;
mod microbenchmarks;
pub(crate) mod passes;
mod programs;
mod snapshots;
mod tables;
mod tree;

use std::fs;

use anyhow::{Context, Result};
use serde::Serialize;

use self::entrant::Entrant;
use crate::cli::Options;
use crate::contender::{self, Absent, Contender};
use crate::progress::Progress;
use crate::results::{ContenderInfo, Machine, Report, Values, ratio, spread};
use crate::workload::{Postmark, Workload};

/// A part of the experiments, by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Experiment {
    /// STAT, READDIR and UNLINK
    Micro,
    /// Postmark
    Postmark,
    /// The OpenSSH build
    Openssh,
    /// Postmark while snapshots are taken
    Snapshots,
}

/// Results of all experiments, as written to the JSON file.
#[derive(Debug, Serialize)]
pub(crate) struct BranchReport {
    machine: Machine,
    repetitions: u32,
    entrants: Vec<ContenderInfo>,
    absent: Vec<Absent>,
    /// The numbers of branches, and the tree for each.
    trees: Vec<(usize, tree::Tree)>,
    microbenchmarks: Vec<microbenchmarks::Sample>,
    postmark: Postmark,
    programs: Vec<programs::Sample>,
    snapshots: Vec<snapshots::Sample>,
}

/// What all experiments share.
struct Setting<'a> {
    options: &'a Options,
    contenders: &'a [Contender],
    /// Those whose contender is present.
    entrants: &'a [Entrant],
    progress: &'a Progress,
}

impl Setting<'_> {
    fn repetitions(&self) -> u32 {
        if self.options.quick { 1 } else { self.options.branch_reps }
    }

    fn has(&self, entrant: Entrant) -> bool {
        self.entrants.contains(&entrant)
    }

    /// Returns the contender of that entrant.
    fn contender(&self, entrant: Entrant) -> Result<&Contender> {
        let found = self.contenders.iter().find(|contender| contender.kind == entrant.kind());
        found.with_context(|| format!("{} does not take part", entrant.label()))
    }

    /// Prints an error at once. The report repeats it.
    fn complain(&self, what: &str, error: &str) {
        self.progress.clear();
        eprintln!("strata-bench: {what}: {error}");
    }
}

/// Runs the selected experiments, and writes the report.
pub(crate) fn run(options: &Options) -> Result<()> {
    let (contenders, mut absent) = contender::select(options);
    absent.retain(|absent| Entrant::ALL.into_iter().any(|entrant| entrant.kind().name() == absent.name));
    for missing in &absent {
        eprintln!("strata-bench: {}: skipped: {}", missing.name, missing.reason);
    }
    let is_present = |entrant: &Entrant| contenders.iter().any(|contender| contender.kind == entrant.kind());
    let entrants: Vec<Entrant> = Entrant::ALL.into_iter().filter(is_present).collect();
    let progress = Progress::new();
    let setting = Setting { options, contenders: &contenders, entrants: &entrants, progress: &progress };
    let mut report = BranchReport::new(&setting, absent);
    report.machine.warn_if_busy();
    if options.wants(Experiment::Micro) {
        report.microbenchmarks = microbenchmarks::run(&setting)?;
    }
    for (experiment, program) in [(Experiment::Postmark, Workload::Postmark), (Experiment::Openssh, Workload::Openssh)]
    {
        if options.wants(experiment) {
            report.programs.extend(programs::run(&setting, program)?);
        }
    }
    if options.wants(Experiment::Snapshots) {
        report.snapshots = snapshots::run(&setting)?;
    }
    progress.clear();
    report.write(options)
}

impl BranchReport {
    fn new(setting: &Setting<'_>, absent: Vec<Absent>) -> Self {
        let options = setting.options;
        let version = |entrant: &Entrant| Report::version(options, entrant.kind().name());
        let info = |entrant: &Entrant| ContenderInfo {
            name: entrant.label(),
            settings: entrant.settings(),
            version: version(entrant),
        };
        let counts = microbenchmarks::counts(options.quick);
        Self {
            machine: Machine::this(),
            repetitions: setting.repetitions(),
            entrants: setting.entrants.iter().map(info).collect(),
            absent,
            trees: counts.iter().map(|&count| (count, tree::Tree::of(count, options.quick))).collect(),
            microbenchmarks: Vec::new(),
            postmark: programs::postmark(options.quick),
            programs: Vec::new(),
            snapshots: Vec::new(),
        }
    }

    /// Prints the report and writes the requested files.
    fn write(&self, options: &Options) -> Result<()> {
        let figures = figures::draw(self);
        let text = tables::markdown(self, &figures);
        crate::report::write_text(self, &text, options)?;
        if let Some(dir) = &options.figures {
            for figure in &figures {
                let path = dir.join(figure.file);
                fs::write(&path, &figure.svg).with_context(|| format!("write {}", path.display()))?;
            }
        }
        Ok(())
    }
}
