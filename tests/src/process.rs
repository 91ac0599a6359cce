//! Running programs, with their output in the panic message if they fail.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// Exit status and output of a program.
#[derive(Debug)]
pub struct Output {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output and standard error, in order.
    pub text: String,
}

/// Runs `command` and returns its status and output. The output is collected in a file: with a
/// pipe, a server that the program leaves running would keep this function waiting.
pub fn try_run(command: &mut Command) -> Output {
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
    Output { status, text: String::from_utf8_lossy(&text).into_owned() }
}

/// Runs `command` and returns its output. Panics if it fails.
pub fn run(command: &mut Command) -> String {
    let output = try_run(command);
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, output.text);
    output.text
}

/// Runs a shell script with `$1`, `$2`, ... set to `args`. Panics if it fails.
pub fn sh<P: AsRef<Path>>(script: &str, args: &[P]) -> String {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script, "bash"]);
    run(command.args(args.iter().map(AsRef::as_ref)))
}

/// Waits until all threads of a process have ended; its parent may not have waited for it yet.
pub fn await_end(pid: u64) {
    let (stat, tasks) = (format!("/proc/{pid}/stat"), format!("/proc/{pid}/task"));
    testkit::until("the process ends", || match std::fs::read_to_string(&stat) {
        // Its first thread can be a zombie while others still close its files.
        Ok(stat) if !stat.contains(") Z ") || std::fs::read_dir(&tasks).is_ok_and(|all| all.count() > 1) => Err(stat),
        _ => Ok(()),
    });
}

/// Returns the path of the program that performs a test's actions in a separate process.
#[must_use]
pub fn probe() -> PathBuf {
    let dir = std::env::current_exe().expect("the test's own path");
    dir.parent().and_then(Path::parent).map(|d| d.join("strata-test-probe")).expect("target/PROFILE/deps/TEST")
}

/// Returns an unnamed file.
fn tempfile() -> File {
    let fd = rustix::fs::memfd_create("output", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd_create");
    File::from(fd)
}
