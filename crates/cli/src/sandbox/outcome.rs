//! What happens with the changes of a sandbox: they are shown, committed, discarded or kept.

use super::args::RunArgs;
use super::ask::{self, Answer};
use super::front::warn;
use super::owner::{AsCopied, Unmarked, Writable};
use super::store::{Record, Sandbox};
use super::temp_names::{self, TempNames};
use super::{summary, survey};
use crate::exit::{Exit, Failure};
use crate::mountinfo;
use crate::progress::Progress;
use crate::tool::print;
use changes::{
    Branches, Change, ChangeKind, CommitOptions, Error, Failed, Floor, JOURNAL, OWN_FILES, Outcome, Selection, Source,
};
use hostfs::{HostFs, HostOptions};
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use unionfs::offline::{LINK_INDEX, RENAMED};
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
    /// What this user may not read in the sandbox.
    unreadable: Vec<Failed>,
}

impl Part {
    /// Whether nothing was written, as far as that is known.
    fn is_unchanged(&self) -> bool {
        self.changes.is_empty() && self.unreadable.is_empty()
    }
}

/// Does what the arguments ask for with a sandbox in which no command runs.
pub(super) fn act(sandbox: Sandbox, args: &RunArgs) -> Result<u8, Failure> {
    if args.discard && args.paths.is_empty() {
        return drop_all(sandbox).map(|()| 0).map_err(of_sandbox);
    }
    let parts = Wanted::of(parts(&sandbox).map_err(of_sandbox)?, &args.paths)?;
    if args.commit {
        return commit(sandbox, &parts, args).map(|()| 0).map_err(of_sandbox);
    }
    if args.discard {
        return discard(sandbox, &parts, args).map(|()| 0).map_err(of_sandbox);
    }
    parts.warn_unreadable();
    let parts = parts.selected();
    let text = if args.json {
        summary::json(&parts).into_bytes()
    } else {
        summary::full(&parts, args.patch, std::io::stdout().is_terminal())?
    };
    print(text).map(|()| 0)
}

/// The changes that a user has selected.
struct Wanted {
    /// Each with the selected paths below its mount point; `None` if there are none.
    parts: Vec<(Part, Option<Selection>)>,
    /// Whether everything is selected.
    is_all: bool,
}

impl Wanted {
    /// Selects everything.
    fn all(parts: Vec<Part>) -> Self {
        Self { parts: parts.into_iter().map(|part| (part, Some(Selection::all()))).collect(), is_all: true }
    }

    /// Selects what was written at these paths of the host, and below them. Without any,
    /// everything.
    fn of(parts: Vec<Part>, paths: &[OsString]) -> Result<Self, Failure> {
        if paths.is_empty() {
            return Ok(Self::all(parts));
        }
        let paths = paths.iter().map(|path| absolute(Path::new(path))).collect::<Result<Vec<_>, _>>()?;
        if let Some(path) = paths.iter().find(|path| !parts.iter().any(|part| is_changed(part, path))) {
            let path = path.display();
            return Err(Failure::usage(format!(
                "{path}: nothing was written there in the sandbox; --diff shows what was; a command needs -- before it"
            )));
        }
        let select = |part: Part| {
            let below: Vec<_> = paths.iter().filter_map(|path| below(&part.point, path)).collect();
            let selection = (!below.is_empty()).then(|| Selection::of(below));
            (part, selection)
        };
        Ok(Self { parts: parts.into_iter().map(select).collect(), is_all: false })
    }

    fn iter(&self) -> impl Iterator<Item = (&Part, &Selection)> {
        self.parts.iter().filter_map(|(part, selection)| Some((part, selection.as_ref()?)))
    }

    /// Names what could not be read of the selected paths.
    fn warn_unreadable(&self) {
        for (part, selection) in self.iter() {
            for failed in part.unreadable.iter().filter(|failed| selection.covers(&failed.path)) {
                warn(&format!("{}; changes there are not listed", summary::failed(&part.point, failed)));
            }
        }
    }

    /// Returns the number of selected changes.
    fn count(&self) -> usize {
        self.iter()
            .map(|(part, selection)| part.changes.iter().filter(|change| selection.includes(change)).count())
            .sum()
    }

    /// Returns the parts with the selected changes only.
    fn selected(self) -> Vec<Part> {
        let selected = self.parts.into_iter().filter_map(|(part, selection)| Some((part, selection?)));
        selected
            .map(|(mut part, selection)| {
                part.changes.retain(|change| selection.includes(change));
                part
            })
            .collect()
    }
}

