//! Removing a name: the object becomes a version.

use crate::core::blocking;
use crate::head::Head;
use crate::node::{VersionVnode, is_reserved};
use crate::session::Session;
use crate::set::{Locked, Made, Set, find_store, move_new};
use parking_lot::MutexGuard;
use std::sync::Arc;
use versionset::{Cause, Departure, Gap, Letter, Lost, Record, STORE, Why, version_name};
use vnode::{Attr, Cx, Entry, Errno, Kind, Name, OpenFlags, Result, SetAttr, SetTime, Vnode};

/// How an object whose last name goes becomes a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The inode itself becomes the version.
    Kept,
    /// A program may write to it: a copy becomes the version.
    Copied,
    /// It has other names, so nothing is lost.
    Named,
    /// The policy excludes it.
    Dropped,
}

/// A removal that is about to happen.
pub(crate) struct Removal<'a> {
    pub(crate) fate: Fate,
    pub(crate) attr: Attr,
    cause: Cause,
    /// The version that was made: a copy, or the last one of a name among several.
    made: Option<Made>,
    /// Nobody opens the file until it is removed.
    session: MutexGuard<'a, Session>,
}

impl Removal<'_> {
    /// Passes on the result of the removal. If it failed, takes back the copy.
    pub(crate) fn checked(&mut self, cx: &Cx<'_>, victim: &VersionVnode, result: Result<()>) -> Result<()> {
        if result.is_ok() {
            // Before somebody else can lock the session.
            victim.inode.forget_place();
        } else {
            // A name goes or stays, whatever the error is.
            victim.head().take_back(cx, Some(&mut self.session), self.made.take(), Errno::CANCELED);
        }
        result
    }

    /// Records that the name has left its object, which has, or had, other names, or got no
    /// version.
    pub(crate) fn leave_inode(&mut self, cx: &Cx<'_>, victim: &VersionVnode, (dir, name): (&Arc<dyn Vnode>, Name<'_>)) {
        self.note_lost(cx, victim, (dir, name));
        let is_of_inode = victim.lower.kind() == Kind::Regular && self.fate == Fate::Named;
        if is_of_inode || self.made.as_ref().is_some_and(|made| made.set.is_link()) {
            victim.leave_inode(cx, dir, name, (self.made.as_ref(), self.cause));
        } else if self.made.is_none() {
            victim.leave_without_version(cx, dir, name, self.cause);
        }
        victim.head().after_change(cx, &mut self.session);
    }

    /// Notes that the name's last state is not in the history, unless the policy wants none.
    fn note_lost(&self, cx: &Cx<'_>, victim: &VersionVnode, place: (&Arc<dyn Vnode>, Name<'_>)) {
        let is_unwanted = || match self.fate {
            Fate::Named => victim.head().leaves_none(cx, &self.attr, self.cause).unwrap_or(false),
            fate => fate == Fate::Dropped,
        };
        if self.made.is_none() && !is_unwanted() {
            victim.note_lost(cx, place, &self.attr, self.cause);
        }
    }
}

