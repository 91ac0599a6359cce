//! `strata commit` and `strata discard`: apply or drop what the first branch of a union changes.

use crate::change_list::{json, line, shown};
use crate::diff::{json_conflict, select, trouble};
use crate::exit::{Exit, Failure};
use crate::host_dir::reason;
use crate::offline::{self, Access, Offline};
use crate::progress::Progress;
use crate::tool::print;
use changes::{CommitOptions, Conflict, ConflictKind, Error, Floor, Outcome};
use clap::Args;
use serde_json::json;
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use vnode::Errno;

/// The part of the help of `strata commit` after the options.
pub const COMMIT_HELP: &str = "\
The changes move from the first branch of the list to the second. The union of all branches does not change. It must not be \
mounted. A commit that was killed is completed by the next one.

A file that has changed below after the first branch got its version is a conflict. Then nothing is committed, unless \
--force or --skip-conflicts is given.

Examples:
  strata commit --branches /srv/changes:/srv/image --dry-run
  strata commit --branches /srv/changes:/srv/image etc/hosts usr/local

Exit status: 0 success, 1 wrong arguments or no permission, 2 a system error, 3 conflicts: nothing was committed, \
5 some changes could not be committed and remain, 32 a branch is in use or unusable.";

/// The part of the help of `strata discard` after the options.
pub const DISCARD_HELP: &str = "\
The union must not be mounted. A discard that was killed is completed by the next one.

Examples:
  strata discard --branches /srv/changes:/srv/image etc/hosts
  strata discard --branches /srv/changes:/srv/image --all

Exit status: 0 success, 1 wrong arguments or no permission, 2 a system error, 32 a branch is in use or unusable.";

/// The arguments of `strata commit`.
#[derive(Debug, Args)]
pub struct CommitArgs {
    /// Paths in the union. Without any, everything is committed.
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    /// The branches of the union, from left to right, as in the option dirs=. Changes move from the
    /// first one to the second.
    #[arg(short, long, value_name = "LIST", required = true)]
    branches: OsString,
    /// Commit also where the file below has changed meanwhile.
    #[arg(long)]
    force: bool,
    /// Leave out the files that have changed below, and commit the others.
    #[arg(long, conflicts_with = "force")]
    skip_conflicts: bool,
    /// Show what would be done, but change nothing.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The arguments of `strata discard`.
#[derive(Debug, Args)]
pub struct DiscardArgs {
    /// Paths in the union.
    #[arg(value_name = "PATH", required_unless_present = "all")]
    paths: Vec<OsString>,
    /// Discard everything.
    #[arg(long, conflicts_with = "paths")]
    all: bool,
    /// The branches of the union, from left to right, as in the option dirs=. The first one has the
    /// changes.
    #[arg(short, long, value_name = "LIST", required = true)]
    branches: OsString,
    /// Show what would be done, but change nothing.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// How the result is printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) json: bool,
    pub(crate) dry_run: bool,
    /// The program, for messages.
    pub(crate) program: &'static str,
    /// `committed`
    pub(crate) done: &'static str,
    /// What can be done about conflicts.
    pub(crate) advice: &'static str,
}

/// Commits changes.
///
/// # Errors
/// Names the branch or path and the reason.
pub fn commit(args: &CommitArgs) -> Result<Exit, Failure> {
    let output = Output {
        json: args.json,
        dry_run: args.dry_run,
        program: "strata",
        done: "committed",
        advice: "use --skip-conflicts or --force, or discard them",
    };
    let offline = open(&args.branches, args.dry_run)?;
    let CommitArgs { force, skip_conflicts, dry_run, .. } = *args;
    let options = CommitOptions { force, skip_conflicts, since: None, merging: false, dry_run };
    let mut bar = Bar::new();
    let committed = offline.branches.commit(&select(&args.paths, None), &options, &mut |progress| bar.show(&progress));
    drop(bar);
    output.finish(committed)
}

/// Discards changes.
///
/// # Errors
/// Names the branch or path and the reason.
pub fn discard(args: &DiscardArgs) -> Result<Exit, Failure> {
    let output = Output { json: args.json, dry_run: args.dry_run, program: "strata", done: "discarded", advice: "" };
    let offline = open(&args.branches, args.dry_run)?;
    let mut bar = Bar::new();
    let discarded =
        offline.branches.discard(&select(&args.paths, None), args.dry_run, &mut |progress| bar.show(&progress));
    drop(bar);
    output.finish(discarded)
}

fn open(list: &OsString, dry_run: bool) -> Result<Offline, Failure> {
    let access = if dry_run { Access::Read } else { Access::Write };
    offline::open_list(list.as_bytes(), access, Floor::Ground)
}

/// The progress line, once the number of changes is known.
#[derive(Default)]
pub(crate) struct Bar(Option<Progress>, bool);

impl Bar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn show(&mut self, progress: &changes::Progress<'_>) {
        if !self.1 {
            self.1 = true;
            self.0 = Progress::on_terminal("changes", || progress.total as u64);
        }
        if let Some(bar) = &mut self.0 {
            bar.show(progress.done as u64);
        }
    }
}

