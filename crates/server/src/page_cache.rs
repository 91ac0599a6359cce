//! Tracks which state of a file the kernel's page cache holds, for files whose data passes through
//! this server.
//!
//! By default (`AUTO_INVAL_DATA`) the kernel drops a file's pages whenever it receives another
//! mtime or size, even if the file's own writers caused it, and even a page whose WRITE is in
//! progress. A concurrent reader then fills the cache with old data, which a shared mapping may
//! write back. So the server requests `EXPLICIT_INVAL_DATA` and invalidates pages itself after an
//! out-of-band change. It detects one by a ctime later than any that the mount's own changes
//! produced, together with another size or mtime.
//!
//! * While a change through the mount is in progress, nothing is compared; after the last one, the
//!   file's stamp is taken again.
//! * A dedicated thread notifies the kernel ([`crate::notifier`]), because the notification waits
//!   for page locks.
//! * An open compares too, even if the file is open already: the previous RELEASE may still be in
//!   progress. The open returns once stale pages are dropped ([`crate::files`]), and so does every
//!   other open of the file. So meanwhile no reader uses the pages and no WRITE is in progress.
//! * Of a file that has grown, the last page has zeros after the former end. Until that page is
//!   dropped, replies to GETATTR and LOOKUP have the size of the state that the pages hold, and no
//!   lifetime: with a larger size, the kernel would show these zeros. When it gets another size, it
//!   also clears what its pages hold beyond that. The notification repairs this, if the reply
//!   arrives first; a reply that arrives later is ignored. But while the notification is being
//!   sent, a page may have been read again already, and a new request is not ignored. So the
//!   server makes the kernel ignore that reply too.
//! * While the file is open for writing, a WRITE may be in progress that has not reached the
//!   server. Pages dropped now may be read again before it arrives, and would keep the old data. So
//!   they are dropped once the file is no longer open for writing, or after a period without writes
//!   ([`IDLE`]). In the latter case they are dropped again after the next write.
//! * An out-of-band change between two changes through the mount goes unnoticed if nothing reveals
//!   it before the second one.

use crate::notifier::{Notification, NotificationQueue};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vnode::{Attr, NumberMap, SHARDS, Time, shard_of};

/// After this time without a write, a WRITE is unlikely to be in progress.
const IDLE: Duration = Duration::from_millis(100);

/// Attributes that reveal a change of a file's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    ctime: Time,
    mtime: Time,
    size: u64,
    /// Time of birth of the lower file: which one it is. A union's file is another one after a
    /// copy-up, and once its copy is removed below.
    born: Option<Time>,
}

impl Stamp {
    fn of(attr: &Attr) -> Self {
        Self { ctime: attr.ctime, mtime: attr.mtime, size: attr.size, born: attr.btime }
    }

    /// Whether `other` is the state of another lower file. Of two files, neither state is later.
    fn is_of_another_file(&self, other: &Self) -> bool {
        self.born.zip(other.born).is_some_and(|(one, other)| one != other)
    }

    /// Whether `later` has other data. A change of attributes alone moves only the ctime.
    fn has_other_data(&self, later: &Self) -> bool {
        (later.mtime, later.size) != (self.mtime, self.size)
    }
}

/// What a file's [`FileState::stamp`] describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// The data in the page cache or, if that is stale, the latest known state of the file.
    Known,
    /// The file before the changes through the mount that are in progress. None has completed.
    Begun,
    /// The file after those changes through the mount that have completed. Others are in progress.
    Ended,
    /// An earlier state: the attributes since could not be obtained.
    Lost,
}

/// State of a file that was opened through the page cache.
#[derive(Clone, Copy, Debug)]
struct FileState {
    stamp: Stamp,
    trust: Trust,
    /// Number of changes through the mount in progress.
    busy: u32,
    /// Time of the last change through the mount.
    changed: Option<Instant>,
    /// The pages are out of date, but kept because the file is open for writing.
    stale: bool,
    /// A notification that drops the pages was queued. It may have been sent since.
    dropping: bool,
    /// While the pages are stale or being dropped: size of the state that they hold.
    held_size: u64,
    /// Pages were dropped although the file was open for writing.
    dropped_while_open: bool,
    /// All pages were read since the stamp's state appeared. Not so after a change through the
    /// mount, which changes only some: an earlier out-of-band change may be missing in others.
    all_reread: bool,
    /// [`PageCache::drop_late`] will be called.
    deferred: bool,
}

