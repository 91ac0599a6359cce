//! Start of the background server, and its report to the waiting parent.
//!
//! Threads don't survive a fork, so the program executes itself again with [`SERVE`]. The new
//! process reports on its standard output, in one line, whether the mount is usable.

use crate::cmdline::SERVE;
use crate::exit::{Exit, Failure};
use crate::host_dir::reason;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Write as _, stdout};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};

/// The running executable, wherever it is installed.
const EXECUTABLE: &str = "/proc/self/exe";
const READY: &[u8] = b"ready\n";

/// Starts the server and waits until the mount is usable. `input` is what the server reads from its
/// standard input.
///
/// # Errors
/// The failure that the server reported, or the reason why it could not run.
pub fn start(args: &[OsString], input: Option<&[u8]>) -> Result<(), Failure> {
    let (name, args) = args.split_first().ok_or_else(|| Failure::usage("the argument list is empty"))?;
    let mut child = Command::new(EXECUTABLE)
        .arg0(name)
        .arg(SERVE)
        .args(args)
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| {
            Failure::system(format!("can't start the server ({EXECUTABLE}): {error}; is /proc mounted?"))
        })?;
    if let (Some(mut pipe), Some(input)) = (child.stdin.take(), input) {
        // A server that fails before it reads reports why.
        let _ = pipe.write_all(input);
    }
    let mut reply = Vec::new();
    if let Some(pipe) = child.stdout.take() {
        BufReader::new(pipe)
            .read_until(b'\n', &mut reply)
            .map_err(|error| Failure::system(format!("can't read from the server: {error}")))?;
    }
    if reply == READY {
        return Ok(());
    }
    // Wait for its exit, so that the failed server leaves nothing behind.
    let status = child.wait();
    Err(read_failure(&reply).unwrap_or_else(|| ended(status)))
}

/// Returns the failure for a server that exited without a report.
fn ended(status: io::Result<ExitStatus>) -> Failure {
    match status {
        Ok(status) => {
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            let exit = code.and_then(Exit::from_code).filter(|&exit| exit != Exit::Success).unwrap_or(Exit::Internal);
            let reason = format!("the server exited before it mounted ({status}); use --foreground for details");
            Failure { exit, reason }
        }
        Err(error) => Failure::system(format!("can't wait for the server: {error}")),
    }
}

/// Reports to the parent that the mount is usable, and detaches from its terminal and pipes.
///
/// # Errors
/// The parent has exited.
pub fn ready() -> Result<(), Failure> {
    let gone = |reason: String| Failure { exit: Exit::Interrupted, reason };
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno: Errno| Failure::system(format!("/dev/null: {}", reason(errno))))?;
    let mut out = stdout();
    out.write_all(READY).and_then(|()| out.flush()).map_err(|error| gone(format!("the parent has exited: {error}")))?;
    rustix::stdio::dup2_stdin(&null)
        .and_then(|()| rustix::stdio::dup2_stdout(&null))
        .and_then(|()| rustix::stdio::dup2_stderr(&null))
        .map_err(|errno| gone(format!("can't detach from the terminal: {}", reason(errno))))
}

/// Reports to the parent that the mount failed.
pub fn failed(failure: &Failure) {
    let mut out = stdout();
    let _ = writeln!(out, "{} {}", failure.exit.code(), failure.reason).and_then(|()| out.flush());
}

/// Parses the line that [`failed`] wrote.
fn read_failure(reply: &[u8]) -> Option<Failure> {
    let text = String::from_utf8_lossy(reply);
    let (code, reason) = text.trim_end().split_once(' ')?;
    Some(Failure { exit: Exit::from_code(code.parse().ok()?)?, reason: reason.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_survive_the_pipe() {
        let failure = Failure::mount("branch /x: no such directory; make it");
        let reply = format!("{} {}\n", failure.exit.code(), failure.reason);
        assert_eq!(read_failure(reply.as_bytes()), Some(failure));
        for nothing in [&b""[..], b"ready", b"7 no such status", b"x y"] {
            assert_eq!(read_failure(nothing), None);
        }
    }
}
