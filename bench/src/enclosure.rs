//! The namespaces in which everything happens, and what must be put back outside of them.
//!
//! Coordinator, workers and servers live in a process namespace and a mount namespace of their own. When the coordinator
//! ends, however it ends, the kernel ends all of them and drops their mounts, loop devices and memory. The coordinator ends
//! with this process. So nothing needs to be cleaned up by hand except two things outside: an empty directory in /run, and
//! the switch of the FUSE ring.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};

use anyhow::{Context, Result, bail};
use rustix::process::{WaitOptions, getuid};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::Options;
use crate::uring;

/// The hidden first argument that makes this program a coordinator.
pub(crate) const SUBCOMMAND: &str = "coordinator";
/// The environment variable that tells a coordinator where its directory is.
const BASE: &str = "STRATA_BENCH_DIR";
/// What the names of these directories begin with; the process id follows.
const PREFIX: &str = "strata-bench-";
const RUN: &str = "/run";

/// Runs the coordinator in its namespaces and answers its exit code.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if !getuid().is_root() {
        bail!("it mounts file systems: run it as root");
    }
    remove_left_behind(Path::new(RUN));
    // Before anything needs putting back, so that no signal ends us between.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGCHLD]).context("catch signals")?;
    let base = Base::new()?;
    let _ring = if crate::contender::wants_ring(options) { uring::switch_on() } else { None };
    // Orphans come to us: so we can wait until the very last process of the namespaces is gone.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).context("become a subreaper")?;
    let child = start(&base.0)?;
    let code = wait(child, &mut signals)?;
    Ok(ExitCode::from(code))
}

/// The directory that the coordinator of this process works in.
pub(crate) fn base() -> Result<PathBuf> {
    std::env::var_os(BASE).map(PathBuf::from).context("a coordinator is started by strata-bench itself")
}

fn start(base: &Path) -> Result<Child> {
    let this = std::env::current_exe().context("find this program")?;
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"])
        .arg(this)
        .arg(SUBCOMMAND)
        .args(std::env::args_os().skip(1))
        .env(BASE, base)
        .spawn()
        .context("start setpriv and unshare (util-linux)")
}

/// Waits for the end, or brings it about when a signal asks for it.
fn wait(mut child: Child, signals: &mut Signals) -> Result<u8> {
    for signal in signals.forever() {
        if signal != SIGCHLD {
            child.kill().context("end the coordinator")?;
            child.wait().context("wait for the coordinator")?;
            wait_for_orphans();
            eprintln!("strata-bench: interrupted; everything is put back");
            return Ok(u8::try_from(128 + signal).unwrap_or(1));
        }
        if let Some(status) = child.try_wait().context("wait for the coordinator")? {
            wait_for_orphans();
            return Ok(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1));
        }
    }
    bail!("no more signals")
}

fn wait_for_orphans() {
    while let Ok(Some(_)) = rustix::process::wait(WaitOptions::empty()) {}
}

/// A directory in /run, removed when this is dropped. Everything in it is mounted in the namespaces only.
struct Base(PathBuf);

impl Base {
    fn new() -> Result<Self> {
        let path = Path::new(RUN).join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        remove_tree(&self.0);
    }
}

/// Removes directories, and only directories: should anything be mounted there still, its files are safe.
fn remove_tree(path: &Path) {
    if let Ok(entries) = fs::read_dir(path) {
        for entry in entries.flatten() {
            let _ = fs::remove_dir(entry.path());
        }
    }
    if let Err(error) = fs::remove_dir(path) {
        eprintln!("strata-bench: {} stays: {error}", path.display());
    }
}

/// Removes the directories of runs that were killed before they could do so.
fn remove_left_behind(run: &Path) {
    let Ok(entries) = fs::read_dir(run) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove_tree(&entry.path());
        }
    }
}
