//! The context of one operation.

use crate::current::Current;
use crate::set::BranchSet;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use vnode::{Cx, Errno, Result};

/// The context of one operation from beginning to end: its caller and one set of branches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op<'a> {
    pub(crate) set: &'a BranchSet,
    cx: Cx<'a>,
    /// Whether a change of the set waits for this operation.
    restart: Option<&'a AtomicBool>,
    /// The operation changes objects: the set of branches can't be replaced until it ends.
    pub(crate) changes: bool,
    /// Files are moved between branches, with all their attributes. Directories may get parts right
    /// of their leftmost one.
    pub(crate) moves: bool,
}

impl<'a> Op<'a> {
    pub(crate) fn new(cx: &Cx<'a>, set: &'a BranchSet) -> Self {
        Self { set, cx: *cx, restart: None, changes: false, moves: false }
    }

    /// Returns the same context for moving files between branches.
    pub(crate) fn moving(self) -> Self {
        Self { moves: true, ..self }
    }

    /// Returns the same context for an operation that changes objects, and so blocks a change of
    /// the set; see [`Self::check_restart`].
    pub(crate) fn changing(self, restart: &'a AtomicBool) -> Self {
        Self { restart: Some(restart), changes: true, ..self }
    }

    /// Returns the same context for the rest of an operation that must not restart any more.
    pub(crate) fn without_restart_flag(self) -> Self {
        Self { restart: None, ..self }
    }

    /// Checks whether the operation has to restart. Called between the steps of long work that is
    /// not visible yet.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if a change of the set of branches waits: the operation restarts after it.
    pub(crate) fn check_restart(&self) -> Result<()> {
        if self.restart.is_some_and(|restart| restart.load(Ordering::Acquire)) { Err(Errno::AGAIN) } else { Ok(()) }
    }

    /// Fails with `ESTALE` if the operation's set is no longer the current one.
    pub(crate) fn check_set(&self, present: &Current) -> Result<()> {
        if present.generation() == self.set.generation { Ok(()) } else { Err(Errno::STALE) }
    }

    /// Returns the same operation for a step that can do without the answer of a branch that hangs:
    /// see [`Cx::without_waiting`].
    pub(crate) fn without_waiting(&self) -> Self {
        Self { cx: self.cx.without_waiting(), ..*self }
    }

    /// Returns the same operation with another caller.
    pub(crate) fn on_behalf_of(&self, cx: Cx<'a>) -> Self {
        Self { cx, ..*self }
    }
}

impl<'a> Deref for Op<'a> {
    type Target = Cx<'a>;

    fn deref(&self) -> &Cx<'a> {
        &self.cx
    }
}
