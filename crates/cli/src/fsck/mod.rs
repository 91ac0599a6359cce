//! `fsck.unionfs`, or `strata fsck`: checks the branches of a union that is not mounted, and
//! repairs them. The library `unionfs::fsck` finds and repairs; this module has the command line,
//! the branches ([`branches`]) and the conversation with the administrator ([`console`]).

mod branches;
mod console;

use crate::exit::{Failure, FsckExit};
use crate::tool;
use branches::Found;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser};
use console::{Answers, Console};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::time::Instant;
use unionfs::fsck::CheckError;

/// The part of the help after the options.
pub const HELP: &str = "\
DEVICE is the list of branches, as in the mount option dirs=, or the mount point or source of a unionfs line of \
/etc/fstab. List all branches in their order: without one of them, records that refer to it look damaged. The \
union must not be mounted. Read-only branches are checked but never changed.

Without -n, -p or -y, the command asks before each repair if standard input is a terminal. What it takes out of a branch \
without being sure that it is worthless goes to a new directory .wh..wh.asideN in the root of the branch, with a LIST of \
the former paths. --undo puts it back.

Examples:
  fsck.unionfs -n /changes=rw:/image=ro     check, change nothing
  fsck.unionfs -p /srv/www                  repair what is safe; the branches are in fstab
  fsck.unionfs -y '[zstd / /c]=rw:/image'   repair everything
  fsck.unionfs --undo /changes=rw           undo that, if the list of branches was wrong

Exit status, the sum of: 0 no errors, 1 errors were corrected, 4 errors are left, 8 the check failed, the branches are in use or \
some objects could not be read, 16 wrong arguments, 32 cancelled.";

/// Check the branches of a union, and repair them.
#[derive(Debug, Parser)]
#[command(name = "fsck.unionfs", version, disable_version_flag = true, arg_required_else_help = true, after_help = HELP)]
struct Cli {
    #[command(flatten)]
    args: FsckArgs,
    /// Print the version.
    #[arg(short = 'V', long, action = clap::ArgAction::Version)]
    version: Option<bool>,
}

/// The arguments of `fsck.unionfs`.
#[derive(Debug, Args)]
pub struct FsckArgs {
    /// The branches, or a mount point or source in /etc/fstab.
    device: OsString,
    /// Change nothing; answer every question with no.
    #[arg(short = 'n', long, conflicts_with_all = ["yes", "preen"])]
    no: bool,
    /// Repair everything that can be repaired, without questions.
    #[arg(short = 'y', long, conflicts_with = "preen")]
    yes: bool,
    /// Repair without questions what changes nothing that users see: leftovers of interrupted
    /// operations.
    #[arg(short = 'p', long, visible_short_alias = 'a')]
    preen: bool,
    /// Check nothing: undo the last repair of each read-write branch. What it set aside returns to
    /// its place.
    #[arg(long, conflicts_with_all = ["no", "yes", "preen"])]
    undo: bool,
    /// Accepted for fsck(8): the check is always complete.
    #[arg(short, long)]
    force: bool,
    /// Accepted for fsck(8): the command always asks.
    #[arg(short = 'r', hide = true)]
    ask: bool,
    /// Print the branches, and findings that are no errors.
    #[arg(short, long)]
    verbose: bool,
    /// Print how long the check took.
    #[arg(short = 't', long)]
    time: bool,
    /// Show progress on the terminal even if the output is redirected. fsck(8) appends a
    /// descriptor, which is ignored.
    #[arg(short = 'C', long)]
    progress: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Whether `program` is `fsck.unionfs`, in any directory.
#[must_use]
pub fn is_called(program: &[u8]) -> bool {
    ["fsck.unionfs", "fsck.fuse.unionfs"].iter().any(|name| tool::is_called(program, name))
}

/// Returns the command-line definition, for the manual pages.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs `fsck.unionfs` and returns its exit status.
#[must_use]
pub fn run(args: &[OsString]) -> FsckExit {
    match Cli::try_parse_from(args.iter().map(|arg| without_descriptor(arg))) {
        Ok(cli) => execute(&cli.args),
        Err(error) => {
            let _ = error.print();
            match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => FsckExit::CLEAN,
                _ => FsckExit::USAGE,
            }
        }
    }
}

/// Removes the descriptor from `-C0`, which fsck(8) passes.
fn without_descriptor(arg: &OsStr) -> OsString {
    match arg.as_bytes().strip_prefix(b"-C") {
        Some(number) if !number.is_empty() && number.iter().all(u8::is_ascii_digit) => "-C".into(),
        _ => OsString::from_vec(arg.as_bytes().to_vec()),
    }
}

/// Executes the command and returns its exit status.
#[must_use]
pub fn execute(args: &FsckArgs) -> FsckExit {
    match check(args) {
        Ok(exit) => exit,
        Err((exit, failure)) => {
            let _ = writeln!(std::io::stderr(), "fsck.unionfs: {failure}");
            exit
        }
    }
}

