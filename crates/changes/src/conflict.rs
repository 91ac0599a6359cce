//! Files below that changed after the upper branch got its version of them.
//!
//! No record exists of what the upper branch's version was made from. So a change counts as one of
//! these if the file below has a change time (ctime) later than
//!
//! * the time that the caller gives, or else
//! * the time of birth of the upper branch's record: its file, metacopy, whiteout or opaque mark.
//!
//! On file systems without times of birth, no change is found. Neither are changes of the owner and
//! mode of directories, whose change time moves with each entry. Nor are those that an earlier
//! commit made (`own_times`).
//!
//! In a copy of an upper branch (`Copied`), the times of birth and change are those of the copying.
//! Only records that were created after the copy was recognised have times of birth of their own.
//! If such a record was modified before its birth, it can also have been restored from a backup
//! into the same directory, and its modification time is compared too. For the other records, two
//! times of the file below are compared:
//!
//! * its modification time with that of the upper branch's record: copies keep these;
//! * its change time with that of the recognition. If the branches below are those of the original,
//!   with the time of birth of the record: the file below was there before.

use crate::branches::{Branches, Views, cx};
use crate::change::{Change, ChangeKind, Conflict, ConflictKind, Facts};
use crate::error::{At, Error, Failed, if_readable};
use crate::find::upper_part;
use crate::journal::Journal;
use crate::ops::{is_dir, join, list, lookup, resolve, resolve_dir, split};
use crate::own_times::OwnTimes;
use crate::select::Selection;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use unionfs::offline::{Copied, OPAQUE_MARK, whiteout_name};
use vnode::{Attr, Kind, Time, Vnode};

/// Which files have changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Criteria {
    /// Those that changed after this time; `None`: after the upper branch got its version.
    pub(crate) since: Option<Time>,
    /// When an interrupted commit began. Later changes are its own, unless files were written.
    pub(crate) began: Option<Time>,
    /// Modification times are compared instead of change times.
    pub(crate) merging: bool,
    /// The upper branch is a copy of one.
    pub(crate) copied: Option<Copied>,
    /// Change times that earlier commits have moved.
    pub(crate) own: OwnTimes,
}

/// A comparison of a time of the file below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Check {
    /// The modification time is compared, not the change time.
    modified: bool,
    /// A later one is a conflict.
    since: Time,
}

/// What a commit leaves as it is of a file of which it replaces or removes a name: modification
/// time, size, mode and owner.
type Untouched = (Time, u64, u32, u32, u32);

/// Files below by number.
pub(crate) type Touched = BTreeMap<u64, Untouched>;

fn facts(attr: &Attr) -> Untouched {
    (attr.mtime, attr.size, attr.mode, attr.uid, attr.gid)
}

impl Branches {
    /// Returns the selected changes of which the file below has changed too: after `since`, or else
    /// after the upper branch got its version. The changes of an interrupted commit are none.
    ///
    /// # Errors
    /// The branches can't be used or read.
    pub fn conflicts(&self, selection: &Selection, since: Option<SystemTime>) -> Result<Vec<Conflict>, Error> {
        let views = self.views()?;
        let found = self.find(&views)?;
        let selection = selection.clone().close(&found.changes, &found.groups);
        let interrupted = Journal::read(&cx(), &self.upper_root()).at("read the journal", b"")?;
        let began = interrupted.map(|journal| journal.began);
        let mut conflicts = self.conflicts_of(&views, &found.changes, &self.criteria(since, began, false)?)?;
        conflicts.retain(|conflict| selection.covers(&conflict.path));
        Ok(conflicts)
    }

    /// Returns how conflicts are recognised. `merging`: the target may have got files from other
    /// branches meanwhile.
    pub(crate) fn criteria(
        &self,
        since: Option<SystemTime>,
        began: Option<Time>,
        merging: bool,
    ) -> Result<Criteria, Error> {
        let copied = if since.is_none() { self.upper_copied()? } else { None };
        Ok(Criteria { since: since.map(time), began, merging, copied, own: self.own_times()? })
    }