impl FileState {
    fn of(attr: &Attr) -> Self {
        let (stamp, trust) = (Stamp::of(attr), Trust::Known);
        // The open that begins the tracking drops all pages.
        Self {
            stamp,
            trust,
            busy: 0,
            changed: None,
            stale: false,
            dropping: false,
            held_size: attr.size,
            dropped_while_open: false,
            all_reread: true,
            deferred: false,
        }
    }

    /// Records that the pages are dropped, and that those read next have these attributes.
    fn adopt(&mut self, attr: &Attr) {
        self.stale = false;
        self.all_reread = self.busy == 0;
        let now = Stamp::of(attr);
        let is_earlier = now.ctime < self.stamp.ctime && !self.stamp.is_of_another_file(&now);
        if self.busy == 0 && (self.trust != Trust::Known || !is_earlier) {
            (self.stamp, self.trust) = (now, Trust::Known);
        }
    }

    /// Whether the stamp can be compared with others.
    fn is_comparable(&self) -> bool {
        self.busy == 0 && self.trust == Trust::Known
    }

    /// Whether `attr` shows that the data changed out of band. Attributes with the stamp's ctime or
    /// an earlier one are ignored: they may have been read before a change through the mount whose
    /// stamp is recorded already. Those of another lower file are not.
    fn is_stale_at(&self, attr: &Attr) -> bool {
        let now = Stamp::of(attr);
        let is_later = attr.ctime > self.stamp.ctime && self.stamp.has_other_data(&now);
        self.is_comparable() && (is_later || self.stamp.is_of_another_file(&now))
    }

    /// Whether `attr` shows that the data did not change out of band. This is not the opposite of
    /// [`Self::is_stale_at`]: with the same ctime but another size or mtime, both return false,
    /// because coarse timestamps can give two changes the same ctime.
    fn is_valid_at(&self, attr: &Attr) -> bool {
        let now = Stamp::of(attr);
        let is_same = attr.ctime < self.stamp.ctime || !self.stamp.has_other_data(&now);
        self.is_comparable() && !self.stale && is_same && !self.stamp.is_of_another_file(&now)
    }

    /// Whether `attr` shows a larger file although it has the stamp's ctime, because timestamps are
    /// coarse. It may also have been read before a truncation through the mount.
    fn has_grown_in_a_tick(&self, attr: &Attr) -> bool {
        self.is_comparable() && attr.ctime == self.stamp.ctime && attr.size > self.stamp.size
    }

    /// Records an out-of-band change, and returns whether the pages have to be dropped.
    fn check_stale(&mut self, (node, attr): (u64, &Attr), notifier: &NotificationQueue) -> bool {
        if self.is_stale_at(attr) {
            self.mark_stale(node, notifier);
            // Pages read after the stale ones are dropped hold this state or a later one.
            self.stamp = Stamp::of(attr);
        }
        self.stale
    }

    /// Records that the pages are out of date. To be called before the stamp is replaced.
    fn mark_stale(&mut self, node: u64, notifier: &NotificationQueue) {
        if !self.stale && !self.is_dropping(node, notifier) {
            self.held_size = self.stamp.size;
        }
        self.stale = true;
    }

    /// Whether a notification that drops the pages is queued or being sent.
    fn is_dropping(&mut self, node: u64, notifier: &NotificationQueue) -> bool {
        self.dropping = self.dropping && notifier.drops_pages(node);
        self.dropping
    }

