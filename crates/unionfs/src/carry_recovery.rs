//! Completing and reverting a snapshot that carries open files: docs/design/unionfs.md,
//! "Snapshots". The last steps of a snapshot and the recovery after a kill are the same.

use crate::aside::Aside;
use crate::carry_list::{Found, List, Listed, clone_name, find, list_name, snapshot_name};
use crate::node::Core;
use crate::op::Op;
use crate::opaque_redirect::components;
use crate::options::{BuildError, Mode};
use crate::set::Member;
use crate::times::preserving_times;
use crate::work::entries;
use std::sync::Arc;
use vnode::{Cx, Errno, Name, RenameFlags, Result, Vnode};

/// What a mount has to do about an interrupted snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfinished {
    /// Nothing.
    Nothing,
    /// To remove what has no effect.
    Leftovers,
    /// To complete the old branch, which has later changes than the snapshot.
    Complete,
    /// To remove files from the new branch, which it shares with the old one.
    Revert,
}

impl Found {
    /// Returns what a mount has to do.
    pub(crate) fn unfinished(&self, cx: &Cx<'_>) -> Result<Unfinished> {
        Ok(match self {
            Self::Nothing => Unfinished::Nothing,
            Self::Old(dir, list) if list.committed && has_clones(cx, dir)? => Unfinished::Complete,
            Self::New(list) if !list.committed => Unfinished::Revert,
            Self::Old(..) | Self::New(_) => Unfinished::Leftovers,
        })
    }

    /// Completes or reverts the snapshot in the branch with this root and work directory.
    pub(crate) fn finish(&self, cx: &Cx<'_>, root: &Arc<dyn Vnode>, work: &Arc<dyn Vnode>) -> Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Old(dir, list) => {
                if list.committed {
                    complete(cx, root, dir, list)?;
                }
                discard(cx, work, dir)
            }
            Self::New(list) => {
                if !list.committed {
                    revert(cx, root, list)?;
                }
                remove_marker(cx, work)
            }
        }
    }
}

impl Core {
    /// Completes or reverts what a snapshot left behind in this branch, whose work directory is
    /// given, because the server was killed.
    pub(crate) fn recover_snapshot(
        &self,
        op: &Op<'_>,
        member: &Member,
        work: &Arc<dyn Vnode>,
    ) -> std::result::Result<(), BuildError> {
        let cx = self.as_server(op);
        let Member { mode, state, .. } = member;
        let failed =
            |errno| BuildError::Step { what: "completing an interrupted snapshot", path: state.path.clone(), errno };
        let found = find(&cx, work).map_err(failed)?;
        if *mode == Mode::ReadWrite {
            return found.finish(&cx, &state.root, work).map_err(failed);
        }
        match found.unfinished(&cx).map_err(failed)? {
            // Users don't see leftovers.
            Unfinished::Nothing | Unfinished::Leftovers => Ok(()),
            Unfinished::Complete | Unfinished::Revert => Err(BuildError::UnfinishedSnapshot(state.path.clone())),
        }
    }
}

/// Puts the clones in the places of the carried files, in the old branch. Each file is in the new
/// branch as well by now.
pub(crate) fn complete(cx: &Cx<'_>, root: &Arc<dyn Vnode>, dir: &Arc<dyn Vnode>, list: &List) -> Result<()> {
    let mut aside = Aside::default();
    for (index, file) in list.files.iter().enumerate() {
        let clone = clone_name(index);
        let clone = Name::new(clone.as_bytes())?;
        if dir.lookup(cx, clone)?.is_none() {
            continue;
        }
        if let Some((parent, name)) = file.place(cx, root)?
            && let Some(present) = parent.lookup(cx, name)?
            && file.is(&present)
            && present.attr.nlink > 1
        {
            preserving_times(cx, &parent, || dir.rename(cx, clone, &parent, name, RenameFlags::default()))?;
        } else {
            aside.set(cx, root, (dir, clone), ("snapshot", &file.path))?;
            tracing::warn!(
                path = %file.path.escape_ascii(),
                "this file was removed or replaced after a snapshot that was interrupted: its state of that time is in .wh..wh.aside*"
            );
        }
    }
    Ok(())
}

/// Removes the directory of a snapshot from the old branch's work directory: the list last, which
/// says whether the snapshot was committed.
pub(crate) fn discard(cx: &Cx<'_>, work: &Arc<dyn Vnode>, dir: &Arc<dyn Vnode>) -> Result<()> {
    let list = list_name()?;
    for (name, _) in entries(cx, dir)? {
        let name = Name::new(&name)?;
        if name != list {
            dir.unlink(cx, name)?;
        }
    }
    match dir.unlink(cx, list) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    work.rmdir(cx, snapshot_name()?)
}

/// Removes the carried files from the new branch, whose snapshot was not committed: each is still
/// in the old branch, unless it was removed or replaced there. Also removes the directories that
/// are empty then.
fn revert(cx: &Cx<'_>, root: &Arc<dyn Vnode>, list: &List) -> Result<()> {
    let mut aside = Aside::default();
    for file in &list.files {
        let Some((parent, name)) = file.place(cx, root)? else { continue };
        match parent.lookup(cx, name)? {
            Some(present) if file.is(&present) && present.attr.nlink > 1 => parent.unlink(cx, name)?,
            // It must not hide what the old branch has now, but no other name leads to it.
            Some(present) if file.is(&present) => aside.set(cx, root, (&parent, name), ("snapshot", &file.path))?,
            _ => {}
        }
    }
    list.files.iter().try_for_each(|file| remove_empty_parents(cx, root, file))
}

fn remove_empty_parents(cx: &Cx<'_>, root: &Arc<dyn Vnode>, file: &Listed) -> Result<()> {
    let names = components(&file.path).collect::<Result<Vec<_>>>()?;
    let mut dirs = vec![root.clone()];
    for name in names.iter().take(names.len().saturating_sub(1)) {
        let Some(entry) = dirs.last().and_then(|dir| dir.lookup(cx, *name).transpose()) else { break };
        dirs.push(entry?.vnode);
    }
    for (parent, name) in dirs.iter().zip(&names).take(dirs.len().saturating_sub(1)).rev() {
        match parent.rmdir(cx, *name) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Removes the list from the new branch's work directory.
pub(crate) fn remove_marker(cx: &Cx<'_>, work: &Arc<dyn Vnode>) -> Result<()> {
    match work.unlink(cx, snapshot_name()?) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

fn has_clones(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<bool> {
    let list = list_name()?;
    Ok(entries(cx, dir)?.iter().any(|(name, _)| **name != *list.as_bytes()))
}
