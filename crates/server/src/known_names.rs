//! The names that the kernel may trust for a long time.
//!
//! One notification makes the kernel ask again for every name (`FUSE_NOTIFY_INC_EPOCH`). It can't
//! be used: the VFS drops such names, and unmounts what is mounted on them or below, in every mount
//! namespace. A name that was *expired* is looked up again instead. If it still leads to the same
//! node, nothing else happens. But names are expired one by one, so the server has to know them.
//!
//! Hence a reply gives a name more than [`SHORT`] only if the name is in this table. The table is
//! bounded: a name for which it has no room gets [`SHORT`]. It may have names that the kernel has
//! dropped, and never lacks one that the kernel trusts for longer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vnode::{NumberMap, SHARDS, shard_of};

/// Lifetime that a name may have without being in the table.
pub(crate) const SHORT: Duration = Duration::from_secs(1);

/// Maximum number of names in the table.
const MAX_NAMES: usize = 1 << 19;

/// For how many seconds a reply may be on its way to the kernel.
const ON_THE_WAY: u32 = 2;

/// When the kernel got a name, and until when it trusts it, in seconds since the table was made.
#[derive(Clone, Copy, Debug)]
struct Grant {
    at: u32,
    until: u32,
}

/// Names by the node ids of their directories.
#[derive(Debug, Default)]
struct Shard {
    dirs: NumberMap<HashMap<Box<[u8]>, Grant>>,
    len: usize,
}

impl Shard {
    fn get(&self, dir: u64, name: &[u8]) -> Option<Grant> {
        self.dirs.get(&dir)?.get(name).copied()
    }

    fn insert(&mut self, dir: u64, name: &[u8], grant: Grant) {
        if self.dirs.entry(dir).or_default().insert(name.into(), grant).is_none() {
            self.len += 1;
        }
    }

    fn remove(&mut self, dir: u64, name: &[u8]) -> bool {
        let Some(names) = self.dirs.get_mut(&dir) else { return false };
        let is_removed = names.remove(name).is_some();
        self.len -= usize::from(is_removed);
        if names.is_empty() {
            self.dirs.remove(&dir);
        }
        is_removed
    }
}

/// A name, with the node id of its directory.
pub(crate) type NameIn = (u64, Box<[u8]>);

/// The table: see the module's description.
#[derive(Debug)]
pub(crate) struct KnownNames {
    shards: [Mutex<Shard>; SHARDS],
    /// Number of names.
    len: AtomicUsize,
    max: AtomicUsize,
    start: Instant,
    /// When the full table is next searched for names whose lifetime has ended, in seconds since
    /// `start`.
    sweep_at: AtomicU32,
    /// Number of [`Self::take`] under way.
    taking: AtomicUsize,
}

impl Default for KnownNames {
    fn default() -> Self {
        let shards = std::array::from_fn(|_| Mutex::default());
        Self {
            shards,
            len: 0.into(),
            max: MAX_NAMES.into(),
            start: Instant::now(),
            sweep_at: 0.into(),
            taking: 0.into(),
        }
    }
}

impl KnownNames {
    /// Makes the table stay empty, for a kernel that can't expire names.
    pub(crate) fn disable(&self) {
        self.max.store(0, Ordering::Relaxed);
    }

    /// Returns the lifetime of a name, positive or negative, in a reply: `wanted`, or [`SHORT`] if
    /// that is longer and the table is full. The caller finds out afterwards whether a change
    /// overtook the reply.
    pub(crate) fn grant(&self, dir: u64, name: &[u8], wanted: Duration) -> Duration {
        if wanted <= SHORT || self.insert(dir, name, wanted) { wanted } else { SHORT }
    }

    /// Records a name. Returns false if there is no room.
    fn insert(&self, dir: u64, name: &[u8], lifetime: Duration) -> bool {
        let at = self.now();
        let until = until(at, lifetime);
        let done = self.change(dir, |shard| {
            if let Some(known) = shard.dirs.get_mut(&dir).and_then(|names| names.get_mut(name)) {
                // An earlier reply may have given it more time.
                *known = Grant { at, until: until.max(known.until) };
                return true;
            }
            // Threads that do this at the same time exceed the maximum by their number at most.
            let has_room = self.len.load(Ordering::Relaxed) < self.max.load(Ordering::Relaxed);
            if has_room {
                shard.insert(dir, name, Grant { at, until });
            }
            has_room
        });
        if !done {
            self.sweep(at);
        }
        done
    }

    /// Records that a name no longer exists, because it was removed through the mount: the kernel
    /// asks again.
    pub(crate) fn removed(&self, dir: u64, name: &[u8]) {
        self.change(dir, |shard| shard.remove(dir, name));
    }