    /// Returns the size to send to the kernel with these attributes, if it must not get their own
    /// until the pages are dropped. It is never less than the size of what a mapping may have
    /// changed: no program has the file open for writing.
    fn size_while_dropping(
        &mut self,
        (node, attr): (u64, &Attr),
        written: bool,
        notifier: &NotificationQueue,
    ) -> Option<HeldSize> {
        if written || self.busy > 0 || !self.is_dropping(node, notifier) {
            return None;
        }
        if attr.ctime >= self.stamp.ctime {
            // The kernel clears the rest of the page if the file has become shorter.
            self.held_size = self.held_size.min(attr.size);
        }
        let held = HeldSize { size: self.held_size, is_dropping: !notifier.will_drop_pages(node) };
        (self.held_size < attr.size).then_some(held)
    }

    /// Whether pages may be dropped while the file is open for writing.
    fn is_idle(&self) -> bool {
        self.busy == 0 && self.changed.is_none_or(|changed| changed.elapsed() >= IDLE)
    }

    /// See [`PageCache::opened`].
    fn opened(&mut self, (node, attr): (u64, &Attr), written: bool, notifier: &Arc<NotificationQueue>) -> PageState {
        if self.is_valid_at(attr) {
            return PageState::Valid;
        }
        match (self.check_stale((node, attr), notifier), written) {
            // The difference may result from a change through the mount.
            (false, true) => return PageState::Valid,
            (true, true) if !self.is_idle() => return PageState::BeingWritten,
            _ => {}
        }
        self.mark_stale(node, notifier);
        // The caller's lock covers both: an open that finds the new stamp must find the queued
        // notification too.
        self.adopt(attr);
        if self.drop_pages(node, written, notifier) { PageState::Dropping } else { PageState::Unknown }
    }

    /// Compares attributes that are about to be sent to the kernel, and records an out-of-band
    /// change. Adopts them if the stamp is lost. Returns whether pages have to be dropped, or are
    /// being dropped.
    fn note_sent_attributes(&mut self, (node, attr): (u64, &Attr), notifier: &NotificationQueue) -> bool {
        if self.busy == 0 && self.trust == Trust::Lost {
            self.stamp = Stamp::of(attr);
            self.trust = Trust::Known;
            self.all_reread = false;
        }
        self.check_stale((node, attr), notifier) || self.has_grown_in_a_tick(attr) || self.is_dropping(node, notifier)
    }

    /// Queues a notification that drops all pages of the file. Returns false if the kernel cannot
    /// be notified.
    fn drop_pages(&mut self, node: u64, written: bool, notifier: &Arc<NotificationQueue>) -> bool {
        tracing::debug!(node, "out-of-band change of a file: dropping its pages");
        self.dropped_while_open = written;
        self.dropping = notifier.enqueue(Notification::pages(node));
        self.dropping
    }

    /// See [`PageCache::reported`].
    fn reported(&mut self, (node, attr): (u64, &Attr), notifier: &NotificationQueue) -> Reported {
        if self.all_reread && self.is_valid_at(attr) {
            // An earlier ctime: the attributes were read before a change that is recorded.
            return if attr.ctime <= self.stamp.ctime { Reported::Known } else { Reported::Attributes };
        }
        self.check_stale((node, attr), notifier);
        self.mark_stale(node, notifier);
        if self.is_idle() {
            self.adopt(attr);
            return Reported::Pages;
        }
        if std::mem::replace(&mut self.deferred, true) { Reported::Known } else { Reported::Later }
    }

    /// Records the release of the last open file for writing. Returns whether stale pages have to
    /// be dropped now.
    fn last_writer_closed(&mut self) -> bool {
        self.dropped_while_open = false;
        std::mem::take(&mut self.stale)
    }

    /// Records the start of a change through the mount.
    fn begin(&mut self) {
        self.all_reread = false;
        if self.busy == 0 {
            self.trust = Trust::Begun;
        }
        self.busy += 1;
    }

    /// Records the end of a change; `attr`: the attributes after it.
    fn end(&mut self, attr: Option<&Attr>) {
        self.busy = self.busy.saturating_sub(1);
        self.changed = Some(Instant::now());
        // This change may have been in progress when pages were dropped, and old data may have been
        // read again before it arrived.
        self.stale |= std::mem::take(&mut self.dropped_while_open);
        if let Some(attr) = attr {
            // The kernel has this size now, or a smaller one.
            self.held_size = attr.size;
        }
        match attr.map(Stamp::of) {
            None => self.trust = Trust::Lost,
            // Keep a later stamp: concurrent changes may end in another order than their attributes
            // were read.
            Some(after) if self.trust == Trust::Begun || after.ctime >= self.stamp.ctime => self.stamp = after,
            Some(_) => {}
        }
        if self.trust != Trust::Lost {
            self.trust = if self.busy == 0 { Trust::Known } else { Trust::Ended };
        }
    }
}

