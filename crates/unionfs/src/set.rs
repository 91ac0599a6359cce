//! A set of branches in their order. All questions of position and precedence are questions to a set: a branch by itself only
//! knows what it is. A set never changes: see "Branch sets" in docs/design/unionfs.md.

use crate::branch::{BranchId, BranchState, Lower};
use crate::options::Mode;
use std::path::{Display, Path};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vnode::{Errno, Result};

/// The turn of no set.
pub(crate) const NEVER: u16 = 0;

/// [`BranchSet::turn`] of the set of a generation.
pub(crate) fn turn_of(generation: u64) -> u16 {
    u16::try_from(generation % u64::from(u16::MAX)).map_or(NEVER, |turn| turn + 1)
}

/// A branch in a set.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) id: BranchId,
    pub(crate) mode: Mode,
    pub(crate) state: Arc<BranchState>,
}

/// The branches of a union between two changes of them, left to right.
#[derive(Debug)]
pub(crate) struct BranchSet {
    /// Counts the sets of a union; the first is 1.
    pub(crate) generation: u64,
    pub(crate) order: Box<[Member]>,
    pub(crate) read_only: bool,
    /// The positions of the branches, by id.
    positions: Box<[(BranchId, usize)]>,
}

impl BranchSet {
    /// The generation of the set that a union begins with.
    pub(crate) const FIRST: u64 = 1;
    /// After so many sets their turns repeat.
    pub(crate) const TURNS: u64 = u16::MAX as u64;

    /// The generation in 16 bits, as vnodes keep it.
    pub(crate) fn turn(&self) -> u16 {
        turn_of(self.generation)
    }

    pub(crate) fn new(generation: u64, order: Box<[Member]>) -> Self {
        let mut positions: Box<[_]> = order.iter().zip(0..).map(|(member, at)| (member.id, at)).collect();
        positions.sort_unstable_by_key(|&(BranchId(id), _)| id);
        Self { generation, read_only: order.iter().all(|member| member.mode != Mode::ReadWrite), order, positions }
    }

    /// The position of a branch, 0 for the leftmost. One that is not in the set lies right of all.
    pub(crate) fn at(&self, id: BranchId) -> usize {
        // In a set that was never changed.
        if self.order.get(usize::from(id.0)).is_some_and(|member| member.id == id) {
            return usize::from(id.0);
        }
        let found = self.positions.binary_search_by_key(&id.0, |&(BranchId(id), _)| id).ok();
        found.and_then(|index| self.positions.get(index)).map_or(usize::MAX, |&(_, at)| at)
    }

    /// The branch of that id, if it is in the set.
    pub(crate) fn member(&self, id: BranchId) -> Option<&Member> {
        self.order.get(self.at(id))
    }

    /// The branch of that id. `ESTALE` if it is not in the set.
    pub(crate) fn branch(&self, id: BranchId) -> Result<&Arc<BranchState>> {
        self.member(id).map(|member| &member.state).ok_or(Errno::STALE)
    }

