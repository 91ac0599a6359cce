//! The branch for a new object: `create=` and `minfree=` (docs/pools.md).

use crate::branch::BranchId;
use crate::inode_number::mix;
use crate::node::{Core, UnionVnode};
use crate::op::Op;
use crate::options::{Create, Order};
use std::sync::atomic::Ordering;
use vnode::{Errno, Result};

/// A branch that may take a new object, and its free space in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    branch: BranchId,
    free: u64,
}

/// The choice of a branch during one creation, which may need several attempts.
#[derive(Default)]
pub(crate) struct Choice {
    /// The branch that was chosen before.
    preferred: Option<BranchId>,
    /// Branches that turned out to be full, or can't have an equal part of the directory.
    skipped: Vec<BranchId>,
}

impl Choice {
    /// Notes that creating the object on a branch failed. Returns whether to try another branch:
    /// not if the policy allows no other, or if the failure does not depend on the branch.
    pub(crate) fn skip(&mut self, create: &Create, branch: BranchId, error: Errno) -> bool {
        let other = create.order != Order::Inherit && matches!(error, Errno::NOSPC | Errno::DQUOT);
        if other {
            self.refuse(branch);
        }
        other
    }

    /// Notes that a branch can't take the object.
    pub(crate) fn refuse(&mut self, branch: BranchId) {
        self.preferred = None;
        self.skipped.push(branch);
    }
}

/// Orders branches by a policy, the best one first. `tick` differs for each new object.
fn rank(order: Order, candidates: &mut [Candidate], tick: u64) {
    match order {
        Order::Inherit | Order::First => {}
        Order::MostFree => candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.free)),
        Order::LeastFree => candidates.sort_by_key(|candidate| candidate.free),
        Order::RoundRobin => {
            let count = candidates.len().max(1);
            candidates.rotate_left(usize::try_from(tick % count as u64).unwrap_or(0));
        }
        Order::Proportional => {
            let total: u128 = candidates.iter().map(|candidate| u128::from(candidate.free)).sum();
            let mut at = u128::from(mix(tick)).checked_rem(total).unwrap_or(0);
            let drawn = candidates.iter().position(|candidate| {
                let here = at < u128::from(candidate.free);
                at = at.saturating_sub(u128::from(candidate.free));
                here
            });
            // The others are used only if this one can't take the object.
            candidates.rotate_left(drawn.unwrap_or(0));
        }
    }
}

impl UnionVnode {
    /// Returns the branch for a new object in this directory, at the position `bound` or further
    /// left. `ENOSPC` if no branch has enough space.
    pub(crate) fn placed(&self, op: &Op<'_>, bound: usize, choice: &mut Choice) -> Result<BranchId> {
        let create = self.core.options.create;
        let inherited = match create.order {
            Order::Inherit => Some(self.target(op)?),
            _ => None,
        };
        if let Some(branch) = inherited
            && (!op.set.is_drained(branch) || choice.skipped.contains(&branch))
        {
            return Ok(branch);
        }
        let takes = |branch: BranchId| -> Result<bool> {
            Ok(!choice.skipped.contains(&branch) && op.set.position(branch) <= bound && self.takes_new(op, branch)?)
        };
        if let Some(branch) = choice.preferred
            && takes(branch)?
        {
            return Ok(branch);
        }
        for candidate in self.core.ranked(op, create)? {
            if takes(candidate.branch)? {
                choice.preferred = Some(candidate.branch);
                return Ok(candidate.branch);
            }
        }
        if let Some(branch) = inherited.filter(|branch| op.set.position(*branch) <= bound) {
            return Ok(branch);
        }
        // Only a directory without a part on any writable branch has no candidate.
        if choice.skipped.is_empty() { self.target(op) } else { Err(Errno::NOSPC) }
    }

