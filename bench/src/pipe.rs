//! A message of one byte through a pipe and back, between two processes on one CPU: two context
//! switches and four system calls, the minimum for a FUSE request and its reply.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::worker::{self, Timed};

/// Hidden first argument that runs this program as a worker that measures a pipe; a [`Task`] in
/// JSON follows.
pub(crate) const SUBCOMMAND: &str = "pipe";
/// Hidden first argument that runs this program as the other end of the pipe.
pub(crate) const ECHO: &str = "pipe-echo";

/// Task of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    /// Index of the worker; also the CPU of both processes.
    pub(crate) worker: u32,
    /// Number of messages sent there and back.
    pub(crate) messages: u32,
}

/// Runs the task given as JSON.
pub(crate) fn main(task: Option<OsString>) -> Result<()> {
    let task = task.context("a worker is started by strata-bench itself")?;
    let task: Task = serde_json::from_slice(task.as_encoded_bytes()).context("read the task")?;
    worker::report(task.worker, || prepare(&task))
}

fn prepare(task: &Task) -> Result<Timed> {
    // The child inherits the CPU affinity, and ends at the end of its standard input.
    let mut child = Command::new("/proc/self/exe")
        .arg(ECHO)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("start the other end of the pipe")?;
    let to = child.stdin.take().context("write to the other end")?;
    let from = child.stdout.take().context("read from the other end")?;
    let messages = task.messages;
    for _ in 0..messages / 10 {
        round_trip(&to, &from).context("send a byte there and back")?;
    }
    Ok(Box::new(move || {
        for _ in 0..messages {
            round_trip(&to, &from)?;
        }
        drop(to);
        let _ended = child.wait();
        Ok((u64::from(messages), 0))
    }))
}

fn round_trip(to: &ChildStdin, from: &ChildStdout) -> rustix::io::Result<()> {
    let mut byte = [b'p'];
    match (rustix::io::write(to, &byte)?, rustix::io::read(from, &mut byte)?) {
        (1, 1) => Ok(()),
        _ => Err(Errno::PIPE),
    }
}

/// Echoes every byte from standard input.
pub(crate) fn echo() -> Result<()> {
    let (input, output) = (std::io::stdin(), std::io::stdout());
    let mut byte = [0];
    while rustix::io::read(input.as_fd(), &mut byte).context("read a byte")? == 1 {
        rustix::io::write(output.as_fd(), &byte).context("send a byte back")?;
    }
    Ok(())
}
