//! What the kernel's page cache holds of files whose data come through this server, and when it is out of date.
//!
//! Left to itself (`AUTO_INVAL_DATA`), the kernel throws a file's pages away whenever it is told another time of change, also by the file's own
//! writers, and also a page whose WRITE is still on its way: who reads it then fills the cache with what was there before, and a shared mapping may
//! write that back. So it is asked to leave the pages alone (`EXPLICIT_INVAL_DATA`), and is told when others have changed a file: when its change
//! time is later than any that our own changes gave it, and its size or time of modification is another.
//!
//! * While a change of ours is under way, nothing is compared; after the last one the file's stamp is taken anew.
//! * The kernel is told by a thread that serves nobody ([`crate::teller`]): it waits for pages that are being read.
//! * An open compares, too, whoever else has the file open: the previous RELEASE may still be on its way. It is answered
//!   once outdated pages are gone ([`crate::files`]), and so is every other open of the file: nobody reads them, and
//!   nobody's WRITE is under way while they go.
//! * While the file is open for writing, a WRITE may be on its way of which this server has not heard. Pages that go then
//!   may be read again before it arrives, and stay as they were before it. So they go once nobody has the file open for
//!   writing, or nothing was written for a while ([`IDLE`]); in the latter case they go once more after the next write.
//! * An out-of-band change between two of our own that nothing reveals before the second one is not noticed.

use crate::teller::{Order, Teller};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vnode::{Attr, NumberMap, SHARDS, Time, shard_of};

/// Nothing was written for so long: a WRITE is hardly on its way.
const IDLE: Duration = Duration::from_millis(100);

/// What tells that a file's data has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    ctime: Time,
    mtime: Time,
    size: u64,
}

impl Stamp {
    fn of(attr: &Attr) -> Self {
        Self { ctime: attr.ctime, mtime: attr.mtime, size: attr.size }
    }

    /// Is the data of `later` another? A change of the attributes alone moves the time of change only.
    fn has_other_data(&self, later: &Self) -> bool {
        (later.mtime, later.size) != (self.mtime, self.size)
    }
}

/// How a file's stamp is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// It is that of the data in the page cache.
    Known,
    /// Changes of ours are under way, and none of them is done.
    Begun,
    /// It is the latest after those that are done.
    Ended,
    /// We have changed the file, and could not have its stamp since.
    Lost,
}

/// A file that was opened through the page cache.
#[derive(Clone, Copy, Debug)]
struct Known {
    stamp: Stamp,
    trust: Trust,
    /// Changes of ours that are under way.
    busy: u32,
    /// When one of them was seen last.
    changed: Option<Instant>,
    /// Others have changed the file, but it is open for writing: the pages are still there.
    overdue: bool,
    /// Pages went although the file was open for writing.
    risked: bool,
}

impl Known {
    fn of(attr: &Attr) -> Self {
        let (stamp, trust) = (Stamp::of(attr), Trust::Known);
        Self { stamp, trust, busy: 0, changed: None, overdue: false, risked: false }
    }

    /// The pages go, and those that come are as these attributes say, or later.
    fn adopt(&mut self, attr: &Attr) {
        self.overdue = false;
        if self.busy == 0 && (self.trust != Trust::Known || attr.ctime >= self.stamp.ctime) {
            (self.stamp, self.trust) = (Stamp::of(attr), Trust::Known);
        }
    }

    /// Can other stamps be compared with the file's?
    fn is_comparable(&self) -> bool {
        self.busy == 0 && self.trust == Trust::Known
    }

    /// Have others changed the data since? Attributes that were read before a change of ours may be compared after it.
    fn is_outdated_by(&self, attr: &Attr) -> bool {
        self.is_comparable() && attr.ctime > self.stamp.ctime && self.stamp.has_other_data(&Stamp::of(attr))
    }

    /// Is it certain that others have not? On file systems with coarse times, two changes may have the same one.
    fn is_right_at(&self, attr: &Attr) -> bool {
        let is_same = attr.ctime < self.stamp.ctime || !self.stamp.has_other_data(&Stamp::of(attr));
        self.is_comparable() && !self.overdue && is_same
    }

    /// Notes whether others have changed the file, and answers whether its pages have to go.
    fn is_overdue(&mut self, attr: &Attr) -> bool {
        self.overdue |= self.is_outdated_by(attr);
        self.overdue
    }

