//! A build, Postmark, and the copying of successive releases: time, processor time and space.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;

use super::Setting;
use super::entrant::Entrant;
use super::releases::Releases;
use super::space::Space;
use crate::processor::Processor;
use crate::results::Values;
use crate::scratch::{ScratchFs, Size};
use crate::workload::{self, Postmark};

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Program {
    Build,
    Postmark,
    /// A number of versions is kept.
    Copy,
    /// The space of the versions of a file is limited.
    CopySpace,
}

impl Program {
    pub(crate) const ALL: [Self; 4] = [Self::Build, Self::Postmark, Self::Copy, Self::CopySpace];

    /// Returns the policy that bounds the versions of each file, with the paper's value.
    pub(crate) fn bound(self) -> &'static str {
        match self {
            Self::Build => "number = \"..5\"",
            Self::Postmark => "number = \"..9\"",
            Self::Copy => "number = \"..64\"",
            Self::CopySpace => "space = \"..140KiB\"",
        }
    }

    /// Returns the goal for the time: a multiple of that of the null layer.
    pub(crate) fn goal(self, entrant: Entrant) -> Option<f64> {
        use super::entrant::Storage;
        match (self, entrant) {
            (_, Entrant::Native | Entrant::Null | Entrant::OnWrite(_)) => None,
            (Self::Build, _) => Some(1.01),
            (Self::Copy | Self::CopySpace, _) => Some(1.1),
            (Self::Postmark, Entrant::OnChange(Storage::Full | Storage::Sparse)) => Some(1.3),
            (Self::Postmark, Entrant::OnChange(Storage::Compress)) => Some(2.0),
            (Self::Postmark, _) => None,
        }
    }

    /// Returns the goal for the space: a multiple of that of the native file system. Half of the
    /// paper's ratios.
    pub(crate) fn space_goal(self, entrant: Entrant) -> Option<f64> {
        use super::entrant::Storage;
        match (self, entrant) {
            (Self::Copy, Entrant::OnChange(Storage::Compress)) => Some(4.51 / 2.0),
            (Self::Copy, Entrant::OnChange(Storage::Sparse)) => Some(12.91 / 2.0),
            _ => None,
        }
    }

    fn size(self) -> Size {
        match self {
            // The image takes the space that is used. The paper's Postmark left 15 GB.
            Self::Postmark => Size { bytes: 18 << 30, inodes: 400_000 },
            _ => workload::SIZE,
        }
    }
}

/// One run of a program.
#[derive(Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) program: Program,
    pub(crate) entrant: Entrant,
    pub(crate) rep: u32,
    pub(crate) run: Option<Run>,
    pub(crate) error: Option<String>,
}

/// Result of one run.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) seconds: f64,
    /// Of the program and the server.
    pub(crate) processor: Processor,
    /// Until the versions had their final formats, from the end of the program.
    pub(crate) conversion_seconds: f64,
    pub(crate) conversion_processor: Processor,
    pub(crate) space: Space,
}

/// Returns the amounts of Postmark, the paper's.
pub(crate) fn postmark(quick: bool) -> Postmark {
    let sizes = Some((512, 1_045_068));
    if quick {
        Postmark { files: 250, transactions: 1_000, subdirectories: 0, sizes }
    } else {
        Postmark { files: 5_000, transactions: 20_000, subdirectories: 0, sizes }
    }
}

/// Runs one program. Entrants take turns.
pub(crate) fn run(setting: &Setting<'_>, program: Program, releases: Option<&Releases>) -> Vec<Sample> {
    let reps = setting.repetitions();
    let mut samples = Vec::new();
    for rep in 0..reps {
        for &entrant in &setting.entrants {
            if !setting.runs(program, entrant) {
                continue;
            }
            let what = format!("{}, {}", super::tables::title(program), entrant.label());
            setting.progress.show(&format!("{}/{reps}  {what}", rep + 1));
            let result = once(setting, program, releases, entrant).map_err(|error| format!("{error:#}"));
            if let Err(error) = &result {
                setting.complain(&what, error);
            }
            let (run, error) = (result.as_ref().ok().copied(), result.err());
            samples.push(Sample { program, entrant, rep, run, error });
        }
    }
    samples
}

/// Returns one figure of the runs of one entrant, by repetition.
pub(crate) fn values(samples: &[Sample], program: Program, entrant: Entrant, figure: impl Fn(&Run) -> f64) -> Values {
    let wanted = samples.iter().filter(|sample| (sample.program, sample.entrant) == (program, entrant));
    wanted.filter_map(|sample| Some((sample.rep, figure(sample.run.as_ref()?)))).collect()
}

/// Runs a program on a fresh file system.
fn once(setting: &Setting<'_>, program: Program, releases: Option<&Releases>, entrant: Entrant) -> Result<Run> {
    let scratch = ScratchFs::new(&crate::isolation::base()?, program.size())?;
    let dir = Entrant::directory(&scratch)?;
    let log = scratch.log().with_extension("workload");
    if program == Program::Build {
        workload::copy_openssh(setting.options, &dir.join("openssh"), &log)?;
    }
    rustix::fs::syncfs(scratch.open()?).context("sync the file system")?;
    let running = entrant.mount(setting.contender(entrant)?, &scratch, Some(program.bound()))?;
    let (seconds, processor) = timed(|| start(setting, program, releases, &running.root, &log))?;
    let (conversion_seconds, conversion_processor) = timed(|| setting.convert(entrant, &running.root))?;
    drop(running);
    // Only then are all blocks allocated.
    rustix::fs::syncfs(scratch.open()?).context("sync the file system")?;
    Ok(Run { seconds, processor, conversion_seconds, conversion_processor, space: Space::of(&dir)? })
}

fn start(setting: &Setting<'_>, program: Program, releases: Option<&Releases>, root: &Path, log: &Path) -> Result<()> {
    match program {
        Program::Build => workload::build_openssh(&root.join("openssh"), "./configure --quiet && make -s -j2", log),
        Program::Postmark => {
            let program = workload::find_postmark(setting.options)?;
            postmark(setting.options.quick).run(&program, &[root.join("postmark")], log)
        }
        Program::Copy | Program::CopySpace => {
            releases.context("the releases are not unpacked")?.copy(&root.join("tree"), log)
        }
    }
}

fn timed(run: impl FnOnce() -> Result<()>) -> Result<(f64, Processor)> {
    let (begun, before) = (Instant::now(), Processor::of_processes()?);
    run()?;
    let seconds = begun.elapsed().as_secs_f64();
    Ok((seconds, Processor::of_processes()?.since(before)))
}
