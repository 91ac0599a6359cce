//! `versionctl restore`: brings back files, directories, and what a process or an hour changed.

use super::args::{Chosen, FilterArgs, Now, absent, choose, instant, tag_time};
use super::client::{Dir, at};
use super::diff::{newest, newest_content};
use super::history::{Filter, Found, Undo, Visited, entries, undo, walk};
use super::links::{self, Links, State};
use super::place::{self, Past, Place, nearest, past};
use super::put::{self, Origin, Put, put};
use super::text::{reason, shown};
use super::when::{When, local};
use crate::exit::{Exit, Failure};
use crate::progress::Tally;
use crate::tool::print;
use clap::Args;
use jiff::Timestamp;
use rustix::fs::{FileType, Mode, Stat};
use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use versionclient::{Kind, Lost, Version, Who};

/// In a removed directory, what the same session removed up to this many seconds before belongs to
/// the removal.
const SAME_REMOVAL: i64 = 60;

/// `restore`
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The file or directory; it may be removed. With --process and the like: where to search.
    #[arg(required_unless_present_any = ["all", "process", "pid", "session", "since", "user"])]
    path: Option<PathBuf>,
    /// The version: a number, a time or a tag. Default: the newest one with another content than
    /// the present file. Or more files and directories to restore.
    #[arg(value_name = "VERSION|PATH", conflicts_with = "all")]
    rest: Vec<OsString>,
    /// Restore the newest version, also if only its owner, mode or other attributes differ.
    #[arg(long, conflicts_with_all = ["at", "all"])]
    any: bool,
    /// Restore the state at this time or tag.
    #[arg(long, value_name = "TIME|TAG")]
    at: Option<String>,
    /// Restore the whole mount. Needs --at.
    #[arg(long, requires = "at")]
    all: bool,
    /// Of a directory: also remove what did not exist then. What is removed becomes a version.
    #[arg(long, requires = "at")]
    delete: bool,
    /// Undo these changes.
    #[command(flatten)]
    filter: FilterArgs,
    /// Also undo changes of files that others have changed since.
    #[arg(long)]
    force: bool,
    /// Restore to this path, and leave the present file as it is.
    #[arg(long, value_name = "PATH")]
    to: Option<PathBuf>,
    /// Only list what would be restored.
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// List every file that is restored.
    #[arg(long, short)]
    verbose: bool,
}

/// Names that are not in the history and are listed without --verbose.
const LISTED: u64 = 10;

/// What is done, and what has been done.
#[derive(Debug)]
struct Restorer {
    dry_run: bool,
    verbose: bool,
    tally: Option<Tally>,
    links: Links,
    /// Whether names get another place than they had, whose history says nothing about them.
    elsewhere: bool,
    /// Whether what did not exist goes, also a directory that has the name of a file.
    deletes: bool,
    files: u64,
    bytes: u64,
    same: u64,
    failed: u64,
    /// What is not in the history.
    missing: u64,
}

/// Runs the command.
///
/// # Errors
/// Names the path and the reason.
pub(crate) fn run(args: &RestoreArgs, now: &Now) -> Result<Exit, Failure> {
    let filter = args.filter.parse(now)?;
    let path = args.path.clone().unwrap_or_else(|| ".".into());
    let mut restorer = Restorer {
        dry_run: args.dry_run,
        verbose: args.verbose || args.dry_run,
        tally: Tally::on_terminal("restored").filter(|_| !args.verbose && !args.dry_run),
        links: Links::default(),
        elsewhere: args.to.is_some(),
        deletes: args.delete,
        files: 0,
        bytes: 0,
        same: 0,
        failed: 0,
        missing: 0,
    };
    if !filter.is_empty() {
        if args.at.is_some() || !args.rest.is_empty() || args.to.is_some() {
            return Err(Failure::usage(
                "--process, --since and the like undo changes: not with --at, --to, a version or a second path",
            ));
        }
        restorer.undo(&path, &filter, args.force)?;
        return restorer.finish();
    }
    if args.all {
        let root = root_of(&path)?;
        let time = instant(args.at.as_deref().unwrap_or_default(), &root, now)?;
        restorer.tree((&root.at(time)?, time), &root, args.delete)?;
        return restorer.finish();
    }
    let (more, which) = args.more(&path, now)?;
    if more.is_empty() {
        restorer.path(args, &path, which, now)?;
        return restorer.finish();
    }
    if args.to.as_ref().is_some_and(|to| !to.is_dir()) {
        return Err(Failure::usage(
            "several files can only be restored to a directory: create it, or restore them one by one",
        ));
    }
    let mut done = HashSet::new();
    for path in std::iter::once(path.as_path()).chain(more) {
        let file = || rustix::fs::lstat(path).ok().filter(|stat| stat.st_nlink > 1).map(|stat| links::inode(&stat));
        if args.to.is_none() && file().is_some_and(|file| done.contains(&file)) {
            print(format!("{}: is another name of a file that is restored\n", shown(path)))?;
            restorer.same += 1;
            continue;
        }
        if let Err(failure) = restorer.path(args, path, None, now) {
            restorer.report(&failure);
        }
        done.extend(file());
    }
    restorer.finish()
}

