//! Postmark and the OpenSSH build over several writable branches, with both ways to remove a name.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;

use super::entrant::Entrant;
use super::{Setting, Values, tree};
use crate::processor::Processor;
use crate::scratch::{self, Mounted, ScratchFs};
use crate::workload::{self, Postmark, Workload};

/// Numbers of branches, as in the papers.
pub(crate) const COUNTS: [usize; 5] = [1, 2, 4, 8, 16];
/// Those that run the programs.
pub(crate) const ENTRANTS: [Entrant; 3] = [Entrant::Native, Entrant::Unionfs, Entrant::UnionfsAll];

/// Without optimisation, so that a build takes seconds.
const CONFIGURE: &str = "CFLAGS=-O0 ./configure --quiet";
const MAKE: &str = "make -s -j2";

/// One run of a program.
#[derive(Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) program: Workload,
    pub(crate) entrant: Entrant,
    /// For the native file system: number of directories that Postmark uses.
    pub(crate) branches: usize,
    pub(crate) rep: u32,
    pub(crate) run: Option<Run>,
    pub(crate) error: Option<String>,
}

/// Times of one run.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) seconds: f64,
    /// Of all programs on the machine meanwhile.
    pub(crate) processor: Processor,
}

/// Returns the amounts of Postmark: a quarter of the papers'.
pub(crate) fn postmark(quick: bool) -> Postmark {
    if quick {
        // Takes so long that snapshots happen meanwhile.
        Postmark { files: 200, transactions: 2_000, subdirectories: 20, sizes: None }
    } else {
        Postmark { files: 5_000, transactions: 50_000, subdirectories: 200, sizes: None }
    }
}

/// Runs one program. Entrants take turns within each number of branches.
pub(crate) fn run(setting: &Setting<'_>, program: Workload) -> Result<Vec<Sample>> {
    let source = if program == Workload::Openssh { Some(Source::new(setting)?) } else { None };
    let counts: &[usize] = if setting.options.quick { &[3] } else { &COUNTS };
    let reps = setting.repetitions();
    let mut samples = Vec::new();
    for rep in 0..reps {
        for &branches in counts {
            for entrant in ENTRANTS.into_iter().filter(|&entrant| setting.has(entrant)) {
                // The native build has one tree, whatever the number of branches is.
                if source.is_some() && entrant == Entrant::Native && Some(&branches) != counts.first() {
                    continue;
                }
                let what = format!("{}, {branches} branches, {}", program.label(), entrant.label());
                setting.progress.show(&format!("{}/{reps}  {what}", rep + 1));
                let result = once(setting, source.as_ref(), entrant, branches).map_err(|error| format!("{error:#}"));
                if let Err(error) = &result {
                    setting.complain(&what, error);
                }
                let (run, error) = (result.as_ref().ok().copied(), result.err());
                samples.push(Sample { program, entrant, branches, rep, run, error });
            }
        }
    }
    Ok(samples)
}

/// Returns one figure of the runs of one entrant, by repetition.
pub(crate) fn values(
    samples: &[Sample],
    program: Workload,
    entrant: Entrant,
    branches: usize,
    figure: impl Fn(&Run) -> f64,
) -> Values {
    let is_wanted =
        |sample: &&Sample| (sample.program, sample.entrant, sample.branches) == (program, entrant, branches);
    samples.iter().filter(is_wanted).filter_map(|sample| Some((sample.rep, figure(sample.run.as_ref()?)))).collect()
}

/// The configured source of OpenSSH, in memory.
struct Source {
    dir: PathBuf,
    _ram: Mounted,
}

impl Source {
    fn new(setting: &Setting<'_>) -> Result<Self> {
        setting.progress.show("configuring OpenSSH");
        let ram = scratch::tmpfs(&crate::isolation::base()?.join("source"))?;
        let (dir, log) = (ram.at.join("openssh"), ram.at.join("log"));
        workload::copy_openssh(setting.options, &dir, &log)?;
        workload::in_openssh(&dir, CONFIGURE, &log)?;
        Ok(Self { dir, _ram: ram })
    }

    /// Distributes it over the branches.
    fn deal(&self, scratch: &ScratchFs, branches: &[PathBuf]) -> Result<()> {
        let staging = scratch.disk().join("staging");
        workload::copy_tree(&self.dir, &staging, &scratch.log())?;
        tree::deal(&staging, branches)
    }
}

/// Returns the directory that Postmark uses on the `n`-th branch, relative to the root. The other
/// branches lack it, so its files go to this branch.
fn location(n: usize) -> String {
    format!("p{n:03}")
}

/// Runs OpenSSH's build if there is a source, else Postmark, on a fresh file system.
fn once(setting: &Setting<'_>, source: Option<&Source>, entrant: Entrant, count: usize) -> Result<Run> {
    let scratch = ScratchFs::new(&crate::isolation::base()?, workload::SIZE)?;
    let branches = entrant.branches(&scratch, count)?;
    match source {
        Some(source) => source.deal(&scratch, &branches)?,
        None => (0..count).zip(branches.iter().cycle()).try_for_each(|(n, branch)| {
            let dir = branch.join(location(n));
            fs::create_dir(&dir).with_context(|| format!("create {}", dir.display()))
        })?,
    }
    rustix::fs::syncfs(scratch.open()?).context("sync the file system")?;
    let running = entrant.mount(setting.contender(entrant)?, &scratch, &branches)?;
    let log = scratch.log().with_extension("workload");
    match source {
        Some(_) => timed(|| workload::build_openssh(&running.root, MAKE, &log)),
        None => {
            let program = workload::find_postmark(setting.options)?;
            let locations: Vec<_> = (0..count).map(|n| running.root.join(location(n))).collect();
            timed(|| run_postmark(&program, setting.options.quick, &locations, &log))
        }
    }
}

fn run_postmark(program: &Path, quick: bool, locations: &[PathBuf], log: &Path) -> Result<()> {
    postmark(quick).run(program, locations, log)
}

fn timed(run: impl FnOnce() -> Result<()>) -> Result<Run> {
    let (begun, before) = (Instant::now(), Processor::now()?);
    run()?;
    Ok(Run { seconds: begun.elapsed().as_secs_f64(), processor: Processor::now()?.since(before) })
}