    /// The path of a branch, for messages.
    pub(crate) fn path_of(&self, id: BranchId) -> Display<'_> {
        self.member(id).map_or(Path::new("?"), |member| &member.state.path).display()
    }

    /// Is that the leftmost branch?
    pub(crate) fn is_leftmost(&self, id: BranchId) -> bool {
        self.order.first().is_some_and(|first| first.id == id)
    }

    /// The leftmost branch.
    pub(crate) fn leftmost(&self) -> Result<BranchId> {
        self.order.first().map(|first| first.id).ok_or(Errno::IO)
    }

    /// Is that the rightmost branch?
    pub(crate) fn is_last(&self, id: BranchId) -> bool {
        self.order.last().is_some_and(|last| last.id == id)
    }

    /// Does `one` lie left of `other`?
    pub(crate) fn is_left(&self, one: BranchId, other: BranchId) -> bool {
        self.at(one) < self.at(other)
    }

    /// Are files on that branch changed in place?
    pub(crate) fn writable(&self, id: BranchId) -> bool {
        self.member(id).is_some_and(Member::is_writable)
    }

    /// The branches on which files are changed in place.
    pub(crate) fn writables(&self) -> impl Iterator<Item = &Member> {
        self.order.iter().filter(|member| member.is_writable())
    }

    /// That branch, if files on it are changed in place, else the leftmost one.
    pub(crate) fn writable_from(&self, id: BranchId) -> Result<BranchId> {
        if self.writable(id) { Ok(id) } else { self.leftmost() }
    }

    /// Answers `EROFS` if this union is read-only.
    pub(crate) fn require_writable(&self) -> Result<()> {
        if self.read_only { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// Do files on that branch stay there as long as they live and this is the set?
    pub(crate) fn stays(&self, id: BranchId) -> bool {
        self.is_leftmost(id) || (self.read_only && self.member(id).is_some())
    }

    /// A change on that branch failed with `error`. Answers true if the branch turned out to be read-only and the change
    /// can be tried again further left.
    pub(crate) fn go_left(&self, id: BranchId, error: Errno) -> bool {
        let Some(Member { state, .. }) = self.member(id) else { return false };
        if error != Errno::ROFS || self.is_leftmost(id) {
            return false;
        }
        // Of several operations that meet this at once, each tries again; one of them warns.
        if !state.refuses.swap(true, Ordering::Relaxed) {
            tracing::warn!(branch = %state.path.display(), "listed as read-write, but its file system is read-only: used as ro");
        }
        true
    }

    /// The making of a name of the union's own on that branch failed with `error`: says what that may mean.
    pub(crate) fn explain_refusal(&self, id: BranchId, error: Errno) {
        let Some(Member { state, .. }) = self.member(id) else { return };
        if error == Errno::PERM && !state.refuses_names.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                branch = %state.path.display(),
                "names that begin with .wh. can't be made here (EPERM), and without them nothing of the branches to the right can \
                 be removed or renamed: does the branch lie in another union? Put it on a file system outside of that"
            );
        }
    }

    /// May directories on that branch have redirects that matter?
    pub(crate) fn has_redirects(&self, id: BranchId) -> bool {
        !self.is_last(id) && self.member(id).is_some_and(|member| member.state.moved.load(Ordering::Acquire))
    }

    /// May directories on that branch have metacopies?
    pub(crate) fn has_metacopies(&self, id: BranchId) -> bool {
        self.member(id).is_some_and(|member| member.state.metacopies.load(Ordering::Acquire))
    }

    /// The number of a lower object that is not a directory's leftmost part nor an aliased file.
    pub(crate) fn natural_number(&self, id: BranchId, lower: u64) -> Result<u64> {
        Ok(crate::identity::compose(self.branch(id)?.tag, lower))
    }

    /// All parts of the root.
    pub(crate) fn roots(&self) -> Vec<Lower> {
        self.order.iter().map(Member::top).collect()
    }

    /// The parts of the root on the branches right of that one.
    pub(crate) fn roots_right_of(&self, id: BranchId) -> Vec<Lower> {
        self.order.iter().skip_while(|member| member.id != id).skip(1).map(Member::top).collect()
    }
}

impl Member {
    fn is_writable(&self) -> bool {
        self.mode == Mode::ReadWrite && !self.state.refuses.load(Ordering::Relaxed)
    }

    /// Its part of the root.
    fn top(&self) -> Lower {
        Lower { vnode: self.state.root.clone(), branch: self.id }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_told_apart() {
        let turns: std::collections::HashSet<u16> = (7..7 + BranchSet::TURNS).map(turn_of).collect();
        assert_eq!(turns.len(), usize::from(u16::MAX));
        assert!(!turns.contains(&NEVER));
        assert_eq!(turn_of(BranchSet::FIRST), turn_of(BranchSet::FIRST + BranchSet::TURNS));
    }
}