/// Whether something was written at a path of the host, or below it. If it is part of a whole that
/// was removed, renamed or replaced, the commit says so.
fn is_changed(part: &Part, path: &Path) -> bool {
    let Some(below) = below(&part.point, path) else { return false };
    let selection = Selection::of([below]);
    let is_unreadable = part.unreadable.iter().any(|failed| selection.reaches(&failed.path));
    is_unreadable
        || part.changes.iter().any(|change| {
            let is_whole = !matches!(change.kind, ChangeKind::Added | ChangeKind::Attributes);
            selection.includes(change) || (is_whole && selection.reaches(&change.path))
        })
}

/// Returns the path of the host from the root, without `.` and `..`. It need not exist there.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let wrong = |error: std::io::Error| Failure::usage(format!("{}: {error}", path.display()));
    let mut clean = PathBuf::from("/");
    for part in std::path::absolute(path).map_err(wrong)?.components() {
        match part {
            Component::ParentDir => drop(clean.pop()),
            Component::Normal(name) => clean.push(name),
            _ => {}
        }
    }
    Ok(clean)
}

/// Returns the part of a path below a mount point: empty if it is the mount point or a directory
/// above it.
fn below(point: &Path, path: &Path) -> Option<Vec<u8>> {
    if point.starts_with(path) {
        return Some(Vec::new());
    }
    path.strip_prefix(point).ok().map(|below| below.as_os_str().as_bytes().to_vec())
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
        return drop_all(sandbox);
    }
    let parts = parts(&sandbox)?;
    if parts.iter().all(Part::is_unchanged) && !args.keep {
        return sandbox.remove();
    }
    if args.commit && status == 0 {
        return commit(sandbox, &Wanted::all(parts), args);
    }
    if args.commit {
        warn(&format!("the command failed ({status}): nothing is committed"));
    } else if !args.keep && ask::is_possible() {
        return ask(sandbox, parts, args);
    }
    kept(&sandbox, &parts, args);
    Ok(())
}

/// Drops a new sandbox whose command did not run, unless something was written in it.
pub(super) fn forget(sandbox: Sandbox, args: &RunArgs) {
    match parts(&sandbox) {
        Ok(parts) if parts.iter().all(Part::is_unchanged) => {
            if sandbox.is_new {
                let _kept = sandbox.remove();
            }
        }
        Ok(parts) => kept(&sandbox, &parts, args),
        Err(_) => {}
    }
}

fn ask(sandbox: Sandbox, parts: Vec<Part>, args: &RunArgs) -> Result<(), Failure> {
    ask::show(summary::brief(&parts).as_bytes());
    loop {
        match ask::ask() {
            Answer::Commit => return commit(sandbox, &Wanted::all(parts), args),
            Answer::Discard => return drop_all(sandbox),
            Answer::Show => ask::show(&summary::full(&parts, true, true)?),
            Answer::Keep => break,
        }
    }
    kept(&sandbox, &parts, args);
    Ok(())
}

/// Removes the sandbox with all changes, and what interrupted commits have left on the host.
fn drop_all(sandbox: Sandbox) -> Result<(), Failure> {
    let rootless = super::is_rootless();
    for (number, point) in sandbox.record.points.iter().enumerate() {
        let (upper, point) = (sandbox.branch(number), Path::new(point));
        if !upper.join(OsStr::from_bytes(JOURNAL)).exists() {
            continue;
        }
        match branches(&upper, point, rootless).map(|branches| branches.complete_interrupted()) {
            Ok(Ok(left)) => left.iter().for_each(|failed| warn(&summary::failed(point, failed))),
            Ok(Err(error)) => warn(&at(point, &error).reason),
            Err(failure) => warn(&failure.reason),
        }
    }
    sandbox.remove()
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
    let (changes, unreadable) = branches.readable_changes().map_err(|error| at(point, &error))?;
    Ok(Part { point: point.to_owned(), branches, changes, unreadable })
}

/// Returns the directories that were renamed below a mount point, each with its old path and its
/// present one. Empty if that can't be found out: the union is refused for the same reason then.
pub(super) fn renamed(upper: &Path, point: &Path, rootless: bool) -> Vec<(PathBuf, PathBuf)> {
    if !upper.join(OsStr::from_bytes(RENAMED)).exists() {
        return Vec::new();
    }
    let changes = branches(upper, point, rootless).and_then(|branches| branches.changes().map_err(|e| at(point, &e)));
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let dirs = changes.unwrap_or_default().into_iter().filter(Change::is_dir);
    dirs.filter_map(|change| Some((path(change.from.as_ref()?), path(&change.path)))).collect()
}