    /// Returns the changes of which the file below has changed too.
    pub(crate) fn conflicts_of(
        &self,
        views: &Views,
        changes: &[Change],
        criteria: &Criteria,
    ) -> Result<Vec<Conflict>, Error> {
        let mut conflicts = Vec::new();
        for change in changes {
            let path = change.from.as_ref().unwrap_or(&change.path);
            let Some(below) = resolve(&cx(), &views.below.root(), path).at("look up", path)? else { continue };
            if is_dir(&below) && matches!(change.kind, ChangeKind::Attributes | ChangeKind::Added) {
                continue;
            }
            for check in self.checks(views, &change.path, criteria)? {
                if let Some(conflict) = conflict(change, &below, check, criteria)? {
                    conflicts.push(conflict);
                    break;
                }
            }
        }
        Ok(conflicts)
    }

    /// Returns the times to compare for the change at a path.
    fn checks(&self, views: &Views, path: &[u8], criteria: &Criteria) -> Result<Vec<Check>, Failed> {
        let &Criteria { since, merging, copied, .. } = criteria;
        if let Some(since) = since {
            return Ok(vec![Check { modified: merging, since }]);
        }
        let Some(Born { born, modified }) = self.born(views, path)? else { return Ok(Vec::new()) };
        let as_born = Check { modified: merging, since: born };
        let Some(Copied { at, old_below }) = copied else { return Ok(vec![as_born]) };
        let as_modified = Check { modified: true, since: born.min(modified) };
        if at.is_some_and(|at| born > at) {
            let may_be_restored = modified < born;
            return Ok([as_born].into_iter().chain(may_be_restored.then_some(as_modified)).collect());
        }
        let mut checks = vec![as_modified];
        let since = if old_below { Some(born) } else { at };
        checks.extend(since.filter(|_| !merging).map(|since| Check { modified: false, since }));
        Ok(checks)
    }

    /// Returns the files below with other names that these changes replace or remove.
    pub(crate) fn touched(&self, views: &Views, work: &[Change]) -> Result<Touched, Failed> {
        let mut touched = Touched::new();
        for path in work.iter().flat_map(|change| [Some(&change.path), change.from.as_ref()]).flatten() {
            if let Some(below) = resolve(&cx(), &views.below.root(), path).at("look up", path)? {
                let attr = below.getattr(&cx()).at("read the attributes", path)?;
                if attr.kind() != Kind::Directory && attr.nlink > 1 {
                    touched.insert(below.id(), facts(&attr));
                }
            }
        }
        Ok(touched)
    }

    /// Records the change times that this commit or an earlier one has moved. `before`: the
    /// conflicts when this commit began; `touched`: the files that it has replaced or removed. What
    /// others have changed meanwhile remains a conflict.
    pub(crate) fn record_own_times(
        &self,
        before: &[Conflict],
        touched: &Touched,
        criteria: &Criteria,
    ) -> Result<(), Error> {
        let views = self.views()?;
        let left = self.find(&views)?.changes;
        let earlier = &criteria.own;
        let criteria = Criteria { began: None, own: OwnTimes::new(), ..criteria.clone() };
        let mut moved = self.conflicts_of(&views, &left, &criteria)?;
        moved.retain(|conflict| !before.iter().any(|known| known.path == conflict.path));
        let mut own = Vec::new();
        for conflict in &moved {
            let change = left.iter().find(|change| change.path == conflict.path);
            let path = change.and_then(|change| change.from.as_ref()).unwrap_or(&conflict.path);
            let Some(below) = resolve(&cx(), &views.below.root(), path).at("look up", path)? else { continue };
            let attr = below.getattr(&cx()).at("read the attributes", path)?;
            if touched.get(&below.id()) == Some(&facts(&attr)) {
                own.push(conflict.path.clone());
            }
        }
        moved.retain(|conflict| own.contains(&conflict.path) || earlier.get(&conflict.path) == Some(&conflict.changed));
        let times: OwnTimes = moved.into_iter().map(|conflict| (conflict.path, conflict.changed)).collect();
        Ok(self.write_own_times(&times)?)
    }

    /// Returns the times of the upper branch's record of a path. `None` if that of its birth is not
    /// known.
    fn born(&self, views: &Views, path: &[u8]) -> Result<Option<Born>, Failed> {
        let cx = cx();
        let (parent, name) = split(path);
        let Some(dir) = resolve_dir(&cx, &views.all.root(), parent).at("look up", parent)? else { return Ok(None) };
        let Some(part) = upper_part(views, &dir).at("look up", parent)? else { return Ok(None) };
        let metacopy = [b".wh..wh.meta.", name].concat();
        for record in [name, &metacopy, &whiteout_name(name), OPAQUE_MARK] {
            if let Some(entry) = lookup(&cx, &part, record).at("look up", path)? {
                let born = birth(&entry.attr, record == name);
                return Ok(born.map(|born| Born { born, modified: entry.attr.mtime }));
            }
        }
        Ok(None)
    }
}

