//! The comparison of encrypting file systems: what encryption costs beyond a null layer, and beside
//! gocryptfs, EncFS and securefs.
//!
//! A [`step::Part`] consists of [`step::Step`]s: those on the [`data`] of one file, and those on
//! many [`files`], of which some come from an [`archive`]. Each part runs on a fresh [`volume`] of
//! an [`entrant`], and its steps make a [`record`]. The report has [`tables`] and [`figures`].
//!
//! The coordinator makes the accesses itself: a key of cryptfs belongs to its session.

mod archive;
mod data;
mod entrant;
mod figures;
mod files;
mod record;
mod step;
mod tables;
mod volume;

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result};
use serde::Serialize;

use self::archive::{Amounts, Archive};
pub(crate) use self::entrant::Entrant;
use self::record::Record;
pub(crate) use self::step::Part;
use self::step::{Done, Step};
use self::volume::Volume;
use crate::cli::Options;
use crate::contender::Absent;
use crate::progress::Progress;
use crate::results::{ContenderInfo, Machine, Report, Values};
use crate::scratch::Size;
use crate::workload;

/// Results of all parts, as written to the JSON file.
#[derive(Debug, Serialize)]
pub(crate) struct EncryptionReport {
    machine: Machine,
    repetitions: u32,
    entrants: Vec<ContenderInfo>,
    absent: Vec<Absent>,
    sizes: Sizes,
    /// Of the source tree.
    tree: Option<Amounts>,
    samples: Vec<Sample>,
    failures: Vec<Failure>,
}

/// Amounts of the parts.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sizes {
    /// Of the file that is read and written in sequence.
    stream_bytes: u64,
    /// Of the file that is accessed in random order.
    random_bytes: u64,
    small_files: u32,
}

/// One step of one run.
#[derive(Debug, Serialize)]
struct Sample {
    step: Step,
    entrant: Entrant,
    rep: u32,
    #[serde(flatten)]
    done: Done,
}

/// A run that was not completed.
#[derive(Debug, Serialize)]
struct Failure {
    part: Part,
    entrant: Entrant,
    rep: u32,
    error: String,
}

impl Sizes {
    fn new(quick: bool) -> Self {
        if quick {
            Self { stream_bytes: 4 << 20, random_bytes: 1 << 20, small_files: 20 }
        } else {
            Self { stream_bytes: 1 << 30, random_bytes: 256 << 20, small_files: 4000 }
        }
    }
}

/// What all parts share.
struct Setting<'a> {
    options: &'a Options,
    entrants: Vec<Entrant>,
    archive: Option<Archive>,
    sizes: Sizes,
    progress: &'a Progress,
}

/// Size of a file system that holds only a few files.
const PROBE: Size = Size { bytes: 256 << 20, inodes: 1000 };

/// Runs the selected parts, and writes the report.
pub(crate) fn run(options: &Options) -> Result<()> {
    // A server can't see the session of a process if its leader is outside the PID namespace.
    rustix::process::setsid().context("start a session")?;
    let progress = Progress::new();
    let (entrants, absent) = select(options, &progress);
    progress.clear();
    for missing in &absent {
        eprintln!("strata-bench: {}: skipped: {}", missing.name, missing.reason);
    }
    let archive = if options.wants_encryption(Part::Tree) { Some(Archive::build(options)?) } else { None };
    let sizes = Sizes::new(options.quick);
    let mut setting = Setting { options, entrants, archive, sizes, progress: &progress };
    let mut report = EncryptionReport::new(&setting, absent);
    report.machine.warn_if_busy();
    for part in Part::ALL.into_iter().filter(|&part| options.wants_encryption(part)) {
        setting.measure(part, &mut report);
    }
    setting.archive = None;
    progress.clear();
    report.write(options)
}

