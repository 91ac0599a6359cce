//! The versions that go next: a walk over all stores finds them.

use super::room::{Counts, Left, Unit};
use crate::cleaner::Cleaned;
use crate::core::Core;
use crate::floor;
use crate::set::Set;
use crate::walk::{self, Found, Position};
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Instant;
use versionpolicy::{Rank, VersionInfo, ranks};
use versionset::{Letter, LinkPeriod, Lost, StoreName, Why, parse, version_name};
use vnode::{Cx, Name, Result};

/// Versions that a walk remembers: some 10 MB.
const REMEMBERED: usize = 1 << 16;

/// What an index or directory takes, in bytes.
const SMALL_FILE: u64 = 4096;

/// The versions that go next.
#[derive(Debug, Default)]
pub(super) struct Next {
    /// The first one is the last element.
    pub(super) versions: Vec<Expendable>,
    /// Whether these are all that may go.
    pub(super) is_all: bool,
    /// Sets whose record of a discarded version had no room.
    pub(super) unwritten: Vec<Arc<Set>>,
    /// `None`: they are not those that go first.
    pub(super) walked: Option<Instant>,
}

impl Next {
    /// Takes out the versions that must go so that no more than `left` of `total` remains. Returns
    /// whether these are enough.
    pub(super) fn choose(&mut self, unit: Unit, total: u64, left: Left) -> (Vec<Expendable>, bool) {
        let (mut chosen, mut freed) = (Vec::new(), 0);
        while let Some(first) = self.versions.pop_if(|first| total.saturating_sub(freed) > left.of(first.rank)) {
            freed += first.weight(unit);
            chosen.push(first);
        }
        let Some(last) = chosen.pop() else { return (chosen, !self.versions.is_empty()) };
        let (rank, limit) = (last.rank, left.of(last.rank));
        let is_enough = !self.versions.is_empty() || total.saturating_sub(freed) <= limit;
        // A large version may make older ones stay that would not be enough without it.
        let mut needed = vec![last];
        for version in chosen.into_iter().rev() {
            let without = freed - version.weight(unit);
            if version.rank == rank && total.saturating_sub(without) <= limit {
                freed = without;
                self.versions.push(version);
            } else {
                needed.push(version);
            }
        }
        needed.reverse();
        (needed, is_enough)
    }
}

impl Expendable {
    pub(super) fn weight(&self, unit: Unit) -> u64 {
        if unit == Unit::Bytes { self.bytes } else { 1 }
    }
}

/// A version that may go. Their order is that in which they do.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Expendable {
    pub(super) rank: Rank,
    /// When it died; later than older ones, whatever the clock said.
    pub(super) died: i128,
    pub(super) number: u64,
    pub(super) stem: Arc<[u8]>,
    /// The directory with the store, from the root, and its identity.
    pub(super) position: Arc<Position>,
    pub(super) home: (u64, u32),
    pub(super) is_links: bool,
    /// When it died by the clock: another version may get its number.
    pub(super) recorded: i128,
    /// What goes with it.
    pub(super) bytes: u64,
}

/// Called for a version that may go, with its rank, when it died, and what goes with it in bytes.
type Add<'a> = &'a mut dyn FnMut((Rank, i128), &VersionInfo, u64);

impl Core {
    /// Discards a version unless somebody protects it since.
    pub(super) fn discard_expendable(&self, cx: &Cx<'_>, next: &mut Next, version: &Expendable, cleaned: &mut Cleaned) {
        match self.try_discard(cx, next, version) {
            Ok(None) => {}
            Ok(Some(bytes)) => {
                cleaned.discarded += 1;
                cleaned.freed += bytes;
            }
            Err(errno) => {
                let stem = version.stem.escape_ascii();
                tracing::debug!(%errno, "can't discard version {} of {stem}", version.number);
                cleaned.failed += 1;
            }
        }
    }

    /// Returns the bytes of the version if it is gone.
    pub(super) fn try_discard(&self, cx: &Cx<'_>, next: &mut Next, version: &Expendable) -> Result<Option<u64>> {
        let found = walk::store_at(cx, &self.root(), &version.position, version.is_links)?;
        let Some(found) = found.filter(|found| version.home == (found.dir.id(), found.dir.generation())) else {
            return Ok(None);
        };
        let Some(set) = self.set_in(cx, &found, &version.stem)? else { return Ok(None) };
        let tags = crate::tags::times(self, cx)?;
        let (info, letter) = {
            let locked = set.lock(self, cx)?;
            let Some(version) = locked.index().versions.get(&version.number) else { return Ok(None) };
            (crate::retain::info(&set, version, locked.stored(cx, version)?, &tags), version.letter)
        };
        let is_another = info.died != version.recorded;
        if is_another || info.pinned || info.tagged || info.landmark {
            return Ok(None);
        }
        if letter == Letter::Directory && has_versions(cx, &found, &set, version.number)? {
            // Those that may go have gone before.
            return Ok(None);
        }
        if !self.discard(cx, &set, version.number, false)? {
            return Ok(None);
        }
        self.report_discarded(cx, [&*set].into_iter(), None);
        if set.lock(self, cx)?.is_unwritten() {
            next.unwritten.push(Arc::clone(&set));
        }
        if let Err(errno) = self.drop_bare(cx, &set) {
            tracing::debug!(%errno, "can't remove the index {}", set.stem.escape_ascii());
        }
        Ok(Some(info.stored))
    }