/// When a record was created, and last modified.
struct Born {
    born: Time,
    modified: Time,
}

/// Returns the conflict of a change with the file `below` that one comparison finds.
fn conflict(
    change: &Change,
    below: &Arc<dyn Vnode>,
    Check { modified, since }: Check,
    criteria: &Criteria,
) -> Result<Option<Conflict>, Failed> {
    let path = change.from.as_ref().unwrap_or(&change.path);
    let changed = latest(below, path, change.moves_dir(), modified)?;
    if changed <= since || criteria.own.get(&change.path) == Some(&changed) {
        return Ok(None);
    }
    let is_own = match criteria.began {
        // The interrupted commit sets no later modification times than those it copies.
        Some(began) if changed >= began => {
            let written = last_write(below, path)?;
            written < began || change.after.is_some_and(|after| after.mtime == written)
        }
        // It may have moved the upper branch's version already, which can have been written long
        // after it was created.
        Some(began) if modified && !is_dir(below) => {
            let attr = below.getattr(&cx()).at("read the attributes", path)?;
            let same = |after: Facts| (after.mtime, after.size) == (attr.mtime, attr.size);
            attr.ctime >= began && change.after.is_some_and(same)
        }
        _ => false,
    };
    if is_own {
        return Ok(None);
    }
    let attr = below.getattr(&cx()).at("read the attributes", path)?;
    // A copy was born after what it is a copy of.
    let is_copy = modified && criteria.copied.is_some();
    let created = !is_copy && attr.btime.is_some_and(|born| born > since);
    let kind = if created { ConflictKind::Created } else { ConflictKind::Changed };
    Ok(Some(Conflict { path: change.path.clone(), kind, changed, since }))
}

/// Returns an object's time of birth. That of a mark with several names is that of another mark.
fn birth(attr: &Attr, is_file: bool) -> Option<Time> {
    attr.btime.filter(|born| *born != Time::default() && (is_file || attr.nlink == 1))
}

/// Returns the latest change time of an object and everything in it. `only_contents`: not its own,
/// which a rename of another entry or a new entry moves.
fn latest(below: &Arc<dyn Vnode>, path: &[u8], only_contents: bool, modified: bool) -> Result<Time, Failed> {
    let cx = cx();
    let attr = below.getattr(&cx).at("read the attributes", path)?;
    let own = if modified { attr.mtime } else { attr.ctime };
    if !is_dir(below) {
        return Ok(own);
    }
    let mut last = if only_contents { Time { sec: i64::MIN, nsec: 0 } } else { own };
    // What this user may not read it does not commit either.
    for (name, _) in if_readable(list(&cx, below).at("list", path))?.unwrap_or_default() {
        let inner = join(path, &name);
        if let Some(entry) = if_readable(lookup(&cx, below, &name).at("look up", &inner))?.flatten() {
            last = last.max(latest(&entry.vnode, &inner, false, modified)?);
        }
    }
    Ok(last)
}

/// Returns the latest modification time of a file, or of all files in a directory.
fn last_write(below: &Arc<dyn Vnode>, path: &[u8]) -> Result<Time, Failed> {
    let cx = cx();
    if !is_dir(below) {
        return Ok(below.getattr(&cx).at("read the attributes", path)?.mtime);
    }
    let mut last = Time { sec: i64::MIN, nsec: 0 };
    for (name, _) in if_readable(list(&cx, below).at("list", path))?.unwrap_or_default() {
        let inner = join(path, &name);
        if let Some(entry) = if_readable(lookup(&cx, below, &name).at("look up", &inner))?.flatten() {
            last = last.max(last_write(&entry.vnode, &inner)?);
        }
    }
    Ok(last)
}

/// Converts a time of the system clock.
fn time(at: SystemTime) -> Time {
    let (since, sign) = match at.duration_since(UNIX_EPOCH) {
        Ok(after) => (after, 1),
        Err(before) => (before.duration(), -1),
    };
    Time { sec: sign * i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nsec: since.subsec_nanos() }
}
