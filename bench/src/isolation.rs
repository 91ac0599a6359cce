//! Namespaces for the benchmark, and cleanup outside them.
//!
//! The coordinator, the workers and the servers run in a private PID namespace and a private mount
//! namespace. When the coordinator ends for any reason, the kernel kills the others and releases
//! their mounts, loop devices and memory. The coordinator ends with this process. Only two things
//! outside need cleanup: an empty directory in /run, and the parameter that enables the FUSE ring.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};

use anyhow::{Context, Result, bail};
use rustix::process::{WaitOptions, getuid};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::Options;
use crate::uring;

/// Hidden first argument that runs this program as the coordinator.
pub(crate) const SUBCOMMAND: &str = "coordinator";
/// Environment variable with the coordinator's directory.
const BASE: &str = "STRATA_BENCH_DIR";
/// Prefix of these directories' names; the process id follows.
const PREFIX: &str = "strata-bench-";
const RUN: &str = "/run";

/// Runs the coordinator in its namespaces and returns its exit code.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if !getuid().is_root() {
        bail!("needs root to mount file systems: run it as root");
    }
    remove_stale(Path::new(RUN));
    // Before anything needs cleanup, so that no signal ends this process in between.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGCHLD]).context("catch signals")?;
    let base = Base::new()?;
    let _ring = if crate::contender::wants_ring(options) { uring::enable() } else { None };
    // Orphans are reparented to this process, which can then wait for the last process of the
    // namespaces.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).context("become a subreaper")?;
    let child = start(&base.0)?;
    let code = wait(child, &mut signals)?;
    Ok(ExitCode::from(code))
}

/// Returns the coordinator's directory.
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

/// Waits for the coordinator. Kills it if a signal arrives.
fn wait(mut child: Child, signals: &mut Signals) -> Result<u8> {
    for signal in signals.forever() {
        if signal != SIGCHLD {
            child.kill().context("end the coordinator")?;
            child.wait().context("wait for the coordinator")?;
            wait_for_orphans();
            eprintln!("strata-bench: interrupted; the system is restored");
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

/// A directory in /run, removed when dropped. Everything in it is mounted inside the namespaces
/// only.
struct Base(PathBuf);

impl Base {
    fn new() -> Result<Self> {
        let path = Path::new(RUN).join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        remove_tree(&self.0);
    }
}

/// Removes directories only: if a mount remains, its files are safe.
fn remove_tree(path: &Path) {
    if let Ok(entries) = fs::read_dir(path) {
        for entry in entries.flatten() {
            let _ = fs::remove_dir(entry.path());
        }
    }
    if let Err(error) = fs::remove_dir(path) {
        eprintln!("strata-bench: {}: can't remove: {error}", path.display());
    }
}

/// Removes the directories of killed runs.
fn remove_stale(run: &Path) {
    let Ok(entries) = fs::read_dir(run) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove_tree(&entry.path());
        }
    }
}
