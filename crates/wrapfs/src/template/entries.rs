//! What is found, made, removed and moved in a directory.

use super::core::Core;
use super::names::Place;
use super::node::TemplateVnode;
use super::sweep::says_not_empty;
use std::sync::Arc;
use vnode::{Cx, Entry, Errno, Kind, Name, RenameFlags, Result, Vnode};

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

    /// The entry that is stored under this name.
    pub(crate) fn find_exactly(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        let Some(place) = self.core.place(cx, &self.object(), name)? else { return Ok(None) };
        let found = self.lower.lookup(cx, place.name()?)?;
        found.map(|entry| self.raise(cx, Some(name), entry)).transpose()
    }

    /// Makes something at `name` with an operation of the layer below, which is given the name there.
    fn publish<T>(&self, cx: &Cx<'_>, place: &Place<'_>, make: impl FnOnce(Name<'_>) -> Result<T>) -> Result<T> {
        let Some(long) = place.long() else { return make(place.name()?) };
        cx.require_blocking()?;
        let _held = self.core.long.hold(self.lower.id(), self.lower.id());
        let is_new = self.core.make_companion(cx, &*self.lower, long)?;
        let made = make(place.name()?);
        if made.is_err() && is_new {
            self.core.drop_companion_without_object(cx, &*self.lower, long);
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
        // What is made could not be seen.
        let place = self.core.place(cx, &self.object(), name)?.ok_or(Errno::INVAL)?;
        let _held = self.hold_names(cx, self)?;
        self.must_be_new(cx, name)?;
        let (entry, with) = self.coming(cx, name, || self.publish(cx, &place, make))?;
        let is_dir = entry.vnode.kind() == Kind::Directory;
        match self.raise(cx, Some(name), entry) {
            Ok(entry) => Ok((entry, with)),
            Err(errno) => {
                match self.going(cx, name, || self.take(cx, &place, is_dir)) {
                    Ok(()) => self.forget_path(name),
                    Err(errno) => tracing::warn!(%errno, "what was made stays, though it could not be shown"),
                }
                Err(errno)
            }
        }
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
        self.core.drop_companion(cx, &*self.lower, long);
        Ok(())
    }

    pub(crate) fn remove_file(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        let _held = self.hold_names(cx, self)?;
        self.remove(cx, name, |place| self.take(cx, place, false))
    }

    pub(crate) fn remove_dir(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        let _held = self.hold_names(cx, self)?;
        self.remove(cx, name, |place| self.core.sweeping(cx, &*self.lower, place, || self.take(cx, place, true)))
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
            let place = self.core.place(cx, &self.object(), name)?.ok_or(Errno::NOENT)?;
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
        let from = self.core.place(cx, &self.object(), name)?.ok_or(Errno::NOENT)?;
        let hidden = if flags.exchange { Errno::NOENT } else { Errno::INVAL };
        let to = self.core.place(cx, &new_dir.object(), new_name)?.ok_or(hidden)?;
        let (here, there) = ((self.lower.id(), name), (new_dir.lower.id(), new_name));
        if flags.exchange {
            // Both names stay, and their companions with them.
            self.lower.rename(cx, from.name()?, &new_dir.lower, to.name()?, flags)?;
            self.note_move(here, there, true);
            return Ok(());
        }
        let act = || self.core.sweeping(cx, &*new_dir.lower, &to, || self.move_to(cx, &from, new_dir, &to, flags));
        if stays {
            return act();
        }
        // A name is noted as gone before the other one comes: they may be two spellings of one.
        new_dir.coming(cx, new_name, || self.going(cx, name, act))?;
        self.note_move(here, there, false);
        Ok(())
    }

    /// An entry was renamed: where objects were last seen.
    fn note_move(&self, from: (u64, Name<'_>), to: (u64, Name<'_>), exchange: bool) {
        if let Some(paths) = self.core.paths() {
            paths.moved(from, to, exchange);
        }
    }

    fn move_to(&self, cx: &Cx<'_>, from: &Place<'_>, new_dir: &Self, to: &Place<'_>, flags: RenameFlags) -> Result<()> {
        let core = &self.core;
        let rename = || self.lower.rename(cx, from.name()?, &new_dir.lower, to.name()?, flags);
        if from.long().is_none() && to.long().is_none() {
            return rename();
        }
        cx.require_blocking()?;
        let _held = core.long.hold(self.lower.id(), new_dir.lower.id());
        let is_new = match to.long() {
            Some(long) => core.make_companion(cx, &*new_dir.lower, long)?,
            None => false,
        };
        let moved = rename();
        match (&moved, from.long(), to.long()) {
            (Ok(()), Some(long), _) => core.drop_companion_without_object(cx, &*self.lower, long),
            (Err(_), _, Some(long)) if is_new => core.drop_companion_without_object(cx, &*new_dir.lower, long),
            _ => {}
        }
        moved
    }
}

impl Core {
    /// Does what removes or replaces the entry at `place`; once more if that is a directory that only leftovers of a crash are in.
    fn sweeping(&self, cx: &Cx<'_>, dir: &dyn Vnode, place: &Place<'_>, remove: impl Fn() -> Result<()>) -> Result<()> {
        match remove() {
            Err(errno) if self.names.is_some() && says_not_empty(errno) => {
                let victim = dir.lookup(cx, place.name()?)?;
                let Some(victim) = victim.filter(|victim| victim.vnode.kind() == Kind::Directory) else {
                    return Err(errno);
                };
                if self.sweep(cx, &*victim.vnode)? { remove() } else { Err(errno) }
            }
            done => done,
        }
    }
}