impl RestoreArgs {
    /// Returns the paths behind the first one, and the version. A single argument that can be both
    /// is the version.
    fn more(&self, path: &Path, now: &Now) -> Result<(Vec<&Path>, Option<&str>), Failure> {
        let parsed = |path: &OsString| path.to_str().and_then(|text| When::parse(text, &now.0).ok());
        if let [only] = &*self.rest
            && let Some(text) = only.to_str().filter(|_| self.at.is_none() && !self.any)
        {
            let is_known = match parsed(only) {
                Some(When::Tag(tag)) => tag == "head" || nearest(path).and_then(|dir| tag_time(&dir, &tag)).is_ok(),
                other => other.is_some(),
            };
            if is_known || !was_there(Path::new(only)) {
                return Ok((Vec::new(), Some(text)));
            }
        }
        let is_version = |path: &OsString| matches!(parsed(path), Some(When::Number(_) | When::Time(_)));
        let wrong = self.rest.iter().find(|path| is_version(path) && !was_there(Path::new(path)));
        wrong.map_or(Ok((self.rest.iter().map(Path::new).collect(), None)), |version| {
            let version = shown(Path::new(version));
            Err(Failure::usage(format!(
                "{version}: no such file; a version goes with one file, without --at and --any"
            )))
        })
    }
}

/// Whether there is something with this path, or was.
fn was_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok() || Place::with_history(path).is_ok_and(|(_, list)| !list.versions.is_empty())
}

/// Returns the highest directory above `path` in the same mount.
fn root_of(path: &Path) -> Result<Dir, Failure> {
    let refused = |path: &Path, error: &std::io::Error| {
        at(path, rustix::io::Errno::from_io_error(error).unwrap_or(rustix::io::Errno::IO))
    };
    let mut here = path.canonicalize().map_err(|error| refused(path, &error))?;
    let device = |path: &Path| rustix::fs::stat(path).map(|stat| stat.st_dev).map_err(|errno| at(path, errno));
    let wanted = device(&here)?;
    while let Some(above) = here.parent().map(Path::to_owned) {
        if device(&above)? != wanted {
            break;
        }
        here = above;
    }
    Dir::open(&here).map_err(|errno| at(&here, errno))
}

