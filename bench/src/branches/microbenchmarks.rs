//! STAT, READDIR and UNLINK over the tree, on more and more branches.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::entrant::Entrant;
use super::passes::{self, Action, State, Task};
use super::tree::{Distribution, Tree};
use super::{Setting, Values};
use crate::counters::Requests;
use crate::operations::{self, Measured};
use crate::scratch::ScratchFs;

/// Numbers of branches. The papers have the first five.
const COUNTS: [usize; 8] = [1, 2, 4, 8, 16, 64, 256, 1024];
/// Time for the server to take the kernel's messages about what was dropped.
const FORGOTTEN: Duration = Duration::from_millis(50);

/// One measurement.
#[derive(Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) entrant: Entrant,
    pub(crate) action: Action,
    pub(crate) state: State,
    pub(crate) distribution: Distribution,
    pub(crate) branches: usize,
    pub(crate) rep: u32,
    /// Number of operations in the timed phase.
    pub(crate) operations: Option<u64>,
    /// Per operation.
    pub(crate) microseconds: Option<f64>,
    /// Requests that the server received in the timed phase, if it counts them.
    pub(crate) requests: Option<Requests>,
    pub(crate) error: Option<String>,
}

/// Returns the numbers of branches.
pub(crate) fn counts(quick: bool) -> &'static [usize] {
    if quick { &[3] } else { &COUNTS }
}

/// Runs all measurements. Entrants take turns within each number of branches.
pub(crate) fn run(setting: &Setting<'_>) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    let reps = setting.repetitions();
    for rep in 0..reps {
        for &branches in counts(setting.options.quick) {
            for distribution in Distribution::ALL {
                for &entrant in setting.entrants {
                    if entrant.most_branches().is_some_and(|most| branches > most) {
                        continue;
                    }
                    let what = format!("{branches} branches, {}, {}", distribution.name(), entrant.label());
                    setting.progress.show(&format!("{}/{reps}  {what}", rep + 1));
                    let turn = Turn { setting, entrant, distribution, branches, rep };
                    turn.run(&mut samples).with_context(|| what)?;
                }
            }
        }
    }
    Ok(samples)
}

/// A micro-benchmark in one state, over one distribution.
pub(crate) type Which = (Action, State, Distribution);

/// Returns the time per operation by repetition, of one entrant.
pub(crate) fn times(samples: &[Sample], which: Which, entrant: Entrant, branches: usize) -> Values {
    values(samples, which, entrant, branches, |sample| sample.microseconds)
}

/// Returns the requests per operation by repetition, of one entrant.
pub(crate) fn requests(samples: &[Sample], which: Which, entrant: Entrant, branches: usize) -> Values {
    values(samples, which, entrant, branches, |sample| {
        let sent: u64 = sample.requests.as_ref()?.values().sum();
        Some(sent as f64 / sample.operations? as f64)
    })
}

fn values(
    samples: &[Sample],
    which: Which,
    entrant: Entrant,
    branches: usize,
    figure: impl Fn(&Sample) -> Option<f64>,
) -> Values {
    samples
        .iter()
        .filter(|sample| (sample.action, sample.state, sample.distribution) == which)
        .filter(|sample| (sample.entrant, sample.branches) == (entrant, branches))
        .filter_map(|sample| Some((sample.rep, figure(sample)?)))
        .collect()
}

/// One entrant's turn on one fresh file system.
struct Turn<'a> {
    setting: &'a Setting<'a>,
    entrant: Entrant,
    distribution: Distribution,
    branches: usize,
    rep: u32,
}

impl Turn<'_> {
    fn run(&self, samples: &mut Vec<Sample>) -> Result<()> {
        let tree = Tree::of(self.branches, self.setting.options.quick);
        let scratch = ScratchFs::new(&crate::isolation::base()?, tree.size(self.branches, self.distribution))?;
        let branches = self.entrant.branches(&scratch, self.branches)?;
        tree.populate(&branches, self.distribution)?;
        let all = (0, tree.directories);
        // The other entrants differ from these in removals only.
        if !matches!(self.entrant, Entrant::UnionfsAll | Entrant::UnionfsRo) {
            for action in [Action::Readdir, Action::Stat] {
                let plan: Vec<_> = action.states().iter().map(|&state| (action, state, all)).collect();
                self.mounted(&scratch, &branches, &plan, samples)?;
            }
        }
        let half = tree.directories / 2;
        let plan =
            [(Action::Unlink, State::Cold, (0, half)), (Action::Unlink, State::Kernel, (half, tree.directories))];
        self.mounted(&scratch, &branches, &plan, samples)
    }

    /// Mounts the entrant with nothing cached, and measures in the order of the plan.
    fn mounted(
        &self,
        scratch: &ScratchFs,
        branches: &[PathBuf],
        plan: &[(Action, State, (u32, u32))],
        samples: &mut Vec<Sample>,
    ) -> Result<()> {
        scratch.remount()?;
        let running = self.entrant.mount(self.setting.contender(self.entrant)?, scratch, branches);
        for &(action, state, directories) in plan {
            let task = |root: &Path| Task { action, state, root: root.to_owned(), directories };
            let result = match &running {
                Ok(running) => measure(scratch, &task(&running.root)).map_err(|error| format!("{error:#}")),
                Err(error) => Err(format!("{error:#}")),
            };
            if let Err(error) = &result {
                self.setting.complain(
                    &format!("{}, {} branches, {}", self.entrant.label(), self.branches, action.name()),
                    error,
                );
            }
            samples.push(self.sample(action, state, result));
        }
        Ok(())
    }

    fn sample(&self, action: Action, state: State, result: Result<Measured, String>) -> Sample {
        let (measured, error) = match result {
            Ok(measured) => (Some(measured), None),
            Err(error) => (None, Some(error)),
        };
        Sample {
            entrant: self.entrant,
            action,
            state,
            distribution: self.distribution,
            branches: self.branches,
            rep: self.rep,
            operations: measured.as_ref().map(|measured| measured.ops),
            microseconds: measured.as_ref().map(|measured| measured.microseconds(1)),
            requests: measured.and_then(|measured| measured.requests),
            error,
        }
    }
}

fn measure(scratch: &ScratchFs, task: &Task) -> Result<Measured> {
    let json = serde_json::to_string(task).context("describe the task")?;
    operations::counted(passes::SUBCOMMAND, &[json], &task.root, || {
        rustix::fs::syncfs(scratch.open()?).context("sync the file system")?;
        if (task.action, task.state) == (Action::Stat, State::Union) {
            // The first time, the kernel may spare names that were used more than once.
            crate::memory::forget()?;
            crate::memory::forget()?;
            thread::sleep(FORGOTTEN);
        }
        Ok(())
    })
}
