//! Removing a name: the object becomes a version.

use crate::core::blocking;
use crate::head::Head;
use crate::node::{VersionVnode, is_reserved};
use crate::session::Session;
use crate::set::{Locked, Made, Set, move_new};
use parking_lot::MutexGuard;
use std::sync::Arc;
use versionset::{Cause, Letter, Record, STORE, version_name};
use vnode::{Attr, Cx, Entry, Errno, Kind, Name, OpenFlags, Result, Vnode};

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
    /// The copy.
    made: Option<Made>,
    /// Nobody opens the file until it is removed.
    session: MutexGuard<'a, Session>,
}

impl Removal<'_> {
    /// Passes on the result of the removal. If it failed, takes back the copy.
    pub(crate) fn checked(mut self, cx: &Cx<'_>, victim: &VersionVnode, result: Result<()>) -> Result<()> {
        if result.is_ok() {
            // Before somebody else can lock the session.
            victim.inode.forget_place();
        } else {
            // A name goes or stays, whatever the error is.
            victim.head().take_back(cx, Some(&mut self.session), self.made, Errno::CANCELED);
        }
        result
    }
}

impl VersionVnode {
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
        let removal = victim.prepare_removal(cx, Cause::Unlink)?;
        let cx = &blocking(cx);
        match removal.fate {
            Fate::Named => {
                self.lower.unlink(cx, name)?;
                victim.leave_inode(cx, &self.lower, name);
            }
            Fate::Copied => removal.checked(cx, &victim, self.lower.unlink(cx, name))?,
            Fate::Dropped => self.lower.unlink(cx, name)?,
            Fate::Kept => {
                let made = self.keep(cx, &victim, &removal.attr, Cause::Unlink, |server, store, version| {
                    move_new(server, &self.lower, name, store, version)
                });
                match made {
                    Ok(made) => victim.inode.bury(Some(made)),
                    Err(errno) if victim.head().may_lose(cx, &removal.attr, errno)? => self.lower.unlink(cx, name)?,
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
    pub(crate) fn prepare_removal(&self, cx: &Cx<'_>, cause: Cause) -> Result<Removal<'_>> {
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
            } else if self.head().is_excluded(cx, &attr)? {
                Fate::Dropped
            } else {
                Fate::Kept
            };
            return Ok(Removal { fate, attr, made: None, session });
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
            return Ok(Removal { fate: Fate::Named, attr, made: None, session });
        }
        session.active = None;
        if self.head().is_droppable(cx, &attr)? {
            return Ok(Removal { fate: Fate::Dropped, attr, made: None, session });
        }
        self.head().look_for_mappings(cx, &session)?;
        if session.writers == 0 && !self.head().is_written_unseen(&session) {
            return Ok(Removal { fate: Fate::Kept, attr, made: None, session });
        }
        let mut made = None;
        if let Some(sets) = self.head().sets(cx, attr.nlink)? {
            let file = self.lower.open(&self.core.server(cx), OpenFlags::RDONLY)?;
            made = Some(self.head().copy(cx, &sets.keeps, &*file, &attr, cause)?);
        }
        Ok(Removal { fate: Fate::Copied, attr, made, session })
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
        let mut locked = sets.keeps.lock(&self.core, &server)?;
        let (version, ()) = victim.head().record(cx, &mut locked, attr, (cause, letter), |locked, version| {
            let store = locked.store(&server)?;
            place(&server, &store, Name::new(&version_name(&locked.set.stem, letter, version.number))?)
        })?;
        victim.head().made(&server, &sets.keeps, &mut locked, (attr, version.number));
        drop(locked);
        if !Arc::ptr_eq(&sets.own, &sets.keeps) {
            victim.record_leaving(&server, &sets.own);
        }
        Ok(Made { set: sets.keeps, number: version.number, letter })
    }

    /// Records that a name no longer belongs to this inode, which has or had others. The name is
    /// gone, so this does not fail.
    pub(crate) fn leave_inode(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: Name<'_>) {
        if self.lower.kind() == Kind::Regular {
            let own = self.core.set_of_name(dir, name.as_bytes());
            self.record_leaving(&self.core.server(cx), &own);
        }
    }

    fn record_leaving(&self, server: &Cx<'_>, own: &Arc<Set>) {
        if let Err(errno) = self.try_record_leaving(server, own) {
            tracing::warn!(%errno, "can't record the end of the link {}", own.stem.escape_ascii());
        }
    }

    fn try_record_leaving(&self, server: &Cx<'_>, own: &Arc<Set>) -> Result<()> {
        let attr = self.lower.getattr(server)?;
        let mut locked = own.lock(&self.core, server)?;
        let now = self.core.now();
        let mut records = Vec::new();
        if !locked.is_linked(&crate::set::link_stem(&*self.lower)) {
            if locked.index().links.last().is_some_and(|period| period.until.is_none()) {
                // The name belongs to another inode already.
                return Ok(());
            }
            // It has had several names since before the layer saw it.
            let (born, _) = crate::head::interval(locked.index(), &attr, now);
            records.push(Record::Linked(born, crate::set::link_stem(&*self.lower).into()));
        }
        records.push(Record::Unlinked(now));
        records.extend(self.numbers_of_link(server)?);
        locked.append(server, &records)
    }

    /// Returns the record by which versions of the name's own set are numbered after those of the
    /// inode's set.
    fn numbers_of_link(&self, server: &Cx<'_>) -> Result<Option<Record>> {
        let link = self.head().link_set();
        let next = link.lock(&self.core, server)?.index().next();
        Ok((next > 1).then_some(Record::Next(next)))
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
        if !victim.has_store(cx)? && victim.head().is_excluded(cx, &entry.attr)? {
            self.lower.rmdir(cx, name)?;
            victim.inode.forget_place();
            self.core.policies.forget_paths();
            return Ok(());
        }
        self.keep(cx, &victim, &entry.attr, Cause::Rmdir, |server, store, version| {
            move_new(server, &self.lower, name, store, version)
        })?;
        victim.inode.bury(None);
        Ok(())
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
        cx.require_blocking()?;
        let attr = self.lower.getattr(cx)?;
        let file = self.lower.open(&self.core.server(cx), OpenFlags::RDONLY)?;
        self.copy(cx, set, &*file, &attr, cause).map(Some)
    }
}
