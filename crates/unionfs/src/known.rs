//! What is known of the parts of a merged directory: its name index, and the stamps of the parts.
//! Both are trusted for [`crate::Options::check_interval`], and then verified: by the reports of
//! the branches where these are complete, else by reading the stamps. See "Verification" in
//! docs/design/unionfs.md.

use crate::branch::{BranchId, Stack};
use crate::listing::Stamps;
use crate::names::NameIndex;
use crate::watched::Watched;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Maximum number of names in all indexes of a union. One takes about 40 bytes.
const MOST_NAMES: usize = 1 << 20;
/// Maximum number of changes noted while parts are read.
const MOST_NOTED: usize = 1 << 14;

/// The stamps of the parts.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    stack: Stack,
    pub(crate) stamps: Stamps,
    pub(crate) watched: Arc<Watched>,
    /// A time at which the stamps were up to date, except for what was reported and changed through
    /// the union since.
    pub(crate) at: Instant,
    ticket: Ticket,
}

/// Counters at the time when reading stamps begins.
#[derive(Clone, Copy, Debug)]
struct Ticket {
    /// Number of changes of the directory's entries.
    changes: u64,
    reports: u64,
    forgotten: u64,
}

/// Which stamps have to be read.
#[derive(Debug)]
pub(crate) enum Reread {
    /// Those of all parts.
    All,
    /// Those of some parts.
    Some {
        /// The present stamps of all parts.
        of: Checked,
        /// Those whose changes are not reported.
        unreported: bool,
        /// Those on writable branches: entries changed through the union.
        writable: bool,
        /// Those that a report named.
        reported: Vec<BranchId>,
    },
}

/// What is to be read, and when that was decided.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) reread: Reread,
    ticket: Ticket,
    at: Instant,
}

/// A change while parts are read for the index.
#[derive(Debug)]
enum Noted {
    Name(u64),
    Part(BranchId),
}

/// What is known of the parts of a directory.
#[derive(Debug, Default)]
pub(crate) struct Known {
    index: Option<NameIndex>,
    checked: Option<Checked>,
    /// Number of reports.
    reports: u64,
    /// The last report about each part whose stamp was not read since.
    reported: BTreeMap<u16, u64>,
    /// Number of times that everything was forgotten.
    forgotten: u64,
    /// Number of threads that read parts for the index.
    readers: u32,
    /// What changed while parts are read.
    noted: Vec<Noted>,
    /// The index that is being built can't be used.
    lost: bool,
    /// Number of lookups in parts that did not have the name, without an index.
    pub(crate) misses: usize,
    /// The number of misses after which the index is built; 0: not decided.
    pub(crate) price: usize,
}

impl Known {
    /// Returns the index of these parts, if there is one.
    pub(crate) fn index(&mut self, stack: &Stack) -> Option<&mut NameIndex> {
        if self.index.as_ref().is_some_and(|index| !Arc::ptr_eq(&index.stack, stack)) {
            self.index = None;
        }
        self.index.as_mut()
    }

    /// Drops the index and the stamps. The index is returned, to be dropped without the lock.
    #[must_use]
    pub(crate) fn forget(&mut self) -> Option<NameIndex> {
        self.lost = self.readers > 0;
        self.forgotten += 1;
        self.checked = None;
        self.index.take()
    }

    /// Makes the next operation verify index and stamps by reading stamps.
    pub(crate) fn expire(&mut self, interval: Duration) {
        self.forgotten += 1;
        self.checked = None;
        if let Some(index) = &mut self.index {
            index.expire(interval);
        }
    }

    /// Notes that a name was or will be changed through the union.
    pub(crate) fn change(&mut self, name: u64) {
        self.note(Noted::Name(name));
        if self.index.as_mut().is_some_and(|index| !index.change(name)) {
            self.index = None;
        }
    }

    /// Notes that an out-of-band change of an entry was reported, in the part on this branch: it
    /// may have any name now, and another stamp.
    pub(crate) fn report(&mut self, branch: BranchId) {
        self.reports += 1;
        self.reported.insert(branch.0, self.reports);
        self.note(Noted::Part(branch));
        if let Some(index) = &mut self.index {
            index.open_part(branch);
        }
    }

