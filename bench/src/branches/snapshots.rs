//! Postmark while snapshots of the union are taken.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use serde::Serialize;

use super::entrant::Entrant;
use super::{Setting, Values, programs};
use crate::process;
use crate::scratch::{Format, ScratchFs};
use crate::workload;

/// Numbers of snapshots planned for a run; 0 comes first, because its time determines the
/// intervals of the others. The papers have intervals of 60, 30 and 15 seconds.
const PLANNED: [u32; 5] = [0, 1, 2, 4, 8];

/// One run of Postmark.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) entrant: Entrant,
    pub(crate) planned: u32,
    pub(crate) rep: u32,
    /// Time between snapshots.
    pub(crate) interval_seconds: Option<f64>,
    pub(crate) run: Option<Run>,
    pub(crate) error: Option<String>,
}

/// Result of one run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) seconds: f64,
    /// How long the command took, for each snapshot.
    pub(crate) snapshot_seconds: Vec<f64>,
}

/// Returns the planned numbers of snapshots.
fn planned(quick: bool) -> &'static [u32] {
    if quick { &[0, 2] } else { &PLANNED }
}

/// Runs Postmark natively, and on a union with each number of snapshots in turn.
pub(crate) fn run(setting: &Setting<'_>) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    let reps = setting.repetitions();
    for rep in 0..reps {
        let mut undisturbed = None;
        let unions = planned(setting.options.quick).iter().map(|&planned| (Entrant::Unionfs, planned));
        for (entrant, planned) in std::iter::once((Entrant::Native, 0)).chain(unions) {
            // Without the time of an undisturbed run there are no intervals.
            if !setting.has(entrant) || planned > 0 && undisturbed.is_none() {
                continue;
            }
            setting.progress.show(&format!("{}/{reps}  Postmark, {planned} snapshots, {}", rep + 1, entrant.label()));
            let interval = undisturbed.filter(|_| planned > 0).map(|seconds: f64| seconds / f64::from(planned + 1));
            let result = once(setting, entrant, interval).map_err(|error| format!("{error:#}"));
            if let Err(error) = &result {
                setting.complain(&format!("Postmark, {planned} snapshots, {}", entrant.label()), error);
            }
            if (entrant, planned) == (Entrant::Unionfs, 0) {
                undisturbed = result.as_ref().ok().map(|run| run.seconds);
            }
            let (run, error) = (result.as_ref().ok().cloned(), result.err());
            samples.push(Sample { entrant, planned, rep, interval_seconds: interval, run, error });
        }
    }
    Ok(samples)
}

impl Sample {
    /// Returns the duration of the snapshot that took longest.
    pub(crate) fn longest(&self) -> Option<f64> {
        self.run.as_ref()?.snapshot_seconds.iter().copied().reduce(f64::max)
    }
}

/// Returns the planned numbers that unions were measured with.
pub(crate) fn all_planned(samples: &[Sample]) -> Vec<u32> {
    let unions = samples.iter().filter(|sample| sample.entrant == Entrant::Unionfs);
    let mut planned: Vec<u32> = unions.map(|sample| sample.planned).collect();
    planned.sort_unstable();
    planned.dedup();
    planned
}

/// Returns the times of the runs, by repetition.
pub(crate) fn seconds(samples: &[Sample], entrant: Entrant, planned: u32) -> Values {
    values(samples, entrant, planned, |sample| Some(sample.run.as_ref()?.seconds))
}

/// Returns how many snapshots were taken of the union, by repetition.
pub(crate) fn taken(samples: &[Sample], planned: u32) -> Values {
    values(samples, Entrant::Unionfs, planned, |sample| Some(sample.run.as_ref()?.snapshot_seconds.len() as f64))
}