/// State of the pages that the kernel may hold of a file being opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageState {
    /// The pages are valid.
    Valid,
    /// The server does not know which state of the file they hold.
    Unknown,
    /// The pages are stale, and a notification to drop them is queued.
    Dropping,
    /// The pages are stale, but kept for now because the file is being written.
    BeingWritten,
}

/// Size of the state that a file's pages hold, to be sent instead of the file's own: see the top of
/// this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldSize {
    pub(crate) size: u64,
    /// The notification is being sent. The kernel may have dropped the pages and read new ones
    /// already.
    pub(crate) is_dropping: bool,
}

/// What a report of an out-of-band change of a file's data invalidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reported {
    /// Nothing: the kernel's pages and attributes were read after the change, or a later drop is
    /// under way.
    Known,
    /// The attributes. The pages are current.
    Attributes,
    /// Pages and attributes.
    Pages,
    /// Pages and attributes, unless an open drops them first: see [`PageCache::drop_late`].
    Later,
}

/// Files of a mount that may have pages in the kernel's cache.
#[derive(Default)]
pub(crate) struct PageCache {
    shards: [Mutex<NumberMap<FileState>>; SHARDS],
    count: AtomicUsize,
}

/// A change through the mount, until [`PageCache::end`].
#[must_use]
pub(crate) struct Change(Option<u64>);

impl Change {
    /// Whether the file is tracked. [`PageCache::end`] then needs the attributes after the change.
    pub(crate) const fn matters(&self) -> bool {
        self.0.is_some()
    }
}