    fn note(&mut self, change: Noted) {
        if self.readers == 0 {
            return;
        }
        if self.noted.len() < MOST_NOTED {
            self.noted.push(change);
        } else {
            self.lost = true;
        }
    }

    /// Begins to read parts. [`Self::end_reading`] must follow. Returns the number of changes noted
    /// before.
    pub(crate) fn begin_reading(&mut self) -> usize {
        self.readers += 1;
        self.misses = 0;
        self.noted.len()
    }

    /// Ends reading parts; `before`: the result of [`Self::begin_reading`]. `install` stores what
    /// was read, unless that is out of date. Returns whether it did.
    pub(crate) fn end_reading(&mut self, before: usize, install: impl FnOnce(&mut Option<NameIndex>)) -> bool {
        let usable = !self.lost;
        if usable {
            install(&mut self.index);
            for noted in self.noted.get(before..).unwrap_or_default() {
                let Some(index) = &mut self.index else { break };
                match *noted {
                    Noted::Part(branch) => index.open_part(branch),
                    Noted::Name(name) => {
                        if !index.change(name) {
                            self.index = None;
                        }
                    }
                }
            }
        }
        self.readers -= 1;
        if self.readers == 0 {
            self.noted = Vec::new();
            self.lost = false;
        }
        usable
    }

    /// Returns which parts are watched, if stamps of these parts are known but were read `interval`
    /// ago or earlier.
    pub(crate) fn expired(&self, stack: &Stack, interval: Duration) -> Option<Arc<Watched>> {
        let checked = self.checked.as_ref().filter(|checked| Arc::ptr_eq(&checked.stack, stack))?;
        (checked.at.elapsed() >= interval).then(|| checked.watched.clone())
    }

    /// Returns which stamps have to be read. `proved`: all changes of watched parts that were
    /// complete at `at` were reported. `changes`: the number of changes of the directory's entries
    /// before this call.
    pub(crate) fn plan(
        &self,
        stack: &Stack,
        (changes, at): (u64, Instant),
        interval: Duration,
        proved: Option<&Arc<Watched>>,
    ) -> Plan {
        let ticket = Ticket { changes, reports: self.reports, forgotten: self.forgotten };
        let all = Plan { reread: Reread::All, ticket, at };
        let Some(checked) = self.checked.as_ref().filter(|checked| Arc::ptr_eq(&checked.stack, stack)) else {
            return all;
        };
        let is_fresh = checked.at.elapsed() < interval;
        if !is_fresh && !proved.is_some_and(|watched| Arc::ptr_eq(watched, &checked.watched)) {
            return all;
        }
        let reread = Reread::Some {
            unreported: !is_fresh && !checked.watched.unreported.is_empty(),
            writable: checked.ticket.changes != changes,
            reported: self.reported.keys().map(|&branch| BranchId(branch)).collect(),
            of: checked.clone(),
        };
        Plan { reread, ticket, at: if is_fresh { checked.at } else { at } }
    }

    /// Whether nothing was forgotten since reading these stamps began.
    pub(crate) fn is_current(&self, checked: &Checked) -> bool {
        checked.ticket.forgotten == self.forgotten
    }

    /// Stores stamps that were read as planned, unless something else is known by now. Returns
    /// them.
    pub(crate) fn store(&mut self, plan: &Plan, stack: &Stack, stamps: Stamps, watched: Arc<Watched>) -> Checked {
        let Plan { ticket, at, .. } = *plan;
        let new = Checked { stack: stack.clone(), stamps, watched, at, ticket };
        let is_later = self.checked.as_ref().is_none_or(|old| old.ticket.reports <= ticket.reports);
        if self.forgotten == ticket.forgotten && is_later {
            // The stamps of the others were read after they were reported.
            self.reported.retain(|_, report| *report > ticket.reports);
            self.checked = Some(new.clone());
        }
        new
    }
}

