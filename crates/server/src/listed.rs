//! Directory listings that the kernel keeps, and when they are out of date.
//!
//! The kernel caches the listing of a directory until it learns of another time of modification,
//! or of a change through this mount. A merged directory shows the time of its leftmost part only,
//! and any time of modification can be set back. So the server remembers, for each directory that
//! was listed, what the time of change and the layer's own stamp ([`Vnode::listing_stamp`]) were
//! when the listing began. If they have moved when the kernel asks for attributes, the kernel is
//! told to drop the listing.
//!
//! * The record is made before the listing is read: a change in between is seen as one after it.
//! * A change through this mount makes the kernel drop the listing by itself, so the record goes.
//! * [`crate::teller`] sends the notification: it waits for pages that a getdents(2) holds, whose
//!   buffer may be a mapped file of this very mount. The reply that reveals the change waits for
//!   that, but not for long.

use crate::teller::{Order, Teller};
use std::collections::hash_map::Entry;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use vnode::{Attr, Cx, MAY_BLOCK, NumberMap, Result, SHARDS, Vnode, shard_of};

/// How long a reply waits for the kernel to drop a listing.
const PATIENCE: Duration = Duration::from_millis(100);

/// What a directory's listing was read under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    /// Hash of the time of modification, which the kernel watches by itself.
    modified: u64,
    /// Hash of what else tells that the listing has changed.
    rest: u64,
}

impl Record {
    fn of(attr: &Attr, stamp: u64) -> Self {
        Self { modified: hash_of(&attr.mtime), rest: hash_of(&(attr.ctime, stamp)) }
    }
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// What has to be done about the listing that the kernel keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Right,
    /// The kernel sees that by itself; it is told all the same, for it may remember yet another
    /// time of modification.
    Seen(Record),
    /// Nothing that the kernel watches has moved.
    Outdated(Record),
}

/// The directories of a mount whose listings the kernel may keep.
#[derive(Default)]
pub(crate) struct Listed {
    shards: [Mutex<NumberMap<Record>>; SHARDS],
    count: AtomicUsize,
}

impl Listed {
    fn shard(&self, node: u64) -> MutexGuard<'_, NumberMap<Record>> {
        self.shards[shard_of(node)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A listing of the directory begins. Only `MAY_BLOCK` is an error.
    pub(crate) fn begin(&self, cx: &Cx<'_>, node: u64, dir: &dyn Vnode) -> Result<()> {
        let Some(stamp) = dir.listing_stamp(cx) else { return Ok(()) };
        match dir.getattr(cx) {
            Ok(attr) => {
                // An earlier record stays: the kernel may be filling its cache from two listings.
                if let Entry::Vacant(slot) = self.shard(node).entry(node) {
                    slot.insert(Record::of(&attr, stamp));
                    self.count.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            }
            Err(MAY_BLOCK) => Err(MAY_BLOCK),
            Err(_) => Ok(()),
        }
    }

    /// The kernel has forgotten the node, or drops its listing by itself: an entry changed through
    /// this mount.
    pub(crate) fn remove(&self, node: u64) {
        if self.count.load(Ordering::Relaxed) > 0 && self.shard(node).remove(&node).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn verdict(&self, cx: &Cx<'_>, node: u64, vnode: &dyn Vnode, attr: &Attr) -> Verdict {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Verdict::Right;
        }
        let Some(known) = self.shard(node).get(&node).copied() else { return Verdict::Right };
        let now = Record::of(attr, vnode.listing_stamp(cx).unwrap_or_default());
        match (now == known, now.modified == known.modified) {
            (true, _) => Verdict::Right,
            (false, false) => Verdict::Seen(known),
            (false, true) => Verdict::Outdated(known),
        }
    }

    /// The kernel is about to be told these attributes of a node: if they reveal that the listing
    /// it keeps is out of date, it drops that first.
    ///
    /// # Errors
    /// `MAY_BLOCK` where the caller must not wait for that.
    pub(crate) fn seen(
        &self,
        cx: &Cx<'_>,
        (node, vnode): (u64, &dyn Vnode),
        attr: &Attr,
        teller: &Arc<Teller>,
    ) -> Result<()> {
        match self.verdict(cx, node, vnode, attr) {
            Verdict::Right => {}
            Verdict::Seen(record) => {
                teller.tell(listing(node));
                self.settle(node, record);
            }
            Verdict::Outdated(record) => {
                cx.require_blocking()?;
                // Too late is as good as in time: the kernel drops the listing a little later.
                teller.tell_and_wait(listing(node), PATIENCE);
                self.settle(node, record);
            }
        }
        Ok(())
    }

    /// The same where nobody can wait: among the entries of a listing.
    pub(crate) fn noticed(&self, cx: &Cx<'_>, (node, vnode): (u64, &dyn Vnode), attr: &Attr, teller: &Arc<Teller>) {
        if let Verdict::Seen(record) | Verdict::Outdated(record) = self.verdict(cx, node, vnode, attr) {
            teller.tell(listing(node));
            self.settle(node, record);
        }
    }

    /// The kernel was told: forgets the record, unless another listing has begun since.
    fn settle(&self, node: u64, record: Record) {
        let mut shard = self.shard(node);
        if shard.get(&node) == Some(&record) {
            shard.remove(&node);
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The order to drop a directory's listing.
fn listing(node: u64) -> Order {
    tracing::debug!(node, "a directory changed out of band: its listing goes");
    Order::Data { node, start: 0, len: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfs::MemFs;
    use vnode::{Layer, Name, SetAttr, SetTime};

    const CX: Cx<'static> = Cx::internal(0, 0);

    fn verdict(listed: &Listed, dir: &dyn Vnode) -> Verdict {
        listed.verdict(&CX, 7, dir, &dir.getattr(&CX).unwrap())
    }

    #[test]
    fn a_listing_is_outdated_by_what_the_kernel_does_not_watch() {
        let (listed, fs) = (Listed::default(), MemFs::new());
        let dir = fs.root();
        let touch = |text: &str| drop(dir.mknod(&CX, Name::new(text.as_bytes()).unwrap(), 0o100_644, 0).unwrap());
        touch("a");
        assert_eq!(verdict(&listed, &*dir), Verdict::Right, "nothing was listed");
        listed.begin(&CX, 7, &*dir).unwrap();
        assert_eq!(verdict(&listed, &*dir), Verdict::Right);
        let before = dir.getattr(&CX).unwrap();
        touch("b");
        assert!(matches!(verdict(&listed, &*dir), Verdict::Seen(_)));
        let back = SetAttr { mtime: Some(SetTime::At(before.mtime)), ..SetAttr::default() };
        dir.setattr(&CX, &back, None).unwrap();
        let Verdict::Outdated(record) = verdict(&listed, &*dir) else { panic!("the time was set back") };
        listed.begin(&CX, 7, &*dir).unwrap();
        assert_eq!(verdict(&listed, &*dir), Verdict::Outdated(record), "the kernel may keep the earlier listing");
        listed.settle(7, record);
        assert_eq!(verdict(&listed, &*dir), Verdict::Right, "the kernel was told");
        listed.begin(&CX, 7, &*dir).unwrap();
        listed.settle(7, record);
        touch("c");
        assert!(matches!(verdict(&listed, &*dir), Verdict::Seen(_)), "a later listing has its own record");
        listed.remove(7);
        assert_eq!(verdict(&listed, &*dir), Verdict::Right);
        assert_eq!(listed.count.load(Ordering::Relaxed), 0);
    }
}
