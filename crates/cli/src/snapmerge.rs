//! `snapmerge`, or `strata snapmerge`: merges snapshot branches into the one below them.

use crate::commit::{Bar, Output};
use crate::exit::{Exit, Failure};
use crate::offline::{self, Access};
use crate::tool;
use changes::{CommitOptions, Floor, MergeStep, Outcome, Selection};
use clap::{Args, CommandFactory as _, Parser};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// The part of the help after the options.
pub const HELP: &str = "\
The branches are given in the order of the union, the newest first. All of them are merged into TARGET, the last one, which \
then shows what all of them showed together. The others are left empty. Of each file, the newest version remains.

TARGET is taken for a snapshot above branches that are not given: whiteouts and opaque marks remain in it. If it is the base, \
with nothing below it, use --base: removed files are really removed. If there are renamed directories, or files of which \
only the attributes were changed, name the branches below TARGET with --below.

No union may be using the branches. A merge that was killed is completed by running the same command again.

Examples:
  snapmerge /snap/3 /snap/2 /snap/1                 three snapshots become one, in /snap/1
  snapmerge --base /snap/1 /srv/image               the snapshot becomes part of the image
  snapmerge --dry-run --below /srv/image /snap/2 /snap/1

Exit status: 0 success, 1 wrong arguments or no permission, 2 a system error, 3 files of the base have changed: nothing was \
merged, 5 some changes could not be merged and remain, 32 a branch is in use or unusable.";

/// Merge snapshot branches into the one below them.
#[derive(Debug, Parser)]
#[command(name = "snapmerge", version, arg_required_else_help = true, after_help = HELP)]
struct Cli {
    #[command(flatten)]
    args: MergeArgs,
}

/// The arguments of `snapmerge`.
#[derive(Debug, Args)]
pub struct MergeArgs {
    /// The snapshots, the newest first.
    #[arg(required = true, num_args = 1.., value_name = "SNAPSHOT")]
    snapshots: Vec<PathBuf>,
    /// The branch to merge them into.
    #[arg(required = true)]
    target: PathBuf,
    /// TARGET is the base: the union has no branch below it.
    #[arg(long, conflicts_with = "below")]
    base: bool,
    /// The branches below TARGET, from left to right, as in the option dirs=.
    #[arg(long, value_name = "LIST")]
    below: Option<OsString>,
    /// Merge also where a file of TARGET has changed after the snapshot got its version.
    #[arg(long)]
    force: bool,
    /// Show what would be done, but change nothing.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print JSON: one line for each snapshot.
    #[arg(long)]
    json: bool,
}

/// Whether `program` is `snapmerge`, in any directory.
#[must_use]
pub fn is_called(program: &[u8]) -> bool {
    tool::is_called(program, "snapmerge")
}

/// Returns the description of the arguments, for the manual page.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs `snapmerge` and returns its exit status.
#[must_use]
pub fn run(args: &[OsString]) -> Exit {
    let mut exit = Exit::Success;
    let done = tool::run("snapmerge", args, |cli: &Cli| {
        exit = execute(&cli.args)?;
        Ok(())
    });
    if done == Exit::Success { exit } else { done }
}

/// Merges the snapshots.
///
/// # Errors
/// Names the branch or path and the reason.
pub fn execute(args: &MergeArgs) -> Result<Exit, Failure> {
    let output = Output {
        json: args.json,
        dry_run: args.dry_run,
        program: "snapmerge",
        done: "merged",
        advice: "use --force, or discard them",
    };
    if args.dry_run {
        return dry_run(args, &output);
    }
    let steps = steps(args)?;
    if !args.force && is_ground(args) {
        for from in 0..args.snapshots.len() {
            let step = MergeStep { from, to: from + 1 };
            if let Err(conflicts @ changes::Error::Conflicts(_)) = merge(args, step, Access::Read)? {
                return output.finish(Err(conflicts));
            }
        }
    }
    for step in steps {
        let merged = merge(args, step, Access::Write)?;
        let exit = output.finish(merged)?;
        if exit != Exit::Success {
            return Ok(exit);
        }
    }
    Ok(Exit::Success)
}

/// Returns the order of the merges.
fn steps(args: &MergeArgs) -> Result<Vec<MergeStep>, Failure> {
    let snapshots = args.snapshots.iter().map(|path| offline::written(path));
    let (list, floor) = list(args, snapshots.collect());
    let offline = offline::open_list(&list, Access::Read, floor)?;
    offline.branches.merge_steps(args.snapshots.len()).map_err(crate::diff::trouble)
}

/// Merges a snapshot into one right of it, or the target.
fn merge(args: &MergeArgs, step: MergeStep, access: Access) -> Result<Result<Outcome, changes::Error>, Failure> {
    let snapshots = args.snapshots.iter().enumerate();
    let known = snapshots.filter(|(at, _)| *at == step.from || *at >= step.to);
    let (list, floor) = list(args, known.map(|(_, path)| offline::written(path)).collect());
    let offline = offline::open_list(&list, access, floor)?;
    let dry_run = access == Access::Read;
    // Conflicts were looked for before the first merge.
    let options = CommitOptions { force: !dry_run, merging: true, dry_run, ..CommitOptions::default() };
    let mut bar = Bar::new();
    Ok(offline.branches.commit(&Selection::all(), &options, &mut |progress| bar.show(&progress)))
}

/// Shows what merging all snapshots would change. Each is compared with everything below it.
fn dry_run(args: &MergeArgs, output: &Output) -> Result<Exit, Failure> {
    for at in (0..args.snapshots.len()).rev() {
        let above = args.snapshots.iter().skip(at).map(|path| offline::written(path));
        let (list, _) = list(args, above.collect());
        let offline = offline::open_list(&list, Access::Read, Floor::Ground)?;
        let done = offline.branches.changes();
        output.finish(done.map(|done| Outcome { done, ..Outcome::default() }))?;
    }
    Ok(Exit::Success)
}

/// Returns the list of these branches, the target, and those below it.
fn list(args: &MergeArgs, above: Vec<Vec<u8>>) -> (Vec<u8>, Floor) {
    let mut list = above;
    list.push(offline::written(&args.target));
    list.extend(args.below.as_ref().map(|below| below.as_bytes().to_vec()));
    (list.join(&b':'), if is_ground(args) { Floor::Ground } else { Floor::Unknown })
}

/// Whether all branches below the target are known.
fn is_ground(args: &MergeArgs) -> bool {
    args.base || args.below.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_well_formed() {
        Cli::command().debug_assert();
        assert!(is_called(b"/usr/bin/snapmerge") && !is_called(b"strata"));
        let cli = Cli::try_parse_from(["snapmerge", "/3", "/2", "/1"]).unwrap();
        assert_eq!((cli.args.snapshots, cli.args.target), (vec!["/3".into(), "/2".into()], "/1".into()));
        assert!(Cli::try_parse_from(["snapmerge", "/3"]).is_err());
    }
}