/// A vnode that may have an index.
pub(crate) trait Indexable {
    /// Drops the index.
    fn forget_index(&self);
}

/// The directories that have an index, the oldest first, with the number of names of each.
#[derive(Debug)]
pub(crate) struct Indexes<V>(Mutex<VecDeque<(Weak<V>, usize)>>);

impl<V> Default for Indexes<V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<V: Indexable> Indexes<V> {
    /// Notes that a directory has an index of this size. Drops the oldest indexes if all together
    /// are too large.
    pub(crate) fn remember(&self, this: &Arc<V>, names: usize) {
        // Dropped without the lock.
        let mut evicted = Vec::new();
        {
            let mut all = self.0.lock();
            all.retain(|(weak, _)| !std::ptr::eq(weak.as_ptr(), Arc::as_ptr(this)) && weak.strong_count() > 0);
            // The directory itself takes memory too.
            all.push_back((Arc::downgrade(this), names + 16));
            let mut total: usize = all.iter().map(|(_, names)| names).sum();
            while total > MOST_NAMES {
                let Some((weak, names)) = all.pop_front() else { break };
                total -= names;
                evicted.push(weak);
            }
        }
        for dir in evicted.iter().filter_map(Weak::upgrade) {
            dir.forget_index();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branch::Lower;
    use crate::listing::PartStamps;
    use memfs::MemFs;
    use vnode::{Errno, Layer};

    const LONG: Duration = Duration::from_secs(3600);

    fn stack() -> Stack {
        let part = |branch| Lower { vnode: MemFs::new().root(), branch: BranchId(branch) };
        [part(0), part(1)].into()
    }

    /// Stamps that differ from others.
    fn stamps(errno: Errno) -> Stamps {
        [Err(errno), Err(errno)].into_iter().collect::<PartStamps>().into()
    }

    fn plan(known: &Known, stack: &Stack) -> Plan {
        known.plan(stack, (0, Instant::now()), LONG, None)
    }

    fn reported(plan: &Plan) -> Option<Vec<u16>> {
        match &plan.reread {
            Reread::All => None,
            Reread::Some { reported, .. } => Some(reported.iter().map(|branch| branch.0).collect()),
        }
    }

    #[test]
    fn stamps_that_were_read_before_a_report_do_not_replace_later_ones() {
        let (mut known, stack) = (Known::default(), stack());
        let early = plan(&known, &stack);
        assert_eq!(reported(&early), None);
        known.report(BranchId(1));
        let late = plan(&known, &stack);
        known.store(&late, &stack, stamps(Errno::NOENT), Arc::default());
        assert_eq!(reported(&plan(&known, &stack)), Some(vec![]));
        known.store(&early, &stack, stamps(Errno::IO), Arc::default());
        let Reread::Some { of, .. } = plan(&known, &stack).reread else { panic!("the stamps are known") };
        assert_eq!(of.stamps.first(), Some(&Err(Errno::NOENT)));
    }

    #[test]
    fn a_part_that_was_reported_during_a_read_is_read_again() {
        let (mut known, stack) = (Known::default(), stack());
        let first = plan(&known, &stack);
        known.report(BranchId(1));
        known.store(&first, &stack, stamps(Errno::NOENT), Arc::default());
        let second = plan(&known, &stack);
        assert_eq!(reported(&second), Some(vec![1]));
        known.report(BranchId(1));
        known.store(&second, &stack, stamps(Errno::NOENT), Arc::default());
        assert_eq!(reported(&plan(&known, &stack)), Some(vec![1]));
    }

    #[test]
    fn stamps_that_were_read_before_everything_was_forgotten_are_not_kept() {
        let (mut known, stack) = (Known::default(), stack());
        let first = plan(&known, &stack);
        drop(known.forget());
        let read = known.store(&first, &stack, stamps(Errno::NOENT), Arc::default());
        assert!(!known.is_current(&read));
        assert_eq!(reported(&plan(&known, &stack)), None);
    }
}
