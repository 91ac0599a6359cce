//! The lower object that an operation changes.
//!
//! A rename can move a file to another branch, and a directory can get a part further left, at any
//! time. A change of the lower object that was the right one before would be lost: the new one
//! hides it. So an operation gets the lower object only together with what keeps it in its place
//! until the change is made: a [`Changeable`].

use crate::branch::{BranchId, Lower};
use crate::copyup::Change;
use crate::jobs::Job;
use crate::metacopy::as_metacopy;
use crate::node::UnionVnode;
use crate::op::Op;
use crate::retry::Retries;
use crate::write_gate::Writing;
use std::sync::Arc;
use vnode::{Result, Vnode};

/// The leftmost lower object. While this exists, it is not replaced by a copy.
pub(crate) struct Changeable<'a> {
    lower: Lower,
    /// The branch that the change is written to. For a metacopied file, the metacopy's branch.
    pub(crate) branch: BranchId,
    /// Excludes a copy-up of a metacopied file, which would copy the attributes as they were before
    /// the change.
    _job: Option<Job<'a>>,
    /// Excludes a move of any other object; `None` if it can't move.
    _writing: Option<Writing<'a>>,
}

impl<'a> Changeable<'a> {
    /// Returns a metacopied file whose metacopy lies on `branch`.
    pub(crate) fn metacopied(lower: Lower, branch: BranchId, job: Job<'a>) -> Self {
        Self { lower, branch, _job: Some(job), _writing: None }
    }

    /// Returns the lower object.
    pub(crate) fn vnode(&self) -> &Arc<dyn Vnode> {
        &self.lower.vnode
    }
}

impl UnionVnode {
    /// Returns the leftmost lower object, after waiting for the end of a move. Does not copy it up:
    /// if its branch is not written to, it can't be changed, and may be copied up at any time.
    ///
    /// The caller holds no entry lock, and starts no copy-up before it drops the result.
    pub(crate) fn hold(&self, op: &Op<'_>) -> Result<Changeable<'_>> {
        let writing = self.guard_branch(op, self.branch())?;
        // Not before: it may have moved while this waited.
        let lower = self.leaf();
        Ok(Changeable { branch: lower.branch, lower, _job: None, _writing: writing })
    }

    /// Returns the lower object to change, which is copied up if necessary. If `change` was applied
    /// to the copy, so that nothing remains to be done, the object may move again.
    pub(crate) fn for_change(&self, op: &Op<'_>, mut change: Option<&mut Change>) -> Result<Changeable<'_>> {
        op.set.require_writable()?;
        let mut retries = Retries::new();
        loop {
            let held = self.hold(op)?;
            let home = as_metacopy(held.vnode()).map(|meta| meta.home);
            let writable = op.set.writable(held.branch);
            if (writable || self.stays()) && home.is_none() {
                return Ok(held);
            }
            // A file of a removed branch is not copied.
            op.set.branch(held.branch)?;
            drop(held);
            let this = self.arc()?;
            if self.dir.is_some() {
                // If no part can be created there after all, the next iteration chooses again.
                let _ = self.core.ensure_part(op, &this, self.target(op)?)?;
            } else {
                // A metacopied file is copied up to its metacopy's branch, or further left.
                let to = home.filter(|_| writable).map(|home| op.set.writable_from(home));
                self.core.copy_up(op, &this, to.transpose()?, change.as_deref_mut())?;
                if change.as_ref().is_some_and(|change| change.done.is_some()) {
                    let lower = self.leaf();
                    return Ok(Changeable { branch: lower.branch, lower, _job: None, _writing: None });
                }
            }
            retries.count()?;
        }
    }
}
