//! Commit: changes move from the upper branch to the target.

use crate::branches::{Branches, Views, cx};
use crate::change::{Change, ChangeKind, Conflict};
use crate::error::{At, Error, Failed};
use crate::find::{Found, unreadable_within, upper_part};
use crate::journal::Journal;
use crate::ops::{is_dir, is_within, lookup, resolve, resolve_dir, split};
use crate::select::Selection;
use crate::target::{Target, directories};
use std::collections::BTreeSet;
use std::time::SystemTime;
use vnode::{Errno, Kind};

/// How a commit behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitOptions {
    /// Commit also where the file below has changed meanwhile. Otherwise nothing is committed if
    /// there is any such file.
    pub force: bool,
    /// Leave out the changes whose file below has changed meanwhile, and commit the others.
    pub skip_conflicts: bool,
    /// When the upper branch began, if that is known. Files below that changed later are conflicts.
    /// Otherwise the time of birth of the upper branch's version of each file is used.
    pub since: Option<SystemTime>,
    /// The target may have got files from other branches meanwhile, by earlier commits. These keep
    /// their modification time, so that time is compared instead of the change time.
    pub merging: bool,
    /// Find out what would be done, but change nothing.
    pub dry_run: bool,
}

/// The state of a commit or discard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// Number of changes that are done.
    pub done: usize,
    /// Number of changes.
    pub total: usize,
    /// The path of the next change, in the union.
    pub path: &'a [u8],
    /// Size of the file that is copied next, in bytes.
    pub bytes: u64,
}

/// The result of a commit or discard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The changes that were made, or would be made. They include those that can't be separated
    /// from the selected ones: both paths of a renamed object, all names of a file.
    pub done: Vec<Change>,
    /// The changes that failed. They remain in the upper branch.
    pub failed: Vec<Failed>,
    /// The changes that were left out or made in spite of a conflict.
    pub conflicts: Vec<Conflict>,
}

/// The changes that a commit makes.
struct Choice {
    work: Vec<Change>,
    /// The paths of the selected changes that it does not make.
    left_out: Vec<Vec<u8>>,
    /// Those of them that it can't make.
    impossible: Vec<Failed>,
}

