//! An ordered set of branches, with the position and mode of each; a branch itself has neither. A
//! set is immutable: see "Branch sets" in docs/design/unionfs.md.

use crate::branch::{BranchId, BranchState, Lower};
use crate::options::{Mode, Moving};
use std::path::{Display, Path};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vnode::{Errno, Properties, Result};

/// The short generation of no set.
pub(crate) const NO_GENERATION: u16 = 0;

/// Returns the [`BranchSet::short_generation`] of the set with this generation.
pub(crate) fn short_generation_of(generation: u64) -> u16 {
    u16::try_from(generation % u64::from(u16::MAX)).map_or(NO_GENERATION, |short| short + 1)
}

/// A branch in a set.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) id: BranchId,
    pub(crate) mode: Mode,
    pub(crate) moving: Moving,
    pub(crate) state: Arc<BranchState>,
}

/// The branches of a union, from left to right. Each change of the branches creates a new set.
#[derive(Debug)]
pub(crate) struct BranchSet {
    /// Number of this set among those of the union; the first is 1.
    pub(crate) generation: u64,
    pub(crate) order: Box<[Member]>,
    pub(crate) read_only: bool,
    /// Files may move from any branch to any other.
    pub(crate) moving: bool,
    /// Lookups find the names that a listing has, in one spelling, for all callers.
    pub(crate) lists_exactly: bool,
    /// Some branch may hang or be lost.
    pub(crate) isolated: bool,
    /// The positions of the `rw` branches.
    written: Box<[usize]>,
    /// The positions of the branches, by id.
    positions: Box<[(BranchId, usize)]>,
}

impl BranchSet {
    /// The generation of a union's first set.
    pub(crate) const FIRST: u64 = 1;
    /// Short generations repeat after this number of sets.
    pub(crate) const SHORT_GENERATIONS: u64 = u16::MAX as u64;

    /// Returns the generation reduced to 16 bits, as vnodes store it.
    pub(crate) fn short_generation(&self) -> u16 {
        short_generation_of(self.generation)
    }

    pub(crate) fn new(generation: u64, order: Box<[Member]>) -> Self {
        let mut positions: Box<[_]> = order.iter().zip(0..).map(|(member, at)| (member.id, at)).collect();
        positions.sort_unstable_by_key(|&(BranchId(id), _)| id);
        let moving = order.iter().any(|member| member.moving != Moving::Stays);
        let exact = |properties: Properties| !properties.merges_names && !properties.varies_by_caller;
        let written = order.iter().enumerate().filter(|(_, member)| member.mode == Mode::ReadWrite);
        Self {
            written: written.map(|(at, _)| at).collect(),
            generation,
            moving,
            read_only: order.iter().all(|member| member.mode != Mode::ReadWrite),
            lists_exactly: order.iter().all(|member| exact(member.properties())),
            isolated: order.iter().any(|member| member.state.isolate.is_some()),
            order,
            positions,
        }
    }

    /// Returns the position of a branch, 0 for the leftmost. A branch outside of the set counts as
    /// right of all.
    pub(crate) fn position(&self, id: BranchId) -> usize {
        // Ids equal positions in a set that was never changed.
        if self.order.get(usize::from(id.0)).is_some_and(|member| member.id == id) {
            return usize::from(id.0);
        }
        let found = self.positions.binary_search_by_key(&id.0, |&(BranchId(id), _)| id).ok();
        found.and_then(|index| self.positions.get(index)).map_or(usize::MAX, |&(_, at)| at)
    }

    /// Returns the branch with this id, if it is in the set.
    pub(crate) fn member(&self, id: BranchId) -> Option<&Member> {
        self.order.get(self.position(id))
    }

    /// Returns the branch with this id. `ESTALE` if it is not in the set.
    pub(crate) fn branch(&self, id: BranchId) -> Result<&Arc<BranchState>> {
        self.member(id).map(|member| &member.state).ok_or(Errno::STALE)
    }

