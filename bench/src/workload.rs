//! Workloads: common programs, timed from start to end.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::cli::Options;
use crate::contender::{Contender, Kind};
use crate::process;
use crate::progress::Progress;
use crate::results::Spread;
use crate::scratch::{ScratchFs, Size};

/// A program that runs on the contenders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// Debian's OpenSSH source package, configured and built with two jobs, from sources on the
    /// read-only branch
    Openssh,
    /// Debian's postmark: 20,000 files, 200,000 transactions, 200 subdirectories
    Postmark,
}

/// Size of a file system for a workload.
pub(crate) const SIZE: Size = Size { bytes: 4 << 30, inodes: 200_000 };

/// One workload on one contender.
#[derive(Debug, Serialize)]
pub(crate) struct WorkloadRow {
    pub(crate) workload: Workload,
    pub(crate) contender: Kind,
    /// One value per repetition.
    pub(crate) seconds: Vec<f64>,
    pub(crate) spread: Option<Spread>,
    /// The time as a multiple of the native time of the same repetition.
    pub(crate) ratio: Option<Spread>,
    /// Target: maximum of the ratio.
    pub(crate) target: f64,
    pub(crate) error: Option<String>,
}

impl Workload {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Workload::Openssh => "OpenSSH, configure and make -j2",
            Workload::Postmark => "Postmark",
        }
    }

    /// Returns the name of its variant that runs over several branches.
    pub(crate) fn over_branches(self) -> &'static str {
        match self {
            Workload::Openssh => "OpenSSH, make -j2",
            Workload::Postmark => "Postmark",
        }
    }

    fn target(self) -> f64 {
        match self {
            Workload::Openssh => 1.02,
            Workload::Postmark => 2.2,
        }
    }

    /// Populates the read-only branch.
    fn populate(self, ro: &Path, options: &Options, log: &Path) -> Result<()> {
        match self {
            Workload::Openssh => copy_openssh(options, &ro.join("openssh"), log),
            Workload::Postmark => Ok(()),
        }
    }

    /// Runs it in the mounted contender.
    fn run(self, root: &Path, options: &Options, log: &Path) -> Result<()> {
        match self {
            Workload::Openssh => build_openssh(&root.join("openssh"), "./configure --quiet && make -s -j2", log),
            Workload::Postmark => {
                let amounts = if options.quick { Postmark::QUICK } else { Postmark::FULL };
                amounts.run(&find_postmark(options)?, &[root.join("postmark")], log)
            }
        }
    }
}

/// Amounts of a run of Postmark.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Postmark {
    pub(crate) files: u32,
    pub(crate) transactions: u32,
    /// In all locations together.
    pub(crate) subdirectories: u32,
    /// Least and greatest size of a file in bytes; Postmark's own defaults if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sizes: Option<(u32, u32)>,
}

impl Postmark {
    const FULL: Self = Self { files: 20_000, transactions: 200_000, subdirectories: 200, sizes: None };
    const QUICK: Self = Self { files: 50, transactions: 200, subdirectories: 200, sizes: None };

    /// Runs it in new directories, the *locations*. It spreads its files over them.
    pub(crate) fn run(self, program: &Path, locations: &[PathBuf], log: &Path) -> Result<()> {
        let mut commands = String::new();
        // With a plus, Postmark adds the location to those that it has.
        let plus = if locations.len() > 1 { "+" } else { "" };
        for dir in locations {
            fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
            let _ = writeln!(commands, "set location {plus}{}", dir.display());
        }
        if let Some((least, greatest)) = self.sizes {
            let _ = writeln!(commands, "set size {least} {greatest}");
        }
        // Postmark creates that many in each location. It takes no zero, which is its default.
        let subdirectories = self.subdirectories / u32::try_from(locations.len())?.max(1);
        if subdirectories > 0 {
            let _ = writeln!(commands, "set subdirectories {subdirectories}");
        }
        let _ = write!(commands, "set number {}\nset transactions {}\nrun\nquit\n", self.files, self.transactions);
        let script = log.with_extension("commands");
        fs::write(&script, commands).with_context(|| format!("write {}", script.display()))?;
        process::run(Command::new(program).arg(&script), log)?;
        // postmark exits with 0 even after an error: check its output.
        let output = fs::read_to_string(log).context("read the output of postmark")?;
        let error = output.lines().find(|line| line.starts_with("Error"));
        ensure!(error.is_none(), "postmark: {}", error.unwrap_or_default());
        ensure!(output.contains("seconds of transactions"), "postmark ended without a report");
        Ok(())
    }
}