impl Branches {
    /// Moves the selected changes to the target: the branch right of the upper one. The union of
    /// all branches does not change.
    ///
    /// If a change fails, the others are made nevertheless: see [`Outcome::failed`]. A commit that
    /// was killed is completed by the next one.
    ///
    /// # Errors
    /// [`Error::Conflicts`] and other reasons not to begin; a step that concerns all changes.
    pub fn commit(
        &self,
        selection: &Selection,
        options: &CommitOptions,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Outcome, Error> {
        let cx = cx();
        let upper = self.upper_root();
        let (interrupted, left) = match options.dry_run {
            true => (Journal::read(&cx, &upper).at("read the journal", b"")?, Vec::new()),
            false => self.recover()?,
        };
        if !options.dry_run {
            self.note_copy()?;
        }
        let mut views = self.views()?;
        let mut found = self.find(&views)?;
        let began = interrupted.as_ref().map(|journal| journal.began);
        let criteria = self.criteria(options.since, began, options.merging)?;
        selection.check(&found.changes)?;
        let mut selection = selection.clone().close_for_commit(&found.changes, &found.groups);
        self.check_given(&views, &selection)?;
        let before = self.conflicts_of(&views, &found.changes, &criteria)?;
        let conflicts: Vec<_> = before.iter().filter(|conflict| selection.covers(&conflict.path)).cloned().collect();
        if !conflicts.is_empty() && !options.force && !options.skip_conflicts {
            return Err(Error::Conflicts(conflicts));
        }
        let unreadable = unreadable(&views, &found, &selection)?;
        let choice = self.choose(&found, &selection, &conflicts, &unreadable, options);
        if options.dry_run {
            return Ok(Outcome { done: choice.work, failed: choice.impossible, conflicts });
        }
        // A power failure meanwhile must not take what was recorded before.
        for source in [&self.upper].into_iter().chain(self.below.first()) {
            source.layer.sync(&cx).at("write the branches to the disk", b"")?;
        }
        let mut journal = interrupted.unwrap_or_else(Journal::new);
        let mut work = choice.work.clone();
        let mut unfolded: BTreeSet<Vec<u8>> = BTreeSet::new();
        loop {
            let renamed = work.iter().filter(|change| change.moves_dir()).map(|change| change.path.clone());
            let renamed: Vec<_> = renamed.filter(|path| unfolded.insert(path.clone())).collect();
            let names = self.names_without_entry(&views, &found, &work)?;
            let names: Vec<_> = names.into_iter().filter(|path| unfolded.insert(path.clone())).collect();
            if renamed.is_empty() && names.is_empty() {
                break;
            }
            journal.write(&cx, &upper).at("write the journal", b"")?;
            self.unfold(&renamed, &names)?;
            views = self.views()?;
            found = self.find(&views)?;
            // Files in the renamed directories may have other names elsewhere, also in directories
            // that are renamed.
            selection = selection.close_for_commit(&found.changes, &found.groups);
            work = self.choose(&found, &selection, &conflicts, &unreadable, options).work;
        }
        if !unfolded.is_empty() {
            // A power failure must not take the new entries once the target's files, by whose
            // numbers the names led to the copies, are replaced.
            self.upper.layer.sync(&cx).at("write the branches to the disk", b"")?;
        }
        let mut excluded: Vec<_> = choice.impossible.iter().map(|failed| failed.path.clone()).collect();
        let mut outcome = Outcome { done: choice.work, failed: choice.impossible, conflicts };
        journal.add(work.iter().flat_map(directories));
        journal.write(&cx, &upper).at("write the journal", b"")?;
        let touched = self.touched(&views, &work)?;
        let mut target = Target::new(self, &views, &found.groups)?;
        for (at, change) in work.iter().enumerate() {
            let bytes = change.after.filter(|_| change.content).map_or(0, |facts| facts.size);
            progress(Progress { done: at, total: work.len(), path: &change.path, bytes });
            if let Err(failed) = target.apply(change) {
                outcome.failed.push(failed);
            }
        }
        let is_left_out = |path: &[u8]| choice.left_out.iter().any(|out| is_within(path, out));
        for path in found.times.iter().filter(|path| selection.covers(path) && !is_left_out(path)) {
            if let Err(failed) = target.take_times(path) {
                // Not a change that anybody asked for, if the directory is not writable.
                tracing::debug!(%failed, "could not set the times of a directory");
            }
        }
        if !options.force {
            excluded.extend(outcome.conflicts.iter().map(|conflict| conflict.path.clone()));
        }
        self.push_marks(&views, &mut target, &selection, &excluded)?;
        if options.merging {
            found.unchanged.iter().try_for_each(|path| target.take_unchanged(path))?;
        }
        let known = target.known();
        target.finish()?;
        let mut still_left = Vec::new();
        if outcome.failed.is_empty() && left.is_empty() {
            self.prune_index_of_target()?;
        } else {
            still_left = self.clean_target(&journal)?;
        }
        journal.set_left(&still_left);
        if options.merging && !known.is_empty() {
            // Newer branches, which are not given, may know any file by its number.
            self.below_writable()?.keep_known_as(&cx, &known).at("write the identity log", b"")?;
        }
        journal.set_published(&selection);
        journal.write(&cx, &upper).at("write the journal", b"")?;
        self.prune_except(&selection, &found.groups, &outcome.failed, true)?;
        self.correct_link_counts()?;
        outcome.done.retain(|change| !outcome.failed.iter().any(|failed| failed.path == change.path));
        if outcome.failed.is_empty() {
            self.record_own_times(&before, &touched, &criteria)?;
            self.end_run(journal)?;
        }
        outcome.failed.extend(still_left);
        Ok(outcome)
    }

    /// Returns the names of the files to commit that lead to a copy in the upper branch by the
    /// index of hard links only. Nothing would hide them on the target while its files are
    /// replaced.
    fn names_without_entry(&self, views: &Views, found: &Found, work: &[Change]) -> Result<Vec<Vec<u8>>, Error> {
        let cx = cx();
        let committed: BTreeSet<&[u8]> = work.iter().map(|change| &*change.path).collect();
        let groups = found.groups.iter().filter(|group| group.iter().any(|path| committed.contains(&**path)));
        let mut names = Vec::new();
        // The only name of a file that had several.
        let sole = found.indexed.iter().filter(|path| committed.contains(&***path));
        for path in groups.flatten().chain(sole) {
            let Some(file) = resolve(&cx, &views.all.root(), path).at("look up", path)? else { continue };
            if is_dir(&file) || views.all.lower(&file).at("look up", path)?.0 != 0 {
                continue;
            }
            let (parent, name) = split(path);
            let dir = resolve_dir(&cx, &views.all.root(), parent).at("look up", parent)?;
            let own = dir.map(|dir| upper_part(views, &dir)).transpose().at("look up", parent)?.flatten();
            let entry = own.map(|own| lookup(&cx, &own, name)).transpose().at("look up", path)?.flatten();
            if entry.is_none() {
                names.push(path.clone());
            }
        }
        Ok(names)
    }
}

impl Branches {
    /// Chooses the changes to make. `unreadable`: what this user may not read of the selected ones.
    fn choose(
        &self,
        found: &Found,
        selection: &Selection,
        conflicts: &[Conflict],
        unreadable: &[Failed],
        options: &CommitOptions,
    ) -> Choice {
        let skipped = |change: &Change| !options.force && conflicts.iter().any(|conflict| conflict.path == change.path);
        let selected: Vec<&Change> = found.changes.iter().filter(|change| selection.includes(change)).collect();
        let impossible = with_dependents(found, &selected, |change| {
            self.mounted_in_removed(change).is_some() || unreadable.iter().any(|failed| failed.path == change.path)
        });
        let mut left_out = with_dependents(found, &selected, skipped);
        left_out.extend(&impossible);
        let chosen = selected.iter().filter(|change| !left_out.contains(&*change.path));
        let mut work: Vec<Change> = chosen.copied().cloned().collect();
        // A directory is created with its first entry; its own attributes come last, so that a
        // read-only one can be filled by an ordinary user.
        work.sort_by_key(|change| (change.kind == ChangeKind::Attributes && change.is_dir()).then_some(()));
        let refused = |path: &&[u8]| {
            if let Some(failed) = unreadable.iter().find(|failed| failed.path == **path) {
                return failed.clone();
            }
            let own = selected.iter().filter(|change| change.path == *path);
            let step = own.filter_map(|change| self.mounted_in_removed(change)).next();
            let step = step.unwrap_or("commit it before the change that it depends on");
            Failed { path: path.to_vec(), step, errno: Errno::BUSY }
        };
        let others = unreadable.iter().filter(|failed| !impossible.contains(&*failed.path)).cloned();
        let impossible = impossible.iter().map(refused).chain(others).collect();
        Choice { work, left_out: left_out.into_iter().map(<[u8]>::to_vec).collect(), impossible }
    }

