//! The experiments of the paper on Versionfs: what keeping versions costs in time and in space.
//!
//! - [`programs`]: a build, Postmark, and the copying of successive [`releases`] over each other,
//!   with copy-on-change and copy-on-write. Measures time, processor time and [`space`].
//! - [`peers`]: the space that version control and backup programs need for the same history.
//! - [`recover`]: recovering versions, reading heads and listing directories. A worker ([`passes`])
//!   makes the timed passes.
//!
//! Each [`Entrant`] is a contender with certain settings. [`control`] sends the commands of
//! versionfs. The report has [`tables`] and [`figures`].

mod control;
mod entrant;
mod figures;
pub(crate) mod passes;
mod peers;
mod programs;
mod recover;
pub(crate) mod releases;
mod space;
mod tables;

use std::fs;

use anyhow::{Context, Result};
use serde::Serialize;
use versionclient::Directory;

use self::entrant::Entrant;
pub(crate) use self::entrant::Storage;
use self::programs::Program;
use self::releases::Releases;
use crate::cli::Options;
use crate::contender::{self, Absent, Contender, Kind};
use crate::progress::Progress;
use crate::results::{ContenderInfo, Machine, Report};
use crate::scratch::{ScratchFs, Size};
use crate::workload::Postmark;

/// A part of the experiments, by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// The OpenSSH build
    Build,
    /// Postmark
    Postmark,
    /// Successive releases copied over each other
    Copy,
    /// Version control and backup programs, given the same releases
    Peers,
    /// Recovering versions, reading heads, listing directories
    Recover,
    /// Copy-on-write in the build and the copying
    CopyOn,
}

/// Results of all experiments, as written to the JSON file.
#[derive(Debug, Serialize)]
pub(crate) struct VersionReport {
    machine: Machine,
    repetitions: u32,
    entrants: Vec<ContenderInfo>,
    absent: Vec<Absent>,
    releases: Vec<&'static str>,
    postmark: Postmark,
    histories: recover::Histories,
    programs: Vec<programs::Sample>,
    peers: Vec<peers::Sample>,
    recoveries: Vec<recover::Sample>,
}

/// What all experiments share.
struct Setting<'a> {
    options: &'a Options,
    contenders: &'a [Contender],
    /// Those that can be mounted.
    entrants: Vec<Entrant>,
    /// Whether the command exists that waits until versions have their final formats.
    converts: bool,
    /// Whether the commands exist that open versions.
    recovers: bool,
    progress: &'a Progress,
}

/// Names of the commands that a build may lack, for the report.
const CONVERT: &str = "versionfs.convert";
const OPEN: &str = "versionfs.names";

impl<'a> Setting<'a> {
    /// Finds out what can be mounted. Returns also what can't.
    fn new(options: &'a Options, contenders: &'a [Contender], progress: &'a Progress) -> Result<(Self, Vec<Absent>)> {
        let mut setting =
            Self { options, contenders, entrants: vec![Entrant::Native], converts: false, recovers: false, progress };
        let chosen = |storage: &Storage| options.storage.is_empty() || options.storage.contains(storage);
        let storages: Vec<Storage> = Storage::ALL.into_iter().filter(chosen).collect();
        let compared = storages.iter().filter(|storage| Storage::COMPARED.contains(storage));
        let on_write: Vec<Entrant> =
            compared.filter(|_| options.wants_part(Part::CopyOn)).map(|storage| Entrant::OnWrite(*storage)).collect();
        let on_change = storages.iter().map(|storage| Entrant::OnChange(*storage));
        let mut absent = Vec::new();
        for entrant in std::iter::once(Entrant::Null).chain(on_change).chain(on_write) {
            // A missing program is reported once.
            let Ok(_) = setting.contender(entrant) else { continue };
            match setting.probe(entrant)? {
                Ok(()) => setting.entrants.push(entrant),
                Err(error) => absent.push(Absent { name: entrant.label(), reason: reason(&error) }),
            }
        }
        let versioned = setting.entrants.iter().copied().find(|entrant| entrant.keeps_versions());
        if let Some(entrant) = versioned {
            for (name, result) in setting.commands(entrant)? {
                match (name, result) {
                    (CONVERT, Ok(())) => setting.converts = true,
                    (_, Ok(())) => setting.recovers = true,
                    (CONVERT, Err(error)) => {
                        let reason = format!("versions keep the formats that they were made in: {error:#}");
                        absent.push(Absent { name, reason });
                    }
                    (_, Err(error)) => {
                        absent.push(Absent { name, reason: format!("no versions are recovered: {error:#}") });
                    }
                }
            }
        }
        Ok((setting, absent))
    }

    /// Mounts an entrant for a try. The outer error is one of the benchmark itself.
    fn probe(&self, entrant: Entrant) -> Result<Result<()>> {
        self.progress.show(&format!("mounting {}", entrant.label()));
        let scratch = ScratchFs::new(&crate::isolation::base()?, Size { bytes: 64 << 20, inodes: 1000 })?;
        Ok(entrant.mount(self.contender(entrant)?, &scratch, None).map(drop))
    }