    /// May pages go while the file is open for writing?
    fn is_idle(&self) -> bool {
        self.busy == 0 && self.changed.is_none_or(|changed| changed.elapsed() >= IDLE)
    }

    /// See [`Pages::opened`].
    fn opened(&mut self, (node, attr): (u64, &Attr), written: bool, teller: &Arc<Teller>) -> Cached {
        if self.is_right_at(attr) {
            return Cached::Right;
        }
        match (self.is_overdue(attr), written) {
            // What looks like it may be a change of ours.
            (false, true) => return Cached::Right,
            (true, true) if !self.is_idle() => return Cached::Written,
            _ => {}
        }
        // Under the caller's lock: an open that finds the new stamp must find the order as well.
        self.adopt(attr);
        if self.drop_pages(node, written, teller) { Cached::Going } else { Cached::Unknown }
    }

    /// Do these attributes, which the kernel is being told, say that others have changed the file?
    fn is_news(&mut self, attr: &Attr) -> bool {
        if self.busy == 0 && self.trust == Trust::Lost {
            self.stamp = Stamp::of(attr);
            self.trust = Trust::Known;
        }
        self.is_overdue(attr)
    }

    /// Has the kernel told to drop all pages of the file. False: it can't be told.
    fn drop_pages(&mut self, node: u64, written: bool, teller: &Arc<Teller>) -> bool {
        tracing::debug!(node, "others have changed a file: its pages go");
        self.risked = written;
        teller.tell(Order::pages(node))
    }

    /// A change of ours begins.
    fn begin(&mut self) {
        if self.busy == 0 {
            self.trust = Trust::Begun;
        }
        self.busy += 1;
    }

    /// It has ended; `attr`: the attributes since.
    fn end(&mut self, attr: Option<&Attr>) {
        self.busy = self.busy.saturating_sub(1);
        self.changed = Some(Instant::now());
        // It may have been on its way when the pages went.
        self.overdue |= std::mem::take(&mut self.risked);
        match attr.map(Stamp::of) {
            None => self.trust = Trust::Lost,
            // Another change may have been done, and its attributes read, after these were.
            Some(after) if self.trust == Trust::Begun || after.ctime >= self.stamp.ctime => self.stamp = after,
            Some(_) => {}
        }
        if self.trust != Trust::Lost {
            self.trust = if self.busy == 0 { Trust::Known } else { Trust::Ended };
        }
    }
}

/// What an open is to make of the pages that the kernel may hold of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cached {
    /// They are right.
    Right,
    /// The server does not know of what state of the file they are.
    Unknown,
    /// Others have changed the file. The kernel is being told to drop them.
    Going,
    /// Others have changed the file, but it is being written: they stay for now.
    Written,
}

/// The files of a mount that may have pages in the kernel's cache.
#[derive(Default)]
pub(crate) struct Pages {
    shards: [Mutex<NumberMap<Known>>; SHARDS],
    count: AtomicUsize,
}

/// A change of ours, until [`Pages::end`].
#[must_use]
pub(crate) struct Change(Option<u64>);

impl Change {
    /// Does anybody want to know the attributes after it?
    pub(crate) const fn matters(&self) -> bool {
        self.0.is_some()
    }
}