type Refused = (FsckExit, Failure);

fn check(args: &FsckArgs) -> Result<FsckExit, Refused> {
    let started = Instant::now();
    let answers = match (args.no, args.yes, args.preen) {
        (true, _, _) => Answers::No,
        _ if args.undo => Answers::Yes,
        (_, true, _) => Answers::Yes,
        (_, _, true) => Answers::Safe,
        _ if std::io::stdin().is_terminal() && !args.json => Answers::Ask,
        _ => Answers::No,
    };
    if answers == Answers::No && !args.no {
        let _ = writeln!(
            std::io::stderr(),
            "fsck.unionfs: standard input is no terminal: nothing is changed, as with -n; use -p or -y to repair"
        );
    }
    let read_only = answers == Answers::No;
    let Found { branches, users, list } = branches::open(&args.device, read_only)?;
    for (branch, point) in &users {
        let text = format!("{}: in use by the mount at {}", branch.display(), point);
        if !read_only {
            let reason = format!("{text}; unmount it first, or use -n");
            return Err((FsckExit::OPERATION, Failure::system(reason)));
        }
        let _ = writeln!(std::io::stderr(), "fsck.unionfs: {text}: operations in progress look like damage");
    }
    if args.undo {
        return undo(&branches, args.json);
    }
    let mut console = Console::new(answers, args.verbose, args.json, args.progress);
    if args.verbose && !args.json {
        console.line(&format!("branches: {list}"));
    }
    let done = unionfs::fsck::check(&branches, &mut console);
    let mut exit = console.exit();
    match done {
        Ok(()) => {}
        Err(CheckError::Stopped) => exit = exit.and(FsckExit::CANCELLED),
        Err(CheckError::Build(error)) => {
            return Err((exit.and(FsckExit::OPERATION), Failure::system(error.to_string())));
        }
    }
    let took = args.time.then(|| started.elapsed());
    let written = if args.json { console.print_json(&list, exit, took) } else { console.print_summary(&list, took) };
    written.map_err(|failure| (exit.and(FsckExit::OPERATION), failure))?;
    Ok(exit)
}

/// Undoes the last repair of each branch. The exit status is that of a check: 1 if something was
/// undone, 4 if something could not be.
fn undo(branches: &[unionfs::Branch], json: bool) -> Result<FsckExit, Refused> {
    let failed =
        |errno| (FsckExit::OPERATION, Failure::system(format!("can't undo: {}", crate::host_dir::reason(errno))));
    let undone = unionfs::fsck::undo(branches).map_err(failed)?;
    let (mut exit, mut text, mut steps) = (FsckExit::CLEAN, String::new(), Vec::new());
    for step in &undone {
        let path = format!("{}{}", step.branch.display(), step.path.escape_ascii());
        let result = match step.result {
            Ok(()) => "undone",
            Err(vnode::Errno::EXIST) => "left: something else has the name by now",
            Err(vnode::Errno::NOENT) => "left: its directory is gone",
            Err(errno) => &format!("left: {}", crate::host_dir::reason(errno)),
        };
        exit = exit.and(if step.result.is_ok() { FsckExit::CORRECTED } else { FsckExit::UNCORRECTED });
        text.push_str(&format!("{path}: {}: {result}\n", step.kind));
        steps.push(json!({ "path": path, "kind": step.kind, "result": result }));
    }
    if undone.is_empty() {
        text.push_str("nothing to undo: no read-write branch has a list of set-aside objects\n");
    }
    let text = if json { format!("{}\n", json!({ "undone": steps, "exit": exit.code() })) } else { text };
    tool::print(text).map_err(|failure| (exit.and(FsckExit::OPERATION), failure))?;
    Ok(exit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_well_formed() {
        Cli::command().debug_assert();
        assert!(is_called(b"/sbin/fsck.unionfs") && is_called(b"fsck.fuse.unionfs") && !is_called(b"fsck.ext4"));
    }

    #[test]
    fn invocations_of_fsck_8_are_accepted() {
        for words in
            [&["-a", "-C0", "/x"][..], &["-f", "-y", "-C", "/x"], &["-p", "/x"], &["-nvt", "/x"], &["/x", "-C12"]]
        {
            let words = ["fsck.unionfs"].iter().chain(words).map(|word| without_descriptor(OsStr::new(word)));
            let cli = Cli::try_parse_from(words).unwrap();
            assert_eq!(cli.args.device, "/x");
        }
        for words in [&["-n", "-y", "/x"][..], &["-p", "-y", "/x"], &["/x", "/y"], &["-q", "/x"], &["-p"]] {
            let words: Vec<OsString> = ["fsck.unionfs"].iter().chain(words).map(OsString::from).collect();
            assert_eq!(run(&words), FsckExit::USAGE, "{words:?}");
        }
    }
}