/// Mounts every selected entrant for a try. Returns those that can be mounted, and those that
/// can't.
fn select(options: &Options, progress: &Progress) -> (Vec<Entrant>, Vec<Absent>) {
    let chosen = &options.encryption_contenders;
    let wanted = |entrant: &Entrant| chosen.is_empty() || *entrant == Entrant::Native || chosen.contains(entrant);
    let (mut present, mut absent) = (Vec::new(), Vec::new());
    for entrant in Entrant::ALL.into_iter().filter(wanted) {
        progress.show(&format!("mounting {}", entrant.label()));
        let probed = entrant.program(options).and_then(|_| Volume::create(options, entrant, PROBE).map(drop));
        match probed {
            Ok(()) => present.push(entrant),
            Err(error) => absent.push(Absent { name: entrant.label(), reason: format!("{error:#}") }),
        }
    }
    (present, absent)
}

impl Setting<'_> {
    fn repetitions(&self) -> u32 {
        if self.options.quick { 1 } else { self.options.encryption_reps }
    }

    /// Runs a part. Entrants take turns.
    fn measure(&self, part: Part, report: &mut EncryptionReport) {
        let reps = self.repetitions();
        for rep in 0..reps {
            for &entrant in self.entrants.iter().filter(|&&entrant| part.includes(entrant)) {
                self.progress.show(&format!("{}/{reps}  {}, {}", rep + 1, part.title(), entrant.label()));
                let mut record = Record::default();
                if let Err(error) = self.once(part, entrant, &mut record) {
                    let error = format!("{error:#}");
                    self.progress.clear();
                    eprintln!("strata-bench: {}, {}: {error}", part.title(), entrant.label());
                    report.failures.push(Failure { part, entrant, rep, error });
                }
                let samples = record.0.into_iter().map(|(step, done)| Sample { step, entrant, rep, done });
                report.samples.extend(samples);
            }
        }
    }

    fn once(&self, part: Part, entrant: Entrant, record: &mut Record) -> Result<()> {
        let sizes = self.sizes;
        let mut volume = Volume::create(self.options, entrant, workload::SIZE)?;
        match part {
            Part::Stream => data::stream(&mut volume, sizes.stream_bytes, record),
            Part::Random => data::random(&mut volume, sizes.random_bytes, record),
            Part::Small => files::small(&mut volume, sizes.small_files, record),
            Part::Build => files::build(&mut volume, self.options, record),
            Part::Tree => {
                let archive = self.archive.as_ref().context("the archive was not built")?;
                files::tree(&mut volume, archive, record)
            }
        }
    }
}

impl EncryptionReport {
    fn new(setting: &Setting<'_>, absent: Vec<Absent>) -> Self {
        let info = |entrant: &Entrant| {
            let version = entrant.package().and_then(|package| Report::version(setting.options, package));
            ContenderInfo { name: entrant.label(), settings: entrant.settings(), version }
        };
        Self {
            machine: Machine::this(),
            repetitions: setting.repetitions(),
            entrants: setting.entrants.iter().map(info).collect(),
            absent,
            sizes: setting.sizes,
            tree: setting.archive.as_ref().map(|archive| archive.amounts),
            samples: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Returns one figure of a step, by repetition.
    fn values(&self, step: Step, entrant: Entrant, figure: impl Fn(&Done) -> f64) -> Values {
        let wanted = self.samples.iter().filter(|sample| (sample.step, sample.entrant) == (step, entrant));
        wanted.map(|sample| (sample.rep, figure(&sample.done))).collect()
    }

    /// Returns the time of a step, by repetition.
    fn seconds(&self, step: Step, entrant: Entrant) -> Values {
        self.values(step, entrant, |done| done.seconds)
    }

    /// Returns the entrants that have results in a part, in a fixed order.
    fn measured(&self, part: Part) -> Vec<Entrant> {
        let of_part = self.samples.iter().filter(|sample| sample.step.part() == part);
        of_part.map(|sample| sample.entrant).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Prints the report and writes the requested files.
    fn write(&self, options: &Options) -> Result<()> {
        let figures = figures::draw(self);
        crate::report::write_text(self, &tables::markdown(self, &figures), options)?;
        if let Some(dir) = &options.figures {
            for figure in &figures {
                let path = dir.join(figure.file);
                fs::write(&path, &figure.svg).with_context(|| format!("write {}", path.display()))?;
            }
        }
        Ok(())
    }
}