    /// Adds up what all versions take, and remembers those that go first.
    pub(super) fn walk(&self, cx: &Cx<'_>, next: &mut Next, stops: &dyn Fn() -> bool) -> Result<()> {
        let grown = self.space.state.lock().grown;
        if let Some((total, kept)) = self.walk_of(cx, None, next, stops)? {
            self.space.walked(total, kept, grown);
        }
        Ok(())
    }

    /// As [`Self::walk`], for the versions of one owner, or of all. Returns what they take, and
    /// what those take that never go, in bytes; `None` if it was stopped.
    pub(super) fn walk_of(
        &self,
        cx: &Cx<'_>,
        owner: Option<u32>,
        next: &mut Next,
        stops: &dyn Fn() -> bool,
    ) -> Result<Option<(Counts, u64)>> {
        let (mut heap, mut total, mut expendable) = (BinaryHeap::new(), Counts::default(), 0);
        next.versions.clear();
        (next.is_all, next.walked) = (true, None);
        let unread: walk::Unread<'_> = &mut |position, errno| {
            tracing::debug!(%errno, "can't read the versions in {}", position.join(&b'/').escape_ascii());
            Ok(())
        };
        let visit: walk::Visit<'_> = &mut |position, found| {
            let position = Arc::new(position.to_vec());
            self.each_set(cx, found, &mut |set| {
                let (home, is_links) = ((found.dir.id(), found.dir.generation()), found.is_links);
                self.weigh(cx, &set, owner, &mut total, &mut |(rank, died), info, bytes| {
                    expendable += bytes;
                    let (stem, position) = (Arc::clone(&set.stem), Arc::clone(&position));
                    let (number, recorded) = (info.number, info.died);
                    heap.push(Expendable { rank, died, number, stem, position, home, is_links, recorded, bytes });
                    if heap.len() > REMEMBERED {
                        heap.pop();
                        next.is_all = false;
                    }
                })
            })?;
            Ok(!stops())
        };
        if !walk::stores(cx, &self.root(), &[], (visit, unread))? {
            return Ok(None);
        }
        next.versions = heap.into_sorted_vec();
        next.versions.reverse();
        next.walked = Some(Instant::now());
        Ok(Some((total, total.bytes.saturating_sub(expendable))))
    }

    /// Calls `visit` for each set of a store. What can't be read is passed over.
    pub(super) fn each_set(
        &self,
        cx: &Cx<'_>,
        found: &Found,
        visit: &mut dyn FnMut(Arc<Set>) -> Result<()>,
    ) -> Result<()> {
        let mut stems = Vec::new();
        walk::list(cx, &found.store, &mut |entry| {
            if let StoreName::Index(stem) = parse(entry.name.as_bytes()) {
                stems.push(stem.to_vec());
            }
        })?;
        for stem in stems {
            let visited = self.set_in(cx, found, &stem).and_then(|set| set.map_or(Ok(()), &mut *visit));
            if let Err(errno) = visited {
                tracing::debug!(%errno, "can't read the versions of {}", stem.escape_ascii());
            }
        }
        Ok(())
    }

    /// Adds up what the versions of a set take with all that goes with them, of one owner or of
    /// all. Calls `add` for those that may go.
    pub(super) fn weigh(
        &self,
        cx: &Cx<'_>,
        set: &Arc<Set>,
        owner: Option<u32>,
        total: &mut Counts,
        add: Add<'_>,
    ) -> Result<()> {
        let (newest, infos, owners, index) = {
            let locked = set.lock(self, cx)?;
            let Some(newest) = locked.index().newest().cloned() else { return Ok(()) };
            let mut infos = locked.infos(cx, &crate::tags::times(self, cx)?)?;
            for (info, version) in infos.iter_mut().zip(locked.index().versions.values()) {
                // The directory and its store.
                info.stored += if version.letter == Letter::Directory { 2 * SMALL_FILE } else { 0 };
            }
            let owners: Vec<u32> = locked.index().versions.values().map(|version| version.uid).collect();
            (newest, infos, owners, locked.index_len())
        };
        if owner.is_some_and(|owner| !owners.contains(&owner)) {
            return Ok(());
        }
        let head = set.content_head(self, cx)?;
        let policy = self.policy_of_version(cx, set, head.as_ref(), &newest);
        let ranks = ranks(&policy, &infos, self.policies.now(self.now()));
        let of_owner = owners.iter().map(|uid| owner.is_none_or(|owner| owner == *uid));
        for ((info, (rank, died)), _) in infos.iter().zip(ranks).zip(of_owner).filter(|(_, is_of_owner)| *is_of_owner) {
            // The index goes with the newest.
            let is_newest = info.number == newest.number;
            let bytes = info.stored + if is_newest { index.next_multiple_of(SMALL_FILE) } else { 0 };
            total.add(bytes, 1 + u64::from(is_newest));
            if let Some(rank) = rank {
                add((rank, died), info, bytes);
            }
        }
        Ok(())
    }

    /// Removes the index of a set without versions and without a head: it only says when the name
    /// had something, which the directory remembers.
    pub(crate) fn drop_bare(&self, cx: &Cx<'_>, set: &Set) -> Result<()> {
        let mut locked = set.lock(self, cx)?;
        if !locked.index().versions.is_empty() || !locked.has_index() || set.head(self, cx)?.is_some() {
            return Ok(());
        }
        for period in &locked.index().links {
            // Versions of the inode are the name's, and a name that is being made has no head yet.
            let is_open = period.until.is_none();
            if is_open || !self.set_of_link(&period.stem).lock(self, cx)?.index().versions.is_empty() {
                return Ok(());
            }
        }
        if let Some((dir, name)) = set.place() {
            let index = locked.index();
            for gap in index.gaps.iter().cloned().chain(index.links.iter().map(LinkPeriod::gap)) {
                self.note_lost(cx, dir, Lost { name: name.into(), why: Why::Discarded, gap });
            }
        }
        let len = locked.index_len();
        floor::raise(cx, &locked.store(cx)?, locked.index().next())?;
        locked.remove_index(cx)?;
        self.space.shrank(len.next_multiple_of(SMALL_FILE), 1);
        Ok(())
    }
}

