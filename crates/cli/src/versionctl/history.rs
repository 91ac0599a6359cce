//! Events of files and directories: what `versionctl log` shows, and what a restore undoes.

use super::client::Dir;
use crate::exit::Failure;
use jiff::Timestamp;
use std::path::PathBuf;
use std::rc::Rc;
use versionclient::{Kind, List, Named, Version, Who};

/// Deepest directory that is searched.
const MAX_DEPTH: usize = 4096;

/// Which events are wanted. An absent condition is fulfilled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    pub(crate) since: Option<Timestamp>,
    pub(crate) until: Option<Timestamp>,
    pub(crate) uid: Option<u32>,
    /// The process name; the kernel cuts names to 15 bytes.
    pub(crate) process: Option<Vec<u8>>,
    pub(crate) pid: Option<u32>,
    pub(crate) session: Option<u32>,
}

impl Filter {
    /// Whether the change that ended the version is wanted.
    pub(crate) fn admits(&self, version: &Version) -> bool {
        self.admits_change(version.died, &version.by)
    }

    /// Whether a change at this time by this process is wanted.
    pub(crate) fn admits_change(&self, time: Timestamp, by: &Who) -> bool {
        let is = |wanted: Option<u32>, found| wanted.is_none_or(|wanted| wanted == found);
        self.since.is_none_or(|since| since <= time)
            && self.until.is_none_or(|until| time <= until)
            && is(self.uid, by.uid)
            && is(self.pid, by.pid)
            && is(self.session, by.sid)
            && self.process.as_ref().is_none_or(|name| name.get(..15).unwrap_or(name) == by.comm)
    }

    /// Whether everything is wanted.
    pub(crate) fn is_empty(&self) -> bool {
        self.since.is_none()
            && self.until.is_none()
            && self.uid.is_none()
            && self.process.is_none()
            && self.pid.is_none()
            && self.session.is_none()
    }
}

/// A name with versions, found in a tree.
#[derive(Debug)]
pub(crate) struct Found {
    /// The directory, maybe an old version of it.
    pub(crate) dir: Rc<Dir>,
    pub(crate) path: PathBuf,
    pub(crate) name: Vec<u8>,
    pub(crate) list: List,
}

/// What a walk comes to.
#[derive(Debug)]
pub(crate) enum Visited<'a> {
    /// A directory, maybe an old version of it; its names follow.
    Dir(&'a Dir),
    /// A name with versions.
    Name(Found),
}

type Visit<'a> = &'a mut dyn FnMut(Visited<'_>);

/// Calls `visit` for `dir` and each name with versions in it and, if `deep`, in the directories
/// below, also in removed ones: a directory comes before what is in it. Directories that this user
/// may not read are skipped.
///
/// # Errors
/// `dir` is not on versionfs, or can't be read.
pub(crate) fn walk(dir: Dir, deep: bool, visit: Visit<'_>) -> Result<(), Failure> {
    walk_at(&Rc::new(dir), if deep { MAX_DEPTH } else { 0 }, visit)
}

fn walk_at(dir: &Rc<Dir>, depth: usize, visit: Visit<'_>) -> Result<(), Failure> {
    visit(Visited::Dir(dir));
    for Named { name, .. } in dir.names()? {
        let Some(list) = dir.list(&name)?.filter(|list| !list.versions.is_empty()) else { continue };
        // Each removed directory has the versions of what was in it.
        let removed: Vec<_> = list.versions.iter().filter(|version| version.letter == 'd').cloned().collect();
        visit(Visited::Name(Found { dir: Rc::clone(dir), path: dir.path_of(&name), name: name.clone(), list }));
        for version in removed.iter().filter(|_| depth > 0) {
            if let Ok(below) = dir.old_dir(&name, version) {
                let _ = walk_at(&Rc::new(below), depth - 1, visit);
            }
        }
    }
    if depth > 0 && !dir.is_old {
        for name in directories(dir)? {
            // It may have been removed since, or may be closed to this user.
            if let Ok(below) = dir.child(&name) {
                let _ = walk_at(&Rc::new(below), depth - 1, visit);
            }
        }
    }
    Ok(())
}

/// Returns the names in a directory with their types, sorted.
///
/// # Errors
/// Names the directory and the reason.
pub(crate) fn entries(dir: &Dir) -> Result<Vec<(Vec<u8>, rustix::fs::FileType)>, Failure> {
    let refused = |errno| super::client::at(&dir.path, errno);
    let mut found = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir).map_err(refused)? {
        let entry = entry.map_err(refused)?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            found.push((name.to_vec(), entry.file_type()));
        }
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}

fn directories(dir: &Dir) -> Result<impl Iterator<Item = Vec<u8>>, Failure> {
    let is_dir =
        |kind: &rustix::fs::FileType| matches!(kind, rustix::fs::FileType::Directory | rustix::fs::FileType::Unknown);
    Ok(entries(dir)?.into_iter().filter(move |(_, kind)| is_dir(kind)).map(|(name, _)| name))
}

/// What a file was at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then<'a> {
    /// It did not exist, as far as is known.
    Absent,
    /// It was as this version.
    Was(&'a Version),
    /// As it is now.
    Present,
}