/// Returns the path of Postmark.
pub(crate) fn find_postmark(options: &Options) -> Result<PathBuf> {
    let unpacked = options.cache.join("peers/usr/bin/postmark");
    if unpacked.is_file() { Some(unpacked) } else { process::find("postmark") }
        .context("postmark is neither unpacked nor installed")
}

/// Copies the source of OpenSSH into the directory `to`, which does not exist.
pub(crate) fn copy_openssh(options: &Options, to: &Path, log: &Path) -> Result<()> {
    let source = options.cache.join("openssh");
    ensure!(source.join("configure").is_file(), "{} holds no source of OpenSSH", source.display());
    copy_tree(&source, to, log)
}

/// Copies a tree with its times.
pub(crate) fn copy_tree(from: &Path, to: &Path, log: &Path) -> Result<()> {
    process::run(Command::new("cp").arg("-a").arg(from).arg(to), log)
}

/// Runs a shell script in the directory of OpenSSH's source.
pub(crate) fn in_openssh(source: &Path, script: &str, log: &Path) -> Result<()> {
    process::run(Command::new("sh").args(["-c", script]).current_dir(source), log)
}

/// Runs a shell script that builds OpenSSH.
pub(crate) fn build_openssh(source: &Path, script: &str, log: &Path) -> Result<()> {
    in_openssh(source, script, log)?;
    ensure!(source.join("sshd").is_file(), "the build produced no sshd");
    Ok(())
}

/// Runs one workload on every contender in turn.
pub(crate) fn run(
    workload: Workload,
    options: &Options,
    contenders: &[Contender],
    progress: &Progress,
) -> Result<Vec<WorkloadRow>> {
    let reps = if options.quick { 1 } else { options.workload_reps };
    let mut rows: Vec<WorkloadRow> =
        contenders.iter().map(|contender| WorkloadRow::new(workload, contender.kind)).collect();
    let mut ratios = vec![Vec::new(); rows.len()];
    for rep in 1..=reps {
        let mut native = None;
        for ((contender, row), ratios) in contenders.iter().zip(&mut rows).zip(&mut ratios) {
            progress.show(&format!("{rep}/{reps}  {}, {}", workload.label(), contender.kind.name()));
            match once(workload, options, contender) {
                Ok(seconds) => {
                    if contender.kind == Kind::Native {
                        native = Some(seconds);
                    }
                    row.seconds.push(seconds);
                    ratios.extend(native.map(|native| seconds / native));
                }
                Err(error) => {
                    progress.clear();
                    eprintln!("strata-bench: {} on {}: {error:#}", workload.label(), contender.kind.name());
                    row.error = Some(format!("{error:#}"));
                }
            }
        }
    }
    for (row, ratios) in rows.iter_mut().zip(&ratios) {
        row.spread = Spread::of(&row.seconds);
        row.ratio = Spread::of(ratios);
    }
    progress.clear();
    Ok(rows)
}

impl WorkloadRow {
    fn new(workload: Workload, contender: Kind) -> Self {
        let target = workload.target();
        Self { workload, contender, seconds: Vec::new(), spread: None, ratio: None, target, error: None }
    }
}

fn once(workload: Workload, options: &Options, contender: &Contender) -> Result<f64> {
    let scratch = ScratchFs::new(&crate::isolation::base()?, SIZE)?;
    let branches = contender.branches(&scratch)?;
    let log: PathBuf = scratch.base().join("ram/workload.log");
    workload.populate(&branches.ro, options, &log)?;
    rustix::fs::syncfs(scratch.open()?).context("sync the file system")?;
    let running = contender.mount(&scratch, &branches)?;
    let begun = Instant::now();
    workload.run(&running.root, options, &log)?;
    Ok(begun.elapsed().as_secs_f64())
}
