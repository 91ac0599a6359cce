//! The context of one operation.

use crate::current::Current;
use crate::set::BranchSet;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use vnode::{Cx, Errno, Result};

/// What one operation goes by from beginning to end: its caller, and one set of branches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op<'a> {
    pub(crate) set: &'a BranchSet,
    cx: Cx<'a>,
    /// Becomes true when the set is to change, and that waits for this operation.
    hurry: Option<&'a AtomicBool>,
}

impl<'a> Op<'a> {
    pub(crate) fn new(cx: &Cx<'a>, set: &'a BranchSet) -> Self {
        Self { set, cx: *cx, hurry: None }
    }

    /// The same, for an operation that keeps the set from changing; see [`Self::give_way`].
    pub(crate) fn that_gives_way(self, hurry: &'a AtomicBool) -> Self {
        Self { hurry: Some(hurry), ..self }
    }

    /// To be asked between the steps of long work that nobody has seen anything of yet.
    ///
    /// # Errors
    /// `EAGAIN` when the set of branches is to change: the operation begins anew after that.
    pub(crate) fn give_way(&self) -> Result<()> {
        if self.hurry.is_some_and(|hurry| hurry.load(Ordering::Acquire)) { Err(Errno::AGAIN) } else { Ok(()) }
    }

    /// Is the operation's set still the present one? `ESTALE` if not.
    pub(crate) fn check_set(&self, present: &Current) -> Result<()> {
        if present.generation() == self.set.generation { Ok(()) } else { Err(Errno::STALE) }
    }

    /// The same operation with another caller.
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
