//! The arguments of `strata run`.

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
    /// Afterwards, apply what was written to the host, if the command succeeded.
    #[arg(long, conflicts_with_all = ["discard", "keep", "diff"])]
    pub(crate) commit: bool,
    /// Afterwards, drop what was written.
    #[arg(long, conflicts_with_all = ["keep", "diff"])]
    pub(crate) discard: bool,
    /// Afterwards, keep what was written in the sandbox. The default unless standard input and
    /// standard error are a terminal.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Show what was written in the sandbox. Runs no command.
    #[arg(long, conflicts_with_all = ["command", "list"])]
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
    /// The command and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}