impl Restorer {
    /// Restores a file or directory.
    fn path(&mut self, args: &RestoreArgs, path: &Path, wanted: Option<&str>, now: &Now) -> Result<(), Failure> {
        let is_dir = path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
        let which = wanted.filter(|which| *which != "head" && which.parse::<u64>().is_err());
        if let Some(text) = args.at.as_deref().or(which) {
            let time = instant(text, &nearest(path)?, now)?;
            let past = past(path, time)?.ok_or_else(|| absent(path, time, now))?;
            return match past.kind() {
                FileType::Directory => self.directory(args, path, &past, is_dir),
                _ => self.moment(args, path, &past, now),
            };
        }
        if is_dir && wanted.is_none() {
            return Err(Failure::usage(format!(
                "{}: a directory: say when, with --at TIME; or whose changes to undo, with --process, --pid or --since",
                shown(path)
            )));
        }
        let (place, list) = Place::with_history(path)?;
        let chosen = match wanted {
            Some(text) => choose(&place, &list, text, now)?,
            None if args.any => Chosen::Version(Box::new(newest(&place, &list)?)),
            None => Chosen::Version(Box::new(newest_content(&place, &list)?)),
        };
        let Chosen::Version(version) = chosen else {
            if args.to.is_none() {
                return print(format!("{}: it is as it is now\n", shown(path)));
            }
            let (target, name) = self.target(&place, args.to.as_deref())?;
            let origin = Origin { dir: &place.dir, entry: &place.name, mode: None };
            return self.one(origin, State::At(Timestamp::MAX), &target, &name).map(|_| ());
        };
        let what = format!("version {}, until {}", version.number, local(version.died, &now.0));
        if self.dry_run {
            self.files += 1;
            let to = args.to.as_deref().unwrap_or(path);
            return print(format!("{}: would restore {what}\n", shown(to)));
        }
        let (target, name) = self.target(&place, args.to.as_deref())?;
        let token = place.dir.token(&place.name, version.number)?;
        let origin = Origin { dir: &place.dir, entry: &token, mode: Some(version.mode) };
        let put = self.one(origin, State::Version(&version), &target, &name)?;
        if version.kind == Kind::Directory {
            self.removed(&place.dir.old_dir(&place.name, &version)?, (&version, false), &target, &name)?;
        }
        let done = if put == Put::Same && version.kind != Kind::Directory { "is already as" } else { "restored" };
        print(format!("{}: {done} {what}\n", shown(&target.path_of(&name))))
    }

    /// Restores what is no directory as it was at a time.
    fn moment(&mut self, args: &RestoreArgs, path: &Path, past: &Past, now: &Now) -> Result<(), Failure> {
        let place = past.place(path)?;
        if args.to.is_none() && past.is_unchanged(&place)? {
            return print(format!("{}: it is as it was then\n", shown(path)));
        }
        let (target, name) = self.target(&place, args.to.as_deref())?;
        let mode = past.version()?.map(|version| version.mode);
        let origin = Origin { dir: &past.dir, entry: &past.name, mode };
        let put = self.one(origin, State::At(past.time), &target, &name)?;
        let done = if put == Put::Same { "is already as" } else { "restored as" };
        let written = if args.to.is_some() { target.path_of(&name) } else { path.to_owned() };
        let what = format!("{}: {done} of {}\n", shown(&written), local(past.time, &now.0));
        if self.dry_run { Ok(()) } else { print(what) }
    }

    /// Restores a directory as it was at a time. It may exist now.
    fn directory(&mut self, args: &RestoreArgs, path: &Path, past: &Past, is_dir: bool) -> Result<(), Failure> {
        let old = past.dir.child(&past.name).map_err(|errno| at(path, errno))?;
        if is_dir && args.to.is_none() {
            return self.tree((&old, past.time), &place::directory(path)?, args.delete);
        }
        if self.dry_run {
            return self.list_tree((&old, past.time), args.to.as_deref().unwrap_or(path));
        }
        if let Some(to) = &args.to {
            rustix::fs::mkdir(to, Mode::RWXU).map_err(|errno| at(to, errno))?;
            return self.tree((&old, past.time), &place::directory(to)?, false);
        }
        let (target, name) = self.target(&past.place(path)?, None)?;
        self.write(Origin { dir: &past.dir, entry: &past.name, mode: None }, &target, &name)?;
        self.tree((&old, past.time), &target.child(&name).map_err(|errno| at(path, errno))?, false)
    }

    /// Returns the directory and the name to restore to. Parents that were removed are created.
    fn target(&mut self, place: &Place, to: Option<&Path>) -> Result<(Dir, Vec<u8>), Failure> {
        if let Some(to) = to {
            if let Ok(dir) = Dir::open(to) {
                return Ok((dir, place.name.clone()));
            }
            let place = Place::of(to)?;
            return Ok((place.dir, place.name));
        }
        for lost in &place.lost {
            if self.dry_run {
                continue;
            }
            rustix::fs::mkdir(&lost.path, Mode::RWXU).map_err(|errno| at(&lost.path, errno))?;
            let made = Dir::open(&lost.path).map_err(|errno| at(&lost.path, errno))?;
            let old = rustix::fs::fstat(&lost.old).map_err(|errno| at(&lost.path, errno))?;
            put::attributes(&lost.old, &old, &made).map_err(|errno| at(&lost.path, errno))?;
        }
        let dir = Dir::open(&place.dir.path).map_err(|errno| at(&place.dir.path, errno))?;
        Ok((dir, place.name.clone()))
    }

