//! Open files on mounts where the kernel opens files without requests (`data=cached`). A READ then
//! names a node but no open file, so the server opens the node for the first READ and keeps it open
//! for the next ones.
//!
//! * The number of files is bounded; the least recently used one is closed first.
//! * A file is dropped when attributes of its node are sent to the kernel. They may make the kernel
//!   drop its pages, and a branch may hold another file under that node by now. The next read must
//!   not use the old one.
//! * A file is kept no longer than the kernel may cache attributes, and for a second at most: a
//!   file that was removed below occupies its space until it is closed. With `cache=0` no file is
//!   kept.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vnode::{NumberMap, OpenFile, Result, SHARDS, shard_of};

/// Maximum number of cached files. A file is read to its end, or to the end of the readahead,
/// before the next one is opened, so this only needs to exceed the number of concurrent readers.
const MAX_FILES: usize = 128;
/// Maximum time that a file is kept open.
const MAX_AGE: Duration = Duration::from_secs(1);

struct CachedFile {
    file: Arc<dyn OpenFile>,
    opened: Instant,
    /// Value of [`Table::clock`] at its last use.
    used: u64,
}

struct Table {
    files: NumberMap<CachedFile>,
    clock: u64,
    /// Number of invalidations per shard. A file whose shard was invalidated while it was being
    /// opened is not cached.
    forget_count: [u64; SHARDS],
    /// Whether the thread that closes expired files is running.
    has_sweeper: bool,
    ended: bool,
}

impl Default for Table {
    fn default() -> Self {
        Self { files: NumberMap::default(), clock: 0, forget_count: [0; SHARDS], has_sweeper: false, ended: false }
    }
}

impl Table {
    fn forget_count(&self, node: u64) -> u64 {
        self.forget_count.get(shard_of(node)).copied().unwrap_or(0)
    }

    /// Returns the cached file of a node, unless it has expired.
    fn get(&mut self, node: u64, max_age: Duration) -> Option<Arc<dyn OpenFile>> {
        self.clock += 1;
        let cached = self.files.get_mut(&node).filter(|cached| cached.opened.elapsed() < max_age)?;
        cached.used = self.clock;
        Some(Arc::clone(&cached.file))
    }

    /// Caches a file, and returns one that was evicted.
    fn insert(&mut self, node: u64, file: Arc<dyn OpenFile>) -> Option<CachedFile> {
        let oldest = if self.files.len() >= MAX_FILES && !self.files.contains_key(&node) {
            self.files.iter().min_by_key(|(_, cached)| cached.used).map(|(&node, _)| node)
        } else {
            None
        };
        let gone = oldest.and_then(|oldest| self.files.remove(&oldest));
        self.clock += 1;
        let before = self.files.insert(node, CachedFile { file, opened: Instant::now(), used: self.clock });
        gone.or(before)
    }

    /// Removes the files that have reached `max_age`.
    fn expired(&mut self, max_age: Duration) -> Vec<CachedFile> {
        self.files.extract_if(|_, cached| cached.opened.elapsed() >= max_age).map(|(_, cached)| cached).collect()
    }
}

#[derive(Default)]
struct Shared {
    table: Mutex<Table>,
    changed: Condvar,
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes expired files until the mount ends.
    fn sweep(&self, max_age: Duration) {
        let mut table = self.table();
        while !table.ended {
            table = if table.files.is_empty() {
                self.changed.wait(table).unwrap_or_else(PoisonError::into_inner)
            } else {
                self.changed.wait_timeout(table, max_age).map_or_else(|error| error.into_inner().0, |(table, _)| table)
            };
            let expired = table.expired(max_age);
            // Closing takes system calls, so not under the lock.
            drop(table);
            drop(expired);
            table = self.table();
        }
    }
}

/// Cache of open files, by node.
pub(crate) struct OpenCache {
    shared: Arc<Shared>,
    max_age: Duration,
}

impl OpenCache {
    /// Returns an empty cache. `cache`: how long the kernel may cache attributes.
    pub(crate) fn new(cache: Duration) -> Self {
        Self { shared: Arc::default(), max_age: cache.min(MAX_AGE) }
    }

    /// Returns the open file of a node; calls `open` on a miss.
    pub(crate) fn get(&self, node: u64, open: impl FnOnce() -> Result<Arc<dyn OpenFile>>) -> Result<Arc<dyn OpenFile>> {
        if self.max_age.is_zero() {
            return open();
        }
        let forget_count = {
            let mut table = self.shared.table();
            if let Some(file) = table.get(node, self.max_age) {
                return Ok(file);
            }
            table.forget_count(node)
        };
        let file = open()?;
        let mut table = self.shared.table();
        let mut gone = None;
        if table.forget_count(node) == forget_count && (table.has_sweeper || self.start_sweeper(&mut table)) {
            let was_empty = table.files.is_empty();
            gone = table.insert(node, Arc::clone(&file));
            if was_empty {
                self.shared.changed.notify_one();
            }
        }
        drop(table);
        drop(gone);
        Ok(file)
    }