impl Output {
    /// Prints the result and returns the exit status.
    pub(crate) fn finish(&self, result: Result<Outcome, Error>) -> Result<Exit, Failure> {
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(Error::Conflicts(conflicts)) => return self.refuse(&conflicts),
            Err(error) => return Err(trouble(error)),
        };
        if self.json {
            let failed = outcome.failed.iter().map(|failed| {
                json!({ "path": crate::change_list::json_path(&failed.path), "step": failed.step, "error": reason(failed.errno) })
            });
            let all = json!({
                "dry_run": self.dry_run,
                "done": outcome.done.iter().map(json).collect::<Vec<_>>(),
                "failed": failed.collect::<Vec<_>>(),
                "conflicts": outcome.conflicts.iter().map(json_conflict).collect::<Vec<_>>(),
            });
            print(format!("{all}\n"))?;
        } else {
            let lines: String = outcome.done.iter().map(|change| line(change) + "\n").collect();
            let count = outcome.done.len();
            let (changes, would) =
                (if count == 1 { "change" } else { "changes" }, if self.dry_run { "would be " } else { "" });
            print(format!("{lines}{count} {changes} {would}{}\n", self.done))?;
            self.warn(outcome.conflicts.iter().map(message));
        }
        self.warn(outcome.failed.iter().map(|failed| {
            let hint = match (failed.errno, failed.step) {
                (Errno::PERM, "give the file its owner and group") => "; run it as a user who may change owners",
                (Errno::ACCESS | Errno::PERM, _) => "; run it as a user who may write there",
                (Errno::BUSY, _) => "; unmount that file system and run it again",
                (Errno::NOSPC | Errno::DQUOT, _) => "; free some space and run it again",
                _ => "",
            };
            format!("{}: can't {}: {}{hint}", shown(&failed.path), failed.step, reason(failed.errno))
        }));
        Ok(if outcome.failed.is_empty() { Exit::Success } else { Exit::Partial })
    }

    fn refuse(&self, conflicts: &[Conflict]) -> Result<Exit, Failure> {
        if self.json {
            let all = json!({ "conflicts": conflicts.iter().map(json_conflict).collect::<Vec<_>>() });
            print(format!("{all}\n"))?;
        }
        self.warn(conflicts.iter().map(message));
        let advice = self.advice;
        let reason =
            format!("nothing was done because of these conflicts; look at them with strata diff -p, then {advice}");
        Err(Failure { exit: Exit::Conflict, reason })
    }

    fn warn(&self, lines: impl Iterator<Item = String>) {
        for line in lines {
            let _ = writeln!(std::io::stderr(), "{}: {line}", self.program);
        }
    }
}

fn message(conflict: &Conflict) -> String {
    let what = match conflict.kind {
        ConflictKind::Changed => "has changed below since the upper branch got its version",
        ConflictKind::Created => "was created below after the upper branch got its version",
    };
    format!("{}: {what}", shown(&conflict.path))
}
