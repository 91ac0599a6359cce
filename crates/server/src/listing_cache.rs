//! Directory listings cached by the kernel, and their invalidation.
//!
//! The kernel caches a directory's listing until it sees another mtime, or a change through this
//! mount. A merged directory shows the mtime of its leftmost branch only, and any mtime can be set
//! back. So the server records, for each listed directory, the ctime and the layer's own stamp
//! ([`Vnode::listing_stamp`]) at the start of the listing. If they differ when the kernel requests
//! attributes, the server invalidates the kernel's copy.
//!
//! * The record is created before the listing is read: a concurrent change counts as a later one.
//! * A change of entries through this mount makes the kernel drop the listing on its own, so the
//!   record is removed. A change of attributes leaves the listing valid, and renews the record.
//! * [`crate::notifier`] sends the notification. It waits for pages locked by a getdents(2), whose
//!   buffer may be a mapped file of this mount. The reply that reveals the change waits for it, but
//!   only briefly.
//! * The kernel ignores the attributes of a reply during which it was notified. If it lacks the
//!   permissions in them, the notification is therefore sent after the reply: the request may be
//!   part of a permission check, which would use the old ones. The kernel lacks those that another
//!   program set, and those that follow from an ACL: the reply to a SETXATTR has no mode.

use crate::notifier::{Notification, NotificationQueue};
use std::collections::hash_map::Entry;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use vnode::{Attr, Cx, Kind, MAY_BLOCK, NumberMap, Result, SHARDS, Vnode, shard_of};

/// How long a reply waits for the kernel to drop a listing.
const REPLY_TIMEOUT: Duration = Duration::from_millis(100);

/// State of a directory when its listing was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    /// Hash of the mtime, which the kernel compares itself.
    modified: u64,
    /// Hash of owner, group and mode ([`rights_of`]).
    rights: u64,
    /// Hash of everything else that reveals a change of the listing.
    rest: u64,
}

impl Record {
    fn of(attr: &Attr, stamp: u64) -> Self {
        Self { modified: hash_of(&attr.mtime), rights: rights_of(attr), rest: hash_of(&(attr.ctime, stamp)) }
    }
}

fn rights_of(attr: &Attr) -> u64 {
    hash_of(&(attr.mode, attr.uid, attr.gid))
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// State of the listing that the kernel has cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Valid,
    /// The kernel notices the change by the mtime. It is notified all the same, because it may have
    /// cached yet another mtime.
    KernelNotices(Record),
    /// The listing is out of date and the mtime is unchanged.
    Stale(Record),
    /// The listing may be out of date, and the kernel lacks the permissions.
    OtherRights(Record),
}

/// Directories whose listings the kernel may have cached.
#[derive(Default)]
pub(crate) struct ListingCache {
    shards: [Mutex<NumberMap<Record>>; SHARDS],
    count: AtomicUsize,
    /// Directories whose permissions follow from an ACL that was set since attributes of them were
    /// sent, with a hash of these permissions.
    unsent: Mutex<NumberMap<u64>>,
    unsent_count: AtomicUsize,
}

