//! What happens with the changes of a sandbox: they are shown, committed, discarded or kept.

use super::args::RunArgs;
use super::ask::{self, Answer};
use super::front::warn;
use super::owner::{AsCopied, Unmarked, Writable};
use super::store::{Record, Sandbox};
use super::temp_names::{self, TempNames};
use super::{summary, survey};
use crate::exit::{Exit, Failure};
use crate::progress::Progress;
use crate::tool::print;
use changes::{Branches, Change, CommitOptions, Error, Floor, Outcome, Selection, Source};
use hostfs::{HostFs, HostOptions};
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use vnode::Layer;
use wrapfs::Template;

/// The changes below one mount point.
#[derive(Debug)]
pub(super) struct Part {
    /// The mount point.
    pub(super) point: PathBuf,
    pub(super) branches: Branches,
    /// The changes, with paths relative to the mount point.
    pub(super) changes: Vec<Change>,
}

/// Does what the arguments ask for with a sandbox in which no command runs.
pub(super) fn act(sandbox: Sandbox, args: &RunArgs) -> Result<u8, Failure> {
    if args.discard {
        return sandbox.remove().map(|()| 0).map_err(of_sandbox);
    }
    let parts = parts(&sandbox).map_err(of_sandbox)?;
    if args.commit {
        return commit(sandbox, &parts, args).map(|()| 0).map_err(of_sandbox);
    }
    let text = if args.json {
        summary::json(&parts).into_bytes()
    } else {
        summary::full(&parts, args.patch, std::io::stdout().is_terminal())?
    };
    print(text).map(|()| 0)
}

/// Decides about the changes after the command has ended with `status`, and returns the exit
/// status.
pub(super) fn after(sandbox: Sandbox, args: &RunArgs, status: u8) -> Result<u8, Failure> {
    let name = sandbox.name.clone();
    let done = settle(sandbox, args, status);
    if let Err(failure) = done {
        let kept = format!("; the sandbox {name} keeps its changes");
        return Err(of_sandbox(failure.map(|reason| reason + &kept)));
    }
    Ok(status)
}

fn settle(sandbox: Sandbox, args: &RunArgs, status: u8) -> Result<(), Failure> {
    if args.discard {
        return sandbox.remove();
    }
    let parts = parts(&sandbox)?;
    if parts.iter().all(|part| part.changes.is_empty()) && !args.keep {
        return sandbox.remove();
    }
    if args.commit && status == 0 {
        return commit(sandbox, &parts, args);
    }
    if args.commit {
        warn(&format!("the command failed ({status}): nothing is committed"));
    } else if !args.keep && ask::is_possible() {
        return ask(sandbox, &parts, args);
    }
    kept(&sandbox, &parts, args);
    Ok(())
}

/// Drops a new sandbox whose command did not run, unless something was written in it.
pub(super) fn forget(sandbox: Sandbox, args: &RunArgs) {
    match parts(&sandbox) {
        Ok(parts) if parts.iter().all(|part| part.changes.is_empty()) => {
            if sandbox.is_new {
                let _kept = sandbox.remove();
            }
        }
        Ok(parts) => kept(&sandbox, &parts, args),
        Err(_) => {}
    }
}

fn ask(sandbox: Sandbox, parts: &[Part], args: &RunArgs) -> Result<(), Failure> {
    ask::show(summary::brief(parts).as_bytes());
    loop {
        match ask::ask() {
            Answer::Commit => return commit(sandbox, parts, args),
            Answer::Discard => return sandbox.remove(),
            Answer::Show => ask::show(&summary::full(parts, true, true)?),
            Answer::Keep => break,
        }
    }
    kept(&sandbox, parts, args);
    Ok(())
}

/// Tells how to go on with a sandbox that is kept.
fn kept(sandbox: &Sandbox, parts: &[Part], args: &RunArgs) {
    let count: usize = parts.iter().map(|part| part.changes.len()).sum();
    let dir = args.dir.as_ref().map(|dir| format!(" --dir {}", dir.display())).unwrap_or_default();
    let name = &sandbox.name;
    let changes = if count == 1 { "change" } else { "changes" };
    warn(&format!(
        "{count} {changes} kept in sandbox {name}; go on with strata run{dir} --sandbox={name} and --diff, --commit or --discard"
    ));
}