    /// Restores a name: as one of a file that is there already, if it was that.
    fn one(&mut self, origin: Origin<'_>, state: State<'_>, dir: &Dir, name: &[u8]) -> Result<Put, Failure> {
        let old = origin.stat(&dir.path_of(name))?;
        let is_dir = |stat: &Stat| FileType::from_raw_mode(stat.st_mode).is_dir();
        if self.deletes && !is_dir(&old) && dir.stat(name)?.as_ref().is_some_and(is_dir) {
            self.delete(dir, name)?;
        }
        if self.dry_run {
            return self.write(origin, dir, name);
        }
        let file = state.file(&old);
        let joined = file.as_ref().map_or(Ok(None), |file| self.links.join(file, (origin, &old), dir, name))?;
        if let Some(done) = joined {
            return self.count(done, dir, name);
        }
        let is_another = dir.stat(name)?.is_some_and(|present| self.links.is_another(file.as_ref(), &present));
        let replaces = is_another || links::is_other((state, origin), dir, name, self.elsewhere)?;
        // A file that had several names may have been restored before, as the one that is there.
        let may_be_there = replaces && !is_another && file.is_some();
        let is_there = may_be_there && put::is_equal(origin, &old, &dir.path_of(name))?;
        let done = if is_there { Put::Same } else { put(origin, dir, name, replaces)? };
        if FileType::from_raw_mode(old.st_mode).is_file() {
            self.links.note(file, dir, name)?;
        }
        self.count(done, dir, name)
    }

    /// Writes one entry, in place if it exists.
    fn write(&mut self, origin: Origin<'_>, dir: &Dir, name: &[u8]) -> Result<Put, Failure> {
        if self.dry_run {
            self.files += 1;
            print(format!("{}: would restore\n", shown(&dir.path_of(name))))?;
            return Ok(Put::Written(0));
        }
        let done = put(origin, dir, name, false)?;
        self.count(done, dir, name)
    }

    /// Counts and shows what was done.
    fn count(&mut self, done: Put, dir: &Dir, name: &[u8]) -> Result<Put, Failure> {
        match done {
            Put::Same => self.same += 1,
            Put::Written(bytes) => {
                self.files += 1;
                self.bytes += bytes;
                if self.verbose {
                    print(format!("{}: restored\n", shown(&dir.path_of(name))))?;
                }
            }
        }
        if let Some(tally) = &mut self.tally {
            tally.show(self.files, self.bytes);
        }
        Ok(done)
    }

    /// Reports a failure of one of many files.
    fn report(&mut self, failure: &Failure) {
        use std::io::Write as _;
        self.failed += 1;
        self.tally = None;
        let _ = writeln!(std::io::stderr(), "versionctl: {failure}");
    }

    /// Reports a name in the directory `dir` that can't be restored, because its state is not in
    /// the history.
    fn miss(&mut self, dir: &Path, lost: &Lost) {
        use std::io::Write as _;
        self.missing += 1;
        if self.verbose || self.missing <= LISTED {
            self.tally = None;
            let others = if lost.name.is_empty() { "other names that are not known: " } else { "" };
            let path =
                if lost.name.is_empty() { dir.into() } else { dir.join(std::ffi::OsStr::from_bytes(&lost.name)) };
            let reason = reason(lost.why);
            let _ = writeln!(std::io::stderr(), "versionctl: {}: not restored: {others}{reason}", shown(&path));
        }
    }

