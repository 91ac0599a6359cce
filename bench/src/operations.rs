//! The single operations: which contender is measured when, and by whom.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::cli::Options;
use crate::contender::{Contender, Kind};
use crate::counters::{self, Requests};
use crate::layout::{self, Amounts};
use crate::operation::Operation;
use crate::process;
use crate::progress::Progress;
use crate::reference::{self, Reference};
use crate::stage::{Size, Stage};
use crate::worker::{self, Outcome, Task};

/// How long a worker may take; the slowest known takes a tenth of it.
const PATIENCE_SECONDS: i64 = 300;

/// One measurement.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) contender: Kind,
    pub(crate) operation: Operation,
    pub(crate) threads: u32,
    pub(crate) rep: u32,
    /// What was measured, or why it could not be.
    pub(crate) result: Result<Measured, String>,
}

/// What one measurement of one operation says.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// From the first worker's beginning to the last one's end.
    pub(crate) seconds: f64,
    /// Operations (system calls, or pages of a mapping), all workers together.
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
    /// Requests that the kernel sent meanwhile, where the server counts them.
    pub(crate) requests: Option<Requests>,
}

/// Measures everything. Contenders take turns within each repetition, so that what changes about the machine over time
/// changes for all of them, and for the references as well.
pub(crate) fn run(
    options: &Options,
    contenders: &[Contender],
    progress: &Progress,
) -> Result<(Vec<Sample>, Vec<Reference>)> {
    let base = crate::enclosure::base()?;
    let (mut samples, mut references) = (Vec::new(), Vec::new());
    for rep in 0..options.repetitions() {
        progress.say(&format!("{}/{}  round trips", rep + 1, options.repetitions()));
        references.extend(reference::measure(options, contenders, rep)?);
        for contender in contenders {
            for &threads in &options.threads {
                let turn = Turn { options, contender, threads, rep, progress };
                let stage = Stage::new(&base, turn.size())?;
                samples.extend(turn.measure_all(&stage)?);
            }
        }
    }
    progress.clear();
    Ok((samples, references))
}

/// One contender's turn on one fresh file system.
struct Turn<'a> {
    options: &'a Options,
    contender: &'a Contender,
    threads: u32,
    rep: u32,
    progress: &'a Progress,
}

impl Turn<'_> {
    fn amounts(&self) -> Amounts {
        Amounts { workers: self.threads, files: self.options.files(), large_bytes: self.options.large_bytes() }
    }

    /// Room for all that is laid out and made, twice.
    fn size(&self) -> Size {
        let amounts = self.amounts();
        let workers = u64::from(amounts.workers);
        let inodes = workers * u64::from(amounts.files) * 20 + 10_000;
        let bytes = (512 << 20) + workers * (4 * amounts.large_bytes) + inodes * 4096 * 2;
        Size { bytes, inodes }
    }

    fn say(&self, what: &str) {
        let (rep, reps) = (self.rep + 1, self.options.repetitions());
        let name = self.contender.kind.name();
        self.progress.say(&format!("{rep}/{reps}  {name}, {} thread(s): {what}", self.threads));
    }

    fn measure_all(&self, stage: &Stage) -> Result<Vec<Sample>> {
        self.say("laying out the branches");
        let operations = self.options.operations();
        let branches = self.contender.branches(stage)?;
        for &operation in &operations {
            layout::lay(operation, &branches, &self.amounts())?;
        }
        let disk = stage.open()?;
        let sample = |operation, result| Sample {
            contender: self.contender.kind,
            operation,
            threads: self.threads,
            rep: self.rep,
            result,
        };
        let running = match self.contender.mount(stage, &branches) {
            Ok(running) => running,
            Err(error) => {
                self.progress.clear();
                eprintln!("strata-bench: {error:#}");
                return Ok(operations.into_iter().map(|op| sample(op, Err(format!("{error:#}")))).collect());
            }
        };
        let mut samples = Vec::new();
        for operation in operations {
            self.say(operation.label());
            let result = self.measure(operation, &running.root, &disk).map_err(|error| format!("{error:#}"));
            if let Err(error) = &result {
                self.progress.clear();
                eprintln!("strata-bench: {}, {}: {error}", self.contender.kind.name(), operation.id());
            }
            samples.push(sample(operation, result));
        }
        Ok(samples)
    }

    fn measure(&self, operation: Operation, root: &Path, disk: &OwnedFd) -> Result<Measured> {
        measure(self.options, operation, self.threads, root, disk)
    }
}

