//! What is found, made, removed and moved in a directory.

use super::data::patient;
use super::directory::Trust;
use super::names::Place;
use super::node::TemplateVnode;
use super::sweep::says_not_empty;
use std::sync::Arc;
use vnode::{Cx, Entry, Errno, Kind, Name, RenameFlags, Result};

impl TemplateVnode {
    /// What the layer below answered, as this one answers it: an entry of this directory, if it has a name.
    pub(crate) fn raise(&self, cx: &Cx<'_>, name: Option<Name<'_>>, entry: Entry) -> Result<Entry> {
        let vnode = Self::over(&self.core, entry.vnode);
        if let (Some(record), Some(name)) = (&vnode.record, name) {
            record.seen_at(self.lower.id(), name);
        }
        let attr = self.core.shown(cx, &vnode.object(), entry.attr)?;
        Ok(Entry { vnode: Arc::new(vnode), attr })
    }

    pub(crate) fn find(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        match self.find_exactly(cx, name)? {
            Some(entry) => Ok(Some(entry)),
            None => Ok(self.find_respelled(cx, name, false)?.map(|(_, entry)| entry)),
        }
    }

    /// Where an entry of that name is, or would be if it were made by somebody who has looked; `None` if one there would not be seen.
    fn place<'a>(&self, cx: &Cx<'_>, name: Name<'a>, trust: Trust) -> Result<Option<Place<'a>>> {
        match self.coded(cx, trust)? {
            Some(dir) => self.core.place(cx, &dir.object(), name),
            None => Ok(None),
        }
    }

    /// Where a new entry of that name belongs; `None` if it could not be seen there. The directory's lock is held.
    fn place_for_new<'a>(&self, cx: &Cx<'_>, name: Name<'a>) -> Result<Option<Place<'a>>> {
        self.core.place(cx, &self.coded_for_new(cx)?.object(), name)
    }

    /// The entry that is stored under this name.
    pub(crate) fn find_exactly(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        let Some(place) = self.place(cx, name, Trust::Lately)? else { return Ok(None) };
        let found = self.lower.lookup(cx, place.name()?)?;
        found.map(|entry| self.raise(cx, Some(name), entry)).transpose()
    }

