//! Removal and renaming of directories: of the view's own vnodes only.

use crate::node::{At, Lower, Node, downcast};
use crate::table::{Claim, Place};
use classify::ViewId;
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Name, RenameFlags, Result, Vnode};

impl Node {
    /// Removes an empty directory.
    pub(crate) fn remove_directory(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        let dir = self.lower(cx)?;
        let entry = self.entry_to_change(cx, (dir.view, &*dir.vnode), name)?;
        if let Some(lower) = &entry.directory {
            // Fails before the view needs a vnode of its own.
            if !is_empty(cx, &**lower)? {
                return Err(Errno::NOTEMPTY);
            }
        }
        entry.claim(cx, self, dir.view)?;
        let done = dir.vnode.rmdir(cx, name);
        match &done {
            Ok(()) => self.fs.table.removed(&entry.place, dir.view),
            Err(_) => self.fs.table.unclaim(&entry.place, dir.view),
        }
        done
    }

    /// Renames an entry.
    pub(crate) fn rename_entry(
        &self,
        cx: &Cx<'_>,
        (name, new_dir, new_name): (Name<'_>, &Arc<dyn Vnode>, Name<'_>),
        flags: RenameFlags,
    ) -> Result<()> {
        let (to, table) = (downcast(new_dir)?, &self.fs.table);
        let Lower { view, vnode: old } = self.lower(cx)?;
        let new = to.lower_in(cx, view)?;
        let source = self.entry_to_change(cx, (view, &*old), name)?;
        let target = to.entry_to_change(cx, (view, &*new), new_name)?;
        // Both, so that the kernel has to repeat the call only once.
        let (moved, replaced) = (source.claim(cx, self, view), target.claim(cx, to, view));
        let (moved, replaced) = (moved?, replaced?);
        if let Err(errno) = old.rename(cx, name, &new, new_name, flags) {
            table.unclaim(&source.place, view);
            table.unclaim(&target.place, view);
            return Err(errno);
        }
        if source.place == target.place {
            return Ok(());
        }
        table.removed(&source.place, view);
        table.removed(&target.place, view);
        if let Some(node) = moved {
            node.move_to(to, new_name, view)?;
        }
        if let Some(node) = replaced.filter(|_| flags.exchange) {
            node.move_to(self, name, view)?;
        }
        Ok(())
    }

    fn move_to(self: &Arc<Self>, dir: &Self, name: Name<'_>, view: ViewId) -> Result<()> {
        let at = At { parent: dir.to_arc()?, name: name.as_bytes().into() };
        self.fs.table.moved(at.place(), view, self);
        if let Some(merged) = self.as_directory() {
            merged.set_at(at);
        }
        Ok(())
    }

    /// Checks the right to remove, replace or rename an entry of this directory, and returns the
    /// entry if a vnode for a directory of its name is in use.
    pub(crate) fn entry_to_change(
        &self,
        cx: &Cx<'_>,
        (view, dir): (ViewId, &dyn Vnode),
        name: Name<'_>,
    ) -> Result<EntryToChange> {
        let merged = self.as_directory().ok_or(Errno::NOTDIR)?;
        let place = (self.number, name.as_bytes().into());
        merged.permissions.check_change(cx, view, dir)?;
        let known = self.fs.table.knows(&place);
        if !known && !merged.permissions.differ(view) {
            return Ok(EntryToChange { place, directory: None });
        }
        let Some(found) = dir.lookup(cx, name)? else { return Ok(EntryToChange { place, directory: None }) };
        let directory = (found.vnode.kind() == Kind::Directory).then(|| Arc::clone(&found.vnode));
        let node = directory.as_ref().and_then(|lower| self.fs.table.get(&place, view, &**lower));
        let of_entry = node.as_ref().and_then(|node| node.as_directory()).map(|merged| &merged.permissions);
        merged.permissions.check_sticky(cx, view, dir, (of_entry, &*found.vnode))?;
        Ok(EntryToChange { place, directory })
    }
}

/// An entry that is about to be removed, replaced or renamed.
pub(crate) struct EntryToChange {
    place: Place,
    /// The lower directory, if the entry is one and has a vnode.
    directory: Option<Arc<dyn Vnode>>,
}

impl EntryToChange {
    /// Makes the vnode of a directory the view's own, and returns it.
    ///
    /// # Errors
    /// `ESTALE` if the kernel has to look the name up again first.
    fn claim(&self, cx: &Cx<'_>, parent: &Node, view: ViewId) -> Result<Option<Arc<Node>>> {
        let Some(lower) = &self.directory else { return Ok(None) };
        // The change itself must not be repeated on another thread: its failure ends the claim.
        cx.require_blocking()?;
        match parent.fs.table.claim(&self.place, view, &**lower) {
            Claim::Unknown => Ok(None),
            Claim::Own(node) => Ok(Some(node)),
            Claim::LookUpAgain => Err(Errno::STALE),
        }
    }
}

fn is_empty(cx: &Cx<'_>, dir: &dyn Vnode) -> Result<bool> {
    let mut empty = true;
    dir.readdir(cx, 0, &mut |_| {
        empty = false;
        false
    })?;
    Ok(empty)
}
