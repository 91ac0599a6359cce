//! A message of one byte through a pipe and back, between two processes on one CPU: two switches from process to process
//! and four system calls, which is what a FUSE request and its answer cost the kernel at least.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::worker::{self, Timed};

/// The hidden first argument that makes this program a worker that measures a pipe; a [`Task`] in JSON follows.
pub(crate) const SUBCOMMAND: &str = "pipe";
/// The hidden first argument that makes this program the other end of the pipe.
pub(crate) const ECHO: &str = "pipe-echo";

/// What a worker is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    /// Which worker this is; also the CPU of both processes.
    pub(crate) worker: u32,
    /// How many messages are sent there and back.
    pub(crate) messages: u32,
}

/// Runs the task given as JSON.
pub(crate) fn main(task: Option<OsString>) -> Result<()> {
    let task = task.context("a worker is started by strata-bench itself")?;
    let task: Task = serde_json::from_slice(task.as_encoded_bytes()).context("read the task")?;
    worker::report(task.worker, || prepare(&task))
}

fn prepare(task: &Task) -> Result<Timed> {
    // The child inherits the CPU. It ends when its standard input does.
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
        there_and_back(&to, &from).context("send a byte there and back")?;
    }
    Ok(Box::new(move || {
        for _ in 0..messages {
            there_and_back(&to, &from)?;
        }
        drop(to);
        let _ended = child.wait();
        Ok((u64::from(messages), 0))
    }))
}

fn there_and_back(to: &ChildStdin, from: &ChildStdout) -> rustix::io::Result<()> {
    let mut byte = [b'p'];
    match (rustix::io::write(to, &byte)?, rustix::io::read(from, &mut byte)?) {
        (1, 1) => Ok(()),
        _ => Err(Errno::PIPE),
    }
}

/// Sends back every byte that comes by standard input.
pub(crate) fn echo() -> Result<()> {
    let (input, output) = (std::io::stdin(), std::io::stdout());
    let mut byte = [0];
    while rustix::io::read(input.as_fd(), &mut byte).context("read a byte")? == 1 {
        rustix::io::write(output.as_fd(), &byte).context("send a byte back")?;
    }
    Ok(())
}