impl VersionVnode {
    /// Notes that the last state of a name is not in the history, because it had no room.
    pub(crate) fn note_lost(&self, cx: &Cx<'_>, (dir, name): (&Arc<dyn Vnode>, Name<'_>), attr: &Attr, cause: Cause) {
        let (server, own) = (self.core.server(cx), self.core.set_of_name(dir, name.as_bytes()));
        let Ok(locked) = own.lock(&self.core, &server) else { return };
        let (born, died) = crate::head::interval(&self.core, locked.index(), attr, self.core.now());
        drop(locked);
        let (name, who) = (name.as_bytes().into(), self.core.callers.who(cx));
        self.core.note_lost(&server, dir, Lost { name, why: Why::NoRoom, gap: Gap { born, died, cause, who } });
    }

    /// Removes the name of a file.
    pub(crate) fn remove_file(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        if is_reserved(name) {
            return Err(Errno::NOENT);
        }
        let entry = self.lower.lookup(cx, name)?.ok_or(Errno::NOENT)?;
        if entry.vnode.kind() == Kind::Directory {
            return Err(Errno::ISDIR);
        }
        let victim = self.victim(name, &entry);
        let mut removal = victim.prepare_removal(cx, (&self.lower, name), Cause::Unlink)?;
        let cx = &blocking(cx);
        match removal.fate {
            Fate::Named | Fate::Copied => {
                removal.checked(cx, &victim, self.lower.unlink(cx, name))?;
                removal.leave_inode(cx, &victim, (&self.lower, name));
            }
            Fate::Dropped => {
                self.lower.unlink(cx, name)?;
                removal.leave_inode(cx, &victim, (&self.lower, name));
            }
            Fate::Kept => {
                let made = self.keep(cx, &victim, &removal.attr, Cause::Unlink, |server, store, version| {
                    move_new(server, &self.lower, name, store, version)
                });
                match made {
                    Ok(made) => victim.inode.bury(Some(made)),
                    Err(errno) if victim.head().may_lose(cx, &removal.attr, errno)? => {
                        self.lower.unlink(cx, name)?;
                        removal.leave_inode(cx, &victim, (&self.lower, name));
                    }
                    Err(errno) => return Err(errno),
                }
            }
        }
        victim.inode.forget_place();
        Ok(())
    }

    /// Returns the vnode of an entry that is about to go.
    pub(crate) fn victim(&self, name: Name<'_>, entry: &Entry) -> Self {
        let victim = Self::over(&self.core, Arc::clone(&entry.vnode));
        victim.inode.found_at(&self.lower, name.as_bytes());
        victim
    }

    /// Prepares the removal of a name of this file: what becomes of it, and its attributes. If a
    /// copy becomes the version, makes it.
    pub(crate) fn prepare_removal(
        &self,
        cx: &Cx<'_>,
        (dir, name): (&Arc<dyn Vnode>, Name<'_>),
        cause: Cause,
    ) -> Result<Removal<'_>> {
        let mut session = self.inode.session(cx)?;
        if self.lower.kind() != Kind::Regular {
            let mut attr = self.lower.getattr(cx)?;
            if attr.nlink > 1
                && let Some(sets) = self.head().sets(cx, attr.nlink)?
            {
                // Loading the set drops a second name that a crash left in the store.
                drop(sets.own.lock(&self.core, &blocking(cx))?);
                attr = self.lower.getattr(cx)?;
            }
            let fate = if attr.nlink > 1 {
                Fate::Named
            } else if self.head().is_forgotten(cx, &attr)? {
                Fate::Dropped
            } else {
                Fate::Kept
            };
            let own = self.core.set_of_name(dir, name.as_bytes());
            let made = if fate == Fate::Named { self.copy_special(cx, &own, &attr, cause)? } else { None };
            return Ok(Removal { fate, attr, cause, made, session });
        }
        if self.inode.delayed().is_some() {
            cx.require_blocking()?;
            self.end_delay(cx, &mut session)?;
        }
        let mut attr = self.lower.getattr(cx)?;
        if attr.nlink > 1 {
            self.head().sets(cx, attr.nlink)?;
            attr = self.lower.getattr(cx)?;
        }
        if attr.nlink > 1 {
            cx.require_blocking()?;
            let own = self.core.set_of_name(dir, name.as_bytes());
            let made = self.head().mark(cx, &mut session, &own, (&attr, cause))?;
            let reserved = self.head().reserve_record(cx, &own, &attr);
            reserved.inspect_err(|_| {
                self.head().take_back(cx, Some(&mut session), made.clone(), Errno::CANCELED);
            })?;
            return Ok(Removal { fate: Fate::Named, attr, cause, made, session });
        }
        session.active = None;
        if self.head().is_droppable(cx, &attr)? {
            return Ok(Removal { fate: Fate::Dropped, attr, cause, made: None, session });
        }
        self.head().look_for_mappings(cx, &session)?;
        if session.writers == 0 && !self.head().is_written_unseen(&session) {
            return Ok(Removal { fate: Fate::Kept, attr, cause, made: None, session });
        }
        let mut made = None;
        if let Some(sets) = self.head().sets(cx, attr.nlink)? {
            let file = self.lower.open(&self.core.server(cx), OpenFlags::RDONLY)?;
            made = match self.head().copy(cx, &sets.keeps, &*file, &attr, cause) {
                Err(errno) if self.head().may_lose(cx, &attr, errno)? => None,
                made => Some(made?),
            };
        }
        Ok(Removal { fate: Fate::Copied, attr, cause, made, session })
    }

    /// Makes a version of a symbolic link or special file of which another name remains: a copy,
    /// because it is small. `None` if the policy wants no version.
    fn copy_special(&self, cx: &Cx<'_>, own: &Arc<Set>, attr: &Attr, cause: Cause) -> Result<Option<Made>> {
        cx.require_blocking()?;
        if self.head().leaves_none(cx, attr, cause)? {
            return Ok(None);
        }
        let server = self.core.server(cx);
        let mut locked = own.lock(&self.core, &server)?;
        let recorded = self.head().record(cx, &mut locked, attr, (cause, Letter::Special), |locked, version| {
            let store = locked.store(&server)?;
            let file = version_name(&locked.set.stem, Letter::Special, version.number);
            let file = Name::new(&file)?;
            let copy = if attr.kind() == Kind::Symlink {
                store.symlink(&server, file, &self.lower.readlink(&server)?)?
            } else {
                store.mknod(&server, file, attr.mode, attr.rdev)?
            };
            // A symbolic link has no mode.
            let mode = Some(version.mode).filter(|_| attr.kind() != Kind::Symlink);
            let set = SetAttr { mode, mtime: Some(SetTime::At(version.mtime)), ..SetAttr::default() };
            let dressed = versionset::give(&server, &copy, version.uid, version.gid)
                .and_then(|()| copy.vnode.setattr(&server, &set, None).map(drop));
            if dressed.is_err() {
                let _ = store.unlink(&server, file);
            }
            dressed
        });
        match recorded {
            Ok((version, ())) => {
                self.head().made(&server, own, &mut locked, (attr, version.number));
                drop(locked);
                Ok(Some(Made::new(own, &version, attr)))
            }
            Err(errno) => {
                drop(locked);
                if self.head().may_lose(cx, attr, errno)? { Ok(None) } else { Err(errno) }
            }
        }
    }

    /// Makes a version of an object by moving or linking it to the store. `place` is called with
    /// the store and the name of the version file.
    pub(crate) fn keep(
        &self,
        cx: &Cx<'_>,
        victim: &Self,
        attr: &Attr,
        cause: Cause,
        place: impl Fn(&Cx<'_>, &Arc<dyn Vnode>, Name<'_>) -> Result<()>,
    ) -> Result<Made> {
        let server = self.core.server(cx);
        let Some(sets) = victim.head().sets(&server, attr.nlink)? else { return Err(Errno::STALE) };
        let letter = match attr.kind() {
            Kind::Regular => Letter::Full,
            Kind::Directory => Letter::Directory,
            _ => Letter::Special,
        };
        if !Arc::ptr_eq(&sets.own, &sets.keeps) {
            victim.head().reserve_record(cx, &sets.own, attr)?;
        }
        let mut locked = sets.keeps.lock(&self.core, &server)?;
        let (version, ()) = victim.head().record(cx, &mut locked, attr, (cause, letter), |locked, version| {
            let store = locked.store(&server)?;
            place(&server, &store, Name::new(&version_name(&locked.set.stem, letter, version.number))?)
        })?;
        victim.head().made(&server, &sets.keeps, &mut locked, (attr, version.number));
        drop(locked);
        let made = Made::new(&sets.keeps, &version, attr);
        if !Arc::ptr_eq(&sets.own, &made.set) {
            victim.record_leaving(&server, &sets.own, (Some(&made), cause));
        }
        Ok(made)
    }

    /// Records that a name no longer belongs to this inode, which has or had others. The name is
    /// gone, so this does not fail.
    pub(crate) fn leave_inode(
        &self,
        cx: &Cx<'_>,
        dir: &Arc<dyn Vnode>,
        name: Name<'_>,
        (made, cause): (Option<&Made>, Cause),
    ) {
        if self.lower.kind() == Kind::Regular {
            let own = self.core.set_of_name(dir, name.as_bytes());
            self.record_leaving(&self.core.server(cx), &own, (made, cause));
        }
    }

    /// Records that a name has left this object, which got no version: what the name gets next is
    /// another object. The name is gone, so this does not fail.
    pub(crate) fn leave_without_version(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: Name<'_>, cause: Cause) {
        let (server, own) = (self.core.server(cx), self.core.set_of_name(dir, name.as_bytes()));
        let recorded = own.lock(&self.core, &server).and_then(|mut locked| {
            if self.lower.kind() == Kind::Regular && locked.is_linked(&crate::set::link_stem(&*self.lower)) {
                drop(locked);
                return self.try_record_leaving(&server, &own, (None, cause));
            }
            let index = locked.index();
            let is_known =
                index.birth.is_some() || index.newest().is_some_and(|newest| crate::head::is_of_head(index, newest));
            if !is_known {
                return Ok(());
            }
            let (end, next) = (locked.time_of_change(self.core.now()), index.next().saturating_add(1));
            let newest = index.newest().map_or(0, |newest| newest.number);
            // The versions of this head keep their birth.
            let birth = index.birth.clone().filter(|birth| birth.first <= newest);
            let mut records: Vec<_> = birth.map(|birth| Record::BornBefore(newest, birth)).into_iter().collect();
            records.extend([Record::Unlinked(end, None), Record::Ended(end), Record::Next(next)]);
            locked.append_after(&server, &records)
        });
        if let Err(errno) = recorded {
            tracing::warn!(%errno, "can't record the end of {name}");
        }
    }

    fn record_leaving(&self, server: &Cx<'_>, own: &Arc<Set>, last: (Option<&Made>, Cause)) {
        if let Err(errno) = self.try_record_leaving(server, own, last) {
            tracing::warn!(%errno, "can't record the end of the link {}", own.stem.escape_ascii());
        }
    }

    fn try_record_leaving(&self, server: &Cx<'_>, own: &Arc<Set>, (made, cause): (Option<&Made>, Cause)) -> Result<()> {
        let attr = self.lower.getattr(server)?;
        let is_excluded = made.is_none() && self.head().leaves_none(server, &attr, cause)?;
        let mut locked = own.lock(&self.core, server)?;
        let now = self.core.now();
        let (mut records, mut begin) = (Vec::new(), None);
        if !locked.is_linked(&crate::set::link_stem(&*self.lower)) {
            if locked.index().open_link().is_some() {
                // The name belongs to another inode already.
                return Ok(());
            }
            // It has had several names since before the layer saw it.
            let (born, _) = crate::head::interval(&self.core, locked.index(), &attr, now);
            let stem = crate::set::link_stem(&*self.lower);
            records.push(Record::Linked(born, stem.into(), locked.index().next()));
            begin = Some(born);
        }
        let link = self.head().link_set();
        let of_inode = link.lock(&self.core, server)?;
        let last = made.and_then(|made| of_inode.index().versions.get(&made.number));
        let departure = match last {
            Some(last) => Some(Departure { last: last.number, cause }),
            None if is_excluded => None,
            // There was no room for it. What the inode gets later is not the name's.
            None => Some(Departure { last: of_inode.index().next() - 1, cause }),
        };
        // The sets may disagree about the time after the clock was set back.
        let end = locked.time_of_change(last.map_or(now, |last| last.died));
        records.push(Record::Unlinked(begin.map_or(end, |begin| end.max(begin)), departure));
        // The name's own versions are numbered after those of the inode.
        records.push(Record::Next(of_inode.index().next()));
        drop(of_inode);
        locked.append_after(server, &records)
    }

    /// Removes a directory that users see as empty.
    pub(crate) fn remove_dir(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        if is_reserved(name) {
            return Err(Errno::NOENT);
        }
        let entry = self.lower.lookup(cx, name)?.ok_or(Errno::NOENT)?;
        if entry.vnode.kind() != Kind::Directory {
            return Err(Errno::NOTDIR);
        }
        let victim = self.victim(name, &entry);
        victim.require_empty(cx)?;
        self.core.blocks.moved();
        let cx = &blocking(cx);
        if !victim.has_store(cx)? && victim.head().is_forgotten(cx, &entry.attr)? {
            self.lower.rmdir(cx, name)?;
            victim.inode.forget_place();
            self.core.policies.forget_paths();
            return Ok(());
        }
        let kept = self.keep(cx, &victim, &entry.attr, Cause::Rmdir, |server, store, version| {
            move_new(server, &self.lower, name, store, version)
        });
        match kept {
            Ok(_) => victim.inode.bury(None),
            Err(errno) if victim.may_lose_store(cx, &entry.attr, errno)? => {
                victim.drop_store(cx)?;
                self.lower.rmdir(cx, name)?;
                victim.note_lost(cx, (&self.lower, name), &entry.attr, Cause::Rmdir);
                victim.leave_without_version(cx, &self.lower, name, Cause::Rmdir);
                victim.inode.forget_place();
                self.core.policies.forget_paths();
            }
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    /// Removes the store of this directory, which has no version.
    pub(crate) fn drop_store(&self, cx: &Cx<'_>) -> Result<()> {
        crate::retain::remove_tree(&self.core.server(cx), None, &self.lower, STORE)?;
        self.core.sets.forget_dir(self.inode.id);
        self.inode.set_has_store(false);
        Ok(())
    }

    /// Whether this directory may go without a version: there is no room for one, and its store has
    /// no version.
    pub(crate) fn may_lose_store(&self, cx: &Cx<'_>, attr: &Attr, errno: Errno) -> Result<bool> {
        if !self.head().may_lose(cx, attr, errno)? {
            return Ok(false);
        }
        let server = self.core.server(cx);
        let Some(store) = find_store(&server, &self.lower)? else { return Ok(true) };
        Ok(!crate::walk::has_version(&server, &store)?)
    }

    /// Fails with `ENOTEMPTY` if users see an entry in this directory.
    pub(crate) fn require_empty(&self, cx: &Cx<'_>) -> Result<()> {
        let mut is_empty = true;
        self.lower.readdir(cx, 0, &mut |entry| {
            is_empty = entry.name.as_bytes() == STORE;
            is_empty
        })?;
        if is_empty { Ok(()) } else { Err(Errno::NOTEMPTY) }
    }
}

impl Head<'_> {
    /// Closes the versions of a name that its head leaves: if the newest lacks bytes that only the
    /// head has, makes a copy of the head.
    pub(crate) fn close(&self, cx: &Cx<'_>, locked: Locked<'_>, set: &Arc<Set>, cause: Cause) -> Result<Option<Made>> {
        if locked.dependent().is_none() {
            return Ok(None);
        }
        drop(locked);
        self.leave_copy(cx, set, cause)
    }

    /// Leaves a copy of the head under a name that it leaves. `None` if there is no room for it.
    pub(crate) fn leave_copy(&self, cx: &Cx<'_>, set: &Arc<Set>, cause: Cause) -> Result<Option<Made>> {
        cx.require_blocking()?;
        let attr = self.lower.getattr(cx)?;
        let file = self.lower.open(&self.core.server(cx), OpenFlags::RDONLY)?;
        match self.copy(cx, set, &*file, &attr, cause) {
            Err(errno) if self.may_lose(cx, &attr, errno)? => Ok(None),
            made => made.map(Some),
        }
    }
}