    /// Tries the commands that the experiments need.
    fn commands(&self, entrant: Entrant) -> Result<[(&'static str, Result<()>); 2]> {
        let scratch = ScratchFs::new(&crate::isolation::base()?, Size { bytes: 64 << 20, inodes: 1000 })?;
        let running = entrant.mount(self.contender(entrant)?, &scratch, None)?;
        let root = Directory::open(&running.root).context("open the mount")?;
        let results = [
            (CONVERT, root.convert().context("convert the versions")),
            (OPEN, root.names().map(drop).context("list the names")),
        ];
        drop(root);
        Ok(results)
    }

    /// Waits until the versions below `root` have their final formats.
    fn convert(&self, entrant: Entrant, root: &std::path::Path) -> Result<()> {
        if !self.converts || !entrant.keeps_versions() {
            return Ok(());
        }
        Directory::open(root).context("open the mount")?.convert().context("convert the versions")
    }

    fn repetitions(&self) -> u32 {
        if self.options.quick { 1 } else { self.options.version_reps }
    }

    /// Returns the contender of that entrant.
    fn contender(&self, entrant: Entrant) -> Result<&Contender> {
        let found = self.contenders.iter().find(|contender| contender.kind == entrant.kind());
        found.with_context(|| format!("{} does not take part", entrant.label()))
    }

    /// Whether an entrant runs a program. Copy-on-write is compared where the paper does; so are
    /// the storage policies in programs that take long, unless others are chosen.
    fn runs(&self, program: Program, entrant: Entrant) -> bool {
        match entrant {
            Entrant::Native | Entrant::Null => true,
            Entrant::OnChange(storage) => {
                matches!(program, Program::Copy | Program::CopySpace)
                    || Storage::COMPARED.contains(&storage)
                    || self.options.storage.contains(&storage)
            }
            Entrant::OnWrite(_) => {
                self.options.wants_part(Part::CopyOn) && matches!(program, Program::Build | Program::Copy)
            }
        }
    }

    /// Whether a program is run.
    fn wants(&self, program: Program) -> bool {
        match program {
            Program::Build => self.options.wants_part(Part::Build),
            Program::Postmark => self.options.wants_part(Part::Postmark),
            Program::Copy | Program::CopySpace => self.options.wants_part(Part::Copy),
        }
    }

    /// Prints an error at once. The report repeats it.
    fn complain(&self, what: &str, error: &str) {
        self.progress.clear();
        eprintln!("strata-bench: {what}: {error}");
    }
}

/// Returns the first line of what a mount program said.
fn reason(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    text.split(';').next().unwrap_or(&text).to_owned()
}

/// Runs the selected experiments, and writes the report.
pub(crate) fn run(options: &Options) -> Result<()> {
    let (contenders, mut absent) = contender::of_kinds(options, &[Kind::Native, Kind::Wrapfs, Kind::Versionfs]);
    let progress = Progress::new();
    let (setting, unsupported) = Setting::new(options, &contenders, &progress)?;
    absent.extend(unsupported);
    progress.clear();
    for missing in &absent {
        eprintln!("strata-bench: {}: skipped: {}", missing.name, missing.reason);
    }
    let mut report = VersionReport::new(&setting, absent);
    report.machine.warn_if_busy();
    let needs_releases = [Part::Copy, Part::Peers, Part::Recover].into_iter().any(|part| options.wants_part(part));
    let releases = if needs_releases { Some(Releases::unpack(&setting)?) } else { None };
    for program in Program::ALL.into_iter().filter(|&program| setting.wants(program)) {
        report.programs.extend(programs::run(&setting, program, releases.as_ref()));
    }
    if let Some(releases) = &releases {
        if options.wants_part(Part::Peers) {
            report.peers = peers::run(&setting, releases);
        }
        if options.wants_part(Part::Recover) {
            report.recoveries = recover::run(&setting, releases)?;
        }
    }
    progress.clear();
    report.write(options)
}

impl VersionReport {
    fn new(setting: &Setting<'_>, absent: Vec<Absent>) -> Self {
        let info =
            |entrant: &Entrant| ContenderInfo { name: entrant.label(), settings: entrant.settings(), version: None };
        let quick = setting.options.quick;
        let peers = peers::Peer::ALL.iter().filter(|_| setting.options.wants_part(Part::Peers)).map(|peer| {
            let version = Report::version(setting.options, peer.package());
            ContenderInfo { name: peer.package(), settings: peer.settings(), version }
        });
        Self {
            machine: Machine::this(),
            repetitions: setting.repetitions(),
            entrants: setting.entrants.iter().map(info).chain(peers).collect(),
            absent,
            releases: releases::archives(quick),
            postmark: programs::postmark(quick),
            histories: recover::histories(quick),
            programs: Vec::new(),
            peers: Vec::new(),
            recoveries: Vec::new(),
        }
    }

    /// Returns the entrants that have results, in a fixed order.
    fn measured(&self) -> Vec<Entrant> {
        let programs = self.programs.iter().map(|sample| sample.entrant);
        let mut all: Vec<Entrant> = programs.chain(self.recoveries.iter().map(|sample| sample.entrant)).collect();
        all.sort_unstable();
        all.dedup();
        all
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