    /// Whether the policy allows a new object in this directory on that branch.
    fn takes_new(&self, op: &Op<'_>, branch: BranchId) -> Result<bool> {
        if self.core.options.create.existing_path {
            return Ok(op.set.writable(branch) && self.part(branch)?.is_some());
        }
        self.core.can_take(op, &[self], branch)
    }
}

impl Core {
    /// Returns the writable branches in the order of the policy: first those with enough free
    /// space, then the others, the one with the most free space first. `ENOSPC` if no branch has
    /// enough.
    fn ranked(&self, op: &Op<'_>, create: Create) -> Result<Vec<Candidate>> {
        let mut enough = Vec::new();
        let mut others = Vec::new();
        let mut drained = Vec::new();
        for member in op.set.writables() {
            let candidate = Candidate { branch: member.id, free: self.free_space(op, member.id) };
            let list = if op.set.is_drained(member.id) {
                &mut drained
            } else if candidate.free >= create.min_free.max(1) {
                &mut enough
            } else {
                &mut others
            };
            list.push(candidate);
        }
        if enough.is_empty() && drained.is_empty() {
            return Err(Errno::NOSPC);
        }
        let order = if create.order == Order::Inherit { Order::MostFree } else { create.order };
        rank(order, &mut enough, self.created.fetch_add(1, Ordering::Relaxed));
        rank(Order::MostFree, &mut others, 0);
        enough.append(&mut others);
        enough.append(&mut drained);
        Ok(enough)
    }

    /// Returns the writable branches with their free space, in the order of the policy.
    pub(crate) fn ranked_by_policy(&self, op: &Op<'_>) -> Vec<(BranchId, u64)> {
        let ranked = self.ranked(op, Create { min_free: 0, ..self.options.create });
        ranked.unwrap_or_default().into_iter().map(|candidate| (candidate.branch, candidate.free)).collect()
    }

    /// Returns the free space of a branch for unprivileged users, in bytes: 0 if it has no free
    /// inode, or can't be read.
    pub(crate) fn free_space(&self, op: &Op<'_>, branch: BranchId) -> u64 {
        let figures = op.set.branch(branch).and_then(|state| state.root.statfs(&self.server(op)));
        match figures {
            Ok(figures) if figures.files > 0 && figures.ffree == 0 => 0,
            Ok(figures) => figures.bavail.saturating_mul(figures.frsize),
            Err(errno) => {
                tracing::debug!(%errno, branch = %op.set.path_of(branch), "the free space of a branch is unknown");
                0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranked(order: Order, free: &[u64], tick: u64) -> Vec<u16> {
        let branches = free.iter().zip(0..).map(|(&free, id)| Candidate { branch: BranchId(id), free });
        let mut all: Vec<Candidate> = branches.collect();
        rank(order, &mut all, tick);
        all.iter().map(|candidate| candidate.branch.0).collect()
    }

    #[test]
    fn each_policy_has_its_order() {
        let free = [20, 50, 10, 50];
        assert_eq!(ranked(Order::First, &free, 3), [0, 1, 2, 3]);
        assert_eq!(ranked(Order::MostFree, &free, 3), [1, 3, 0, 2]);
        assert_eq!(ranked(Order::LeastFree, &free, 3), [2, 0, 1, 3]);
        assert_eq!(ranked(Order::RoundRobin, &free, 3), [3, 0, 1, 2]);
        assert_eq!(ranked(Order::RoundRobin, &free, 6), [2, 3, 0, 1]);
        assert!(ranked(Order::RoundRobin, &[], 6).is_empty() && ranked(Order::Proportional, &[], 6).is_empty());
    }

    #[test]
    fn proportional_choices_follow_the_free_space() {
        let mut counts = [0; 3];
        for tick in 0..10_000 {
            counts[usize::from(ranked(Order::Proportional, &[600, 0, 300], tick)[0])] += 1;
        }
        assert_eq!(counts[1], 0);
        assert!((6200..7100).contains(&counts[0]), "{counts:?}");
        assert_eq!(ranked(Order::Proportional, &[0, 0], 7), [0, 1]);
    }
}