fn no_mount_point(point: &Path) -> Failure {
    Failure::system(format!("{}: is no mount point any more", point.display()))
}

fn does_not_answer(point: &Path) -> Failure {
    Failure::system(format!("{}: the mount does not answer", point.display()))
}

/// Whether a branch has at most records that a union leaves although nothing was written.
fn is_unused(upper: &Path) -> bool {
    let is_empty = |dir: &Path| std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none());
    let is_left = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| {
            let name = entry.file_name();
            let is_own = OWN_FILES.contains(&name.as_bytes());
            is_own && (name.as_bytes() != LINK_INDEX || is_empty(&entry.path()))
        })
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
        top = Template::over(top)
            .operations(Writable::of_branch())
            .attributes(Unmarked)
            .build()
            .map_err(Failure::system)?;
    }
    if temp_names::are_needed(point) {
        lower = Template::over(lower).names(TempNames).build().map_err(Failure::system)?;
    }
    let upper = Source { layer: top, path: upper.to_owned() };
    let below = vec![Source { layer: lower, path: point.to_owned() }];
    Ok(Branches::new(upper, below, Floor::Ground).with_mount_points(mountinfo::points_inside(point)))
}

/// Applies changes to the host. Removes the sandbox if that succeeds and no other changes are left.
fn commit(sandbox: Sandbox, wanted: &Wanted, args: &RunArgs) -> Result<(), Failure> {
    let since = SystemTime::UNIX_EPOCH + Duration::from_nanos(sandbox.record.created);
    let options = CommitOptions { force: args.force, since: Some(since), ..CommitOptions::default() };
    if !args.force {
        check_conflicts(wanted, since)?;
    }
    let step = |part: &Part, selection: &Selection, report: &mut dyn FnMut(changes::Progress<'_>)| {
        part.branches.commit(selection, &options, report)
    };
    each(sandbox, wanted, args, "committed", &step)
}

/// Drops changes. Removes the sandbox if no others are left.
fn discard(sandbox: Sandbox, wanted: &Wanted, args: &RunArgs) -> Result<(), Failure> {
    let step = |part: &Part, selection: &Selection, report: &mut dyn FnMut(changes::Progress<'_>)| {
        part.branches.discard(selection, false, report)
    };
    each(sandbox, wanted, args, "discarded", &step)
}

/// Commits or discards the changes of one part.
type Step<'a> = dyn Fn(&Part, &Selection, &mut dyn FnMut(changes::Progress<'_>)) -> Result<Outcome, Error> + 'a;

/// Does a step for each part.
fn each(sandbox: Sandbox, wanted: &Wanted, args: &RunArgs, done: &str, step: &Step<'_>) -> Result<(), Failure> {
    let total = wanted.count();
    let mut progress = Progress::on_terminal("changes", || total as u64);
    let mut failed = Vec::new();
    let mut before = 0;
    for (part, selection) in wanted.iter() {
        let mut report = |now: changes::Progress<'_>| {
            if let Some(progress) = &mut progress {
                progress.show((before + now.done) as u64);
            }
        };
        let outcome = step(part, selection, &mut report).map_err(|error| at(&part.point, &error))?;
        before += part.changes.len();
        failed.extend(outcome.failed.iter().map(|failed| summary::failed(&part.point, failed)));
    }
    drop(progress);
    if let Some(first) = failed.first() {
        failed.iter().skip(1).for_each(|line| warn(line));
        return Err(Failure::system(format!("{first}; {} of {total} changes could not be {done}", failed.len())));
    }
    if !wanted.is_all {
        let left = parts(&sandbox)?;
        if !left.iter().all(Part::is_unchanged) {
            kept(&sandbox, &left, args);
            return Ok(());
        }
    }
    sandbox.remove()
}

/// Fails if a file has changed both on the host and in the sandbox: before anything is committed,
/// below whichever mount point.
fn check_conflicts(wanted: &Wanted, since: SystemTime) -> Result<(), Failure> {
    let mut lines = Vec::new();
    for (part, selection) in wanted.iter() {
        let found = part.branches.conflicts(selection, Some(since)).map_err(|error| at(&part.point, &error))?;
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
