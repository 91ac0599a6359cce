//! Schedule and execution of the single operations.

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
use crate::scratch::{ScratchFs, Size};
use crate::worker::{self, Outcome, Task};

/// Time limit of a worker in seconds; the slowest known takes a tenth of it.
const PATIENCE_SECONDS: i64 = 300;

/// One measurement.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) contender: Kind,
    pub(crate) operation: Operation,
    pub(crate) threads: u32,
    pub(crate) rep: u32,
    /// The measurement, or the reason for its failure.
    pub(crate) result: Result<Measured, String>,
}

/// Result of one measurement of one operation.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// From the start of the first worker to the end of the last one.
    pub(crate) seconds: f64,
    /// Number of operations (system calls, or pages of a mapping) of all workers.
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
    /// Requests that the kernel sent meanwhile, if the server counts them.
    pub(crate) requests: Option<Requests>,
}

/// Runs all measurements. Contenders take turns within each repetition, so that slow changes of the
/// machine affect all of them, and the references, equally.
pub(crate) fn run(
    options: &Options,
    contenders: &[Contender],
    progress: &Progress,
) -> Result<(Vec<Sample>, Vec<Reference>)> {
    let base = crate::isolation::base()?;
    let (mut samples, mut references) = (Vec::new(), Vec::new());
    for rep in 0..options.repetitions() {
        progress.show(&format!("{}/{}  round trips", rep + 1, options.repetitions()));
        references.extend(reference::measure(options, contenders, rep)?);
        for contender in contenders {
            for &threads in &options.threads {
                let turn = Turn { options, contender, threads, rep, progress };
                let scratch = ScratchFs::new(&base, turn.size())?;
                samples.extend(turn.measure_all(&scratch)?);
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

    /// Returns twice the space that the files need.
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
        self.progress.show(&format!("{rep}/{reps}  {name}, {} thread(s): {what}", self.threads));
    }

    fn measure_all(&self, scratch: &ScratchFs) -> Result<Vec<Sample>> {
        self.say("populating the branches");
        let operations = self.options.operations();
        let branches = self.contender.branches(scratch)?;
        for &operation in &operations {
            layout::populate(operation, &branches, &self.amounts())?;
        }
        let disk = scratch.open()?;
        let sample = |operation, result| Sample {
            contender: self.contender.kind,
            operation,
            threads: self.threads,
            rep: self.rep,
            result,
        };
        let running = match self.contender.mount(scratch, &branches) {
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

/// Runs one operation with `threads` workers in the file system at `root`, which is stored on
/// `disk`.
pub(crate) fn measure(
    options: &Options,
    operation: Operation,
    threads: u32,
    root: &Path,
    disk: &OwnedFd,
) -> Result<Measured> {
    let tasks = tasks(options, operation, threads, root)?;
    counted(worker::SUBCOMMAND, &tasks, root, || {
        // Flushes the writes of the warm-up, so that writeback does not disturb the measurement.
        rustix::fs::syncfs(disk).context("sync the file system")
    })
}

/// Runs one worker per task, as [`run_workers`] does, and counts the requests of the file system at
/// `root` during the timed phase.
pub(crate) fn counted(
    subcommand: &str,
    tasks: &[String],
    root: &Path,
    settle: impl FnOnce() -> Result<()>,
) -> Result<Measured> {
    let mut before = None;
    let outcomes = run_workers(subcommand, tasks, || {
        settle()?;
        before = counters::read(root);
        Ok(())
    })?;
    let after = counters::read(root);
    let requests = before.zip(after).map(|(before, after)| counters::between(&before, &after));
    Ok(summarise(&outcomes, requests))
}

/// Returns the task of each worker.
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

/// Starts one worker per task. Lets all of them begin once they have warmed up and `settle` has
/// returned.
pub(crate) fn run_workers(
    subcommand: &str,
    tasks: &[String],
    settle: impl FnOnce() -> Result<()>,
) -> Result<Vec<Done>> {
    let mut workers = tasks.iter().map(|task| Worker::start(subcommand, task)).collect::<Result<Vec<_>>>()?;
    workers.iter_mut().try_for_each(Worker::ready)?;
    settle()?;
    workers.iter_mut().try_for_each(Worker::go)?;
    workers.into_iter().map(Worker::outcome).collect()
}

/// Result of one worker.
pub(crate) struct Done {
    begun: u64,
    ended: u64,
    ops: u64,
    bytes: u64,
}

pub(crate) fn summarise(outcomes: &[Done], requests: Option<Requests>) -> Measured {
    let begun = outcomes.iter().map(|done| done.begun).min().unwrap_or(0);
    let ended = outcomes.iter().map(|done| done.ended).max().unwrap_or(0);
    Measured {
        // At least a nanosecond, so that the rate is finite.
        seconds: ended.saturating_sub(begun).max(1) as f64 / 1e9,
        ops: outcomes.iter().map(|done| done.ops).sum(),
        bytes: outcomes.iter().map(|done| done.bytes).sum(),
        requests,
    }
}

/// A running worker process, killed when dropped.
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
        let answers = BufReader::new(child.stdout.take().context("read from the worker")?);
        Ok(Self { child, answers })
    }

    /// Returns the worker's next line.
    ///
    /// A hung server would hang the whole run. So after the time limit the server is killed, and
    /// its users' calls fail.
    fn read_line(&mut self) -> Result<String> {
        let limit = Timespec { tv_sec: PATIENCE_SECONDS, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(self.answers.get_ref(), PollFlags::IN)], Some(&limit)).context("wait")?;
        if ready == 0 {
            process::kill_all();
            bail!("no reply for {PATIENCE_SECONDS} seconds: killed every process of the contender");
        }
        let mut line = String::new();
        self.answers.read_line(&mut line).context("read from the worker")?;
        Ok(line)
    }

    /// Waits until the worker has warmed up.
    fn ready(&mut self) -> Result<()> {
        let line = self.read_line()?;
        if line.trim_end() == worker::READY {
            return Ok(());
        }
        match serde_json::from_str(&line) {
            Ok(Outcome::Failed(why)) => bail!(why),
            _ => bail!("the worker exited early"),
        }
    }

    /// Starts the timed phase.
    fn go(&mut self) -> Result<()> {
        self.child.stdin.as_mut().context("write to the worker")?.write_all(b"\n").context("write to the worker")
    }

    /// Returns the worker's result.
    fn outcome(mut self) -> Result<Done> {
        let line = self.read_line()?;
        match serde_json::from_str(&line).context("the worker exited early")? {
            Outcome::Done { begun, ended, ops, bytes } => Ok(Done { begun, ended, ops, bytes }),
            Outcome::Failed(why) => bail!(why),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A worker that still runs after an error must not outlive its turn.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