    /// Restores what was removed together with a directory: by the same process, or, unless that
    /// removed something in it or `is_recursive`, by its session within a minute.
    fn removed(
        &mut self,
        old: &Dir,
        (removal, is_recursive): (&Version, bool),
        dir: &Dir,
        name: &[u8],
    ) -> Result<(), Failure> {
        let target = dir.child(name).map_err(|errno| at(&dir.path_of(name), errno))?;
        let mut last = Vec::new();
        for named in old.names()? {
            let newest = old.list(&named.name)?.and_then(|list| list.versions.last().cloned());
            last.extend(newest.filter(|newest| !newest.is_renamed()).map(|newest| (named, newest)));
        }
        let mut lost = old.lost()?;
        let lost_by = |lost: &Lost| lost.end.as_ref().is_some_and(|(_, by)| is_by(by, removal));
        let is_recursive =
            is_recursive || last.iter().any(|(_, newest)| is_by(&newest.by, removal)) || lost.iter().any(lost_by);
        last.retain(|(_, newest)| belongs((newest.died, &newest.by), removal, is_recursive));
        let first = last.iter().map(|(_, newest)| newest.died).min().unwrap_or(removal.died);
        lost.retain(|lost| {
            let is_there = last.iter().any(|(named, _)| named.name == lost.name);
            !is_there
                && lost.end.as_ref().is_none_or(|(died, by)| match by.pid {
                    // Who removed it is not known.
                    0 => first.as_second().saturating_sub(died.as_second()) <= SAME_REMOVAL,
                    _ => belongs((*died, by), removal, is_recursive),
                })
        });
        lost.iter().for_each(|lost| self.miss(&target.path, lost));
        for (named, newest) in &last {
            let done = old.token(&named.name, newest.number).and_then(|token| {
                let origin = Origin { dir: old, entry: &token, mode: Some(newest.mode) };
                self.one(origin, State::Version(newest), &target, &named.name)?;
                if newest.kind == Kind::Directory {
                    self.removed(&old.old_dir(&named.name, newest)?, (newest, is_recursive), &target, &named.name)?;
                }
                Ok(())
            });
            if let Err(failure) = done {
                self.report(&failure);
            }
        }
        self.directory_times(old, &target)
    }

    /// Sets the time of modification of a directory again, after its entries.
    fn directory_times(&self, old: &Dir, target: &Dir) -> Result<(), Failure> {
        if !self.dry_run {
            let stat = rustix::fs::fstat(old).map_err(|errno| at(&old.path, errno))?;
            put::attributes(old, &stat, target).map_err(|errno| at(&target.path, errno))?;
        }
        Ok(())
    }

    /// Makes a directory as it was at a time.
    fn tree(&mut self, (old, time): (&Dir, Timestamp), target: &Dir, delete: bool) -> Result<(), Failure> {
        let then = entries(old)?;
        let lost = old.lost_at(time, None)?;
        let is_lost = |name: &[u8]| lost.iter().any(|lost| lost.name == name);
        lost.iter().for_each(|lost| self.miss(&target.path, lost));
        let mut changed = Vec::new();
        for (name, _) in then.iter().filter(|(name, _)| !is_lost(name)) {
            match self.changed((old, time), target, name) {
                Ok(None) => self.same += 1,
                Ok(Some(entry)) => changed.push(entry),
                Err(failure) => self.report(&failure),
            }
        }
        // The others become names of the files of those that have kept theirs.
        changed.sort_by_key(|entry| !entry.may_be_same_file);
        for entry in changed {
            if let Err(failure) = self.tree_entry((old, time), target, &entry, delete) {
                self.report(&failure);
            }
        }
        if delete {
            for (name, _) in entries(target)? {
                if then.binary_search_by(|(other, _)| other.cmp(&name)).is_err()
                    && !is_lost(&name)
                    && let Err(failure) = self.delete(target, &name)
                {
                    self.report(&failure);
                }
            }
        }
        self.directory_times(old, target)
    }

