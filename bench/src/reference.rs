//! Lower bounds for FUSE servers on this machine: the round trip to a server that replies from
//! memory, and, as a unit for comparing machines, the round trip of a byte through a pipe.
//!
//! Both are measured in every repetition, with as many workers as the operations.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;
use serde::Serialize;

use crate::cli::Options;
use crate::contender::Contender;
use crate::layout;
use crate::operation::Operation;
use crate::operations;
use crate::scratch::Mounted;
use crate::{nullping, pipe};

/// Transport to the server that replies from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Transport {
    /// As Strata's mounts choose it: io_uring if the kernel supports it
    Auto,
    /// `/dev/fuse`
    Device,
}

impl Transport {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::Device => "device",
        }
    }
}

/// References of one repetition, transport and number of workers. Times are microseconds of one
/// worker.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Reference {
    pub(crate) rep: u32,
    pub(crate) threads: u32,
    pub(crate) transport: Transport,
    /// A byte through a pipe and back, with both processes on one CPU.
    pub(crate) pipe_microseconds: f64,
    /// statx(2) with `AT_STATX_FORCE_SYNC` of a file on a tmpfs.
    pub(crate) native_microseconds: f64,
    /// The same on [`nullping`]: one GETATTR and its reply more.
    pub(crate) nullping_microseconds: f64,
}

impl Reference {
    /// Returns the cost of one request and its reply in microseconds.
    pub(crate) fn round_trip(&self) -> f64 {
        (self.nullping_microseconds - self.native_microseconds).max(0.0)
    }
}

/// Measures the references for every transport that a contender uses.
pub(crate) fn measure(options: &Options, contenders: &[Contender], rep: u32) -> Result<Vec<Reference>> {
    let mut transports: Vec<Transport> = contenders.iter().filter_map(|contender| contender.kind.transport()).collect();
    transports.sort_unstable();
    transports.dedup();
    let base = crate::isolation::base()?;
    let mut references = Vec::new();
    for &threads in &options.threads {
        if transports.is_empty() {
            break;
        }
        let pipe_microseconds = pipe_round_trip(options, threads)?;
        let native_microseconds = native_stat(options, &base, threads)?;
        for &transport in &transports {
            let nullping_microseconds = nullping_stat(options, &base, threads, transport)
                .with_context(|| format!("measure nullping, transport {}", transport.name()))?;
            references.push(Reference {
                rep,
                threads,
                transport,
                pipe_microseconds,
                native_microseconds,
                nullping_microseconds,
            });
        }
    }
    Ok(references)
}

fn pipe_round_trip(options: &Options, threads: u32) -> Result<f64> {
    let messages = options.files() * Operation::GetattrForced.passes();
    let tasks = (0..threads)
        .map(|worker| serde_json::to_string(&pipe::Task { worker, messages }).context("describe the task"))
        .collect::<Result<Vec<_>>>()?;
    let done = operations::run_workers(pipe::SUBCOMMAND, &tasks, || Ok(())).context("measure a pipe")?;
    Ok(operations::summarise(&done, None).microseconds(threads))
}

fn native_stat(options: &Options, base: &Path, threads: u32) -> Result<f64> {
    let point = base.join("mnt");
    fs::create_dir_all(&point).with_context(|| format!("create {}", point.display()))?;
    rustix::mount::mount("tmpfs", &point, "tmpfs", MountFlags::empty(), None)
        .with_context(|| format!("mount a tmpfs at {}", point.display()))?;
    let mounted = Mounted { at: point };
    for worker in 0..threads {
        let dir = mounted.at.join(layout::worker_dir(Operation::GetattrForced, worker));
        fs::create_dir_all(&dir)
            .and_then(|()| fs::write(dir.join(layout::file_name(0)), []))
            .with_context(|| format!("populate {}", dir.display()))?;
    }
    forced_stat(options, &mounted.at, threads)
}

fn nullping_stat(options: &Options, base: &Path, threads: u32, transport: Transport) -> Result<f64> {
    let point = base.join("mnt");
    let server = Server::start(&point, transport)?;
    let measured = forced_stat(options, &server.mounted.at, threads);
    drop(server);
    measured
}

fn forced_stat(options: &Options, root: &Path, threads: u32) -> Result<f64> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let disk = rustix::fs::open(root, flags, Mode::empty()).with_context(|| format!("open {}", root.display()))?;
    Ok(operations::measure(options, Operation::GetattrForced, threads, root, &disk)?.microseconds(threads))
}

/// A running nullping server. Dropping it unmounts it and waits for its end.
struct Server {
    // Fields are dropped in this order: unmounting ends the server.
    mounted: Mounted,
    _process: Process,
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = self.0.wait();
    }
}

impl Server {
    fn start(point: &Path, transport: Transport) -> Result<Self> {
        let mut process = Process(
            Command::new("/proc/self/exe")
                .arg(nullping::SUBCOMMAND)
                .args([point.as_os_str(), transport.name().as_ref()])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .context("start nullping")?,
        );
        let mut line = String::new();
        let output = process.0.stdout.take().context("read from nullping")?;
        BufReader::new(output).read_line(&mut line).context("read from nullping")?;
        ensure!(line.trim_end() == nullping::READY, "nullping was not mounted");
        Ok(Self { mounted: Mounted { at: point.to_owned() }, _process: process })
    }
}
