//! The server in a process of its own, and what it says to the one that waits for it.
//!
//! Threads don't survive a fork, so nothing is forked here: the program starts itself again with [`SERVE`], and the new
//! process says on its standard output, in one message, whether the mount can be used.

use crate::cmdline::SERVE;
use crate::exit::{Exit, Failure};
use crate::place::reason;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Write as _, stdout};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};

/// The program that runs, wherever it lies.
const SELF: &str = "/proc/self/exe";
const READY: &[u8] = b"ready\n";

/// Starts the server and waits until it can be used.
///
/// # Errors
/// The server's own reason, or why there is no server.
pub fn start(args: &[OsString]) -> Result<(), Failure> {
    let (name, args) = args.split_first().ok_or_else(|| Failure::usage("no arguments at all, not even a name"))?;
    let mut child = Command::new(SELF)
        .arg0(name)
        .arg(SERVE)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| Failure::system(format!("can't start the server ({SELF}): {error}; is /proc mounted?")))?;
    let mut said = Vec::new();
    if let Some(pipe) = child.stdout.take() {
        BufReader::new(pipe)
            .read_until(b'\n', &mut said)
            .map_err(|error| Failure::system(format!("can't hear from the server: {error}")))?;
    }
    if said == READY {
        return Ok(());
    }
    // Nothing of it is left when the caller hears of the failure.
    let status = child.wait();
    Err(read_failure(&said).unwrap_or_else(|| ended(status)))
}

/// Why a server ended that said nothing.
fn ended(status: io::Result<ExitStatus>) -> Failure {
    match status {
        Ok(status) => {
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            let exit = code.and_then(Exit::from_code).filter(|&exit| exit != Exit::Success).unwrap_or(Exit::Internal);
            let reason = format!("the server ended before the mount was done ({status}); --foreground shows more");
            Failure { exit, reason }
        }
        Err(error) => Failure::system(format!("lost the server: {error}")),
    }
}

/// Says that the mount can be used, and lets go of the caller's terminal and pipes.
///
/// # Errors
/// Nobody waits any more.
pub fn ready() -> Result<(), Failure> {
    let gone = |reason: String| Failure { exit: Exit::Interrupted, reason };
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno: Errno| Failure::system(format!("/dev/null: {}", reason(errno))))?;
    let mut out = stdout();
    out.write_all(READY).and_then(|()| out.flush()).map_err(|error| gone(format!("nobody waits for it: {error}")))?;
    rustix::stdio::dup2_stdin(&null)
        .and_then(|()| rustix::stdio::dup2_stdout(&null))
        .and_then(|()| rustix::stdio::dup2_stderr(&null))
        .map_err(|errno| gone(format!("can't let go of the terminal: {}", reason(errno))))
}

/// Says that there is no mount, and why.
pub fn failed(failure: &Failure) {
    let mut out = stdout();
    let _ = writeln!(out, "{} {}", failure.exit.code(), failure.reason).and_then(|()| out.flush());
}

/// What [`failed`] wrote.
fn read_failure(said: &[u8]) -> Option<Failure> {
    let text = String::from_utf8_lossy(said);
    let (code, reason) = text.trim_end().split_once(' ')?;
    Some(Failure { exit: Exit::from_code(code.parse().ok()?)?, reason: reason.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_passed_on() {
        let failure = Failure::mount("branch /x: no such directory; make it");
        let said = format!("{} {}\n", failure.exit.code(), failure.reason);
        assert_eq!(read_failure(said.as_bytes()), Some(failure));
        for nothing in [&b""[..], b"ready", b"7 no such status", b"x y"] {
            assert_eq!(read_failure(nothing), None);
        }
    }
}