impl ListingCache {
    fn shard(&self, node: u64) -> MutexGuard<'_, NumberMap<Record>> {
        self.shards[shard_of(node)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the state of a directory whose listing begins. The only error is `MAY_BLOCK`.
    pub(crate) fn begin(&self, cx: &Cx<'_>, node: u64, dir: &dyn Vnode) -> Result<()> {
        let Some(stamp) = dir.listing_stamp(cx) else { return Ok(()) };
        match dir.getattr(cx) {
            Ok(attr) => {
                // Keep an earlier record: the kernel may be filling its cache from two listings.
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

    /// Removes the record: the kernel forgot the node, or an entry changed through this mount.
    pub(crate) fn remove(&self, node: u64) {
        if self.count.load(Ordering::Relaxed) > 0 && self.shard(node).remove(&node).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn record(&self, node: u64) -> Option<Record> {
        if self.count.load(Ordering::Relaxed) == 0 { None } else { self.shard(node).get(&node).copied() }
    }

    fn verdict(&self, cx: &Cx<'_>, node: u64, vnode: &dyn Vnode, attr: &Attr) -> Verdict {
        let Some(known) = self.record(node) else { return Verdict::Valid };
        let now = Record::of(attr, vnode.listing_stamp(cx).unwrap_or_default());
        if now == known {
            Verdict::Valid
        } else if now.rights != known.rights {
            Verdict::OtherRights(known)
        } else if now.modified != known.modified {
            Verdict::KernelNotices(known)
        } else {
            Verdict::Stale(known)
        }
    }

    /// Runs a change of a node's attributes through this mount, which changes no entry. A listing
    /// that was valid remains so. `sends`: the reply to the change has the attributes.
    pub(crate) fn keeping<T>(
        &self,
        cx: &Cx<'_>,
        (node, vnode): (u64, &dyn Vnode),
        sends: bool,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let state = || Some((vnode.getattr(cx).ok()?, vnode.listing_stamp(cx)?));
        let before = self.record(node).and_then(|known| Some((known, state()?)));
        let done = change();
        if let Some((known, (attr, stamp))) = before
            && known == Record::of(&attr, stamp)
            && let Some((now, same_stamp)) = state()
            && (now.mtime, same_stamp) == (attr.mtime, stamp)
            && let Some(record) = self.shard(node).get_mut(&node).filter(|record| **record == known)
        {
            *record = Record::of(&now, stamp);
        }
        if !sends
            && vnode.kind() == Kind::Directory
            && let Ok(now) = vnode.getattr(cx)
        {
            let mut unsent = self.unsent();
            unsent.insert(node, rights_of(&now));
            self.unsent_count.store(unsent.len(), Ordering::Relaxed);
        }
        done
    }

    fn unsent(&self) -> MutexGuard<'_, NumberMap<u64>> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the kernel lacks the permissions in these attributes, which it gets now, because an
    /// ACL was set.
    fn is_unsent(&self, node: u64, attr: &Attr) -> bool {
        if self.unsent_count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut unsent = self.unsent();
        let Some(rights) = unsent.get(&node).copied() else { return false };
        // Attributes from before the change may come later than it.
        if rights == rights_of(attr) {
            unsent.remove(&node);
            self.unsent_count.store(unsent.len(), Ordering::Relaxed);
        }
        true
    }

    /// Forgets a node: the kernel has no attributes of it.
    pub(crate) fn forget(&self, node: u64) {
        self.remove(node);
        if self.unsent_count.load(Ordering::Relaxed) > 0 {
            let mut unsent = self.unsent();
            unsent.remove(&node);
            self.unsent_count.store(unsent.len(), Ordering::Relaxed);
        }
    }

    /// Compares attributes that are about to be sent to the kernel. If they show that its listing
    /// is stale, the listing is invalidated first.
    ///
    /// # Errors
    /// `MAY_BLOCK` where the caller must not wait for that.
    pub(crate) fn check(
        &self,
        cx: &Cx<'_>,
        (node, vnode): (u64, &dyn Vnode),
        attr: &Attr,
        notifier: &Arc<NotificationQueue>,
    ) -> Result<()> {
        let is_unsent = self.is_unsent(node, attr);
        match self.verdict(cx, node, vnode, attr) {
            Verdict::Valid => {}
            Verdict::OtherRights(record) => self.drop_later(node, record, notifier),
            Verdict::KernelNotices(record) | Verdict::Stale(record) if is_unsent => {
                self.drop_later(node, record, notifier);
            }
            Verdict::KernelNotices(record) => {
                notifier.enqueue(invalidate_listing(node));
                self.drop_record(node, record);
            }
            Verdict::Stale(record) => {
                cx.require_blocking()?;
                // On timeout the kernel drops the listing a little later, which is acceptable.
                notifier.enqueue_and_wait(invalidate_listing(node), REPLY_TIMEOUT);
                self.drop_record(node, record);
            }
        }
        Ok(())
    }

    /// Invalidates a listing after the reply.
    fn drop_later(&self, node: u64, record: Record, notifier: &Arc<NotificationQueue>) {
        notifier.defer(invalidate_listing(node));
        self.drop_record(node, record);
    }

    /// Like `check`, but without waiting: for the entries of a listing.
    pub(crate) fn check_nowait(
        &self,
        cx: &Cx<'_>,
        (node, vnode): (u64, &dyn Vnode),
        attr: &Attr,
        notifier: &Arc<NotificationQueue>,
    ) {
        match self.verdict(cx, node, vnode, attr) {
            Verdict::Valid => {}
            Verdict::OtherRights(record) => self.drop_later(node, record, notifier),
            Verdict::KernelNotices(record) | Verdict::Stale(record) => {
                notifier.enqueue(invalidate_listing(node));
                self.drop_record(node, record);
            }
        }
    }

    /// Removes the record after the notification, unless another listing has begun since.
    fn drop_record(&self, node: u64, record: Record) {
        let mut shard = self.shard(node);
        if shard.get(&node) == Some(&record) {
            shard.remove(&node);
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Returns the notification that invalidates a directory's listing.
fn invalidate_listing(node: u64) -> Notification {
    tracing::debug!(node, "out-of-band change of a directory: invalidating its listing");
    Notification::Data { node, start: 0, len: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfs::MemFs;
    use vnode::{Layer, Name, SetAttr, SetTime};

    const CX: Cx<'static> = Cx::internal(0, 0);

    fn verdict(listing_cache: &ListingCache, dir: &dyn Vnode) -> Verdict {
        listing_cache.verdict(&CX, 7, dir, &dir.getattr(&CX).unwrap())
    }

    #[test]
    fn a_change_with_an_unchanged_mtime_makes_a_listing_stale() {
        let (listing_cache, fs) = (ListingCache::default(), MemFs::new());
        let dir = fs.root();
        let touch = |text: &str| drop(dir.mknod(&CX, Name::new(text.as_bytes()).unwrap(), 0o100_644, 0).unwrap());
        touch("a");
        assert_eq!(verdict(&listing_cache, &*dir), Verdict::Valid, "nothing was listed");
        listing_cache.begin(&CX, 7, &*dir).unwrap();
        assert_eq!(verdict(&listing_cache, &*dir), Verdict::Valid);
        let before = dir.getattr(&CX).unwrap();
        touch("b");
        assert!(matches!(verdict(&listing_cache, &*dir), Verdict::KernelNotices(_)));
        let back = SetAttr { mtime: Some(SetTime::At(before.mtime)), ..SetAttr::default() };
        dir.setattr(&CX, &back, None).unwrap();
        let Verdict::Stale(record) = verdict(&listing_cache, &*dir) else { panic!("the time was set back") };
        listing_cache.begin(&CX, 7, &*dir).unwrap();
        assert_eq!(verdict(&listing_cache, &*dir), Verdict::Stale(record), "the kernel may keep the earlier listing");
        listing_cache.drop_record(7, record);
        assert_eq!(verdict(&listing_cache, &*dir), Verdict::Valid, "the kernel was notified");
        listing_cache.begin(&CX, 7, &*dir).unwrap();
        listing_cache.drop_record(7, record);
        touch("c");
        assert!(
            matches!(verdict(&listing_cache, &*dir), Verdict::KernelNotices(_)),
            "a later listing has its own record"
        );
        listing_cache.remove(7);
        assert_eq!(verdict(&listing_cache, &*dir), Verdict::Valid);
        assert_eq!(listing_cache.count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_change_of_attributes_leaves_a_listing_as_valid_as_it_was() {
        let (listing_cache, fs) = (ListingCache::default(), MemFs::new());
        let dir = fs.root();
        let touch = |text: &str| drop(dir.mknod(&CX, Name::new(text.as_bytes()).unwrap(), 0o100_644, 0).unwrap());
        let chmod = |mode| {
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            dir.setattr(&CX, &set, None).map(drop)
        };
        listing_cache.begin(&CX, 7, &*dir).unwrap();
        listing_cache.keeping(&CX, (7, &*dir), true, || chmod(0o700)).unwrap();
        assert_eq!(verdict(&listing_cache, &*dir), Verdict::Valid);
        // By another program.
        chmod(0o750).unwrap();
        let Verdict::OtherRights(record) = verdict(&listing_cache, &*dir) else { panic!("another mode") };
        listing_cache.keeping(&CX, (7, &*dir), true, || chmod(0o700)).unwrap();
        assert_eq!(verdict(&listing_cache, &*dir), Verdict::Stale(record));
        listing_cache.drop_record(7, record);
        listing_cache.begin(&CX, 7, &*dir).unwrap();
        touch("a");
        listing_cache.keeping(&CX, (7, &*dir), true, || chmod(0o755)).unwrap();
        assert!(matches!(verdict(&listing_cache, &*dir), Verdict::OtherRights(_)));
    }

    #[test]
    fn permissions_by_an_acl_are_unsent_until_the_kernel_gets_them() {
        let (listing_cache, fs) = (ListingCache::default(), MemFs::new());
        let dir = fs.root();
        let chmod = |mode| {
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            dir.setattr(&CX, &set, None).map(drop)
        };
        let before = dir.getattr(&CX).unwrap();
        // As a SETXATTR does.
        listing_cache.keeping(&CX, (7, &*dir), false, || chmod(0o711)).unwrap();
        let after = dir.getattr(&CX).unwrap();
        assert!(listing_cache.is_unsent(7, &before), "attributes from before");
        assert!(listing_cache.is_unsent(7, &after));
        assert!(!listing_cache.is_unsent(7, &after), "they were sent");
        listing_cache.keeping(&CX, (7, &*dir), false, || chmod(0o755)).unwrap();
        listing_cache.forget(7);
        assert!(!listing_cache.is_unsent(7, &after));
        assert_eq!(listing_cache.unsent_count.load(Ordering::Relaxed), 0);
    }
}
