//! Running programs and looking at the processes of our namespace.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// Runs a program to its end; what it said goes to the file `log`, and into the error if it fails.
///
/// The output goes to a file and not through a pipe because a server that stays in the background keeps it open.
pub(crate) fn run(command: &mut Command, log: &Path) -> Result<()> {
    let name = command.get_program().to_owned();
    let what = || format!("run {}", name.display());
    let out = File::create(log).with_context(what)?;
    let status = command
        .stdin(Stdio::null())
        .stdout(out.try_clone().with_context(what)?)
        .stderr(out)
        .status()
        .with_context(what)?;
    if !status.success() {
        let said = fs::read(log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let tail: Vec<&str> = said.lines().rev().take(5).collect();
        bail!("{}: {status}: {}", name.display(), tail.into_iter().rev().collect::<Vec<_>>().join("; "));
    }
    Ok(())
}

/// Where a program lies according to $PATH.
pub(crate) fn find(program: &str) -> Option<std::path::PathBuf> {
    let dirs = std::env::var_os("PATH")?;
    std::env::split_paths(&dirs).map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// Every process of this namespace other than its first one, which is the coordinator.
///
/// Between two workers that are the contender's servers, whatever they are called and however they went to the background.
pub(crate) fn servers() -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| Pid::from_raw(entry.ok()?.file_name().to_str()?.parse().ok()?))
        .filter(|pid| *pid != Pid::INIT && !is_zombie(*pid))
        .collect()
}

fn is_zombie(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

/// Waits until no server is left; ends those that don't end by themselves.
pub(crate) fn wait_for_servers() {
    let begun = Instant::now();
    loop {
        reap();
        let left = servers();
        if left.is_empty() || begun.elapsed() > Duration::from_secs(20) {
            return;
        }
        if begun.elapsed() > Duration::from_secs(10) {
            end_all();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ends every process of this namespace but ourselves, at once.
pub(crate) fn end_all() {
    for pid in servers() {
        // It may have ended between the look and the signal: nothing to do then.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Collects the children that have ended: as the first process of the namespace we inherit every server.
fn reap() {
    while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
}

/// A number from /proc/PID/status, such as `VmRSS`, in the unit that stands there (KiB for sizes).
pub(crate) fn status_field(pid: Pid, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// How many descriptors a process has open.
pub(crate) fn descriptors(pid: Pid) -> Option<usize> {
    Some(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count())
}

/// Joins the pieces of one option, some of which are paths, which need not be UTF-8.
pub(crate) fn concat(pieces: &[&OsStr]) -> std::ffi::OsString {
    pieces.iter().copied().collect()
}
