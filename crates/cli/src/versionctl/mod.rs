//! `versionctl`, or `strata versions`: the history of files on versionfs.
//!
//! | concept | file |
//! |---|---|
//! | commands to the layer; replies | `client`; crate `versionclient` |
//! | a path, also of what was removed | `place` |
//! | times and tags; versions by number, time or tag | `when`, `args` |
//! | events in a tree, what undoes them | `history` |
//! | writing an old state to its place | `put` |
//! | subcommands | `log`, `audit`, `diff`, `restore`, `manage`, `policy`, `usage`, `browse` |
//! | names, users and columns as text | `text` |

mod args;
mod audit;
mod browse;
mod client;
mod diff;
mod former;
mod history;
mod links;
mod log;
mod manage;
mod place;
mod policy;
mod put;
mod restore;
mod text;
mod usage;
mod when;

use crate::exit::{Exit, Failure};
use crate::tool;
use args::Now;
use clap::{CommandFactory as _, Parser, Subcommand};
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// See, compare and restore old versions of files (versionfs).
#[derive(Debug, Parser)]
#[command(name = "versionctl", version, arg_required_else_help = true, after_help = HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The end of the help.
pub const HELP: &str = "\
A version is selected by its number, by a time or by a tag. Times: '2h ago', 'yesterday 14:00', '14:00', '2026-11-23 10:00', \
RFC 3339, @SECONDS, @GMT-2026.11.23-10.00.00. Files may be removed, and directories above them, too.

Examples:
  versionctl log report.txt               its versions: when, who, which program, what
  versionctl diff report.txt              what the last change changed
  versionctl cat report.txt '2h ago'      as it was then
  versionctl restore report.txt           the state before the last change; again: back
  versionctl restore src --at 14:00       a directory as it was
  versionctl restore --session 4711 -n    what restoring all changes of a session would do
  versionctl browse                       walk back through a directory

Exit status: 0 success; 1 wrong arguments, no such version, or no permission; 2 a system error; \
5 some files were not restored; 32 not a mount with versionfs, or a file can't be read or written. \
versionctl diff: 0 no difference, 1 a difference, 2 failure.";

const LOG_HELP: &str = "\
Each line is a version and the change that ended it. Of a directory: what happened in it, newest first.

Examples:
  versionctl log report.txt
  versionctl log -r --since '1h ago' --process rm .
  versionctl log --json --user alice src

Exit status: 0 success; 1 no such file, or no permission; 32 not a mount with versionfs.";

const AUDIT_HELP: &str = "\
Each line is an operation that changed something, oldest first. A mount has an audit log with the option comprehensive; \
otherwise it contains the activity of those users whom /etc/versionfs.conf has logged.

Examples:
  versionctl audit
  versionctl audit --since '1h ago' --user alice --path '/projects/**'
  versionctl audit --json --pid 4711 /home

Exit status: 0 success; 1 wrong arguments, or neither root nor the mounting user; 32 not a mount with versionfs; \
5 part of the log is damaged.";

const DIFF_HELP: &str = "\
Examples:
  versionctl diff report.txt          the newest version and the present state
  versionctl diff report.txt 3 5
  versionctl diff report.txt monday head

Exit status: 0 no difference; 1 a difference; 2 failure.";

const CAT_HELP: &str = "\
Examples:
  versionctl cat report.txt 3
  versionctl cat report.txt 'yesterday 14:00' | less

Exit status: 0 success; 1 no such version, or no permission; 32 it can't be read.";

const RESTORE_HELP: &str = "\
The present state becomes a version, so a restore can be undone by a restore. Mode, owner, extended attributes and time of \
modification are restored as far as this user may set them.

Examples:
  versionctl restore report.txt                      the newest version
  versionctl restore report.txt 3 --to old.txt       to another file
  versionctl restore project                         a removed directory, with what was removed with it
  versionctl restore project --at monday             a directory as it was at a tag
  versionctl restore --all --at '10m ago' --delete   the whole mount, exactly
  versionctl restore --process install.sh -n .       what undoing all that a program did would restore
  versionctl restore --since 14:00 --until 15:00 .   everything that changed in that hour

Undoing leaves a file alone that others have changed since, unless --force is given. Files that did not exist before stay.

Exit status: 0 success; 1 no such version, or no permission; 5 some files were not restored; \
32 a file can't be read or written.";

const DISCARD_HELP: &str = "\
Discarded versions can't be restored. Older versions stay complete. On a terminal, the command asks.

Examples:
  versionctl discard secrets.txt 3 4

Exit status: 0 success; 1 no such version, no permission, or the answer was no; 32 not a mount with versionfs.";

const TAG_HELP: &str = "\
Examples:
  versionctl tag before-upgrade
  versionctl tag monday --at '2026-11-23 09:00'
  versionctl restore --all --at before-upgrade

Exit status: 0 success; 1 no such tag, wrong name, or no permission; 32 not a mount with versionfs.";

const PIN_HELP: &str = "\
Examples:
  versionctl pin report.txt 3
  versionctl annotate report.txt 3 'as sent to the printer'

Exit status: 0 success; 1 no such version, or no permission; 32 not a mount with versionfs.";