/// Returns what a file was at a time.
pub(crate) fn then(list: &List, time: Timestamp) -> Then<'_> {
    let after_last = list.versions.last().is_none_or(|last| last.died <= time);
    if after_last {
        return if list.set.head == Kind::None { Then::Absent } else { Then::Present };
    }
    list.versions
        .iter()
        .rev()
        .find(|version| version.covers(time) && !version.is_renamed_directory())
        .map_or(Then::Absent, Then::Was)
}

/// The result of asking what must be restored to undo the wanted changes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undo<'a> {
    /// No wanted change.
    Nothing,
    /// This version was there before the wanted changes, which are the newest ones.
    To(&'a Version),
    /// As [`Self::To`], but others have changed the file since.
    Changed(&'a Version),
}

/// Finds what undoes the wanted changes of a file.
pub(crate) fn undo<'a>(list: &'a List, filter: &Filter) -> Undo<'a> {
    let newest_run = run(list.versions.iter().rev(), filter);
    if let Some(version) = newest_run {
        let was_removed = list.versions.last().is_some_and(|last| matches!(&*last.op, "unlink" | "rmdir"));
        // Removed, and created again since.
        let is_back = was_removed && list.set.head != Kind::None;
        return if is_back { Undo::Changed(version) } else { Undo::To(version) };
    }
    let older_run = run(list.versions.iter().rev().skip_while(|version| !filter.admits(version)), filter);
    older_run.map_or(Undo::Nothing, Undo::Changed)
}

/// Returns the oldest change of the run of wanted ones with which `newest_first` begins.
fn run<'a>(newest_first: impl Iterator<Item = &'a Version>, filter: &Filter) -> Option<&'a Version> {
    let mut newest_first = newest_first.take_while(|version| filter.admits(version));
    let mut oldest = newest_first.next()?;
    for version in newest_first {
        // Somebody created the file again. Another process of this name did not do both.
        let is_new = version.died < oldest.born;
        if is_new && filter.process.is_some() && version.by.pid != oldest.by.pid {
            break;
        }
        oldest = version;
    }
    Some(oldest)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn example() -> List {
        versionclient::list(crate::versionctl::tests::LIST).unwrap()
    }

    #[test]
    fn filters_select_by_time_and_actor() {
        let list = example();
        let admitted = |filter: Filter| {
            list.versions
                .iter()
                .filter(|version| filter.admits(version))
                .map(|version| version.number)
                .collect::<Vec<_>>()
        };
        let time = |sec| Some(Timestamp::from_second(sec).unwrap());
        assert!(Filter::default().is_empty());
        assert_eq!(admitted(Filter::default()), [1, 2]);
        assert_eq!(admitted(Filter { since: time(2500), ..Filter::default() }), [2]);
        assert_eq!(admitted(Filter { until: time(2500), ..Filter::default() }), [1]);
        assert_eq!(admitted(Filter { uid: Some(0), ..Filter::default() }), [2]);
        assert_eq!(admitted(Filter { session: Some(40), ..Filter::default() }), [1, 2]);
        assert_eq!(admitted(Filter { pid: Some(42), session: Some(41), ..Filter::default() }), [0_u64; 0]);
        assert_eq!(admitted(Filter { process: Some(b"vi".into()), ..Filter::default() }), [1]);
    }

    #[test]
    fn the_state_at_a_time_is_found() {
        let mut list = example();
        let at = |sec| Timestamp::from_second(sec).unwrap();
        assert_eq!(then(&list, at(999)), Then::Absent);
        assert_eq!(then(&list, at(1000)), Then::Was(&list.versions[0]));
        assert_eq!(then(&list, at(2999)), Then::Was(&list.versions[1]));
        assert_eq!(then(&list, at(3000)), Then::Absent);
        list.set.head = Kind::File;
        assert_eq!(then(&list, at(3000)), Then::Present);
        list.versions.clear();
        assert_eq!(then(&list, at(0)), Then::Present);
    }

    #[test]
    fn undoing_ends_where_another_process_began() {
        let mut list = example();
        let [older, newer] = &mut *list.versions else { panic!() };
        let removal = Version { op: "unlink".into(), ..newer.clone() };
        *older = Version { died: older.died - jiff::Span::new().seconds(1), number: 1, ..removal.clone() };
        *newer = Version { number: 2, ..removal };
        newer.by.pid += 1;
        let process = Filter { process: Some(newer.by.comm.clone()), ..Filter::default() };
        assert_eq!(undo(&list, &process), Undo::To(&list.versions[1]));
        // Everything since then, by whomever.
        let all = Filter { since: Some(Timestamp::MIN), ..Filter::default() };
        assert_eq!(undo(&list, &all), Undo::To(&list.versions[0]));
        // One process did both.
        list.versions[1].by.pid -= 1;
        assert_eq!(undo(&list, &process), Undo::To(&list.versions[0]));
    }

    #[test]
    fn undoing_finds_the_version_before_the_changes() {
        let list = example();
        let by = |pid| Filter { pid: Some(pid), ..Filter::default() };
        assert_eq!(undo(&list, &by(43)), Undo::To(&list.versions[1]));
        assert_eq!(undo(&list, &by(42)), Undo::Changed(&list.versions[0]));
        assert_eq!(undo(&list, &by(44)), Undo::Nothing);
        assert_eq!(undo(&list, &Filter { session: Some(40), ..Filter::default() }), Undo::To(&list.versions[0]));
    }
}
