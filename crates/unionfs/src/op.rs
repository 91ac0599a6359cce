//! The context of one operation.

use crate::set::BranchSet;
use std::ops::Deref;
use vnode::Cx;

/// What one operation goes by from beginning to end: its caller, and one set of branches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op<'a> {
    pub(crate) set: &'a BranchSet,
    cx: Cx<'a>,
}

impl<'a> Op<'a> {
    pub(crate) fn new(cx: &Cx<'a>, set: &'a BranchSet) -> Self {
        Self { set, cx: *cx }
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