/// Returns one figure of the runs, by repetition.
pub(crate) fn values(
    samples: &[Sample],
    entrant: Entrant,
    planned: u32,
    figure: impl Fn(&Sample) -> Option<f64>,
) -> Values {
    let is_wanted = |sample: &&Sample| (sample.entrant, sample.planned) == (entrant, planned);
    samples.iter().filter(is_wanted).filter_map(|sample| Some((sample.rep, figure(sample)?))).collect()
}

fn once(setting: &Setting<'_>, entrant: Entrant, interval: Option<f64>) -> Result<Run> {
    // Postmark's open files prevent snapshots on a file system without reflinks.
    let scratch = ScratchFs::with_format(&crate::isolation::base()?, workload::SIZE, Format::Xfs)?;
    let branches = entrant.branches(&scratch, 1)?;
    rustix::fs::syncfs(scratch.open()?).context("sync the file system")?;
    let running = entrant.mount(setting.contender(entrant)?, &scratch, &branches)?;
    let (program, log) = (workload::find_postmark(setting.options)?, scratch.log().with_extension("workload"));
    let locations = [running.root.join("postmark")];
    let amounts = programs::postmark(setting.options.quick);
    let snapshot = |n: usize| {
        let dir = scratch.disk().join(format!("s{n:04}"));
        take_snapshot(&setting.options.unionfs, &running.root, &dir, &scratch.log().with_extension("snapshot"))
    };
    let (ended, has_ended) = mpsc::channel();
    thread::scope(|scope| {
        let begun = Instant::now();
        let postmark = scope.spawn(move || {
            let result = amounts.run(&program, &locations, &log);
            // The other end is only dropped after an error, which is reported instead.
            let _ = ended.send(begun.elapsed());
            result
        });
        let snapshot_seconds = match interval {
            Some(seconds) => until_ended(&has_ended, Duration::from_secs_f64(seconds), snapshot),
            None => Ok((Vec::new(), None)),
        };
        postmark.join().map_err(|_| anyhow!("Postmark's thread panicked"))??;
        let (snapshot_seconds, seen) = snapshot_seconds?;
        let elapsed = seen.map_or_else(|| has_ended.recv(), Ok).context("Postmark ended without a time")?;
        Ok(Run { seconds: elapsed.as_secs_f64(), snapshot_seconds })
    })
}

/// Calls `snapshot` at each interval until Postmark has ended. Returns how long the calls took, and
/// Postmark's time.
fn until_ended(
    has_ended: &mpsc::Receiver<Duration>,
    interval: Duration,
    snapshot: impl Fn(usize) -> Result<()>,
) -> Result<(Vec<f64>, Option<Duration>)> {
    let (begun, mut taken) = (Instant::now(), Vec::new());
    let mut due = interval;
    loop {
        match has_ended.recv_timeout(due.saturating_sub(begun.elapsed())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(elapsed) => return Ok((taken, Some(elapsed))),
            Err(RecvTimeoutError::Disconnected) => return Ok((taken, None)),
        }
        let started = Instant::now();
        snapshot(taken.len())?;
        taken.push(started.elapsed().as_secs_f64());
        due += interval;
    }
}

fn take_snapshot(unionctl: &Path, union: &Path, dir: &Path, log: &Path) -> Result<()> {
    fs::create_dir(dir).with_context(|| format!("create {}", dir.display()))?;
    let mut command = Command::new(unionctl);
    command.arg0("unionctl").arg(union).arg("--snapshot").arg(dir);
    process::run(&mut command, log).context("take a snapshot")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_taken_at_each_interval_until_the_end() {
        let (ended, has_ended) = mpsc::channel();
        let interval = Duration::from_millis(1);
        let (taken, elapsed) = until_ended(&has_ended, interval, |n| {
            if n == 2 {
                ended.send(Duration::from_secs(9)).unwrap();
            }
            Ok(())
        })
        .unwrap();
        assert_eq!((taken.len(), elapsed), (3, Some(Duration::from_secs(9))));
        let refused = until_ended(&has_ended, interval, |_| Err(anyhow!("refused")));
        assert_eq!(refused.unwrap_err().to_string(), "refused");
    }
}
