//! The arguments of `strata run`.

use crate::exit::Failure;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

pub(crate) const HELP: &str = "\
The command and all that it starts see the host's files. What they write goes to a directory of the sandbox. \
Root isn't required. Afterwards, on a terminal, strata shows what was written, and asks whether to commit or to discard it.

Examples:
  strata run --sandbox -- ./install.sh
  strata run --sandbox=try -- make install      a name, to continue with
  strata run --sandbox=try -- sh                run another command on the same changes
  strata run --sandbox --allow-write ~/project -- agent
  strata run --sandbox --no-network --discard -- ./untrusted
  strata run --list
  strata run --sandbox=try --diff -p            show what was written
  strata run --sandbox=try --commit             apply it to the host
  strata run --sandbox=try --commit lib ~/.x    apply what was written there, and keep the rest
  strata run --sandbox=try --discard            drop it

Exit status: that of the command, 128 plus the signal's number if a signal ended it, 125 if the sandbox or the commit failed, \
126 if the command can't be executed, 127 if it does not exist. Without a command: 0 success, 1 wrong arguments, 125 failure.";

/// What to run, and how.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(crate) struct RunArgs {
    /// Run the command in a sandbox: a new one, or the one with this name, which is created if it
    /// does not exist.
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, required_unless_present = "list")]
    pub(crate) sandbox: Option<Option<String>>,
    /// The directory that holds the sandboxes. Default: ~/.local/state/strata/sandboxes
    /// (XDG_STATE_HOME), for root /var/lib/strata/sandboxes.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Let the command write this file or directory of the host, with everything in it. Repeatable.
    #[arg(long, value_name = "PATH")]
    pub(crate) allow_write: Vec<PathBuf>,
    /// Let the command connect to this socket of the host. Repeatable. The program behind the
    /// socket is outside of the sandbox.
    #[arg(long, value_name = "PATH")]
    pub(crate) allow_socket: Vec<PathBuf>,
    /// Give the command no network, only a loopback interface of its own.
    #[arg(long)]
    pub(crate) no_network: bool,
    /// Afterwards, apply what was written to the host, if the command succeeded. Without a command,
    /// paths of the host may follow: then only what was written there, and the rest is kept.
    #[arg(long, conflicts_with_all = ["discard", "keep", "diff"])]
    pub(crate) commit: bool,
    /// Afterwards, drop what was written. Without a command, paths may follow, as for --commit.
    #[arg(long, conflicts_with_all = ["keep", "diff"])]
    pub(crate) discard: bool,
    /// Afterwards, keep what was written in the sandbox. The default unless standard input and
    /// standard error are a terminal.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Show what was written in the sandbox, or at the paths that follow. Runs no command.
    #[arg(long, conflicts_with = "list")]
    pub(crate) diff: bool,
    /// With --diff: show the changed lines of text files.
    #[arg(short = 'p', long, requires = "diff", conflicts_with = "json")]
    pub(crate) patch: bool,
    /// With --commit: overwrite files that have changed on the host since the sandbox was created.
    #[arg(long, requires = "commit")]
    pub(crate) force: bool,
    /// List the sandboxes.
    #[arg(long, conflicts_with_all = ["sandbox", "command"])]
    pub(crate) list: bool,
    /// With --list and --diff: print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// The command and its arguments. After --sandbox=NAME with --commit, --discard or --diff, a
    /// command needs -- before it: without, these are paths.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
    /// The paths to commit, discard or show, if there is no command. Empty: everything.
    #[arg(skip)]
    pub(crate) paths: Vec<OsString>,
}

impl RunArgs {
    /// Takes the words for paths, unless they are a command. `all` are the program's arguments.
    ///
    /// # Errors
    /// The words are neither.
    pub(crate) fn separate(mut self, all: &[OsString]) -> Result<Self, Failure> {
        let marked = all.len().checked_sub(self.command.len() + 1).and_then(|before| all.get(before));
        let is_command = self.command.is_empty() || marked.is_some_and(|word| word == "--");
        let acts = self.commit || self.discard || self.diff;
        if is_command && self.diff && !self.command.is_empty() {
            return Err(Failure::usage("--diff runs no command; leave out the -- before paths"));
        }
        if is_command || !acts || !matches!(self.sandbox, Some(Some(_))) {
            return Ok(self);
        }
        if let Some(option) = self.command.iter().find(|word| word.as_encoded_bytes().starts_with(b"-")) {
            let option = option.display();
            return Err(Failure::usage(format!(
                "{option}: options come before the paths; for a path, write ./{option}; for a command, put -- before it"
            )));
        }
        self.paths = core::mem::take(&mut self.command);
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: RunArgs,
    }

    /// Returns the command and the paths.
    fn parse(words: &str) -> Result<(String, String), Failure> {
        let all: Vec<OsString> = ["run"].into_iter().chain(words.split(' ')).map(OsString::from).collect();
        let args = Cli::try_parse_from(&all).map_err(|error| Failure::usage(error.to_string()))?.args.separate(&all)?;
        let text = |words: &[OsString]| words.join(" ".as_ref()).into_string().unwrap();
        Ok((text(&args.command), text(&args.paths)))
    }

    #[test]
    fn words_are_paths_or_a_command() {
        for (words, command, paths) in [
            ("--sandbox=a --commit", "", ""),
            ("--sandbox=a --commit b c", "", "b c"),
            ("--sandbox=a --discard /b", "", "/b"),
            ("--sandbox=a --diff -p b", "", "b"),
            ("--sandbox=a --commit -- b c", "b c", ""),
            ("--sandbox=a --commit -- sh -c b", "sh -c b", ""),
            ("--sandbox=a --commit -- -- b", "-- b", ""),
            ("--sandbox --commit sh -c b", "sh -c b", ""),
            ("--sandbox=a sh -c b", "sh -c b", ""),
        ] {
            assert_eq!(parse(words), Ok((command.to_owned(), paths.to_owned())), "{words}");
        }
        for wrong in ["--sandbox=a --commit b --force", "--sandbox=a --diff -- b", "--sandbox=a --commit -c"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
