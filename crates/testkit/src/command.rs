use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Exit status and output of a program.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status, -1 after a signal.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Outcome {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code().unwrap_or(-1), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// Returns the outcome of a program that succeeded.
    ///
    /// # Panics
    ///
    /// If it failed, with all output.
    #[track_caller]
    pub fn succeeds(self) -> Self {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self
    }
}

/// Runs `command` until it ends and its output is closed: a server that it leaves running must not
/// keep its pipes.
///
/// # Panics
///
/// If it can't be started.
#[track_caller]
pub fn outcome(command: &mut Command) -> Outcome {
    Outcome::of(&command.output().unwrap_or_else(|error| panic!("{command:?}: {error}")))
}

/// Runs `command` as [`outcome`] does, with this standard input.
///
/// # Panics
///
/// If it can't be started.
#[track_caller]
pub fn outcome_with_input(command: &mut Command, input: &[u8]) -> Outcome {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    // The program may end before it reads.
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    Outcome::of(&child.wait_with_output().expect("its output"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gets_input_and_returns_all_it_writes() {
        let script = "cat; echo problem >&2; exit 3";
        let outcome = outcome_with_input(Command::new("sh").args(["-c", script]), b"text");
        assert_eq!((outcome.code, &*outcome.out, &*outcome.err), (3, "text", "problem\n"));
    }
}
