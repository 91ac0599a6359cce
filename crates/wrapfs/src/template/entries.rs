//! Lookup, creation, removal and renaming of entries in a directory.

use super::data::blocking;
use super::directory::Trust;
use super::names::Place;
use super::node::TemplateVnode;
use super::sweep::says_not_empty;
use std::sync::Arc;
use vnode::{Cx, Entry, Errno, Kind, Name, RenameFlags, Result};

impl TemplateVnode {
    /// Converts an entry of the layer below into one of this layer: an entry of this directory, if
    /// `name` is given.
    pub(crate) fn wrap_entry(&self, cx: &Cx<'_>, name: Option<Name<'_>>, entry: Entry) -> Result<Entry> {
        let vnode = Self::over(&self.core, entry.vnode);
        if let (Some(record), Some(name)) = (&vnode.record, name) {
            record.found_at(self.lower.id(), name);
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

    /// Returns where an entry of this name is stored, or would be stored if created after a lookup.
    /// `None` if an entry there would not be visible.
    fn place<'a>(&self, cx: &Cx<'_>, name: Name<'a>, trust: Trust) -> Result<Option<Place<'a>>> {
        match self.coded(cx, trust)? {
            Some(dir) => self.core.place(cx, &dir.object(), name),
            None => Ok(None),
        }
    }

    /// Returns where to store a new entry of this name; `None` if it would not be visible there.
    /// The caller holds the directory's lock.
    fn place_for_new<'a>(&self, cx: &Cx<'_>, name: Name<'a>) -> Result<Option<Place<'a>>> {
        self.core.place(cx, &self.coded_for_new(cx)?.object(), name)
    }

    /// Looks up the entry stored under exactly this name.
    pub(crate) fn find_exactly(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        let Some(place) = self.place(cx, name, Trust::Recent)? else { return Ok(None) };
        let found = self.lower.lookup(cx, place.name()?)?;
        found.map(|entry| self.wrap_entry(cx, Some(name), entry)).transpose()
    }

    /// Creates an object at `place` with an operation of the layer below, which receives the
    /// encoded name.
    fn create_at<T>(&self, cx: &Cx<'_>, place: &Place<'_>, make: impl FnOnce(Name<'_>) -> Result<T>) -> Result<T> {
        let Some(long) = place.long() else { return make(place.name()?) };
        cx.require_blocking()?;
        let _held = self.core.long.hold(self.lower.id(), self.lower.id());
        let is_new = self.core.create_side(cx, &*self.lower, long)?;
        let made = make(place.name()?);
        if made.is_err() && is_new {
            self.core.remove_side_without_object(cx, &*self.lower, long);
        }
        made
    }

    /// Creates an object together with additional state (an open file). If a hook fails, the
    /// creation is undone.
    pub(crate) fn create_with<T>(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        make: impl FnOnce(Name<'_>) -> Result<(Entry, T)>,
    ) -> Result<(Entry, T)> {
        let _held = self.hold_names(cx, self)?;
        let dirs = self.core.hold_dirs(cx, &[self.lower.id()], None)?;
        let place = self.place_for_new(cx, name)?.ok_or(Errno::INVAL)?;
        self.must_be_new(cx, name)?;
        let (entry, with) = self.inserting(cx, name, || self.create_at(cx, &place, make))?;
        drop(dirs);
        // The object exists: do not restart the operation from here on.
        let cx = &blocking(cx);
        let (entry, _begun) = self.init_new_dir(cx, entry);
        let is_dir = entry.vnode.kind() == Kind::Directory;
        match self.wrap_entry(cx, Some(name), entry) {
            Ok(entry) => Ok((entry, with)),
            Err(errno) => {
                match self.removing(cx, name, || self.undo_create(cx, &place, is_dir)) {
                    Ok(()) => self.forget_path(name),
                    Err(errno) => tracing::warn!(%errno, "created object not removed after a failed hook"),
                }
                Err(errno)
            }
        }
    }

    /// Creates the state of a new directory. Returns the vnode that keeps it cached.
    fn init_new_dir(&self, cx: &Cx<'_>, entry: Entry) -> (Entry, Option<Self>) {
        if self.core.state_file.is_none() || entry.vnode.kind() != Kind::Directory {
            return (entry, None);
        }
        let made = Self::over(&self.core, Arc::clone(&entry.vnode));
        made.init_state(cx);
        // Creating the state changed the directory's timestamps.
        let attr = entry.vnode.getattr(cx).unwrap_or(entry.attr);
        (Entry { attr, ..entry }, Some(made))
    }

    pub(crate) fn create_entry(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        make: impl FnOnce(Name<'_>) -> Result<Entry>,
    ) -> Result<Entry> {
        self.create_with(cx, name, |name| Ok((make(name)?, ()))).map(|(entry, ())| entry)
    }

    /// Removes the entry at `place`, with its side file.
    fn remove_at(&self, cx: &Cx<'_>, place: &Place<'_>, is_dir: bool) -> Result<()> {
        let remove = |name| if is_dir { self.lower.rmdir(cx, name) } else { self.lower.unlink(cx, name) };
        let Some(long) = place.long() else { return remove(place.name()?) };
        let _held = self.core.long.hold(self.lower.id(), self.lower.id());
        remove(place.name()?)?;
        self.core.remove_side(cx, &*self.lower, long);
        Ok(())
    }

    /// Removes an object that was just created.
    fn undo_create(&self, cx: &Cx<'_>, place: &Place<'_>, is_dir: bool) -> Result<()> {
        if is_dir { self.remove_dir_at(cx, place) } else { self.remove_at(cx, place, false) }
    }

    /// Removes a directory, including the name store's files in it.
    fn remove_dir_at(&self, cx: &Cx<'_>, place: &Place<'_>) -> Result<()> {
        let remove = || self.remove_at(cx, place, true);
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
        victim.without_store_files(cx, refused, remove)
    }

    pub(crate) fn remove_file(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        let _held = self.hold_names(cx, self)?;
        self.remove(cx, name, |place| self.remove_at(cx, place, false))
    }

    pub(crate) fn remove_dir(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        let _held = self.hold_names(cx, self)?;
        self.remove(cx, name, |place| self.remove_dir_at(cx, place))
    }

    /// Drops the known path of that name.
    fn forget_path(&self, name: Name<'_>) {
        if let Some(paths) = self.core.paths() {
            paths.removed(self.lower.id(), name);
        }
    }

    /// Removes the entry that the name refers to, in whatever spelling it is stored.
    fn remove(&self, cx: &Cx<'_>, name: Name<'_>, take: impl Fn(&Place<'_>) -> Result<()>) -> Result<()> {
        let exactly = |name: Name<'_>| {
            let place = self.place(cx, name, Trust::Recent)?.ok_or(Errno::NOENT)?;
            self.removing(cx, name, || take(&place))?;
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
            // The whiteout left at the old name might collide with the new name in another
            // spelling.
            return Err(Errno::INVAL);
        }
        let (old, mut new) = (self.stored(cx, name)?, new_dir.stored(cx, new_name)?);
        let respelled = old.name == new.name && self.lower.id() == new_dir.lower.id();
        if respelled {
            // The same entry: it gets the new spelling.
            new.name = new_name.as_bytes().into();
        }
        // A rename between two names of one file does nothing.
        let no_op = !respelled && old.id.is_some() && old.id == new.id;
        let (name, new_name) = (Name::new(&old.name)?, Name::new(&new.name)?);
        let moving = Moving { from: (self, name), to: (new_dir, new_name), flags, no_op };
        let moved = match moving.run(cx, None) {
            Err(errno) if says_not_empty(errno) && self.core.names.is_some() && !flags.no_replace => {
                moving.replace(cx, errno)
            }
            done => done,
        };
        if moved.is_ok()
            && !no_op
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
    /// Both are names of one file: the rename does nothing.
    no_op: bool,
}

impl Moving<'_> {
    /// Renames, possibly onto the directory `victim`, which may contain only the name store's
    /// files.
    fn run(&self, cx: &Cx<'_>, victim: Option<&TemplateVnode>) -> Result<()> {
        let ((dir, name), (new_dir, new_name), flags) = (self.from, self.to, self.flags);
        let (id, new_id) = (dir.lower.id(), new_dir.lower.id());
        let _dirs = dir.core.hold_dirs(cx, &[id, new_id], victim.map(|victim| victim.lower.id()))?;
        let from = dir.place(cx, name, Trust::Current)?.ok_or(Errno::NOENT)?;
        if flags.exchange {
            // Both names remain, and so do their side files.
            let to = new_dir.place(cx, new_name, Trust::Current)?.ok_or(Errno::NOENT)?;
            return dir.lower.rename(cx, from.name()?, &new_dir.lower, to.name()?, flags);
        }
        let to = new_dir.place_for_new(cx, new_name)?.ok_or(Errno::INVAL)?;
        let rename = || dir.move_to(cx, &from, new_dir, &to, flags);
        let act = || match victim {
            None => rename(),
            Some(victim) => match new_dir.directory_at(cx, &to)? {
                Some(now) if now.lower.id() == victim.lower.id() => {
                    victim.without_store_files(cx, Errno::NOTEMPTY, rename)
                }
                // Another directory took its place: treat it as a non-empty target.
                _ => Err(Errno::NOTEMPTY),
            },
        };
        if self.no_op {
            return act();
        }
        // Record the removal first: the two names may be spellings of one entry.
        new_dir.inserting(cx, new_name, || dir.removing(cx, name, act))
    }

    /// Retries a rename onto a directory that was reported as not empty.
    fn replace(&self, cx: &Cx<'_>, refused: Errno) -> Result<()> {
        let (new_dir, new_name) = self.to;
        let Some(to) = new_dir.place(cx, new_name, Trust::Current)? else { return Err(refused) };
        let Some(victim) = new_dir.directory_at(cx, &to)? else { return Err(refused) };
        self.run(cx, Some(&victim))
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
            Some(long) => core.create_side(cx, &*new_dir.lower, long)?,
            None => false,
        };
        let moved = rename();
        match (&moved, from.long(), to.long()) {
            (Ok(()), Some(long), _) => core.remove_side_without_object(cx, &*self.lower, long),
            (Err(_), _, Some(long)) if is_new => core.remove_side_without_object(cx, &*new_dir.lower, long),
            _ => {}
        }
        moved
    }
}