impl Pages {
    fn shard(&self, node: u64) -> MutexGuard<'_, NumberMap<Known>> {
        self.shards[shard_of(node)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file with these attributes is opened through the page cache; `None`: they could not be had. `written`: somebody
    /// has it open for writing.
    pub(crate) fn opened(&self, node: u64, attr: Option<&Attr>, written: bool, teller: &Arc<Teller>) -> Cached {
        let mut shard = self.shard(node);
        match (attr, shard.get_mut(&node)) {
            (None, known) => {
                known.into_iter().for_each(|known| known.trust = Trust::Lost);
                Cached::Unknown
            }
            (Some(attr), None) => {
                shard.insert(node, Known::of(attr));
                self.count.fetch_add(1, Ordering::Relaxed);
                Cached::Unknown
            }
            (Some(attr), Some(known)) => known.opened((node, attr), written, teller),
        }
    }

    /// Does the kernel hold pages of any file?
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// The kernel has forgotten the node, or from now on others write past its cache.
    pub(crate) fn forget(&self, node: u64) {
        if self.any() && self.shard(node).remove(&node).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Data, size or times are about to be changed through this mount.
    pub(crate) fn begin(&self, node: u64) -> Change {
        if !self.any() {
            return Change(None);
        }
        Change(self.shard(node).get_mut(&node).map(|known| {
            known.begin();
            node
        }))
    }

    /// It is done, or has failed; `attr`: the attributes since, if they could be had.
    pub(crate) fn end(&self, change: &Change, attr: Option<&Attr>) {
        let Some(node) = change.0 else { return };
        if let Some(known) = self.shard(node).get_mut(&node) {
            known.end(attr);
        }
    }

    /// The kernel is being told these attributes: do they say that others have changed the file?
    pub(crate) fn is_news(&self, node: u64, attr: &Attr) -> bool {
        self.any() && self.shard(node).get_mut(&node).is_some_and(|known| known.is_news(attr))
    }

    /// They did: its pages go. `written`: somebody has the file open for writing.
    pub(crate) fn seen(&self, node: u64, attr: &Attr, written: bool, teller: &Arc<Teller>) {
        let mut shard = self.shard(node);
        if let Some(known) = shard.get_mut(&node).filter(|known| known.overdue && (!written || known.is_idle())) {
            known.adopt(attr);
            known.drop_pages(node, written, teller);
        }
    }

    /// The last open file for writing was released.
    pub(crate) fn unwritten(&self, node: u64, teller: &Arc<Teller>) {
        if !self.any() {
            return;
        }
        let mut shard = self.shard(node);
        if let Some(known) = shard.get_mut(&node) {
            known.risked = false;
            if std::mem::take(&mut known.overdue) {
                known.drop_pages(node, false, teller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::Nodes;
    use memfs::MemFs;
    use vnode::{Cx, Layer};

    fn attr(ctime: i64, mtime: i64, size: u64) -> Attr {
        let time = |sec| Time { sec, nsec: 0 };
        let any = MemFs::new().root().getattr(&Cx::internal(0, 0)).unwrap();
        Attr { ctime: time(ctime), mtime: time(mtime), size, ..any }
    }

    /// Pages of a kernel that can't be told.
    struct Bed {
        pages: Pages,
        teller: Arc<Teller>,
    }

    impl Bed {
        fn new() -> Self {
            Self { pages: Pages::default(), teller: Teller::new(Arc::new(Nodes::new(MemFs::new().root()))) }
        }

        /// Node 7 is opened.
        fn opened(&self, attr: Option<Attr>, written: bool) -> Cached {
            self.pages.opened(7, attr.as_ref(), written, &self.teller)
        }

        /// The kernel is told its attributes.
        fn is_news(&self, attr: &Attr) -> bool {
            let news = self.pages.is_news(7, attr);
            self.pages.seen(7, attr, false, &self.teller);
            news
        }
    }

    #[test]
    fn pages_are_kept_from_open_to_open_unless_others_changed_the_file() {
        let bed = Bed::new();
        let opened = |attr| bed.opened(Some(attr), false);
        assert_eq!(opened(attr(1, 1, 10)), Cached::Unknown, "nothing is known of pages from before");
        assert_eq!(opened(attr(1, 1, 10)), Cached::Right);
        assert_eq!(opened(attr(2, 1, 10)), Cached::Right, "chmod changes no data");
        assert_eq!(opened(attr(3, 3, 10)), Cached::Unknown);
        assert_eq!(opened(attr(4, 3, 11)), Cached::Unknown);
        assert_eq!(opened(attr(4, 3, 12)), Cached::Unknown, "with coarse times");
        assert_eq!(opened(attr(3, 3, 10)), Cached::Right, "read before, compared late");
        assert_eq!(bed.opened(None, false), Cached::Unknown);
        assert_eq!(opened(attr(4, 3, 12)), Cached::Unknown);
        assert_eq!(opened(attr(4, 3, 12)), Cached::Right);
        bed.pages.forget(7);
        assert_eq!(opened(attr(4, 3, 12)), Cached::Unknown);
    }

    #[test]
    fn while_a_file_is_being_written_its_pages_stay() {
        let bed = Bed::new();
        bed.opened(Some(attr(1, 1, 10)), false);
        let change = bed.pages.begin(7);
        assert_eq!(bed.opened(Some(attr(3, 3, 10)), true), Cached::Right, "it may be ours");
        bed.pages.end(&change, Some(&attr(3, 3, 10)));
        assert_eq!(bed.opened(Some(attr(3, 3, 10)), true), Cached::Right);
        assert_eq!(bed.opened(Some(attr(4, 4, 10)), true), Cached::Written);
        let change = bed.pages.begin(7);
        bed.pages.end(&change, Some(&attr(5, 5, 10)));
        assert_eq!(bed.opened(Some(attr(5, 5, 10)), true), Cached::Written, "it is still to be done");
        bed.pages.seen(7, &attr(5, 5, 10), true, &bed.teller);
        assert!(bed.pages.is_news(7, &attr(5, 5, 10)));
        bed.pages.unwritten(7, &bed.teller);
        assert!(!bed.pages.is_news(7, &attr(5, 5, 10)));
        assert_eq!(bed.opened(Some(attr(5, 5, 10)), false), Cached::Right);
    }

    #[test]
    fn pages_of_a_file_that_is_open_for_writing_go_while_nothing_is_written() {
        let bed = Bed::new();
        bed.opened(Some(attr(1, 1, 10)), true);
        assert!(bed.pages.is_news(7, &attr(2, 2, 10)));
        bed.pages.seen(7, &attr(2, 2, 10), true, &bed.teller);
        assert!(!bed.pages.is_news(7, &attr(2, 2, 10)));
        // This may have been on its way meanwhile.
        let change = bed.pages.begin(7);
        bed.pages.end(&change, Some(&attr(3, 3, 10)));
        assert!(bed.pages.is_news(7, &attr(3, 3, 10)));
        assert_eq!(bed.opened(Some(attr(3, 3, 10)), true), Cached::Written);
        assert_eq!(bed.opened(Some(attr(3, 3, 10)), false), Cached::Unknown);
        assert_eq!(bed.opened(Some(attr(3, 3, 10)), false), Cached::Right);
    }

    #[test]
    fn our_own_changes_are_no_news() {
        let bed = Bed::new();
        bed.opened(Some(attr(1, 1, 10)), false);
        let (first, second) = (bed.pages.begin(7), bed.pages.begin(7));
        assert!(first.matters() && !bed.is_news(&attr(2, 2, 12)));
        bed.pages.end(&first, Some(&attr(2, 2, 12)));
        assert!(!bed.is_news(&attr(3, 3, 13)), "one is still under way");
        bed.pages.end(&second, Some(&attr(3, 3, 13)));
        assert!(!bed.is_news(&attr(3, 3, 13)));
        assert!(!bed.is_news(&attr(2, 2, 12)), "an answer that comes late");
        assert!(bed.is_news(&attr(4, 4, 13)));
        assert!(!bed.is_news(&attr(4, 4, 13)), "told once");
        let third = bed.pages.begin(7);
        bed.pages.end(&third, None);
        assert!(!bed.is_news(&attr(5, 5, 13)), "what it is since is not known");
        assert!(bed.is_news(&attr(6, 6, 13)));
    }

    #[test]
    fn the_latest_of_our_own_changes_counts_in_whatever_order_they_end() {
        let bed = Bed::new();
        bed.opened(Some(attr(1, 1, 10)), false);
        let (first, second) = (bed.pages.begin(7), bed.pages.begin(7));
        bed.pages.end(&second, Some(&attr(3, 3, 13)));
        // Its attributes were read before the second was done.
        bed.pages.end(&first, Some(&attr(2, 2, 12)));
        assert!(!bed.is_news(&attr(3, 3, 13)));
        assert_eq!(bed.opened(Some(attr(3, 3, 13)), false), Cached::Right);
        let (first, second) = (bed.pages.begin(7), bed.pages.begin(7));
        bed.pages.end(&first, None);
        bed.pages.end(&second, Some(&attr(4, 4, 14)));
        assert!(!bed.is_news(&attr(5, 5, 15)), "the first may have ended last");
        // The clock was set back.
        let change = bed.pages.begin(7);
        bed.pages.end(&change, Some(&attr(1, 1, 11)));
        assert!(bed.is_news(&attr(2, 2, 11)));
    }

    #[test]
    fn of_files_without_pages_nothing_is_known() {
        let bed = Bed::new();
        assert!(!bed.pages.begin(7).matters() && !bed.is_news(&attr(1, 1, 1)));
        bed.pages.opened(8, Some(&attr(1, 1, 10)), false, &bed.teller);
        assert!(!bed.pages.begin(7).matters() && !bed.is_news(&attr(1, 1, 1)));
    }
}