    /// Returns the step that is impossible if a change removes a directory of the target in which a
    /// file system is mounted. Files removed there, before that step fails, would be lost.
    fn mounted_in_removed(&self, change: &Change) -> Option<&'static str> {
        let was_dir = change.before.is_some_and(|facts| facts.kind == Kind::Directory);
        let is_dir = change.after.is_some_and(|facts| facts.kind == Kind::Directory);
        let (path, step) = match (change.kind, &change.from) {
            (ChangeKind::Renamed, Some(from)) => (from, "remove its old directory, in which a file system is mounted"),
            (ChangeKind::Removed, _) => (&change.path, "remove the directory, in which a file system is mounted"),
            (ChangeKind::Changed, _) if !is_dir => {
                (&change.path, "replace the directory, in which a file system is mounted")
            }
            _ => return None,
        };
        (was_dir && self.is_mounted_within(path)).then_some(step)
    }
}

/// Returns what this user may not read of the selected changes, and the directories that were
/// renamed with something unreadable in them.
fn unreadable(views: &Views, found: &Found, selection: &Selection) -> Result<Vec<Failed>, Failed> {
    let mut all: Vec<_> = found.unreadable.iter().filter(|failed| selection.covers(&failed.path)).cloned().collect();
    for change in found.changes.iter().filter(|change| change.moves_dir() && selection.includes(change)) {
        let path = &change.path;
        let Some(dir) = resolve_dir(&cx(), &views.all.root(), path).at("look up", path)? else { continue };
        if let Some(Failed { errno, .. }) = unreadable_within(&cx(), path, &dir)? {
            all.push(Failed { path: path.clone(), step: "read all that is in the renamed directory", errno });
        }
    }
    Ok(all)
}

/// Returns the paths of the changes for which `starts` holds, and of those that depend on one.
fn with_dependents<'a>(
    found: &'a Found,
    selected: &[&'a Change],
    starts: impl Fn(&Change) -> bool,
) -> BTreeSet<&'a [u8]> {
    let mut paths: BTreeSet<&[u8]> =
        selected.iter().filter(|change| starts(change)).map(|change| &*change.path).collect();
    loop {
        let before = paths.len();
        // The names of a file are committed together.
        let groups = found.groups.iter().filter(|group| group.iter().any(|name| paths.contains(&**name)));
        let names: BTreeSet<&[u8]> = groups.flatten().map(|name| &**name).collect();
        let is_named = |change: &&&Change| names.contains(&*change.path);
        let named: Vec<&[u8]> = selected.iter().filter(is_named).map(|change| &*change.path).collect();
        // A renamed directory that is left out shows what the branches below have at its old path.
        let moves: Vec<&Change> =
            selected.iter().copied().filter(|change| change.moves_dir() && paths.contains(&*change.path)).collect();
        // What has the place of a directory comes after its removal.
        let replaced: Vec<&Change> = selected
            .iter()
            .copied()
            .filter(|change| change.kind == ChangeKind::Removed && change.is_dir() && paths.contains(&*change.path))
            .collect();
        let concerned = |change: &&&Change| {
            moves.iter().any(|moved| concerns(change, moved))
                || replaced.iter().any(|removed| is_within(&change.path, &removed.path))
        };
        paths.extend(selected.iter().filter(concerned).map(|change| &*change.path));
        paths.extend(named);
        if paths.len() == before {
            return paths;
        }
    }
}

/// Whether a change is one in a renamed directory, or alters on the target what that shows.
fn concerns(change: &Change, moved: &Change) -> bool {
    let replaces = !matches!(change.kind, ChangeKind::Attributes | ChangeKind::Added);
    let alters = |path: &[u8], dir: &[u8]| (is_within(path, dir) && path != dir) || (is_within(dir, path) && replaces);
    let paths = || [Some(&change.path), change.from.as_ref()].into_iter().flatten();
    let on_target = moved.from.as_ref().is_some_and(|from| paths().any(|path| alters(path, from)));
    on_target || is_within(&change.path, &moved.path)
}
