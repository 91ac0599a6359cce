use crate::health::{Set, only};
use crate::options::Policy;
use crate::replica::Replica;
use crate::rng::{Rng, mix};
use std::sync::atomic::{AtomicU64, Ordering};

/// One in this many selections by the policy `fastest` is random, to update the latency of the
/// other replicas.
const EXPLORE: u64 = 16;

/// Selects replicas according to the policy.
#[derive(Debug)]
pub(crate) struct Chooser {
    policy: Policy,
    turn: AtomicU64,
    clock: AtomicU64,
    rng: Rng,
}

impl Chooser {
    pub(crate) fn new(policy: Policy) -> Self {
        Self { policy, turn: AtomicU64::new(0), clock: AtomicU64::new(1), rng: Rng::new() }
    }

    /// Whether the replica is determined by the file's number, so that an earlier assignment is
    /// ignored.
    pub(crate) fn selects_by_number(&self) -> bool {
        self.policy == Policy::Hash
    }

    /// Records a call to the replica.
    pub(crate) fn used(&self, replica: &Replica) {
        if self.policy == Policy::LeastRecentlyUsed {
            replica.stats.last_used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Selects a member of `set` for the file with this number; `None` if the set is empty.
    pub(crate) fn choose(&self, set: Set, number: u64, replicas: &[Replica]) -> Option<usize> {
        let count = u64::from(set.count_ones());
        if count <= 1 {
            return members(set).next();
        }
        let any = || nth(set, self.rng.next() % count);
        let by = |key: &dyn Fn(usize, &Replica) -> u64| {
            members(set).filter_map(|i| Some((i, replicas.get(i)?))).min_by_key(|(i, r)| key(*i, r)).map(|(i, _)| i)
        };
        match self.policy {
            Policy::Random => any(),
            Policy::RoundRobin => nth(set, self.turn.fetch_add(1, Ordering::Relaxed) % count),
            Policy::LeastRecentlyUsed => by(&|_, replica| replica.stats.last_used.load(Ordering::Relaxed)),
            Policy::Fastest if self.rng.next().is_multiple_of(EXPLORE) => any(),
            Policy::Fastest => by(&|_, replica| replica.stats.latency()),
            // Rendezvous hashing: if a replica is unavailable, only its files move.
            Policy::Hash => by(&|i, _| mix(number ^ mix(i as u64 + 1))),
        }
    }
}

fn members(set: Set) -> impl Iterator<Item = usize> {
    (0..64).filter(move |i| set & only(*i) != 0)
}

/// Returns the member with this rank, counted from 0.
fn nth(set: Set, rank: u64) -> Option<usize> {
    members(set).nth(usize::try_from(rank).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Isolate;
    use crate::replica::Source;
    use core::time::Duration;
    use vnode::Errno;

    const FILES: u64 = 6000;

    fn replicas(count: usize) -> Vec<Replica> {
        let source = |i| Source { name: format!("r{i}"), open: Box::new(|| Err(Errno::NOENT)) };
        (0..count).map(|i| Replica::new(source(i), Isolate::Never, 1)).collect()
    }

    /// Counts the files of each of three replicas.
    fn counts(chooser: &Chooser, set: Set, replicas: &[Replica]) -> [u64; 3] {
        let mut counts = [0; 3];
        for number in 0..FILES {
            let chosen = chooser.choose(set, mix(number), replicas).unwrap();
            chooser.used(&replicas[chosen]);
            counts[chosen] += 1;
        }
        counts
    }

    #[test]
    fn files_are_distributed_evenly() {
        let replicas = replicas(3);
        for (name, policy) in Policy::ALL {
            if policy == Policy::Fastest {
                continue;
            }
            let counts = counts(&Chooser::new(policy), 0b111, &replicas);
            let fair = FILES / 3;
            assert!(counts.iter().all(|n| n.abs_diff(fair) < fair / 8), "{name}: {counts:?}");
        }
    }

    #[test]
    fn only_members_are_chosen() {
        let replicas = replicas(3);
        for (name, policy) in Policy::ALL {
            let chooser = Chooser::new(policy);
            assert_eq!(counts(&chooser, 0b101, &replicas)[1], 0, "{name}");
            assert_eq!(counts(&chooser, 0b010, &replicas), [0, FILES, 0], "{name}");
            assert_eq!(chooser.choose(0, 7, &replicas), None, "{name}");
        }
    }

    #[test]
    fn fastest_prefers_low_latency_and_explores_the_others() {
        let replicas = replicas(3);
        for (replica, micros) in replicas.iter().zip([300, 100, 200]) {
            replica.stats.record_latency(Duration::from_micros(micros));
        }
        let counts = counts(&Chooser::new(Policy::Fastest), 0b111, &replicas);
        assert!(counts[1] > FILES * 8 / 10 && counts[0] > 0 && counts[2] > 0, "{counts:?}");
    }

    #[test]
    fn hash_moves_only_the_files_of_an_unavailable_replica() {
        let replicas = replicas(3);
        let chooser = Chooser::new(Policy::Hash);
        for number in (0..FILES).map(mix) {
            let home = chooser.choose(0b111, number, &replicas).unwrap();
            let now = chooser.choose(0b101, number, &replicas).unwrap();
            assert!(home == 1 || now == home);
        }
    }

    #[test]
    fn lru_selects_the_least_recently_used_replica() {
        let replicas = replicas(3);
        let chooser = Chooser::new(Policy::LeastRecentlyUsed);
        for i in [2, 0, 1, 2] {
            chooser.used(&replicas[i]);
        }
        assert_eq!(chooser.choose(0b111, 0, &replicas), Some(0));
    }
}
