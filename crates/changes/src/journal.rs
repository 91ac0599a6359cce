//! The journal: a file in the root of the upper branch that names the directories in which a commit
//! or discard may have left temporary files when it was killed.
//!
//! Format: the line `strata-commit 1`; a line with the start of the run in seconds and nanoseconds
//! since the epoch, and the phase; then paths, each terminated by a NUL. In phase 0 these are
//! directories of the target, in phase 1 the selected paths of a commit that is complete on the
//! target, and in phase 2 those of a discard. Phases 3 and 4 are 1 and 2 with directories of the
//! target before the selected paths. The number of these directories follows the phase.

use crate::branches::{Branches, cx};
use crate::error::{At, Error, Failed, if_readable};
use crate::ops::{is_dir, join, list, lookup, remove_tree, resolve_dir, split};
use crate::select::Selection;
use crate::temp::{is_temp, read_file, remove_file, replace_file};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use unionfs::offline::Record;
use vnode::{Cx, Errno, Kind, Result, Time, Vnode};

/// The journal's name.
pub const NAME: &[u8] = b".wh..wh.commit";
const HEADER: &[u8] = b"strata-commit 1\n";

/// When a run began, and what the next one has to complete if it is killed.
pub(crate) struct Journal {
    pub(crate) began: Time,
    /// Directories of the target that may have temporary files.
    temps: BTreeSet<Vec<u8>>,
    todo: Todo,
}

/// What an interrupted run leaves to do, apart from temporary files.
#[derive(Debug, PartialEq, Eq)]
enum Todo {
    /// Nothing.
    Nothing,
    /// The target has all changes of these paths.
    Prune(Vec<Vec<u8>>),
    /// The changes of these paths are dropped.
    Discard(Vec<Vec<u8>>),
}

impl Journal {
    /// Returns a journal that begins now.
    pub(crate) fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let began = Time { sec: i64::try_from(now.as_secs()).unwrap_or(0), nsec: now.subsec_nanos() };
        Self { began, temps: BTreeSet::new(), todo: Todo::Nothing }
    }

    /// Adds directories of the target in which there may be temporary files.
    pub(crate) fn add(&mut self, more: impl IntoIterator<Item = Vec<u8>>) {
        self.temps.extend(more);
    }

    /// Notes which temporary files of the target could not be removed. There are no others.
    pub(crate) fn set_left(&mut self, left: &[Failed]) {
        self.temps = left.iter().map(|failed| split(&failed.path).0.to_vec()).collect();
    }

    /// Notes that the target has all selected changes, durably.
    pub(crate) fn set_published(&mut self, selection: &Selection) {
        self.todo = Todo::Prune(selection.paths().to_vec());
    }

    /// Notes that the changes of these paths are dropped.
    pub(crate) fn set_discarded(&mut self, selection: &Selection) {
        self.todo = Todo::Discard(selection.paths().to_vec());
    }

    /// Notes that nothing remains to be done but to remove temporary files.
    pub(crate) fn set_done(&mut self) {
        self.todo = Todo::Nothing;
    }

    fn encode(&self) -> Vec<u8> {
        let Time { sec, nsec } = self.began;
        let temps = self.temps.len();
        let (phase, paths): (String, &[Vec<u8>]) = match &self.todo {
            Todo::Nothing => ("0".to_owned(), &[]),
            Todo::Prune(paths) if temps == 0 => ("1".to_owned(), paths),
            Todo::Discard(paths) if temps == 0 => ("2".to_owned(), paths),
            Todo::Prune(paths) => (format!("3 {temps}"), paths),
            Todo::Discard(paths) => (format!("4 {temps}"), paths),
        };
        let mut bytes = [HEADER, format!("{sec} {nsec} {phase}\n").as_bytes()].concat();
        for path in self.temps.iter().chain(paths) {
            bytes.extend(path);
            bytes.push(0);
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(HEADER)?;
        let end = rest.iter().position(|&b| b == b'\n')?;
        let line = std::str::from_utf8(rest.get(..end)?).ok()?;
        let mut fields = line.split(' ');
        let began = Time { sec: fields.next()?.parse().ok()?, nsec: fields.next()?.parse().ok()? };
        let phase = fields.next()?;
        let paths = rest.get(end + 1..)?;
        // The last piece is empty, or cut off.
        let count = paths.iter().filter(|&&b| b == 0).count();
        let mut paths = paths.split(|&b| b == 0).map(<[u8]>::to_vec).take(count);
        let temps = match phase {
            "0" => count,
            "1" | "2" => 0,
            _ => fields.next()?.parse().ok()?,
        };
        let temps = paths.by_ref().take(temps).collect();
        let todo = match phase {
            "0" => Todo::Nothing,
            "1" | "3" => Todo::Prune(paths.collect()),
            "2" | "4" => Todo::Discard(paths.collect()),
            _ => return None,
        };
        Some(Self { began, temps, todo })
    }

    /// Reads the journal of an interrupted run.
    pub(crate) fn read(cx: &Cx<'_>, upper: &Arc<dyn Vnode>) -> Result<Option<Self>> {
        Ok(read_file(cx, upper, NAME)?.and_then(|bytes| Self::decode(&bytes)))
    }

    /// Writes the journal, durably.
    pub(crate) fn write(&self, cx: &Cx<'_>, upper: &Arc<dyn Vnode>) -> Result<()> {
        replace_file(cx, upper, NAME, &self.encode())
    }

    /// Removes the journal.
    pub(crate) fn remove(cx: &Cx<'_>, upper: &Arc<dyn Vnode>) -> Result<()> {
        remove_file(cx, upper, NAME)
    }
}

