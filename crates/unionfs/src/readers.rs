//! Readers that continue a listing after the branches changed: docs/design/unionfs.md, "Listings".

use crate::branch::BranchId;
use std::sync::Arc;

/// Maximum number of positions of former merged listings that are remembered.
const MOST_PAST: usize = 1 << 20;

/// The positions that readers of a directory can have.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    /// The part on this branch was passed on with its own positions: no other part was possible.
    pub(crate) lower: Option<BranchId>,
    /// The positions of that part, sorted, once one of its readers continued in a merged listing.
    pub(crate) positions: Option<Arc<[u64]>>,
    /// Merged listings were passed on.
    merged: bool,
    /// If `lower` is set: the positions of merged listings that are not kept any more, sorted.
    past: Vec<u64>,
    /// Some of these were forgotten.
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

    /// Whether readers can have positions of two kinds.
    pub(crate) fn are_mixed(&self) -> bool {
        self.lower.is_some()
    }

    /// Whether this is a position of a merged listing that is not kept any more.
    pub(crate) fn had_merged(&self, position: u64) -> bool {
        self.past.binary_search(&position).is_ok()
    }

    /// Remembers the positions of a merged listing that was replaced or dropped.
    pub(crate) fn lose_merged(&mut self, positions: impl Iterator<Item = u64>) {
        if !self.are_mixed() {
            return;
        }
        self.past.extend(positions);
        // In a few runs, which the stable sort merges.
        self.past.sort();
        self.past.dedup();
        if self.past.len() > MOST_PAST {
            self.past = Vec::new();
            self.lost = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_remembered_if_there_are_two_kinds() {
        let mut readers = Readers::default();
        readers.lose_merged([1].into_iter());
        assert!(!readers.had_merged(1));
        assert!(readers.begin_lower(BranchId(1)));
        readers.begin_merged();
        readers.lose_merged([5, 7].into_iter());
        readers.lose_merged([6, 7].into_iter());
        assert_eq!((4..9).filter(|at| readers.had_merged(*at)).collect::<Vec<_>>(), [5, 6, 7]);
        assert!(!readers.lost && !readers.begin_lower(BranchId(1)));
        readers.lose_merged(0..2 * MOST_PAST as u64);
        assert!(readers.lost && !readers.had_merged(6));
    }
}