    /// Starts the thread that closes expired files. Without it nothing is cached.
    fn start_sweeper(&self, table: &mut Table) -> bool {
        let (shared, max_age) = (Arc::clone(&self.shared), self.max_age);
        let started = std::thread::Builder::new().name("open-cache".into()).spawn(move || shared.sweep(max_age));
        if let Err(error) = &started {
            tracing::debug!(%error, "no thread to close cached files: every READ opens its file");
        }
        table.has_sweeper = started.is_ok();
        table.has_sweeper
    }

    /// Invalidates a node: later READs use a file that is opened after this call.
    pub(crate) fn forget(&self, node: u64) {
        let mut table = self.shared.table();
        if let Some(forget_count) = table.forget_count.get_mut(shard_of(node)) {
            *forget_count += 1;
        }
        let gone = table.files.remove(&node);
        drop(table);
        drop(gone);
    }

    /// Invalidates all nodes.
    pub(crate) fn forget_all(&self) {
        let mut table = self.shared.table();
        table.forget_count.iter_mut().for_each(|forget_count| *forget_count += 1);
        let gone = std::mem::take(&mut table.files);
        drop(table);
        drop(gone);
    }

    /// Returns the number of cached files.
    pub(crate) fn len(&self) -> usize {
        self.shared.table().files.len()
    }

    /// Closes all files and ends the thread.
    pub(crate) fn close(&self) {
        let mut table = self.shared.table();
        table.ended = true;
        let all = std::mem::take(&mut table.files);
        self.shared.changed.notify_one();
        drop(table);
        drop(all);
    }
}

impl Drop for OpenCache {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfs::MemFs;
    use std::cell::Cell;
    use vnode::{Cx, Errno, Layer, Name, OpenFlags};

    const CACHE: Duration = Duration::from_secs(10);

    fn file() -> Arc<dyn OpenFile> {
        let name = Name::new(b"f").unwrap();
        MemFs::new().root().create(&Cx::internal(0, 0), name, 0o644, OpenFlags::RDONLY).unwrap().1
    }

    /// Gets a node's file and counts the opens.
    fn get(cache: &OpenCache, node: u64, opened: &Cell<u32>) -> Arc<dyn OpenFile> {
        let open = || {
            opened.set(opened.get() + 1);
            Ok(file())
        };
        cache.get(node, open).unwrap()
    }

    #[test]
    fn a_file_is_opened_once_and_again_after_invalidation() {
        let (cache, opened) = (OpenCache::new(CACHE), Cell::new(0));
        assert!(Arc::ptr_eq(&get(&cache, 7, &opened), &get(&cache, 7, &opened)));
        assert_eq!((opened.get(), cache.len()), (1, 1));
        cache.forget(7);
        assert_eq!(cache.len(), 0);
        get(&cache, 7, &opened);
        assert_eq!(opened.get(), 2);
        cache.close();
        assert_eq!(cache.len(), 0);
    }

    #[test]
    fn a_file_invalidated_while_being_opened_is_not_cached() {
        let cache = OpenCache::new(CACHE);
        let forgetting = |forget: &dyn Fn()| {
            cache
                .get(7, || {
                    forget();
                    Ok(file())
                })
                .unwrap();
            cache.len()
        };
        assert_eq!(forgetting(&|| cache.forget(7)), 0);
        assert_eq!(forgetting(&|| cache.forget_all()), 0);
        assert_eq!(forgetting(&|| ()), 1);
        cache.forget_all();
        assert_eq!(cache.len(), 0);
    }

    #[test]
    fn a_failed_open_is_not_cached() {
        let cache = OpenCache::new(CACHE);
        assert_eq!(cache.get(7, || Err(Errno::STALE)).err(), Some(Errno::STALE));
        assert_eq!(cache.len(), 0);
    }

    #[test]
    fn the_least_recently_used_file_is_evicted() {
        let (cache, opened) = (OpenCache::new(CACHE), Cell::new(0));
        let most = MAX_FILES as u64;
        (0..most).for_each(|node| drop(get(&cache, node, &opened)));
        get(&cache, 0, &opened);
        get(&cache, most, &opened);
        assert_eq!((opened.get() as usize, cache.len()), (MAX_FILES + 1, MAX_FILES));
        get(&cache, 0, &opened);
        assert_eq!(opened.get() as usize, MAX_FILES + 1);
        get(&cache, 1, &opened);
        assert_eq!(opened.get() as usize, MAX_FILES + 2);
    }

    #[test]
    fn files_are_kept_no_longer_than_attributes() {
        let (cache, opened) = (OpenCache::new(Duration::ZERO), Cell::new(0));
        get(&cache, 7, &opened);
        get(&cache, 7, &opened);
        assert_eq!((opened.get(), cache.len()), (2, 0));

        let (cache, opened) = (OpenCache::new(Duration::from_millis(20)), Cell::new(0));
        let file = get(&cache, 7, &opened);
        // The thread drops its reference; this one is the last.
        while Arc::strong_count(&file) > 1 {
            std::thread::yield_now();
        }
        assert_eq!(cache.len(), 0);
        get(&cache, 7, &opened);
        assert_eq!(opened.get(), 2);
    }

    #[test]
    fn drop_ends_the_thread() {
        let cache = OpenCache::new(CACHE);
        get(&cache, 7, &Cell::new(0));
        let shared = Arc::downgrade(&cache.shared);
        drop(cache);
        while shared.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}
