//! Readers that continue a listing after the branches changed: docs/design/unionfs.md, "Listings".

use crate::branch::BranchId;
use std::sync::Arc;

/// The positions that readers of a directory can have.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    /// The part on this branch was passed on with its own positions: no other part was possible.
    pub(crate) lower: Option<BranchId>,
    /// The positions of that part, sorted, once one of its readers continued in a merged listing.
    pub(crate) positions: Option<Arc<[u64]>>,
    /// Merged listings were passed on.
    merged: bool,
    /// Positions of removed names in merged listings may be forgotten.
    pub(crate) lost: bool,
}

impl Readers {
    /// Notes that the part on a branch is passed on with its own positions. Returns false if
    /// readers of this directory have others: it has to be merged then.
    pub(crate) fn begin_lower(&mut self, branch: BranchId) -> bool {
        let is_only = !self.merged && self.lower.is_none_or(|lower| lower == branch);
        if is_only {
            self.lower = Some(branch);
        }
        is_only
    }

    /// Notes that a merged listing is passed on.
    pub(crate) fn begin_merged(&mut self) {
        self.merged = true;
    }

    /// Notes that the merged listing was replaced or dropped.
    pub(crate) fn lose_merged(&mut self) {
        self.lost = self.merged;
    }
}