    /// Returns an entry that has to be restored. `None` if it is as it was.
    fn changed<'a>(
        &mut self,
        (old, time): (&Dir, Timestamp),
        target: &Dir,
        name: &'a [u8],
    ) -> Result<Option<Changed<'a>>, Failure> {
        let was = Origin { dir: old, entry: name, mode: None }.stat(&target.path_of(name))?;
        let is = target.stat(name)?;
        let is_dir = |stat: &Stat| FileType::from_raw_mode(stat.st_mode).is_dir();
        let file = State::At(time).file(&was);
        let changed = Changed {
            name,
            is_dir: is_dir(&was),
            exists: is.as_ref().is_some_and(is_dir),
            may_be_same_file: file.is_some() && is.is_some_and(|is| is.st_nlink > 1),
        };
        let Some(is) = is.filter(|is| !changed.is_dir && place::is_same(is, &was)) else { return Ok(Some(changed)) };
        if self.dry_run || !FileType::from_raw_mode(is.st_mode).is_file() {
            return Ok(None);
        }
        if self.links.is_another(file.as_ref(), &is) {
            return Ok(Some(changed));
        }
        self.links.note(file, target, name).map(|()| None)
    }

    fn tree_entry(
        &mut self,
        (old, time): (&Dir, Timestamp),
        target: &Dir,
        &Changed { name, is_dir, exists, .. }: &Changed<'_>,
        delete: bool,
    ) -> Result<(), Failure> {
        let path = target.path_of(name);
        if !is_dir || !exists {
            self.one(Origin { dir: old, entry: name, mode: None }, State::At(time), target, name)?;
        }
        if !is_dir {
            return Ok(());
        }
        let below = old.child(name).map_err(|errno| at(&path, errno))?;
        match target.child(name) {
            Ok(here) => self.tree((&below, time), &here, delete),
            // It would have been created.
            Err(_) if self.dry_run => self.list_tree((&below, time), &path),
            Err(errno) => Err(at(&path, errno)),
        }
    }

    /// Lists what would be restored to a directory that does not exist.
    fn list_tree(&mut self, (old, time): (&Dir, Timestamp), path: &Path) -> Result<(), Failure> {
        old.lost_at(time, None)?.iter().for_each(|lost| self.miss(path, lost));
        for (name, _) in entries(old)? {
            let path = path.join(std::ffi::OsStr::from_bytes(&name));
            self.files += 1;
            print(format!("{}: would restore\n", shown(&path)))?;
            if let Ok(below) = old.child(&name) {
                self.list_tree((&below, time), &path)?;
            }
        }
        Ok(())
    }

    /// Removes an entry with everything below.
    fn delete(&mut self, dir: &Dir, name: &[u8]) -> Result<(), Failure> {
        let path = dir.path_of(name);
        let Some(stat) = dir.stat(name)? else { return Ok(()) };
        if FileType::from_raw_mode(stat.st_mode).is_dir() {
            let below = dir.child(name).map_err(|errno| at(&path, errno))?;
            for (name, _) in entries(&below)? {
                self.delete(&below, &name)?;
            }
        }
        self.files += 1;
        if self.verbose {
            let word = if self.dry_run { "would remove" } else { "removed" };
            print(format!("{}: {word}\n", shown(&path)))?;
        }
        if self.dry_run { Ok(()) } else { put::remove(dir, name, &stat) }
    }

    /// Undoes the wanted changes below `path`.
    fn undo(&mut self, path: &Path, filter: &Filter, force: bool) -> Result<(), Failure> {
        let mut plan = Vec::new();
        let is_dir = match path.symlink_metadata() {
            Ok(metadata) => metadata.is_dir(),
            Err(_) => Place::with_history(path)?.1.versions.last().is_some_and(|newest| newest.kind == Kind::Directory),
        };
        if is_dir {
            let mut lost = Vec::new();
            walk(place::directory(path)?, true, &mut |visited| match visited {
                Visited::Dir(dir) => lost.push((dir.path.clone(), lost_by(dir, filter))),
                Visited::Name(found) => plan.extend(Step::of(found, filter)),
            })?;
            for (dir, lost) in lost {
                lost?.iter().for_each(|lost| self.miss(&dir, lost));
            }
        } else {
            let (place, list) = Place::with_history(path)?;
            let Place { dir, name, .. } = place;
            plan.extend(Step::of(Found { path: path.to_owned(), dir: Rc::new(dir), name, list }, filter));
        }
        for step in plan {
            let done = match step {
                Step { changed: true, ref path, .. } if !force => Err(Failure::usage(format!(
                    "{}: not restored: others have changed it since; --force restores it anyway",
                    shown(path)
                ))),
                ref step => self.step(step),
            };
            if let Err(failure) = done {
                self.report(&failure);
            }
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), Failure> {
        let Step { dir, path, name, version, .. } = step;
        if version.is_renamed() {
            return Err(Failure::usage(format!(
                "{}: not restored: it was renamed, not removed; see versionctl log",
                shown(path)
            )));
        }
        if self.dry_run {
            self.files += 1;
            return print(format!("{}: would restore version {}\n", shown(path), version.number));
        }
        let place = Place::of(path)?;
        let (target, _) = self.target(&place, None)?;
        let token = dir.token(name, version.number)?;
        let origin = Origin { dir, entry: &token, mode: Some(version.mode) };
        self.one(origin, State::Version(version), &target, name).map(|_| ())
    }

    /// Prints what was done, of several files.
    fn finish(mut self) -> Result<Exit, Failure> {
        self.tally = None;
        let Self { files, same, failed, missing, .. } = self;
        if missing > LISTED && !self.verbose {
            use std::io::Write as _;
            let more = missing - LISTED;
            let _ = writeln!(std::io::stderr(), "versionctl: and {more} more; --verbose lists them");
        }
        if files + same + failed + missing != 1 {
            let word = if self.dry_run { "would be restored" } else { "restored" };
            let same = if same > 0 { format!(", {same} unchanged") } else { String::new() };
            let failed = if failed > 0 { format!(", {failed} not restored") } else { String::new() };
            let missing = if missing > 0 { format!(", {missing} not in the history") } else { String::new() };
            print(format!(
                "{files} {}{word}{same}{failed}{missing}\n",
                if files == 1 { "object " } else { "objects " }
            ))?;
        }
        Ok(if failed + missing > 0 { Exit::Partial } else { Exit::Success })
    }
}

