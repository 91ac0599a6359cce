//! A shell that stays: its open files, working directory, user and session are those of a process
//! that a test observes.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running shell, killed when dropped.
#[derive(Debug)]
pub struct Shell {
    child: Child,
    commands: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    /// Starts a shell of the user `uid` in `dir`, in the session of the test.
    #[must_use]
    pub fn start(dir: &Path, uid: u32) -> Self {
        let mut command = Command::new("bash");
        if uid != 0 {
            command.uid(uid).gid(uid);
        }
        Self::of(command.current_dir(dir))
    }

    /// Starts a shell of the user `uid` in `dir` that leads a session of its own.
    #[must_use]
    pub fn in_own_session(dir: &Path, uid: u32) -> Self {
        // Both programs replace themselves by the next one, so that the child is the shell.
        let mut command = Command::new("setsid");
        let id = uid.to_string();
        command.args(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "bash"]);
        Self::of(command.current_dir(dir))
    }

    /// Starts a program that reads commands as a shell does.
    #[must_use]
    pub fn of(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
        let commands = child.stdin.take().expect("its standard input");
        let output = BufReader::new(child.stdout.take().expect("its standard output"));
        Self { child, commands, output }
    }

    /// Returns its process ID.
    #[must_use]
    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Runs a command in the shell itself. Returns its output and exit status.
    pub fn try_run(&mut self, command: &str) -> (String, i32) {
        writeln!(self.commands, "{{ {command}; }} 2>&1\necho \"=$?\"").expect("a shell that reads");
        let mut text = String::new();
        loop {
            let mut line = String::new();
            let len = self.output.read_line(&mut line).expect("output in UTF-8");
            assert_ne!(len, 0, "{command}: the shell has ended: {text}");
            if let Some((before, status)) = line.rsplit_once('=')
                && let Ok(status) = status.trim_end().parse()
            {
                text += before;
                return (text, status);
            }
            text += &line;
        }
    }

    /// Runs a command that succeeds and returns its output, without the last newline.
    pub fn run(&mut self, command: &str) -> String {
        let (text, status) = self.try_run(command);
        assert_eq!(status, 0, "{command}: {text}");
        text.trim_end().to_owned()
    }

    /// Runs a command that fails, and returns its message.
    pub fn fails(&mut self, command: &str) -> String {
        let (text, status) = self.try_run(command);
        assert_ne!(status, 0, "{command}: {text}");
        text
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
