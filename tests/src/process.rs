//! Running programs, with a clear word when one fails.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// What a program said.
#[derive(Debug)]
pub struct Said {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output and standard error, as they came.
    pub text: String,
}

/// Runs `command` to its end and answers what it said, whether it failed or not. The output goes through a file, so a
/// server that the program leaves behind does not hold us up.
pub fn try_run(command: &mut Command) -> Said {
    let log = tempfile();
    let status = command
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a second descriptor of the log"))
        .stderr(log.try_clone().expect("a second descriptor of the log"))
        .status()
        .unwrap_or_else(|e| panic!("{command:?} can't be started: {e}"));
    let mut text = Vec::new();
    std::io::Seek::rewind(&mut &log).expect("rewind the log");
    std::io::Read::read_to_end(&mut &log, &mut text).expect("read the log");
    Said { status, text: String::from_utf8_lossy(&text).into_owned() }
}

/// Runs `command`, which must succeed, and answers what it said.
pub fn run(command: &mut Command) -> String {
    let said = try_run(command);
    assert!(said.status.success(), "{command:?}: {}\n{}", said.status, said.text);
    said.text
}

/// Runs a shell script, which must succeed, with `$1`, `$2`, ... set to `args`.
pub fn sh<P: AsRef<Path>>(script: &str, args: &[P]) -> String {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script, "bash"]);
    run(command.args(args.iter().map(AsRef::as_ref)))
}

/// Where the small program is that does in a process of its own what a test needs another process for.
#[must_use]
pub fn probe() -> PathBuf {
    let dir = std::env::current_exe().expect("the test knows its own path");
    dir.parent().and_then(Path::parent).map(|d| d.join("strata-test-probe")).expect("target/PROFILE/deps/TEST")
}

/// An unnamed file.
fn tempfile() -> File {
    let fd = rustix::fs::memfd_create("output", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd_create");
    File::from(fd)
}
