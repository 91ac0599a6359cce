//! Rename: within a directory, between directories, and over an existing entry.

use crate::managed::{Change, Found, Location};
use crate::node::{LockedDir, UsenetVnode};
use crate::record::is_reserved;
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Name, RenameFlags, Result, Vnode};

impl UsenetVnode {
    /// Renames or exchanges entries, which may move them between buckets.
    pub(crate) fn move_to(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        new_dir: &Self,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        if is_reserved(name.as_bytes()) || (flags.exchange && is_reserved(new_name.as_bytes())) {
            return Err(Errno::NOENT);
        }
        if is_reserved(new_name.as_bytes()) {
            return Err(Errno::INVAL);
        }
        if flags.exchange && (flags.no_replace || flags.whiteout) {
            return Err(Errno::INVAL);
        }
        let _multi_dir = self.multi_dir();
        let mut from = self.lock_for_change(cx)?;
        // With `multi_dir` held, directories can be locked in any order.
        let mut to =
            if Arc::ptr_eq(self.state()?, new_dir.state()?) { None } else { Some(new_dir.lock_for_change(cx)?) };
        let source = from.find(cx, &self.lower, name)?.ok_or(Errno::NOENT)?;
        let target = to.as_ref().unwrap_or(&from).find(cx, &new_dir.lower, new_name)?;
        match &target {
            None if flags.exchange => return Err(Errno::NOENT),
            Some(_) if flags.no_replace => return Err(Errno::EXIST),
            _ => {}
        }
        let (new_location, new_place) = match &target {
            Some((location, place, _)) => (location.clone(), Arc::clone(place)),
            None => new_dir.new_place(cx, to.as_mut().unwrap_or(&mut from), new_name)?,
        };
        let rename = || source.1.rename(cx, name, &new_place, new_name, flags);
        match target.as_ref().filter(|target| self.is_victim(new_dir, &source, target, flags)) {
            Some((_, _, victim)) => self.remove_swept(cx, &victim.vnode, rename)?,
            None => rename()?,
        }
        // A rename between two hard links of one file does nothing.
        if target.as_ref().is_some_and(|target| target.2.vnode.id() == source.2.vnode.id()) {
            return Ok(());
        }
        let (old_kind, new_kind) = (source.2.vnode.kind(), target.as_ref().map(|target| target.2.vnode.kind()));
        from.count(&source.0, old_kind, Change::Removed);
        if let (true, Some(kind)) = (flags.exchange, new_kind) {
            from.count(&source.0, kind, Change::Added);
        }
        if flags.whiteout {
            from.count(&source.0, Kind::CharDevice, Change::Added);
        }
        let to = to.as_mut().unwrap_or(&mut from);
        if let Some(kind) = new_kind {
            to.count(&new_location, kind, Change::Removed);
        }
        to.count(&new_location, old_kind, Change::Added);
        self.touch(cx, &source.0);
        new_dir.touch(cx, &new_location);
        if let LockedDir::Managed(managed) = to {
            new_dir.split_if_large(cx, managed, &new_location);
        }
        Ok(())
    }

    /// Returns the location for the new name, and its lower directory.
    fn new_place(&self, cx: &Cx<'_>, held: &mut LockedDir<'_>, name: Name<'_>) -> Result<(Location, Arc<dyn Vnode>)> {
        let LockedDir::Managed(managed) = held else { return Ok((Location::Flat, Arc::clone(&self.lower))) };
        let location = managed.location_for_new(cx, &self.lower, name)?;
        let place = self.place_for_new(cx, managed, &location)?;
        Ok((location, place))
    }

    /// Whether a directory replaces another one, which must be swept first. The parents of the
    /// entries are not empty, so they are excluded.
    fn is_victim(&self, new_dir: &Self, source: &Found, target: &Found, flags: RenameFlags) -> bool {
        let (old, new) = (&source.2.vnode, &target.2.vnode);
        let directories = old.kind() == Kind::Directory && new.kind() == Kind::Directory;
        let busy = [old.id(), self.lower.id(), new_dir.lower.id()].contains(&new.id());
        directories && !flags.exchange && !busy
    }
}
