//! Running programs, and inspecting the processes of the PID namespace.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// Runs a program to its end. Its output is appended to the file `log`, and becomes part of the
/// error if it fails.
///
/// With a pipe, a server that stays in the background would keep it open.
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
        let output = fs::read(log).unwrap_or_default();
        let output = String::from_utf8_lossy(&output);
        let tail: Vec<&str> = output.lines().rev().take(5).collect();
        bail!("{}: {status}: {}", name.display(), tail.into_iter().rev().collect::<Vec<_>>().join("; "));
    }
    Ok(())
}

/// Returns the path of a program in $PATH.
pub(crate) fn find(program: &str) -> Option<std::path::PathBuf> {
    let dirs = std::env::var_os("PATH")?;
    std::env::split_paths(&dirs).map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// Returns every process of this PID namespace except the first one, which is the coordinator.
///
/// Between workers, these are the contender's servers, whatever their names are and however they
/// went to the background.
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

/// Waits until no server is left; kills those that do not end.
pub(crate) fn wait_for_servers() {
    let begun = Instant::now();
    loop {
        reap();
        let left = servers();
        if left.is_empty() || begun.elapsed() > Duration::from_secs(20) {
            return;
        }
        if begun.elapsed() > Duration::from_secs(10) {
            kill_all();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Kills every other process of this namespace.
pub(crate) fn kill_all() {
    for pid in servers() {
        // The process may have ended before the signal, which is fine.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Reaps ended children: the first process of the namespace inherits every server.
fn reap() {
    while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
}

/// Returns a number from /proc/PID/status, such as `VmRSS`, in the unit of that file (KiB for
/// sizes).
pub(crate) fn status_field(pid: Pid, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the number of a process's open descriptors.
pub(crate) fn descriptors(pid: Pid) -> Option<usize> {
    Some(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count())
}

/// Concatenates the pieces of one option; some are paths, which need not be UTF-8.
pub(crate) fn concat(pieces: &[&OsStr]) -> std::ffi::OsString {
    pieces.iter().copied().collect()
}