impl PageCache {
    fn shard(&self, node: u64) -> MutexGuard<'_, NumberMap<FileState>> {
        self.shards[shard_of(node)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state of the pages of a file that is opened through the page cache. `attr`: its
    /// attributes, if available. `written`: the file is open for writing.
    pub(crate) fn opened(
        &self,
        node: u64,
        attr: Option<&Attr>,
        written: bool,
        notifier: &Arc<NotificationQueue>,
    ) -> PageState {
        let mut shard = self.shard(node);
        match (attr, shard.get_mut(&node)) {
            (None, known) => {
                known.into_iter().for_each(|known| known.trust = Trust::Lost);
                PageState::Unknown
            }
            (Some(attr), None) => {
                shard.insert(node, FileState::of(attr));
                self.count.fetch_add(1, Ordering::Relaxed);
                PageState::Unknown
            }
            (Some(attr), Some(known)) => known.opened((node, attr), written, notifier),
        }
    }

    /// Whether the kernel may hold pages of any file.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Stops tracking a node that the kernel has forgotten, or whose data now bypasses the cache.
    pub(crate) fn forget(&self, node: u64) {
        if self.any() && self.shard(node).remove(&node).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Records the start of a change of data, size or times through the mount.
    pub(crate) fn begin(&self, node: u64) -> Change {
        if !self.any() {
            return Change(None);
        }
        Change(self.shard(node).get_mut(&node).map(|known| {
            known.begin();
            node
        }))
    }

    /// Records the end of a change, successful or not; `attr`: the attributes since, if available.
    pub(crate) fn end(&self, change: &Change, attr: Option<&Attr>) {
        let Some(node) = change.0 else { return };
        if let Some(known) = self.shard(node).get_mut(&node) {
            known.end(attr);
        }
    }

    /// Compares attributes that are about to be sent to the kernel, and records an out-of-band
    /// change. Returns whether pages have to be dropped, or are being dropped: see
    /// [`Self::drop_if_stale`].
    pub(crate) fn note_sent_attributes(&self, node: u64, attr: &Attr, notifier: &NotificationQueue) -> bool {
        let note = |known: &mut FileState| known.note_sent_attributes((node, attr), notifier);
        self.any() && self.shard(node).get_mut(&node).is_some_and(note)
    }

    /// Drops the pages of a file that was changed out of band, unless it is being written.
    /// `written`: the file is open for writing. Returns the size to send with the attributes, if
    /// pages are being dropped and nobody writes.
    pub(crate) fn drop_if_stale(
        &self,
        node: u64,
        attr: &Attr,
        written: bool,
        notifier: &Arc<NotificationQueue>,
    ) -> Option<HeldSize> {
        let mut shard = self.shard(node);
        let known = shard.get_mut(&node)?;
        if !written && known.has_grown_in_a_tick(attr) {
            known.mark_stale(node, notifier);
        }
        if known.stale && (!written || known.is_idle()) {
            known.adopt(attr);
            known.drop_pages(node, written, notifier);
        }
        known.size_while_dropping((node, attr), written, notifier)
    }

    /// Records that a file was changed out of band and has the attributes `attr` since, and sends
    /// what the kernel needs to know.
    ///
    /// A notification that meets a GETATTR or READ under way makes the kernel ignore its reply's
    /// size. So none is sent if an open has revealed the change. While the file is being changed
    /// through the mount, that can't be told: the change may be older than the stamp. Then the
    /// pages are dropped by the next open, or after a while.
    pub(crate) fn reported(&self, node: u64, attr: &Attr, written: bool, notifier: &Arc<NotificationQueue>) {
        let mut shard = self.shard(node);
        let Some(known) = shard.get_mut(&node) else {
            notifier.enqueue(Notification::pages(node));
            return;
        };
        match known.reported((node, attr), notifier) {
            Reported::Known => {}
            Reported::Attributes => drop(notifier.enqueue(Notification::Attributes(node))),
            Reported::Later => notifier.defer(Notification::StalePages(node)),
            Reported::Pages => drop(known.drop_pages(node, written, notifier)),
        }
    }

    /// Drops the pages of a file that are stale since a report, unless an open did so. While the
    /// file is being changed, it waits longer.
    pub(crate) fn drop_late(&self, node: u64, written: bool, notifier: &Arc<NotificationQueue>) {
        let mut shard = self.shard(node);
        let Some(known) = shard.get_mut(&node) else { return };
        if known.stale && !known.is_idle() {
            notifier.defer(Notification::StalePages(node));
            return;
        }
        known.deferred = false;
        if std::mem::take(&mut known.stale) {
            known.drop_pages(node, written, notifier);
        }
    }

    /// Drops pages that are stale but were kept until the last open file for writing was released.
    pub(crate) fn last_writer_closed(&self, node: u64, notifier: &Arc<NotificationQueue>) {
        if !self.any() {
            return;
        }
        let mut shard = self.shard(node);
        if let Some(known) = shard.get_mut(&node)
            && known.last_writer_closed()
            && !known.drop_pages(node, false, notifier)
        {
            // The reply to the next open drops them.
            known.trust = Trust::Lost;
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

    /// A page cache whose kernel cannot be notified.
    struct TestPages {
        pages: PageCache,
        notifier: Arc<NotificationQueue>,
    }

    impl TestPages {
        fn new() -> Self {
            Self {
                pages: PageCache::default(),
                notifier: NotificationQueue::new(Arc::new(Nodes::new(MemFs::new().root()))),
            }
        }

        /// Opens node 7.
        fn opened(&self, attr: Option<Attr>, written: bool) -> PageState {
            self.pages.opened(7, attr.as_ref(), written, &self.notifier)
        }

        /// Sends attributes of node 7 to the kernel.
        fn note_sent_attributes(&self, attr: &Attr) -> bool {
            let is_stale = self.pages.note_sent_attributes(7, attr, &self.notifier);
            self.pages.drop_if_stale(7, attr, false, &self.notifier);
            is_stale
        }
    }

    /// Returns what a report of attributes invalidates, and forgets what it scheduled.
    fn reported(test: &TestPages, attr: &Attr) -> Reported {
        let mut shard = test.pages.shard(7);
        let known = shard.get_mut(&7).unwrap();
        let reported = known.reported((7, attr), &test.notifier);
        known.deferred = false;
        reported
    }

    #[test]
    fn a_report_of_a_known_change_drops_nothing() {
        let test = TestPages::new();
        assert_eq!(test.opened(Some(attr(1, 1, 10)), false), PageState::Unknown);
        assert_eq!(reported(&test, &attr(1, 1, 10)), Reported::Known);
        assert_eq!(reported(&test, &attr(2, 1, 10)), Reported::Attributes, "chmod");
        assert_eq!(reported(&test, &attr(3, 3, 11)), Reported::Pages);
        assert_eq!(reported(&test, &attr(3, 3, 11)), Reported::Known, "the first report dropped the pages");
        assert_eq!(reported(&test, &attr(2, 2, 12)), Reported::Known, "an earlier state");
    }

    #[test]
    fn a_report_that_follows_a_change_through_the_mount_drops_pages_later() {
        let test = TestPages::new();
        let _unknown = test.opened(Some(attr(1, 1, 10)), false);
        let change = test.pages.begin(7);
        assert_eq!(reported(&test, &attr(2, 2, 10)), Reported::Later);
        test.pages.end(&change, Some(&attr(3, 3, 10)));
        // The report may be of a change that is older than the recorded one.
        assert_eq!(reported(&test, &attr(3, 3, 10)), Reported::Later);
        assert_eq!(test.opened(Some(attr(3, 3, 10)), false), PageState::Unknown, "the open drops them");
        assert_eq!(reported(&test, &attr(3, 3, 10)), Reported::Known);
        let change = test.pages.begin(7);
        test.pages.end(&change, Some(&attr(4, 4, 10)));
        test.pages.shard(7).get_mut(&7).unwrap().changed = None;
        assert_eq!(reported(&test, &attr(4, 4, 10)), Reported::Pages, "nobody changes the file any more");
    }

    #[test]
    fn pages_survive_opens_without_an_out_of_band_change() {
        let test = TestPages::new();
        let opened = |attr| test.opened(Some(attr), false);
        assert_eq!(opened(attr(1, 1, 10)), PageState::Unknown, "the state of earlier pages is unknown");
        assert_eq!(opened(attr(1, 1, 10)), PageState::Valid);
        assert_eq!(opened(attr(2, 1, 10)), PageState::Valid, "chmod changes no data");
        assert_eq!(opened(attr(3, 3, 10)), PageState::Unknown);
        assert_eq!(opened(attr(4, 3, 11)), PageState::Unknown);
        assert_eq!(opened(attr(4, 3, 12)), PageState::Unknown, "with coarse times");
        assert_eq!(opened(attr(3, 3, 10)), PageState::Valid, "attributes from before the change, compared late");
        assert_eq!(test.opened(None, false), PageState::Unknown);
        assert_eq!(opened(attr(4, 3, 12)), PageState::Unknown);
        assert_eq!(opened(attr(4, 3, 12)), PageState::Valid);
        test.pages.forget(7);
        assert_eq!(opened(attr(4, 3, 12)), PageState::Unknown);
    }

    /// Once a union's copy is removed below, the file is the original again, whose times are older.
    #[test]
    fn pages_of_another_file_are_dropped_whatever_its_times_are() {
        let test = TestPages::new();
        let opened = |attr| test.opened(Some(attr), false);
        let born = |sec, attr| Attr { btime: Some(Time { sec, nsec: 0 }), ..attr };
        assert_eq!(opened(born(5, attr(5, 5, 10))), PageState::Unknown);
        assert_eq!(opened(born(5, attr(5, 5, 10))), PageState::Valid);
        assert_eq!(opened(born(2, attr(2, 2, 20))), PageState::Unknown);
        assert_eq!(opened(born(2, attr(2, 2, 20))), PageState::Valid);
        assert!(test.note_sent_attributes(&born(1, attr(1, 1, 10))));
        assert_eq!(reported(&test, &born(1, attr(1, 1, 10))), Reported::Known);
        assert_eq!(reported(&test, &born(0, attr(0, 0, 10))), Reported::Pages);
        let unknown = Attr { btime: None, ..attr(0, 0, 10) };
        assert_eq!(opened(unknown), PageState::Valid, "a layer that tells no time of birth");
    }

    #[test]
    fn pages_are_kept_while_a_file_is_being_written() {
        let test = TestPages::new();
        test.opened(Some(attr(1, 1, 10)), false);
        let change = test.pages.begin(7);
        assert_eq!(test.opened(Some(attr(3, 3, 10)), true), PageState::Valid, "the change may come through the mount");
        test.pages.end(&change, Some(&attr(3, 3, 10)));
        assert_eq!(test.opened(Some(attr(3, 3, 10)), true), PageState::Valid);
        assert_eq!(test.opened(Some(attr(4, 4, 10)), true), PageState::BeingWritten);
        let change = test.pages.begin(7);
        test.pages.end(&change, Some(&attr(5, 5, 10)));
        assert_eq!(test.opened(Some(attr(5, 5, 10)), true), PageState::BeingWritten, "the drop is still due");
        test.pages.drop_if_stale(7, &attr(5, 5, 10), true, &test.notifier);
        assert!(test.pages.note_sent_attributes(7, &attr(5, 5, 10), &test.notifier));
        test.pages.last_writer_closed(7, &test.notifier);
        assert!(!test.pages.note_sent_attributes(7, &attr(5, 5, 10), &test.notifier));
        assert_eq!(test.opened(Some(attr(5, 5, 10)), false), PageState::Valid);
    }

    #[test]
    fn pages_dropped_at_the_last_writers_close_are_not_dropped_again() {
        let (mut file, notifier) = (FileState::of(&attr(1, 1, 10)), TestPages::new().notifier);
        file.begin();
        file.end(Some(&attr(2, 2, 10)));
        assert!(file.check_stale((7, &attr(3, 3, 10)), &notifier));
        assert!(!file.is_valid_at(&attr(3, 3, 10)), "not dropped yet");
        assert!(file.last_writer_closed());
        assert!(file.is_valid_at(&attr(3, 3, 10)) && !file.last_writer_closed());
        assert!(file.check_stale((7, &attr(4, 4, 10)), &notifier), "changed again");
    }

    #[test]
    fn pages_are_dropped_while_an_open_writer_is_idle() {
        let test = TestPages::new();
        test.opened(Some(attr(1, 1, 10)), true);
        assert!(test.pages.note_sent_attributes(7, &attr(2, 2, 10), &test.notifier));
        test.pages.drop_if_stale(7, &attr(2, 2, 10), true, &test.notifier);
        assert!(!test.pages.note_sent_attributes(7, &attr(2, 2, 10), &test.notifier));
        // This write may have been in progress meanwhile.
        let change = test.pages.begin(7);
        test.pages.end(&change, Some(&attr(3, 3, 10)));
        assert!(test.pages.note_sent_attributes(7, &attr(3, 3, 10), &test.notifier));
        assert_eq!(test.opened(Some(attr(3, 3, 10)), true), PageState::BeingWritten);
        assert_eq!(test.opened(Some(attr(3, 3, 10)), false), PageState::Unknown);
        assert_eq!(test.opened(Some(attr(3, 3, 10)), false), PageState::Valid);
    }

    #[test]
    fn the_size_of_a_file_that_has_grown_is_held_until_its_pages_are_dropped() {
        let test = TestPages::new();
        let size = |written, attr: Attr| {
            test.pages.note_sent_attributes(7, &attr, &test.notifier);
            test.pages.drop_if_stale(7, &attr, written, &test.notifier)
        };
        let drop = |is_queued, is_sending| {
            test.pages.shard(7).get_mut(&7).unwrap().dropping = true;
            test.notifier.pretend_to_drop_pages(7, is_queued, is_sending);
        };
        // Without a kernel, nothing is queued.
        let size_while_queued = |attr| {
            assert_eq!(size(false, attr), None);
            drop(true, false);
            size(false, attr)
        };
        let held = |size, is_dropping| Some(HeldSize { size, is_dropping });
        test.opened(Some(attr(1, 1, 10)), false);
        assert_eq!(size_while_queued(attr(2, 2, 20)), held(10, false));
        assert_eq!(size(true, attr(2, 2, 20)), None, "a writer's own");
        drop(false, true);
        assert_eq!(size(false, attr(2, 2, 20)), held(10, true));
        drop(false, false);
        assert_eq!(size(false, attr(2, 2, 20)), None);
        assert_eq!(size_while_queued(attr(3, 3, 30)), held(20, false));
        assert_eq!(size_while_queued(attr(4, 4, 15)), None, "shorter");
        assert_eq!(size_while_queued(attr(5, 5, 40)), held(15, false), "the kernel has cleared the rest");
        let change = test.pages.begin(7);
        assert_eq!(size(false, attr(5, 5, 40)), None);
        test.pages.end(&change, Some(&attr(6, 6, 50)));
        assert_eq!(size(false, attr(6, 6, 50)), None);
    }

    #[test]
    fn a_file_that_grows_within_a_clock_tick_is_noticed() {
        let test = TestPages::new();
        test.opened(Some(attr(1, 1, 10)), false);
        assert!(test.note_sent_attributes(&attr(1, 1, 11)));
        assert!(!test.note_sent_attributes(&attr(1, 1, 11)), "reported once");
        assert!(!test.note_sent_attributes(&attr(1, 1, 10)), "it may be a late reply");
    }

    #[test]
    fn changes_through_the_mount_are_not_out_of_band() {
        let test = TestPages::new();
        test.opened(Some(attr(1, 1, 10)), false);
        let (first, second) = (test.pages.begin(7), test.pages.begin(7));
        assert!(first.matters() && !test.note_sent_attributes(&attr(2, 2, 12)));
        test.pages.end(&first, Some(&attr(2, 2, 12)));
        assert!(!test.note_sent_attributes(&attr(3, 3, 13)), "one is still in progress");
        test.pages.end(&second, Some(&attr(3, 3, 13)));
        assert!(!test.note_sent_attributes(&attr(3, 3, 13)));
        assert!(!test.note_sent_attributes(&attr(2, 2, 12)), "a late reply");
        assert!(test.note_sent_attributes(&attr(4, 4, 13)));
        assert!(!test.note_sent_attributes(&attr(4, 4, 13)), "reported once");
        let third = test.pages.begin(7);
        test.pages.end(&third, None);
        assert!(!test.note_sent_attributes(&attr(5, 5, 13)), "the state since then is unknown");
        assert!(test.note_sent_attributes(&attr(6, 6, 13)));
    }

    #[test]
    fn the_latest_change_counts_regardless_of_completion_order() {
        let test = TestPages::new();
        test.opened(Some(attr(1, 1, 10)), false);
        let (first, second) = (test.pages.begin(7), test.pages.begin(7));
        test.pages.end(&second, Some(&attr(3, 3, 13)));
        // These attributes were read before the second change completed.
        test.pages.end(&first, Some(&attr(2, 2, 12)));
        assert!(!test.note_sent_attributes(&attr(3, 3, 13)));
        assert_eq!(test.opened(Some(attr(3, 3, 13)), false), PageState::Valid);
        let (first, second) = (test.pages.begin(7), test.pages.begin(7));
        test.pages.end(&first, None);
        test.pages.end(&second, Some(&attr(4, 4, 14)));
        assert!(!test.note_sent_attributes(&attr(5, 5, 15)), "the first may have ended last");
        // The clock was set back.
        let change = test.pages.begin(7);
        test.pages.end(&change, Some(&attr(1, 1, 11)));
        assert!(test.note_sent_attributes(&attr(2, 2, 11)));
    }

    #[test]
    fn files_without_pages_are_not_tracked() {
        let test = TestPages::new();
        assert!(!test.pages.begin(7).matters() && !test.note_sent_attributes(&attr(1, 1, 1)));
        test.pages.opened(8, Some(&attr(1, 1, 10)), false, &test.notifier);
        assert!(!test.pages.begin(7).matters() && !test.note_sent_attributes(&attr(1, 1, 1)));
    }
}