    /// Records a rename through the mount: the kernel trusts the new name for as long as it would
    /// have trusted the old one, `usual` at most. Returns false if the new name is to be expired,
    /// and after an exchange the old one too: all names are being taken out, and the old one is not
    /// found any more where it is expired.
    ///
    /// The kernel holds the locks of both directories meanwhile, so a name there is not expired
    /// before the rename has ended.
    pub(crate) fn renamed(&self, old: (u64, &[u8]), new: (u64, &[u8]), exchange: bool, usual: Duration) -> bool {
        if usual <= SHORT || self.max.load(Ordering::Relaxed) == 0 || old == new {
            return true;
        }
        let known = [self.grant_of(old), self.grant_of(new).filter(|_| exchange)];
        let until_then = known.into_iter().flatten().map(|grant| grant.until).max();
        // Read after the table: a name that was taken out before is expired by now.
        let is_taking = self.taking.load(Ordering::SeqCst) > 0;
        let at = self.now();
        if let Some(until) = until_then.or_else(|| is_taking.then(|| until(at, usual))) {
            // Added before the old one is removed: whatever takes all names finds one of the two.
            self.change(new.0, |shard| shard.insert(new.0, new.1, Grant { at, until }));
            self.change(old.0, |shard| match exchange {
                true => shard.insert(old.0, old.1, Grant { at, until }),
                false => {
                    shard.remove(old.0, old.1);
                }
            });
        }
        !is_taking && self.taking.load(Ordering::SeqCst) == 0
    }

    fn grant_of(&self, (dir, name): (u64, &[u8])) -> Option<Grant> {
        self.lock(shard_of(dir)).get(dir, name)
    }

    /// Drops the names of a directory: the kernel has forgotten it, and its names before.
    pub(crate) fn forget(&self, dir: u64) {
        self.change(dir, |shard| {
            shard.len -= shard.dirs.remove(&dir).map_or(0, |names| names.len());
        });
    }

    /// Takes the names out of the table, in portions. Returns those whose replies may still be on
    /// their way to the kernel.
    pub(crate) fn take(&self, mut expire: impl FnMut(&[NameIn])) -> Vec<NameIn> {
        self.taking.fetch_add(1, Ordering::SeqCst);
        let mut recent = Vec::new();
        for number in 0..SHARDS {
            let taken = std::mem::take(&mut *self.lock(number));
            self.len.fetch_sub(taken.len, Ordering::Relaxed);
            let since = self.now().saturating_sub(ON_THE_WAY);
            let mut all = Vec::with_capacity(taken.len);
            for (dir, names) in taken.dirs {
                for (name, grant) in names {
                    if grant.at >= since {
                        recent.push((dir, name.clone()));
                    }
                    all.push((dir, name));
                }
            }
            expire(&all);
        }
        self.taking.fetch_sub(1, Ordering::SeqCst);
        recent
    }