/// Whether a removed directory has versions in it.
fn has_versions(cx: &Cx<'_>, found: &Found, set: &Set, number: u64) -> Result<bool> {
    let name = version_name(&set.stem, Letter::Directory, number);
    let Some(dir) = found.store.lookup(cx, Name::new(&name)?)? else { return Ok(false) };
    let mut has_some = false;
    let visit: walk::Visit<'_> = &mut |_, found| {
        has_some = walk::has_version(cx, &found.store)?;
        Ok(!has_some)
    };
    walk::stores(cx, &dir.vnode, &[], (visit, &mut |_, errno| Err(errno)))?;
    Ok(has_some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(versions: &[(Rank, i128, u64)]) -> Next {
        let expendable = |&(rank, died, bytes): &(Rank, i128, u64)| Expendable {
            rank,
            died,
            number: 1,
            stem: (*b"f").into(),
            position: Arc::default(),
            home: (1, 1),
            is_links: false,
            recorded: died,
            bytes,
        };
        let mut versions: Vec<_> = versions.iter().map(expendable).collect();
        versions.sort_unstable_by(|one, other| other.cmp(one));
        Next { versions, ..Next::default() }
    }

    fn chosen(versions: &[(Rank, i128, u64)], left: Left) -> Vec<i128> {
        let mut next = next(versions);
        let total = versions.iter().map(|version| version.2).sum();
        let (chosen, _) = next.choose(Unit::Bytes, total, left);
        let rest: Vec<_> = next.versions.iter().rev().map(|version| (version.rank, version.died)).collect();
        assert!(rest.is_sorted(), "{rest:?}");
        let mut died: Vec<_> = chosen.iter().map(|version| version.died).collect();
        died.sort_unstable();
        died
    }

    #[test]
    fn unprotected_versions_go_first_and_the_oldest_of_them() {
        let versions = [(Rank::Age, 1, 10), (Rank::Loose, 2, 10), (Rank::Loose, 3, 10), (Rank::Number, 0, 10)];
        let all = u64::MAX;
        assert_eq!(chosen(&versions, Left { all, protected: all }), []);
        assert_eq!(chosen(&versions, Left { all: 30, protected: all }), [2]);
        assert_eq!(chosen(&versions, Left { all: 0, protected: all }), [2, 3]);
        assert_eq!(chosen(&versions, Left { all: 0, protected: 15 }), [0, 2, 3]);
        assert_eq!(chosen(&versions, Left { all: 0, protected: 0 }), [0, 1, 2, 3]);
    }

    #[test]
    fn a_version_that_does_not_fit_displaces_no_others() {
        let versions = [(Rank::Age, 1, 10), (Rank::Age, 2, 10), (Rank::Age, 3, 70)];
        assert_eq!(chosen(&versions, Left { all: u64::MAX, protected: 30 }), [3]);
        assert_eq!(chosen(&versions, Left { all: u64::MAX, protected: 10 }), [1, 3]);
        assert_eq!(chosen(&versions, Left { all: u64::MAX, protected: 80 }), [1]);
    }
}
