//! Detects that requests may be pending in the kernel although a queue has idle entries.
//!
//! A request that finds no idle entry waits in the kernel until an entry is *committed*: see
//! [`super::stall_recovery`]. The kernel does not report it. Two observations rule it out:
//!
//! * an entry was committed and received nothing: no request was pending at that moment;
//! * an entry was idle before a round and still is after it: since then, every request found one.
//!
//! An entry that was *registered* in the round proves nothing: all others may have been in use
//! before. Nor does an idle entry after [`MAX_DELIVERIES`] completions: the kernel delivers a
//! limited number of requests per system call, so it may hold back one for that entry. A system
//! call that slept delivers one request only; the next round delivers the others and finds the
//! starvation then.

/// Maximum number of deliveries per system call after which the kernel leaves none behind: less
/// than `IO_LOCAL_TW_DEFAULT_MAX`.
const MAX_DELIVERIES: usize = 19;

/// Whether requests may be pending.
#[derive(Debug, Default)]
pub(super) struct Starvation {
    possible: bool,
}

impl Starvation {
    /// Whether requests may be pending in the kernel.
    pub(super) const fn is_possible(&self) -> bool {
        self.possible
    }

    /// Takes the observations of a round into account.
    pub(super) const fn end_round(&mut self, round: &Round) {
        let delivered_all = round.completions <= MAX_DELIVERIES;
        let commit_received_nothing = delivered_all && round.served < round.committed;
        let was_always_idle = delivered_all && round.idle > 0;
        self.possible = !commit_received_nothing && (self.possible || !was_always_idle);
    }
}

/// What is seen in a round: a system call that submits entries, and the completions after it.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// Number of entries that were submitted before this round and have not completed.
    idle: usize,
    /// Number of entries committed in this round.
    committed: usize,
    /// Number of those that received a request.
    served: usize,
    completions: usize,
}

/// How an entry that completes was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Submitted {
    /// Before this round.
    Before,
    /// In this round, with a reply.
    Committed,
    /// In this round, as a new entry.
    Registered,
}

impl Round {
    /// Begins a round after its system call, which has submitted `committed` and `registered` of
    /// now `submitted` entries.
    pub(super) const fn new(submitted: usize, committed: usize, registered: usize) -> Self {
        let idle = submitted.saturating_sub(committed).saturating_sub(registered);
        Self { idle, committed, served: 0, completions: 0 }
    }

    /// Counts a completion; `None`: not of an entry.
    pub(super) const fn count(&mut self, entry: Option<Submitted>) {
        self.completions += 1;
        match entry {
            Some(Submitted::Before) => self.idle = self.idle.saturating_sub(1),
            Some(Submitted::Committed) => self.served += 1,
            Some(Submitted::Registered) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Submitted::{Before, Committed, Registered};

    /// Ends a round with entries (submitted, committed, registered), and these completions.
    fn round(starvation: &mut Starvation, entries: (usize, usize, usize), completions: &[Submitted]) -> bool {
        let mut round = Round::new(entries.0, entries.1, entries.2);
        completions.iter().for_each(|&submitted| round.count(Some(submitted)));
        starvation.end_round(&round);
        starvation.is_possible()
    }

    #[test]
    fn an_entry_that_stays_idle_rules_it_out() {
        let mut starvation = Starvation::default();
        assert!(!round(&mut starvation, (4, 0, 0), &[Before, Before, Before]));
        assert!(!round(&mut starvation, (2, 0, 1), &[Registered]));
    }

    #[test]
    fn a_registered_entry_proves_nothing() {
        let mut starvation = Starvation::default();
        // One of two entries completes with a slow request, for which another is registered. A
        // request took the other one, and the next found none.
        assert!(!round(&mut starvation, (2, 0, 0), &[Before]));
        assert!(round(&mut starvation, (2, 0, 1), &[Before]));
        // It stays pending while the new entry is idle, until a commit receives nothing.
        assert!(round(&mut starvation, (2, 0, 1), &[]));
        assert!(round(&mut starvation, (2, 1, 0), &[Committed]));
        assert!(!round(&mut starvation, (2, 1, 0), &[]));
    }

    #[test]
    fn a_commit_that_receives_nothing_rules_it_out() {
        let mut starvation = Starvation::default();
        assert!(round(&mut starvation, (1, 0, 0), &[Before]));
        assert!(round(&mut starvation, (2, 2, 0), &[Committed, Committed]));
        assert!(!round(&mut starvation, (2, 2, 0), &[Committed]));
    }

    #[test]
    fn deliveries_that_may_be_left_rule_out_nothing() {
        let mut starvation = Starvation::default();
        assert!(round(&mut starvation, (40, 1, 0), &[Before; MAX_DELIVERIES + 1]));
        assert!(!round(&mut starvation, (40, 1, 0), &[Before; MAX_DELIVERIES]));
    }
}
