//! Removal of directories that contain only the name store's own files: directory state, and
//! leftovers of a crash.

use super::names::Place;
use super::node::TemplateVnode;
use crate::hooks::Role;
use vnode::{Cx, Errno, Kind, Name, Result};

impl TemplateVnode {
    /// Returns the directory at `place`, if there is one.
    pub(crate) fn directory_at(&self, cx: &Cx<'_>, place: &Place<'_>) -> Result<Option<Self>> {
        let found = self.lower.lookup(cx, place.name()?)?;
        let found = found.filter(|entry| entry.vnode.kind() == Kind::Directory);
        Ok(found.map(|entry| Self::over(&self.core, entry.vnode)))
    }

    /// Runs `remove`, which removes or replaces this directory, after removing the store's files in
    /// it. If `remove` fails, the directory state is restored. The caller holds the directory's
    /// lock exclusively.
    pub(crate) fn without_store_files(
        &self,
        cx: &Cx<'_>,
        refused: Errno,
        remove: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        cx.require_blocking()?;
        let Some(leftovers) = self.own_files(cx)? else { return Err(refused) };
        if leftovers.is_empty() && self.core.state_file.is_none() {
            return Err(refused);
        }
        self.remove_leftovers(cx, &leftovers, refused)?;
        let state = self.remove_state(cx)?;
        let removed = remove();
        if let (Err(_), Some(state)) = (removed, state) {
            self.restore_state(cx, state);
        }
        removed
    }

    fn remove_leftovers(&self, cx: &Cx<'_>, leftovers: &[Vec<u8>], refused: Errno) -> Result<()> {
        let _held = self.core.long.hold(self.lower.id(), self.lower.id());
        for leftover in leftovers {
            // Recheck a side file under the lock: its object may just have been created.
            if let Role::Side { object } = self.core.role(leftover)?
                && self.lower.lookup(cx, Name::new(&object)?)?.is_some()
            {
                return Err(refused);
            }
            self.lower.unlink(&self.core.server(cx), Name::new(leftover)?)?;
        }
        Ok(())
    }

    /// Returns the side files without objects and the leftovers; `None` if the directory contains
    /// anything else besides its state.
    fn own_files(&self, cx: &Cx<'_>) -> Result<Option<Vec<Vec<u8>>>> {
        let state = self.core.state_file.as_ref().map(|file| &*file.name);
        let (mut own, mut failed) = (Some(Vec::new()), Ok(()));
        self.lower.readdir(cx, 0, &mut |entry| {
            let name = entry.name.as_bytes();
            match (self.core.role(name), &mut own) {
                (Ok(_), Some(_)) if state == Some(name) => {}
                (Ok(Role::Side { .. } | Role::Leftover), Some(all)) if entry.kind != Kind::Directory => {
                    all.push(name.to_vec());
                }
                (Ok(_), _) => own = None,
                (Err(errno), _) => failed = Err(errno),
            }
            own.is_some() && failed.is_ok()
        })?;
        failed.map(|()| own)
    }
}

/// Whether the errno means that a directory is not empty.
pub(crate) fn says_not_empty(errno: Errno) -> bool {
    matches!(errno, Errno::NOTEMPTY | Errno::EXIST)
}
