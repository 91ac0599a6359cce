//! The steps of repairs. Each changes one entry, and restores the times of its directory.

use super::Checker;
use super::finding::{Consent, Problem};
use crate::opaque_redirect::OPAQUE;
use crate::times::preserving_times;
use std::sync::Arc;
use vnode::{Cx, Errno, Kind, Name, Result, Vnode};

/// Removes an entry.
pub(super) fn remove(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, name: &[u8]) -> Result<()> {
    let name = Name::new(name)?;
    preserving_times(cx, dir, || dir.unlink(cx, name))
}

/// Creates an empty mark, if it does not exist.
fn create_mark(cx: &Cx<'_>, dir: &Arc<dyn Vnode>, mark: &[u8]) -> Result<()> {
    let name = Name::new(mark)?;
    match preserving_times(cx, dir, || dir.mknod(cx, name, Kind::Regular.mode_bits() | 0o444, 0)) {
        Ok(_) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Marks a directory opaque.
pub(super) fn make_opaque(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<()> {
    create_mark(cx, dir, OPAQUE)
}

impl Checker<'_> {
    /// Removes a whiteout or mark, of which only the name matters. One that has data, or is a
    /// directory, is set aside; so is one whose effect depends on the branches in the list.
    pub(super) fn remove_name(
        &mut self,
        at: usize,
        problem: Problem,
        (dir, name): (&Arc<dyn Vnode>, &[u8]),
        path: &[u8],
    ) -> Result<()> {
        let Some(entry) = dir.lookup(&self.op, Name::new(name)?)? else { return Ok(()) };
        let has_data = match entry.vnode.kind() {
            Kind::Directory => true,
            Kind::Regular => entry.attr.size > 0,
            _ => false,
        };
        let is_safe = problem.repair().is_some_and(|repair| repair.consent == Consent::Safe);
        if is_safe && !has_data { remove(&self.op, dir, name) } else { self.set_aside(at, problem, (dir, name), path) }
    }

    /// Creates a mark in a directory, and records that it did.
    pub(super) fn create(
        &mut self,
        at: usize,
        problem: Problem,
        (dir, mark): (&Arc<dyn Vnode>, &[u8]),
        path: &[u8],
    ) -> Result<()> {
        if dir.lookup(&self.op, Name::new(mark)?)?.is_some() {
            return Ok(());
        }
        let root = &self.op.set.order.get(at).ok_or(Errno::STALE)?.state.root;
        let aside = self.asides.get_mut(at).ok_or(Errno::STALE)?;
        aside.note_created(&self.op, root, (problem.name(), path))?;
        create_mark(&self.op, dir, mark)
    }

    /// Sets an entry aside, with its path.
    pub(super) fn set_aside(
        &mut self,
        at: usize,
        problem: Problem,
        (dir, name): (&Arc<dyn Vnode>, &[u8]),
        path: &[u8],
    ) -> Result<()> {
        let root = &self.op.set.order.get(at).ok_or(Errno::STALE)?.state.root;
        let aside = self.asides.get_mut(at).ok_or(Errno::STALE)?;
        aside.set(&self.op, root, (dir, Name::new(name)?), (problem.name(), path))
    }
}