/// Returns what the wanted changes removed from a directory that is not in the history, and not
/// there again.
fn lost_by(dir: &Dir, filter: &Filter) -> Result<Vec<Lost>, Failure> {
    let mut lost = dir.lost()?;
    lost.retain(|lost| lost.end.as_ref().is_some_and(|(died, by)| filter.admits_change(*died, by)));
    if !dir.is_old {
        lost.retain(|lost| lost.name.is_empty() || !matches!(dir.stat(&lost.name), Ok(Some(_))));
    }
    Ok(lost)
}

/// Whether it was the process that removed a directory.
fn is_by(by: &Who, removal: &Version) -> bool {
    removal.by.pid != 0 && by.pid == removal.by.pid
}

/// Whether what was removed at a time belongs to the removal of its directory. A process that
/// removes a directory with what is in it, `is_recursive`, has removed all of that itself. What
/// went before, such as temporary files of a program, is no part of the removal.
fn belongs((died, by): (Timestamp, &Who), removal: &Version, is_recursive: bool) -> bool {
    let Who { pid, sid, .. } = removal.by;
    let recent = removal.died.as_second().saturating_sub(died.as_second()) <= SAME_REMOVAL;
    pid == 0 || is_by(by, removal) || (!is_recursive && sid != 0 && by.sid == sid && recent)
}

/// An entry of a past directory that is not as it was.
#[derive(Debug)]
struct Changed<'a> {
    name: &'a [u8],
    /// Whether it was a directory.
    is_dir: bool,
    /// Whether a directory has the name now.
    exists: bool,
    /// Whether it had several names, and the file that has the name now has others, too.
    may_be_same_file: bool,
}

/// A change to undo.
#[derive(Debug)]
struct Step {
    dir: Rc<Dir>,
    path: PathBuf,
    name: Vec<u8>,
    version: Version,
    /// Others have changed the file since.
    changed: bool,
}

impl Step {
    fn of(found: Found, filter: &Filter) -> Option<Self> {
        let (version, changed) = match undo(&found.list, filter) {
            Undo::Nothing => return None,
            Undo::To(version) => (version.clone(), false),
            Undo::Changed(version) => (version.clone(), true),
        };
        let Found { dir, path, name, .. } = found;
        // In a directory that was removed: somebody created the file again.
        let changed = changed || dir.is_old && path.symlink_metadata().is_ok();
        Some(Self { dir, path, name, version, changed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_a_removal() {
        let list = versionclient::list(crate::versionctl::tests::LIST).unwrap();
        let [write, removal] = &*list.versions else { panic!() };
        assert!(belongs((removal.died, &removal.by), removal, true));
        // The same session, but long before.
        assert!(!belongs((write.died, &write.by), removal, false));
        let unknown = Version { by: Who { pid: 0, sid: 0, ..removal.by.clone() }, ..removal.clone() };
        assert!(belongs((write.died, &write.by), &unknown, true));
        let soon = (removal.died, &write.by);
        assert!(belongs(soon, removal, false) && !belongs(soon, removal, true));
    }

    #[test]
    fn the_root_of_a_mount_is_found() {
        assert_eq!(root_of(Path::new("/proc/self")).unwrap().path, Path::new("/proc"));
        assert!(root_of(Path::new("/no such path")).is_err());
    }
}