/// Returns the changes below each mount point of the sandbox. A mount that can't be used, and in
/// which nothing was written, is skipped with a warning: it is nobody's business here.
fn parts(sandbox: &Sandbox) -> Result<Vec<Part>, Failure> {
    let rootless = super::is_rootless();
    let mounts = survey::mounts();
    let mut parts = Vec::new();
    for (number, point) in sandbox.record.points.iter().enumerate() {
        let (upper, point) = (sandbox.branch(number), PathBuf::from(point));
        if !upper.exists() {
            continue;
        }
        let mounted = mounts.iter().find(|mount| mount.point == point);
        let is_mounted = mounted.is_some();
        let part = match mounted {
            None => Err(no_mount_point(&point)),
            Some(mount) if !mount.answers => Err(does_not_answer(&point)),
            Some(_) => part(&upper, &point, rootless),
        };
        match part {
            Ok(part) => parts.push(part),
            Err(failure) if is_unused(&upper) => warn(&format!("{}; nothing was written there", failure.reason)),
            // The changes belong to a file system that is not mounted, not to what is there now.
            Err(failure) if !is_mounted => {
                return Err(failure.map(|reason| {
                    format!("{reason}, but has changes in the sandbox; mount the file system again, or use --discard")
                }));
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(parts)
}

fn part(upper: &Path, point: &Path, rootless: bool) -> Result<Part, Failure> {
    let branches = branches(upper, point, rootless)?;
    let changes = branches.changes().map_err(|error| at(point, &error))?;
    Ok(Part { point: point.to_owned(), branches, changes })
}

fn no_mount_point(point: &Path) -> Failure {
    Failure::system(format!("{}: is no mount point any more", point.display()))
}

fn does_not_answer(point: &Path) -> Failure {
    Failure::system(format!("{}: the mount does not answer", point.display()))
}

/// Whether a branch has at most records that a union leaves although nothing was written.
fn is_unused(upper: &Path) -> bool {
    let leaves = [".wh..wh.ident", ".wh..wh.ident.new", ".wh..wh.work", ".wh..wh.moved", ".wh..wh.metacopies"];
    let is_left = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| leaves.iter().any(|name| entry.file_name() == *name))
    };
    std::fs::read_dir(upper).is_ok_and(|mut entries| entries.all(is_left))
}

fn branches(upper: &Path, point: &Path, rootless: bool) -> Result<Branches, Failure> {
    let open = |path: &Path| {
        let options = HostOptions { hide_mounts: true, ..HostOptions::default() };
        HostFs::open(path, options).map_err(|error| Failure::mount(error.to_string()))
    };
    let (mut lower, mut top): (Arc<dyn Layer>, Arc<dyn Layer>) = (open(point)?, open(upper)?);
    if rootless {
        let of_user = |layer| Template::over(layer).operations(Writable::current());
        lower = of_user(lower).attributes(AsCopied::current()).build().map_err(Failure::system)?;
        top = of_user(top).attributes(Unmarked).build().map_err(Failure::system)?;
    }
    if temp_names::are_needed(point) {
        lower = Template::over(lower).names(TempNames).build().map_err(Failure::system)?;
    }
    let upper = Source { layer: top, path: upper.to_owned() };
    Ok(Branches::new(upper, vec![Source { layer: lower, path: point.to_owned() }], Floor::Ground))
}

/// Applies all changes to the host, and removes the sandbox if that succeeds.
fn commit(sandbox: Sandbox, parts: &[Part], args: &RunArgs) -> Result<(), Failure> {
    let since = SystemTime::UNIX_EPOCH + Duration::from_nanos(sandbox.record.created);
    let options = CommitOptions { force: args.force, since: Some(since), ..CommitOptions::default() };
    if !args.force {
        check_conflicts(parts, since)?;
    }
    let total: usize = parts.iter().map(|part| part.changes.len()).sum();
    let mut progress = Progress::on_terminal("changes committed", || total as u64);
    let mut failed = Vec::new();
    let mut before = 0;
    for part in parts {
        let mut report = |now: changes::Progress<'_>| {
            if let Some(progress) = &mut progress {
                progress.show((before + now.done) as u64);
            }
        };
        let outcome: Outcome =
            part.branches.commit(&Selection::all(), &options, &mut report).map_err(|error| at(&part.point, &error))?;
        before += part.changes.len();
        failed.extend(outcome.failed.iter().map(|failed| summary::failed(&part.point, failed)));
    }
    drop(progress);
    let Some(first) = failed.first() else { return sandbox.remove() };
    failed.iter().skip(1).for_each(|line| warn(line));
    Err(Failure::system(format!("{first}; {} of {total} changes could not be committed", failed.len())))
}

/// Fails if a file has changed both on the host and in the sandbox: before anything is committed,
/// below whichever mount point.
fn check_conflicts(parts: &[Part], since: SystemTime) -> Result<(), Failure> {
    let mut lines = Vec::new();
    for part in parts {
        let found = part.branches.conflicts(&Selection::all(), Some(since)).map_err(|error| at(&part.point, &error))?;
        lines.extend(found.iter().map(|conflict| summary::conflict(&part.point, conflict)));
    }
    if lines.is_empty() {
        return Ok(());
    }
    lines.iter().for_each(|line| warn(line));
    Err(Failure::system(format!(
        "{} paths have changed on the host too: nothing is committed; --commit --force overwrites them",
        lines.len()
    )))
}

fn at(point: &Path, error: &Error) -> Failure {
    Failure::system(format!("{}: {error}", point.display()))
}

fn of_sandbox(failure: Failure) -> Failure {
    Failure { exit: Exit::SandboxFailed, ..failure }
}

/// Returns the list of sandboxes as text or JSON.
pub(super) fn list(all: &[(String, Record, bool)], json: bool) -> String {
    if json { summary::json_of_list(all) } else { summary::text_of_list(all) }
}