    fn now(&self) -> u32 {
        u32::try_from(self.start.elapsed().as_secs()).unwrap_or(u32::MAX)
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        // The index is below SHARDS.
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the shard of a directory, and the number of names.
    fn change<T>(&self, dir: u64, change: impl FnOnce(&mut Shard) -> T) -> T {
        let mut shard = self.lock(shard_of(dir));
        self.change_locked(&mut shard, change)
    }

    fn change_locked<T>(&self, shard: &mut Shard, change: impl FnOnce(&mut Shard) -> T) -> T {
        let before = shard.len;
        let done = change(shard);
        // Wraps around if the number shrinks.
        self.len.fetch_add(shard.len.wrapping_sub(before), Ordering::Relaxed);
        done
    }

    /// Drops the names whose lifetime has ended, if there can be any.
    fn sweep(&self, now: u32) {
        let due = self.sweep_at.load(Ordering::Relaxed);
        let mine = || self.sweep_at.compare_exchange(due, u32::MAX, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if now < due || !mine() {
            return;
        }
        let mut next = u32::MAX;
        for number in 0..SHARDS {
            self.change_locked(&mut self.lock(number), |shard| {
                shard.dirs.retain(|_, names| {
                    names.retain(|_, grant| grant.until > now);
                    next = names.values().map(|grant| grant.until).fold(next, u32::min);
                    !names.is_empty()
                });
                shard.len = shard.dirs.values().map(HashMap::len).sum();
            });
        }
        // At most once a second.
        self.sweep_at.store(next.max(now.saturating_add(1)), Ordering::Relaxed);
    }
}

/// Returns when a lifetime ends that begins in the second `at`.
fn until(at: u32, lifetime: Duration) -> u32 {
    // Both times were rounded down.
    u32::try_from(lifetime.as_secs()).unwrap_or(u32::MAX).saturating_add(at).saturating_add(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::Rng;

    const LONG: Duration = Duration::from_secs(3600);

    fn with_room_for(max: usize) -> KnownNames {
        KnownNames { max: max.into(), ..KnownNames::default() }
    }

    /// Takes everything; returns the names in order.
    fn taken(table: &KnownNames) -> Vec<(u64, Vec<u8>)> {
        let mut all = Vec::new();
        table.take(|taken| all.extend(taken.iter().map(|(dir, name)| (*dir, name.to_vec()))));
        assert_eq!(table.len.load(Ordering::Relaxed), 0);
        all.sort();
        all
    }

    #[test]
    fn a_name_has_a_long_lifetime_only_if_it_can_be_expired() {
        let table = with_room_for(2);
        assert_eq!(table.grant(1, b"short", SHORT), SHORT);
        assert_eq!([table.grant(1, b"a", LONG), table.grant(2, b"a", LONG)], [LONG, LONG]);
        assert_eq!([table.grant(1, b"b", LONG), table.grant(1, b"a", LONG)], [SHORT, LONG]);
        table.removed(1, b"a");
        table.removed(1, b"absent");
        assert_eq!(table.grant(1, b"b", LONG), LONG);
        table.forget(2);
        table.forget(3);
        assert_eq!(table.grant(9, b"c", LONG), LONG);
        assert_eq!(taken(&table), [(1, b"b".to_vec()), (9, b"c".to_vec())]);
        table.disable();
        assert_eq!(table.grant(1, b"a", LONG), SHORT);
    }

    #[test]
    fn names_whose_lifetime_ended_make_room() {
        let mut table = with_room_for(2);
        table.grant(1, b"a", LONG);
        table.grant(1, b"b", Duration::from_secs(5));
        assert_eq!(table.grant(1, b"c", LONG), SHORT);
        table.start = table.start.checked_sub(Duration::from_secs(6)).unwrap();
        assert_eq!(table.grant(1, b"c", LONG), SHORT, "its lifetime may not have ended");
        table.start = table.start.checked_sub(Duration::from_secs(1)).unwrap();
        // The first one finds the table full, and makes room.
        assert_eq!([table.grant(1, b"c", LONG), table.grant(1, b"c", LONG)], [SHORT, LONG]);
        assert_eq!(taken(&table), [(1, b"a".to_vec()), (1, b"c".to_vec())]);
    }

    #[test]
    fn a_shorter_lifetime_later_does_not_hide_a_longer_one() {
        let mut table = with_room_for(1);
        table.grant(1, b"a", LONG);
        table.grant(1, b"a", Duration::from_secs(5));
        table.start = table.start.checked_sub(Duration::from_secs(60)).unwrap();
        assert_eq!([table.grant(1, b"b", LONG), table.grant(1, b"b", LONG)], [SHORT, SHORT]);
    }

    #[test]
    fn a_renamed_name_keeps_its_lifetime() {
        let table = with_room_for(2);
        table.grant(1, b"a", LONG);
        table.grant(2, b"b", LONG);
        let renamed = |old, new, exchange| table.renamed(old, new, exchange, LONG);
        assert!(renamed((1, b"a"), (2, b"b"), false));
        // The kernel trusts it for a short time.
        assert!(renamed((1, b"short"), (2, b"c"), false));
        assert!(renamed((2, b"b"), (2, b"b"), false));
        assert!(renamed((2, b"b"), (3, b"d"), true));
        assert_eq!(taken(&table), [(2, b"b".to_vec()), (3, b"d".to_vec())]);
    }

    /// The kernel lets the rename end before it expires the old name, which does not exist then.
    #[test]
    fn a_name_that_is_renamed_while_all_are_expired_is_expired_again() {
        let table = with_room_for(2);
        table.grant(1, b"a", LONG);
        let mut renamed = Vec::new();
        table.take(|_| renamed.push(table.renamed((1, b"a"), (1, b"b"), false, LONG)));
        assert!(renamed.iter().all(|renamed| !renamed));
        assert_eq!(taken(&table), [(1, b"b".to_vec())], "in case that the notification is lost");
        table.disable();
        table.take(|_| assert!(table.renamed((1, b"a"), (1, b"b"), false, LONG)));
    }

    #[test]
    fn only_replies_that_are_on_their_way_are_expired_again() {
        let mut table = with_room_for(9);
        table.grant(1, b"early", LONG);
        table.start = table.start.checked_sub(Duration::from_secs(4)).unwrap();
        table.grant(1, b"late", LONG);
        let mut names = 0;
        let again = table.take(|taken| names += taken.len());
        assert_eq!((again, names), (vec![(1, b"late"[..].into())], 2));
    }

    /// Random operations against a model without shards and limits.
    #[test]
    fn no_name_is_missing() {
        let mut rng = Rng::new(28);
        for _ in 0..200 {
            let table = with_room_for(12);
            let mut model = std::collections::BTreeSet::new();
            for _ in 0..200 {
                let mut draw = || (rng.below(4), vec![b'a' + u8::try_from(rng.below(6)).unwrap()]);
                let (old, new) = (draw(), draw());
                match rng.below(8) {
                    0..4 => {
                        if table.grant(old.0, &old.1, LONG) == LONG {
                            model.insert(old);
                        }
                    }
                    4 => {
                        table.removed(old.0, &old.1);
                        model.remove(&old);
                    }
                    5 => {
                        assert!(table.renamed((old.0, &old.1), (new.0, &new.1), false, LONG));
                        if model.remove(&old) {
                            model.insert(new);
                        }
                    }
                    6 => {
                        table.forget(old.0);
                        model.retain(|(dir, _)| *dir != old.0);
                    }
                    _ => assert_eq!(taken(&table), std::mem::take(&mut model).into_iter().collect::<Vec<_>>()),
                }
                assert_eq!(table.len.load(Ordering::Relaxed), model.len());
            }
        }
    }
}