    /// Makes something at `name` with an operation of the layer below, which is given the name there.
    fn publish<T>(&self, cx: &Cx<'_>, place: &Place<'_>, make: impl FnOnce(Name<'_>) -> Result<T>) -> Result<T> {
        let Some(long) = place.long() else { return make(place.name()?) };
        cx.require_blocking()?;
        let _held = self.core.long.hold(self.lower.id(), self.lower.id());
        let is_new = self.core.make_side(cx, &*self.lower, long)?;
        let made = make(place.name()?);
        if made.is_err() && is_new {
            self.core.drop_side_without_object(cx, &*self.lower, long);
        }
        made
    }

    /// The same, with what goes with the entry (an open file), and everything as it was if a hook spoils it in the end.
    pub(crate) fn make_with<T>(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        make: impl FnOnce(Name<'_>) -> Result<(Entry, T)>,
    ) -> Result<(Entry, T)> {
        let _held = self.hold_names(cx, self)?;
        let dirs = self.core.hold_dirs(cx, &[self.lower.id()], None)?;
        let place = self.place_for_new(cx, name)?.ok_or(Errno::INVAL)?;
        self.must_be_new(cx, name)?;
        let (entry, with) = self.coming(cx, name, || self.publish(cx, &place, make))?;
        drop(dirs);
        // It is there: from here on nothing begins anew.
        let cx = &patient(cx);
        let (entry, _begun) = self.begun(cx, entry);
        let is_dir = entry.vnode.kind() == Kind::Directory;
        match self.raise(cx, Some(name), entry) {
            Ok(entry) => Ok((entry, with)),
            Err(errno) => {
                match self.going(cx, name, || self.take_back(cx, &place, is_dir)) {
                    Ok(()) => self.forget_path(name),
                    Err(errno) => tracing::warn!(%errno, "what was made stays, though it could not be shown"),
                }
                Err(errno)
            }
        }
    }

    /// A directory that was just made gets its state. Answers what keeps that in memory.
    fn begun(&self, cx: &Cx<'_>, entry: Entry) -> (Entry, Option<Self>) {
        if self.core.state_file.is_none() || entry.vnode.kind() != Kind::Directory {
            return (entry, None);
        }
        let made = Self::over(&self.core, Arc::clone(&entry.vnode));
        made.begin(cx);
        // Its times are others now.
        let attr = entry.vnode.getattr(cx).unwrap_or(entry.attr);
        (Entry { attr, ..entry }, Some(made))
    }

    pub(crate) fn make(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        make: impl FnOnce(Name<'_>) -> Result<Entry>,
    ) -> Result<Entry> {
        self.make_with(cx, name, |name| Ok((make(name)?, ()))).map(|(entry, ())| entry)
    }

    /// Removes a name.
    fn take(&self, cx: &Cx<'_>, place: &Place<'_>, is_dir: bool) -> Result<()> {
        let remove = |name| if is_dir { self.lower.rmdir(cx, name) } else { self.lower.unlink(cx, name) };
        let Some(long) = place.long() else { return remove(place.name()?) };
        let _held = self.core.long.hold(self.lower.id(), self.lower.id());
        remove(place.name()?)?;
        self.core.drop_side(cx, &*self.lower, long);
        Ok(())
    }

    /// Removes what was just made.
    fn take_back(&self, cx: &Cx<'_>, place: &Place<'_>, is_dir: bool) -> Result<()> {
        if is_dir { self.take_dir(cx, place) } else { self.take(cx, place, false) }
    }

    /// Removes a directory, with what the store of names keeps in it.
    fn take_dir(&self, cx: &Cx<'_>, place: &Place<'_>) -> Result<()> {
        let remove = || self.take(cx, place, true);
        let refused = if self.core.state_file.is_some() {
            Errno::NOTEMPTY
        } else {
            match remove() {
                Err(errno) if self.core.names.is_some() && says_not_empty(errno) => errno,
                done => return done,
            }
        };
        let Some(victim) = self.directory_at(cx, place)? else { return remove() };
        let _dirs = self.core.hold_dirs(cx, &[], Some(victim.lower.id()))?;
        victim.emptied(cx, refused, remove)
    }

    pub(crate) fn remove_file(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        let _held = self.hold_names(cx, self)?;
        self.remove(cx, name, |place| self.take(cx, place, false))
    }

    pub(crate) fn remove_dir(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        let _held = self.hold_names(cx, self)?;
        self.remove(cx, name, |place| self.take_dir(cx, place))
    }

    /// Nothing has that name any more.
    fn forget_path(&self, name: Name<'_>) {
        if let Some(paths) = self.core.paths() {
            paths.went(self.lower.id(), name);
        }
    }

    /// Removes the entry of that name, or the one that it leads to.
    fn remove(&self, cx: &Cx<'_>, name: Name<'_>, take: impl Fn(&Place<'_>) -> Result<()>) -> Result<()> {
        let exactly = |name: Name<'_>| {
            let place = self.place(cx, name, Trust::Now)?.ok_or(Errno::NOENT)?;
            self.going(cx, name, || take(&place))?;
            self.forget_path(name);
            Ok(())
        };
        match exactly(name) {
            Err(Errno::NOENT) => match self.find_respelled(cx, name, true)? {
                Some((stored, _)) => exactly(Name::new(&stored)?),
                None => Err(Errno::NOENT),
            },
            done => done,
        }
    }

    pub(crate) fn move_entry(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        new_dir: &Self,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let held = self.hold_names(cx, new_dir)?;
        if flags.whiteout && held.is_some() {
            // What is left at the old name may be the new one in another spelling.
            return Err(Errno::INVAL);
        }
        let (old, mut new) = (self.stored(cx, name)?, new_dir.stored(cx, new_name)?);
        let respelled = old.name == new.name && self.lower.id() == new_dir.lower.id();
        if respelled {
            // One entry: it gets the new spelling.
            new.name = new_name.as_bytes().into();
        }
        // Between two names of one file nothing is renamed.
        let stays = !respelled && old.id.is_some() && old.id == new.id;
        let (name, new_name) = (Name::new(&old.name)?, Name::new(&new.name)?);
        let moving = Moving { from: (self, name), to: (new_dir, new_name), flags, stays };
        let moved = match moving.go(cx, None) {
            Err(errno) if says_not_empty(errno) && self.core.names.is_some() && !flags.no_replace => {
                moving.replace(cx, errno)
            }
            done => done,
        };
        if moved.is_ok()
            && !stays
            && let Some(paths) = self.core.paths()
        {
            paths.moved((self.lower.id(), name), (new_dir.lower.id(), new_name), flags.exchange);
        }
        moved
    }
}

/// A rename of a stored name.
struct Moving<'a> {
    from: (&'a TemplateVnode, Name<'a>),
    to: (&'a TemplateVnode, Name<'a>),
    flags: RenameFlags,
    /// Both are names of one file: nothing is renamed.
    stays: bool,
}

impl Moving<'_> {
    /// Renames; onto `victim`, if that is a directory with nothing in it but what the store of names keeps there.
    fn go(&self, cx: &Cx<'_>, victim: Option<&TemplateVnode>) -> Result<()> {
        let ((dir, name), (new_dir, new_name), flags) = (self.from, self.to, self.flags);
        let (id, new_id) = (dir.lower.id(), new_dir.lower.id());
        let _dirs = dir.core.hold_dirs(cx, &[id, new_id], victim.map(|victim| victim.lower.id()))?;
        let from = dir.place(cx, name, Trust::Now)?.ok_or(Errno::NOENT)?;
        if flags.exchange {
            // Both names stay, and their side files with them.
            let to = new_dir.place(cx, new_name, Trust::Now)?.ok_or(Errno::NOENT)?;
            return dir.lower.rename(cx, from.name()?, &new_dir.lower, to.name()?, flags);
        }
        let to = new_dir.place_for_new(cx, new_name)?.ok_or(Errno::INVAL)?;
        let rename = || dir.move_to(cx, &from, new_dir, &to, flags);
        let act = || match victim {
            None => rename(),
            Some(victim) => match new_dir.directory_at(cx, &to)? {
                Some(now) if now.lower.id() == victim.lower.id() => victim.emptied(cx, Errno::NOTEMPTY, rename),
                // Another one took its place: as if it had been there from the beginning, with something in it.
                _ => Err(Errno::NOTEMPTY),
            },
        };
        if self.stays {
            return act();
        }
        // A name is noted as gone before the other one comes: they may be two spellings of one.
        new_dir.coming(cx, new_name, || dir.going(cx, name, act))
    }

    /// The same again, where what is to be replaced is a directory that is said not to be empty.
    fn replace(&self, cx: &Cx<'_>, refused: Errno) -> Result<()> {
        let (new_dir, new_name) = self.to;
        let Some(to) = new_dir.place(cx, new_name, Trust::Now)? else { return Err(refused) };
        let Some(victim) = new_dir.directory_at(cx, &to)? else { return Err(refused) };
        self.go(cx, Some(&victim))
    }
}

impl TemplateVnode {
    fn move_to(&self, cx: &Cx<'_>, from: &Place<'_>, new_dir: &Self, to: &Place<'_>, flags: RenameFlags) -> Result<()> {
        let core = &self.core;
        let rename = || self.lower.rename(cx, from.name()?, &new_dir.lower, to.name()?, flags);
        if from.long().is_none() && to.long().is_none() {
            return rename();
        }
        cx.require_blocking()?;
        let _held = core.long.hold(self.lower.id(), new_dir.lower.id());
        let is_new = match to.long() {
            Some(long) => core.make_side(cx, &*new_dir.lower, long)?,
            None => false,
        };
        let moved = rename();
        match (&moved, from.long(), to.long()) {
            (Ok(()), Some(long), _) => core.drop_side_without_object(cx, &*self.lower, long),
            (Err(_), _, Some(long)) if is_new => core.drop_side_without_object(cx, &*new_dir.lower, long),
            _ => {}
        }
        moved
    }
}