    /// Returns the path of a branch, for messages.
    pub(crate) fn path_of(&self, id: BranchId) -> Display<'_> {
        self.member(id).map_or(Path::new("?"), |member| &member.state.path).display()
    }

    /// Whether this is the leftmost branch.
    pub(crate) fn is_leftmost(&self, id: BranchId) -> bool {
        self.order.first().is_some_and(|first| first.id == id)
    }

    /// Returns the leftmost branch.
    pub(crate) fn leftmost(&self) -> Result<BranchId> {
        self.order.first().map(|first| first.id).ok_or(Errno::IO)
    }

    /// Whether this is the rightmost branch.
    pub(crate) fn is_last(&self, id: BranchId) -> bool {
        self.order.last().is_some_and(|last| last.id == id)
    }

    /// Whether `one` lies left of `other`.
    pub(crate) fn is_left(&self, one: BranchId, other: BranchId) -> bool {
        self.position(one) < self.position(other)
    }

    /// Whether files on this branch are changed in place.
    pub(crate) fn writable(&self, id: BranchId) -> bool {
        self.member(id).is_some_and(Member::is_writable)
    }

    /// Returns the branches on which files are changed in place.
    pub(crate) fn writables(&self) -> impl Iterator<Item = &Member> {
        self.written.iter().filter_map(|&at| self.order.get(at)).filter(|member| member.is_writable())
    }

    /// Returns the branches on which files are changed in place, from the position `bound` to the
    /// left.
    pub(crate) fn writables_from(&self, bound: usize) -> impl Iterator<Item = &Member> {
        let count = self.written.partition_point(|&at| at <= bound);
        let written = self.written.get(..count).unwrap_or_default();
        written.iter().rev().filter_map(|&at| self.order.get(at)).filter(|member| member.is_writable())
    }

    /// Returns this branch if files on it are changed in place, else the leftmost one.
    pub(crate) fn writable_from(&self, id: BranchId) -> Result<BranchId> {
        if self.writable(id) { Ok(id) } else { self.leftmost() }
    }

    /// Fails with `EROFS` if the union is read-only.
    pub(crate) fn require_writable(&self) -> Result<()> {
        if self.read_only { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// Returns the properties of a union of these branches.
    pub(crate) fn properties(&self) -> Properties {
        let all = self.order.iter().map(Member::properties).reduce(Properties::join).unwrap_or_default();
        Properties { read_only: self.read_only, ..all }
    }

    /// Whether the branch is being emptied: new objects are created on it only if no other branch
    /// can take them.
    pub(crate) fn is_drained(&self, id: BranchId) -> bool {
        self.member(id).is_some_and(|member| member.moving == Moving::Drained)
    }

    /// Whether files on this branch never move to another one while this set is in use.
    pub(crate) fn files_stay(&self, id: BranchId) -> bool {
        (self.is_leftmost(id) && !self.moving) || (self.read_only && self.member(id).is_some())
    }

    /// Handles the failure of a change on a branch. Returns true if the branch turned out to be
    /// read-only and the change can be retried further left.
    pub(crate) fn retry_left(&self, id: BranchId, error: Errno) -> bool {
        let Some(Member { state, .. }) = self.member(id) else { return false };
        if error != Errno::ROFS || self.is_leftmost(id) {
            return false;
        }
        // Several operations may fail at the same time: each of them retries, one logs the
        // warning.
        if !state.turned_read_only.swap(true, Ordering::Relaxed) {
            tracing::warn!(branch = %state.path.display(), "the branch is listed as rw, but its file system is read-only: used as ro from now on");
        }
        true
    }

    /// Logs a likely reason after one of the union's own names could not be created on a branch.
    pub(crate) fn explain_refusal(&self, id: BranchId, error: Errno) {
        let Some(Member { state, .. }) = self.member(id) else { return };
        if error == Errno::PERM && !state.warned_names_refused.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                branch = %state.path.display(),
                "could not create a name that begins with .wh. (EPERM); without such names, nothing on the branches to the right can \
                 be removed or renamed. Does the branch lie in another union? Put it on a file system outside of that union"
            );
        }
    }

    /// Whether directories on this branch may have redirects that have an effect.
    pub(crate) fn has_redirects(&self, id: BranchId) -> bool {
        !self.is_last(id) && self.member(id).is_some_and(|member| member.state.has_redirects.load(Ordering::Acquire))
    }

    /// Whether directories on this branch, or on one to its left, may have redirects: these lead to
    /// paths on the branches to their right, which must continue to show the same there.
    pub(crate) fn has_redirects_up_to(&self, id: BranchId) -> bool {
        let last = self.position(id);
        self.order.iter().take(last.saturating_add(1)).any(|member| self.has_redirects(member.id))
    }

    /// Whether directories on branches left of this one may have redirects, which can lead to paths
    /// on this branch.
    pub(crate) fn has_redirects_left_of(&self, id: BranchId) -> bool {
        self.order.iter().take(self.position(id)).any(|member| self.has_redirects(member.id))
    }

    /// Whether directories on this branch may have metacopies.
    pub(crate) fn has_metacopies(&self, id: BranchId) -> bool {
        self.member(id).is_some_and(|member| member.state.metacopies.load(Ordering::Acquire))
    }

    /// Returns the number of a lower object that has no alias.
    pub(crate) fn natural_number(&self, id: BranchId, lower: u64) -> Result<u64> {
        Ok(crate::inode_number::compose(self.branch(id)?.tag, lower))
    }

    /// Returns all parts of the root.
    pub(crate) fn roots(&self) -> Vec<Lower> {
        self.order.iter().map(Member::top).collect()
    }

    /// Returns the parts of the root on the branches right of this one.
    pub(crate) fn roots_right_of(&self, id: BranchId) -> Vec<Lower> {
        self.order.iter().skip_while(|member| member.id != id).skip(1).map(Member::top).collect()
    }
}

impl Member {
    /// Returns the properties that the branch gives to a union.
    pub(crate) fn properties(&self) -> Properties {
        let layer = self.state.layer.properties();
        // The union does not pass reports of refused accesses on.
        Properties { may_hang: layer.may_hang || self.mode.is_network(), audits_refusals: false, ..layer }
    }

    fn is_writable(&self) -> bool {
        self.mode == Mode::ReadWrite && !self.state.turned_read_only.load(Ordering::Relaxed)
    }

    /// Returns the branch's part of the root.
    pub(crate) fn top(&self) -> Lower {
        Lower { vnode: self.state.root.clone(), branch: self.id }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_short_generations_differ() {
        let all: std::collections::HashSet<u16> =
            (7..7 + BranchSet::SHORT_GENERATIONS).map(short_generation_of).collect();
        assert_eq!(all.len(), usize::from(u16::MAX));
        assert!(!all.contains(&NO_GENERATION));
        assert_eq!(
            short_generation_of(BranchSet::FIRST),
            short_generation_of(BranchSet::FIRST + BranchSet::SHORT_GENERATIONS)
        );
    }
}