/// Has `threads` workers do one operation in the file system at `root`, which lies on `disk`.
pub(crate) fn measure(
    options: &Options,
    operation: Operation,
    threads: u32,
    root: &Path,
    disk: &OwnedFd,
) -> Result<Measured> {
    let tasks = tasks(options, operation, threads, root)?;
    let mut before = None;
    let outcomes = together(worker::SUBCOMMAND, &tasks, || {
        // What the warm-up has written is not to be written while we measure.
        rustix::fs::syncfs(disk).context("sync the file system")?;
        before = counters::read(root);
        Ok(())
    })?;
    let after = counters::read(root);
    let requests = before.zip(after).map(|(before, after)| counters::between(&before, &after));
    Ok(sum_up(&outcomes, requests))
}

/// What each worker of an operation is told to do.
pub(crate) fn tasks(options: &Options, operation: Operation, threads: u32, root: &Path) -> Result<Vec<String>> {
    let task = |worker| Task {
        operation,
        worker,
        dir: root.join(layout::worker_dir(operation, worker)),
        files: options.files(),
        large_bytes: options.large_bytes(),
    };
    (0..threads).map(|worker| serde_json::to_string(&task(worker)).context("describe the task")).collect()
}

/// Starts one worker per task, and lets all of them begin once they have warmed up and `settle` has run.
pub(crate) fn together(subcommand: &str, tasks: &[String], settle: impl FnOnce() -> Result<()>) -> Result<Vec<Done>> {
    let mut workers = tasks.iter().map(|task| Worker::start(subcommand, task)).collect::<Result<Vec<_>>>()?;
    workers.iter_mut().try_for_each(Worker::ready)?;
    settle()?;
    workers.iter_mut().try_for_each(Worker::go)?;
    workers.into_iter().map(Worker::outcome).collect()
}

/// What one worker has done.
pub(crate) struct Done {
    begun: u64,
    ended: u64,
    ops: u64,
    bytes: u64,
}

pub(crate) fn sum_up(outcomes: &[Done], requests: Option<Requests>) -> Measured {
    let begun = outcomes.iter().map(|done| done.begun).min().unwrap_or(0);
    let ended = outcomes.iter().map(|done| done.ended).max().unwrap_or(0);
    Measured {
        // At least a nanosecond, so that a rate is a number.
        seconds: ended.saturating_sub(begun).max(1) as f64 / 1e9,
        ops: outcomes.iter().map(|done| done.ops).sum(),
        bytes: outcomes.iter().map(|done| done.bytes).sum(),
        requests,
    }
}

/// A running worker process; ended when this is dropped before its time.
struct Worker {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    fn start(subcommand: &str, task: &str) -> Result<Self> {
        let mut child = Command::new("/proc/self/exe")
            .args([subcommand, task])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start a worker")?;
        let answers = BufReader::new(child.stdout.take().context("hear the worker")?);
        Ok(Self { child, answers })
    }

    /// The next line that it says.
    ///
    /// A server that hangs would hang the whole run: so when nothing is heard for too long, the server is ended, which
    /// fails whatever its users wait for.
    fn hear(&mut self) -> Result<String> {
        let limit = Timespec { tv_sec: PATIENCE_SECONDS, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(self.answers.get_ref(), PollFlags::IN)], Some(&limit)).context("wait")?;
        if ready == 0 {
            process::end_all();
            bail!("no answer for {PATIENCE_SECONDS} seconds: every process of the contender was ended");
        }
        let mut line = String::new();
        self.answers.read_line(&mut line).context("hear the worker")?;
        Ok(line)
    }

    /// Waits until the worker has warmed up.
    fn ready(&mut self) -> Result<()> {
        let line = self.hear()?;
        if line.trim_end() == worker::READY {
            return Ok(());
        }
        match serde_json::from_str(&line) {
            Ok(Outcome::Failed(why)) => bail!(why),
            _ => bail!("the worker ended before its time"),
        }
    }

    /// Lets it begin.
    fn go(&mut self) -> Result<()> {
        self.child.stdin.as_mut().context("speak to the worker")?.write_all(b"\n").context("speak to the worker")
    }

    /// Waits for its end.
    fn outcome(mut self) -> Result<Done> {
        let line = self.hear()?;
        match serde_json::from_str(&line).context("the worker ended before its time")? {
            Outcome::Done { begun, ended, ops, bytes } => Ok(Done { begun, ended, ops, bytes }),
            Outcome::Failed(why) => bail!(why),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It has ended by itself, unless something went wrong; then it must not outlive its turn.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