const DU_HELP: &str = "\
Examples:
  versionctl du
  versionctl du --json /home/alice

Exit status: 0 success; 1 no such directory, or no permission; 32 not a mount with versionfs.";

const CLEAN_HELP: &str = "\
The server does this by itself: clean and convert from time to time, the reading of the files at the mount. These commands do \
it now. Only root and the user who mounted may run them.

Examples:
  versionctl clean /home
  versionctl convert --json /home
  versionctl reload /home

Exit status: 0 success; 1 no permission, or the administrator's file is wrong and the policies stay as they are; \
32 not a mount with versionfs.";

const POLICY_HELP: &str = "\
Examples:
  versionctl policy explain report.txt              each value, and the file and line that sets it
  versionctl policy check                           the administrator's file, /etc/versionfs.conf
  versionctl policy check --user ~/.config/versionfs.conf

Exit status: 0 success; 1 the file has errors, or no permission; 2 it can't be read; 32 not a mount with versionfs.";

const BROWSE_HELP: &str = "\
Keys: left and right walk through time, up and down through the directory, Enter opens a directory, Backspace leaves it, \
d switches between the content and the difference from now, PageUp and PageDown scroll, r restores, q quits.

Exit status: 0 success; 1 no such directory, or no permission; 2 not a terminal; 32 not a mount with versionfs.";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the versions of a file, or what happened in a directory.
    #[command(after_help = LOG_HELP)]
    Log {
        /// What to list.
        #[command(flatten)]
        args: args::LogArgs,
    },
    /// List the operations in the audit log.
    #[command(after_help = AUDIT_HELP)]
    Audit {
        /// Which ones.
        #[command(flatten)]
        args: args::AuditArgs,
    },
    /// Compare two versions of a file. Default: the newest version and the present state.
    #[command(after_help = DIFF_HELP)]
    Diff {
        /// The file; it may be removed.
        path: PathBuf,
        /// The older version: a number, time or tag.
        from: Option<String>,
        /// The newer version: a number, time or tag, or head.
        to: Option<String>,
    },
    /// Print a version of a file.
    #[command(after_help = CAT_HELP)]
    Cat {
        /// The file; it may be removed.
        path: PathBuf,
        /// The version: a number, time or tag.
        version: String,
    },
    /// Restore files and directories, also removed ones.
    #[command(after_help = RESTORE_HELP)]
    Restore {
        /// What to restore.
        #[command(flatten)]
        args: restore::RestoreArgs,
    },
    /// Give the present state of the mount, or that at a time, a name.
    #[command(after_help = TAG_HELP)]
    Tag {
        /// The name.
        name: String,
        /// The time. Default: now.
        #[arg(long, value_name = "TIME")]
        at: Option<String>,
        /// Any directory in the mount.
        #[arg(long, default_value = ".")]
        dir: PathBuf,
    },
    /// Remove a tag.
    #[command(after_help = TAG_HELP)]
    Untag {
        /// The name.
        name: String,
        /// Any directory in the mount.
        #[arg(long, default_value = ".")]
        dir: PathBuf,
    },
    /// List the tags.
    #[command(after_help = TAG_HELP)]
    Tags {
        /// Any directory in the mount.
        #[arg(default_value = ".")]
        dir: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Keep a version, whatever the policy says.
    #[command(after_help = PIN_HELP)]
    Pin {
        /// The file; it may be removed.
        path: PathBuf,
        /// The number of the version.
        version: u64,
    },
    /// Keep a version no longer than the policy says.
    #[command(after_help = PIN_HELP)]
    Unpin {
        /// The file; it may be removed.
        path: PathBuf,
        /// The number of the version.
        version: u64,
    },
    /// Give a version a note.
    #[command(after_help = PIN_HELP)]
    Annotate {
        /// The file; it may be removed.
        path: PathBuf,
        /// The number of the version.
        version: u64,
        /// The note; an empty one removes it.
        text: OsString,
    },
    /// Discard versions for good.
    #[command(after_help = DISCARD_HELP)]
    Discard {
        /// The file; it may be removed.
        path: PathBuf,
        /// The numbers of the versions.
        #[arg(required = true)]
        versions: Vec<u64>,
        /// Do not ask.
        #[arg(long, short)]
        yes: bool,
    },
    /// Show the space that history takes, by directory and by format.
    #[command(after_help = DU_HELP)]
    Du {
        /// The directory.
        #[arg(default_value = ".")]
        dir: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Walk back through a directory on the terminal.
    #[command(after_help = BROWSE_HELP)]
    Browse {
        /// The directory.
        #[arg(default_value = ".")]
        dir: PathBuf,
    },
    /// Discard what the policies no longer keep, now.
    #[command(after_help = CLEAN_HELP)]
    Clean {
        /// Any directory in the mount.
        #[arg(default_value = ".")]
        dir: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Convert versions to the formats of their policies, now.
    #[command(after_help = CLEAN_HELP)]
    Convert {
        /// Any directory in the mount.
        #[arg(default_value = ".")]
        dir: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Read the policy files again.
    #[command(after_help = CLEAN_HELP)]
    Reload {
        /// Any directory in the mount.
        #[arg(default_value = ".")]
        dir: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show the policy of a file, or check a configuration file.
    #[command(after_help = POLICY_HELP)]
    Policy {
        /// What to show.
        #[command(subcommand)]
        command: Policy,
    },
}

/// `policy`
#[derive(Debug, Subcommand)]
pub enum Policy {
    /// Print which policy applies to a file, and why.
    Explain {
        /// The file.
        path: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Check a configuration file, without a mount.
    Check {
        /// The file.
        #[arg(default_value = versionfs::CONFIG)]
        file: PathBuf,
        /// It is a user's file, not the administrator's.
        #[arg(long)]
        user: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Whether `program` is `versionctl`, in any directory.
#[must_use]
pub fn is_called(program: &[u8]) -> bool {
    tool::is_called(program, "versionctl")
}

/// Returns the command-line definition, for the manual pages.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs `versionctl` and returns its exit status.
#[must_use]
pub fn run(args: &[OsString]) -> Exit {
    let mut exit = Exit::Success;
    let failed = tool::run("versionctl", args, |cli: &Cli| {
        exit = execute(&cli.command)?;
        Ok(())
    });
    let is_diff = args.get(1).is_some_and(|word| word == "diff");
    match failed {
        Exit::Success => exit,
        _ if is_diff => Exit::TROUBLE,
        failed => failed,
    }
}

/// Executes a subcommand.
///
/// # Errors
/// Names the path and the reason.
pub fn execute(command: &Command) -> Result<Exit, Failure> {
    let now = Now(jiff::Zoned::now());
    let done = match command {
        Command::Diff { path, from, to } => {
            let colour = diff::wants_colour();
            return diff::run(path, from.as_deref(), to.as_deref(), colour, &now);
        }
        Command::Audit { args } => return audit::run(args, &now),
        Command::Restore { args } => return restore::run(args, &now),
        Command::Log { args } => log::run(args, &now),
        Command::Cat { path, version } => diff::cat(path, version, &now),
        Command::Tag { name, at, dir } => manage::tag(dir, name, at.as_deref(), &now),
        Command::Untag { name, dir } => manage::untag(dir, name),
        Command::Tags { dir, json } => manage::tags(dir, *json, &now),
        Command::Pin { path, version } => manage::pin(path, *version, true),
        Command::Unpin { path, version } => manage::pin(path, *version, false),
        Command::Annotate { path, version, text } => manage::annotate(path, *version, text.as_bytes()),
        Command::Discard { path, versions, yes } => manage::discard(path, versions, *yes),
        Command::Du { dir, json } => usage::run(dir, *json),
        Command::Browse { dir } => browse::run(dir, &now),
        Command::Clean { dir, json } => policy::apply(dir, "clean", *json),
        Command::Convert { dir, json } => policy::apply(dir, "convert", *json),
        Command::Reload { dir, json } => policy::apply(dir, "reload", *json),
        Command::Policy { command: Policy::Explain { path, json } } => policy::explain(path, *json),
        Command::Policy { command: Policy::Check { file, user, json } } => policy::check(file, *user, *json),
    };
    done.map(|()| Exit::Success)
}

/// Executes a subcommand of `strata versions` and returns its exit status.
#[must_use]
pub fn run_as_subcommand(command: &Command) -> Exit {
    execute(command).unwrap_or_else(|failure| {
        let _ = writeln!(std::io::stderr(), "strata: {failure}");
        if matches!(command, Command::Diff { .. }) { Exit::TROUBLE } else { failure.exit }
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A reply with two versions: a write by vi, a removal by rm.
    pub(crate) const LIST: &[u8] = b"set none 1 2 2\n\
        1 s file 5 100 644 1000 100 1000.000000007 1000.000000000 2000.500000000 write 1000 42 40 vi - -\n\
        2 f file 7 7 600 1000 100 2000.000000000 2000.500000000 3000.000000000 unlink 0 43 40 rm\\040x pl a\\012b\n";

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
        assert!(is_called(b"/usr/bin/versionctl") && !is_called(b"strata"));
        let parse = |words: &[&str]| Cli::try_parse_from([&["versionctl"], words].concat()).is_ok();
        assert!(parse(&["restore", "--all", "--at", "2h ago"]) && !parse(&["restore", "--all"]));
        assert!(parse(&["restore", "--", "-file"]) && parse(&["restore", "--pid", "5"]) && !parse(&["restore"]));
        assert!(!parse(&["discard", "f"]) && !parse(&["pin", "f", "x"]));
    }

    #[test]
    fn outside_of_a_mount_the_status_says_so() {
        let status =
            |words: &[&str]| run(&[&["versionctl"], words].concat().iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(status(&["log", "/etc/passwd"]), Exit::Mount);
        assert_eq!(status(&["diff", "/etc/passwd"]), Exit::TROUBLE);
        assert_eq!(status(&["restore", "/no such directory/x"]), Exit::Mount);
        assert_eq!(status(&["restore", "/etc", "--pid", "1", "--at", "now"]), Exit::Usage);
        assert_eq!(status(&["tag", "12"]), Exit::Usage);
    }
}