impl Branches {
    /// Completes a run that was killed, and removes its temporary files. Returns its journal, and
    /// the temporary files of the target that could not be removed.
    pub(crate) fn recover(&self) -> core::result::Result<(Option<Journal>, Vec<Failed>), Error> {
        let (cx, upper) = (cx(), self.upper_root());
        // One of them may become the journal.
        clean(&cx, &upper).at("remove temporary files", b"")?;
        let journal = Journal::read(&cx, &upper).at("read the journal", b"")?;
        let Some(mut journal) = journal else { return Ok((None, Vec::new())) };
        clean_all(&cx, &upper, b"")?;
        let left = self.clean_target(&journal)?;
        journal.set_left(&left);
        match &journal.todo {
            Todo::Nothing => {}
            Todo::Prune(paths) => {
                // Before anything is compared: until this is complete, names of one file may be
                // divided between the branches.
                let groups = self.find(&self.views()?)?.groups;
                self.prune(&Selection::of(paths.iter().cloned()), &groups, true)?;
            }
            Todo::Discard(paths) => self.drop_changes(&Selection::of(paths.iter().cloned()), &mut |_| {})?,
        }
        journal.set_done();
        Ok((Some(journal), left))
    }

    /// Ends a run: removes its journal, unless temporary files are left for the next one.
    pub(crate) fn end_run(&self, mut journal: Journal) -> core::result::Result<(), Error> {
        let (cx, upper) = (cx(), self.upper_root());
        if journal.temps.is_empty() {
            Journal::remove(&cx, &upper).at("remove the journal", b"")?;
            return self.tidy();
        }
        journal.set_done();
        Ok(journal.write(&cx, &upper).at("write the journal", b"")?)
    }

    /// Completes a commit or discard that was killed, and removes its temporary files from the
    /// target. Returns those that could not be removed.
    ///
    /// # Errors
    /// The branches can't be used; a step failed.
    pub fn complete_interrupted(&self) -> core::result::Result<Vec<Failed>, Error> {
        self.recover().map(|(_, left)| left)
    }

    /// Removes temporary files from the directories of the target that the journal has. Returns
    /// those that could not be removed: a file system may be mounted in one, for example.
    pub(crate) fn clean_target(&self, journal: &Journal) -> core::result::Result<Vec<Failed>, Failed> {
        let cx = cx();
        let target = self.target_root().map_err(|_| Errno::STALE).at("look up", b"")?;
        let mut left = Vec::new();
        for path in &journal.temps {
            if let Some(dir) = resolve_dir(&cx, &target, path).at("look up", path)? {
                let kept = clean_except(&cx, &dir).at("remove temporary files", path)?;
                left.extend(kept.into_iter().map(|(name, errno)| Failed {
                    path: join(path, &name),
                    step: "remove what an interrupted commit has left there",
                    errno,
                }));
            }
        }
        Ok(left)
    }
}

/// Removes the temporary files in a directory.
fn clean(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<()> {
    match clean_except(cx, dir)?.first() {
        Some((_, errno)) => Err(*errno),
        None => Ok(()),
    }
}

/// As [`clean`]. Returns those that can't be removed.
fn clean_except(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Vec<(Vec<u8>, Errno)>> {
    let temps = list(cx, dir)?.into_iter().filter(|(name, _)| is_temp(name));
    let temps: Vec<_> = temps.collect();
    if temps.is_empty() {
        return Ok(Vec::new());
    }
    let before = dir.getattr(cx)?;
    let remove = |(name, _): (Vec<u8>, Kind)| remove_tree(cx, dir, &name).err().map(|errno| (name, errno));
    let left = temps.into_iter().filter_map(remove).collect();
    let _kept = crate::ops::set_times(cx, dir, &before);
    Ok(left)
}

/// Removes the temporary files in a directory of the upper branch and all directories in it.
fn clean_all(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, path: &[u8]) -> core::result::Result<(), Error> {
    if if_readable(clean(cx, dir).at("remove temporary files", path))?.is_none() {
        return Ok(());
    }
    for (name, kind) in list(cx, dir).at("list", path)? {
        if kind == Kind::Directory && Record::of(&name) == Record::Entry {
            let inner = join(path, &name);
            let entry = if_readable(lookup(cx, dir, &name).at("look up", &inner))?.flatten();
            if let Some(entry) = entry.filter(|entry| is_dir(&entry.vnode)) {
                clean_all(cx, &entry.vnode, &inner)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_read_as_written() {
        let mut journal = Journal::new();
        journal.add([b"".to_vec(), b"a\nb".to_vec(), b"c/d".to_vec()]);
        let check = |journal: &Journal, phase: &str| {
            let bytes = journal.encode();
            let line = String::from_utf8_lossy(bytes.split(|&b| b == b'\n').nth(1).unwrap()).into_owned();
            assert_eq!(line.splitn(3, ' ').nth(2), Some(phase));
            let read = Journal::decode(&bytes).unwrap();
            assert_eq!((read.began, &read.temps, &read.todo), (journal.began, &journal.temps, &journal.todo));
        };
        check(&journal, "0");
        let selection = Selection::of([b"x/y".to_vec()]);
        journal.set_published(&selection);
        check(&journal, "3 3");
        journal.set_discarded(&selection);
        check(&journal, "4 3");
        journal.set_left(&[]);
        check(&journal, "2");
        journal.set_published(&selection);
        check(&journal, "1");
        for bad in [
            &b""[..],
            b"strata-commit 2\n1 2\n",
            b"strata-commit 1\nx y 0\n",
            b"strata-commit 1\n1 2 3\n",
            b"strata-commit 1\n1 2 5 0\n",
            b"strata-commit 1\n1 2 0",
        ] {
            assert!(Journal::decode(bad).is_none());
        }
    }
}
