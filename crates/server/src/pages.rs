//! What the kernel's page cache holds of files whose data come through this server, and when it is out of date.
//!
//! Left to itself (`AUTO_INVAL_DATA`), the kernel throws a file's pages away whenever it is told another time of change, also by the file's own
//! writers, and also a page whose WRITE is still on its way: who reads it then fills the cache with what was there before, and a shared mapping may
//! write that back. So it is asked to leave the pages alone (`EXPLICIT_INVAL_DATA`), and is told when others have changed a file: when its change
//! time is later than any that our own changes gave it, and its size or time of modification is another.
//!
//! * While a change of ours is under way, nothing is compared; after the last one the file's stamp is taken anew.
//! * The kernel is told by a thread that serves nobody ([`crate::teller`]): it waits for pages that are being read.
//! * When nobody has the file open, no WRITE can be on its way, and an open says by itself whether the pages are to be kept.

use crate::teller::{Order, Teller};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vnode::{Attr, NumberMap, SHARDS, Time, shard_of};

/// A file that was opened through the page cache.
#[derive(Clone, Copy, Debug)]
struct Known {
    ctime: Time,
    mtime: Time,
    size: u64,
    /// Changes of ours that are under way.
    busy: u32,
    /// We have changed it, and don't know its stamp since.
    changed: bool,
}

impl Known {
    fn of(attr: &Attr) -> Self {
        Self { ctime: attr.ctime, mtime: attr.mtime, size: attr.size, busy: 0, changed: false }
    }

    fn adopt(&mut self, attr: &Attr) {
        *self = Self { busy: self.busy, ..Self::of(attr) };
    }

    /// Have others changed the data since?
    fn is_outdated_by(&self, attr: &Attr) -> bool {
        attr.ctime > self.ctime && (attr.mtime, attr.size) != (self.mtime, self.size)
    }
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

    /// A file that nobody has open is opened through the page cache, and these are its attributes, if they are known: are pages that may be there
    /// still right?
    pub(crate) fn first_open(&self, node: u64, attr: Option<&Attr>) -> bool {
        let mut shard = self.shard(node);
        let (Some(attr), known) = (attr, shard.get_mut(&node)) else {
            if shard.remove(&node).is_some() {
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
            return false;
        };
        match known {
            Some(known) => {
                let right = known.busy == 0 && !known.changed && !known.is_outdated_by(attr);
                known.adopt(attr);
                right
            }
            None => {
                shard.insert(node, Known::of(attr));
                self.count.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }

    /// The kernel has forgotten the node, or from now on others write past its cache.
    pub(crate) fn forget(&self, node: u64) {
        if self.count.load(Ordering::Relaxed) > 0 && self.shard(node).remove(&node).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Data, size or times are about to be changed through this mount.
    pub(crate) fn begin(&self, node: u64) -> Change {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Change(None);
        }
        Change(self.shard(node).get_mut(&node).map(|known| {
            known.busy += 1;
            node
        }))
    }

    /// It is done, or has failed; `attr`: the attributes since, if they could be had.
    pub(crate) fn end(&self, change: &Change, attr: Option<&Attr>) {
        let Some(node) = change.0 else { return };
        if let Some(known) = self.shard(node).get_mut(&node) {
            known.busy = known.busy.saturating_sub(1);
            known.changed = true;
            if let (0, Some(attr)) = (known.busy, attr) {
                known.adopt(attr);
            }
        }
    }

    /// The kernel is being told these attributes: if they say that others have changed the file, its pages go.
    pub(crate) fn seen(&self, node: u64, attr: &Attr, teller: &Arc<Teller>) {
        if self.count.load(Ordering::Relaxed) > 0 && self.is_news(node, attr) {
            tracing::debug!(node, "others have changed a file: its pages go");
            teller.tell(Order::Data { node, start: 0, len: 0 });
        }
    }

    fn is_news(&self, node: u64, attr: &Attr) -> bool {
        let mut shard = self.shard(node);
        let Some(known) = shard.get_mut(&node).filter(|known| known.busy == 0) else { return false };
        let news = !known.changed && known.is_outdated_by(attr);
        if news || known.changed {
            known.adopt(attr);
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfs::MemFs;
    use vnode::{Cx, Layer};

    fn attr(ctime: i64, mtime: i64, size: u64) -> Attr {
        let time = |sec| Time { sec, nsec: 0 };
        let any = MemFs::new().root().getattr(&Cx::internal(0, 0)).unwrap();
        Attr { ctime: time(ctime), mtime: time(mtime), size, ..any }
    }

    #[test]
    fn pages_are_kept_from_open_to_open_unless_others_changed_the_file() {
        let pages = Pages::default();
        assert!(!pages.first_open(7, Some(&attr(1, 1, 10))), "nothing is known of pages from before");
        assert!(pages.first_open(7, Some(&attr(1, 1, 10))));
        assert!(pages.first_open(7, Some(&attr(2, 1, 10))), "chmod changes no data");
        assert!(!pages.first_open(7, Some(&attr(3, 3, 10))));
        assert!(!pages.first_open(7, Some(&attr(4, 3, 11))));
        assert!(!pages.first_open(7, None));
        assert!(!pages.first_open(7, Some(&attr(4, 3, 11))));
        pages.forget(7);
        assert!(!pages.first_open(7, Some(&attr(4, 3, 11))));
    }

    #[test]
    fn our_own_changes_are_no_news() {
        let pages = Pages::default();
        pages.first_open(7, Some(&attr(1, 1, 10)));
        let (first, second) = (pages.begin(7), pages.begin(7));
        assert!(first.matters() && !pages.is_news(7, &attr(2, 2, 12)));
        pages.end(&first, Some(&attr(2, 2, 12)));
        assert!(!pages.is_news(7, &attr(3, 3, 13)), "one is still under way");
        pages.end(&second, Some(&attr(3, 3, 13)));
        assert!(!pages.is_news(7, &attr(3, 3, 13)));
        assert!(!pages.is_news(7, &attr(2, 2, 12)), "an answer that comes late");
        assert!(pages.is_news(7, &attr(4, 4, 13)));
        assert!(!pages.is_news(7, &attr(4, 4, 13)), "told once");
        let third = pages.begin(7);
        pages.end(&third, None);
        assert!(!pages.is_news(7, &attr(5, 5, 13)), "what it is since is not known");
        assert!(pages.is_news(7, &attr(6, 6, 13)));
    }

    #[test]
    fn of_files_without_pages_nothing_is_known() {
        let pages = Pages::default();
        assert!(!pages.begin(7).matters() && !pages.is_news(7, &attr(1, 1, 1)));
        pages.first_open(8, Some(&attr(1, 1, 10)));
        assert!(!pages.begin(7).matters() && !pages.is_news(7, &attr(1, 1, 1)));
    }
}
