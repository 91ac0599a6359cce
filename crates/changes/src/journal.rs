//! The journal: a file in the root of the upper branch that names the directories in which a commit
//! or discard may have left temporary files when it was killed.
//!
//! Format: the line `strata-commit 1`; a line with the start of the run in seconds and nanoseconds
//! since the epoch, and the phase; then paths, each terminated by a NUL. In phase 0 these are
//! directories of the target, in phase 1 the selected paths of a commit that is complete on the
//! target, and in phase 2 those of a discard.

use crate::branches::{Branches, cx};
use crate::error::{At, Error, Failed};
use crate::ops::{is_dir, list, lookup, remove_tree, resolve_dir};
use crate::select::Selection;
use crate::temp::{is_temp, read_file, remove_file, replace_file};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use unionfs::offline::Record;
use vnode::{Cx, Errno, Kind, Result, Time, Vnode};

/// The journal's name.
pub(crate) const NAME: &[u8] = b".wh..wh.commit";
const HEADER: &[u8] = b"strata-commit 1\n";

/// When a run began, and what the next one has to complete if it is killed.
pub(crate) struct Journal {
    pub(crate) began: Time,
    todo: Todo,
}

/// What an interrupted run leaves to do.
#[derive(Debug, PartialEq, Eq)]
enum Todo {
    /// Directories of the target may have temporary files.
    Clean(BTreeSet<Vec<u8>>),
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
        Self { began, todo: Todo::Clean(BTreeSet::new()) }
    }

    /// Returns the journal of a discard that begins now.
    pub(crate) fn of_discard(selection: &Selection) -> Self {
        Self { todo: Todo::Discard(selection.paths().to_vec()), ..Self::new() }
    }

    /// Adds directories of the target in which there may be temporary files.
    pub(crate) fn add(&mut self, more: impl IntoIterator<Item = Vec<u8>>) {
        match &mut self.todo {
            Todo::Clean(dirs) => dirs.extend(more),
            // Recovery has completed this.
            Todo::Prune(_) | Todo::Discard(_) => self.todo = Todo::Clean(more.into_iter().collect()),
        }
    }

    /// Notes that the target has all selected changes, durably, and no temporary files.
    pub(crate) fn set_published(&mut self, selection: &Selection) {
        self.todo = Todo::Prune(selection.paths().to_vec());
    }

    fn encode(&self) -> Vec<u8> {
        let Time { sec, nsec } = self.began;
        let (phase, paths): (u8, Vec<&Vec<u8>>) = match &self.todo {
            Todo::Clean(dirs) => (0, dirs.iter().collect()),
            Todo::Prune(paths) => (1, paths.iter().collect()),
            Todo::Discard(paths) => (2, paths.iter().collect()),
        };
        let mut bytes = [HEADER, format!("{sec} {nsec} {phase}\n").as_bytes()].concat();
        for path in paths {
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
        let paths = paths.split(|&b| b == 0).map(<[u8]>::to_vec).take(count);
        let todo = match phase {
            "0" => Todo::Clean(paths.collect()),
            "1" => Todo::Prune(paths.collect()),
            "2" => Todo::Discard(paths.collect()),
            _ => return None,
        };
        Some(Self { began, todo })
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
    /// Removes the temporary files of a run that was killed. Returns its journal.
    pub(crate) fn recover(&self) -> core::result::Result<Option<Journal>, Error> {
        let (cx, upper) = (cx(), self.upper_root());
        // One of them may become the journal.
        clean(&cx, &upper).at("remove temporary files", b"")?;
        let Some(journal) = Journal::read(&cx, &upper).at("read the journal", b"")? else { return Ok(None) };
        clean_all(&cx, &upper, b"")?;
        match &journal.todo {
            Todo::Clean(_) => self.clean_target(&journal)?,
            Todo::Prune(paths) => {
                // Before anything is compared: until this is complete, names of one file may be
                // divided between the branches.
                let groups = self.find(&self.views()?)?.groups;
                self.prune(&Selection::of(paths.iter().cloned()), &groups, true)?;
            }
            Todo::Discard(paths) => self.drop_changes(&Selection::of(paths.iter().cloned()), &mut |_| {})?,
        }
        Ok(Some(journal))
    }

    /// Removes temporary files from the directories of the target that the journal has.
    pub(crate) fn clean_target(&self, journal: &Journal) -> core::result::Result<(), Failed> {
        let (cx, Todo::Clean(dirs)) = (cx(), &journal.todo) else { return Ok(()) };
        let target = self.target_root().map_err(|_| Errno::STALE).at("look up", b"")?;
        for path in dirs {
            if let Some(dir) = resolve_dir(&cx, &target, path).at("look up", path)? {
                clean(&cx, &dir).at("remove temporary files", path)?;
            }
        }
        Ok(())
    }
}

/// Removes the temporary files in a directory.
fn clean(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<()> {
    let temps = list(cx, dir)?.into_iter().filter(|(name, _)| is_temp(name));
    let temps: Vec<_> = temps.collect();
    if temps.is_empty() {
        return Ok(());
    }
    let before = dir.getattr(cx)?;
    for (name, _) in temps {
        remove_tree(cx, dir, &name)?;
    }
    let _kept = crate::ops::set_times(cx, dir, &before);
    Ok(())
}

/// Removes the temporary files in a directory of the upper branch and all directories in it.
fn clean_all(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, path: &[u8]) -> core::result::Result<(), Error> {
    clean(cx, dir).at("remove temporary files", path)?;
    for (name, kind) in list(cx, dir).at("list", path)? {
        if kind == Kind::Directory && Record::of(&name) == Record::Entry {
            let inner = crate::ops::join(path, &name);
            if let Some(entry) = lookup(cx, dir, &name).at("look up", &inner)?.filter(|entry| is_dir(&entry.vnode)) {
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
        let read = Journal::decode(&journal.encode()).unwrap();
        assert_eq!((read.began, &read.todo), (journal.began, &journal.todo));
        let selection = Selection::of([b"x/y".to_vec()]);
        journal.set_published(&selection);
        assert_eq!(Journal::decode(&journal.encode()).unwrap().todo, Todo::Prune(vec![b"x/y".to_vec()]));
        let discard = Journal::of_discard(&selection);
        assert_eq!(Journal::decode(&discard.encode()).unwrap().todo, Todo::Discard(vec![b"x/y".to_vec()]));
        for bad in [
            &b""[..],
            b"strata-commit 2\n1 2\n",
            b"strata-commit 1\nx y 0\n",
            b"strata-commit 1\n1 2 3\n",
            b"strata-commit 1\n1 2 0",
        ] {
            assert!(Journal::decode(bad).is_none());
        }
    }
}
