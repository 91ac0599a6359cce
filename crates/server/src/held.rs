//! Open files of a mount whose files the kernel opens without asking (`data=cached`): a READ then names a node and no open
//! file, so the server opens the node for the first READ and keeps it open for the next ones.
//!
//! * A bounded number of files is kept; the least recently used one goes first.
//! * A file goes when the kernel is told attributes of its node. They may make it drop its pages, and a branch may have
//!   another file under the node since: what it reads next must not come from the old one.
//! * A file is kept no longer than the kernel may trust attributes, and never for long: one that was removed below occupies
//!   its space until it is closed. With `cache=0` nothing is kept.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vnode::{NumberMap, OpenFile, Result, SHARDS, shard_of};

/// Files that are kept open at most. A file is read to its end, or to the end of the read-ahead, before the next one is
/// begun, so this need only exceed the number of programs that read at once.
const MOST: usize = 128;
/// Files are kept open for so long at most.
const LONGEST: Duration = Duration::from_secs(1);

struct Kept {
    file: Arc<dyn OpenFile>,
    opened: Instant,
    /// [`Table::clock`] at its last use.
    used: u64,
}

struct Table {
    files: NumberMap<Kept>,
    clock: u64,
    /// How often files were forgotten, by shard of the node: one that was being opened meanwhile is not kept.
    forgotten: [u64; SHARDS],
    /// There is a thread that closes what was kept long enough.
    swept: bool,
    ended: bool,
}

impl Default for Table {
    fn default() -> Self {
        Self { files: NumberMap::default(), clock: 0, forgotten: [0; SHARDS], swept: false, ended: false }
    }
}

impl Table {
    fn forgotten(&self, node: u64) -> u64 {
        self.forgotten.get(shard_of(node)).copied().unwrap_or(0)
    }

    /// The file of a node, if it is kept and still young.
    fn get(&mut self, node: u64, longest: Duration) -> Option<Arc<dyn OpenFile>> {
        self.clock += 1;
        let kept = self.files.get_mut(&node).filter(|kept| kept.opened.elapsed() < longest)?;
        kept.used = self.clock;
        Some(Arc::clone(&kept.file))
    }

    /// Keeps a file, and answers one that had to go for it.
    fn insert(&mut self, node: u64, file: Arc<dyn OpenFile>) -> Option<Kept> {
        let oldest = if self.files.len() >= MOST && !self.files.contains_key(&node) {
            self.files.iter().min_by_key(|(_, kept)| kept.used).map(|(&node, _)| node)
        } else {
            None
        };
        let gone = oldest.and_then(|oldest| self.files.remove(&oldest));
        self.clock += 1;
        let before = self.files.insert(node, Kept { file, opened: Instant::now(), used: self.clock });
        gone.or(before)
    }

    /// Takes out what was kept for `longest`.
    fn expired(&mut self, longest: Duration) -> Vec<Kept> {
        self.files.extract_if(|_, kept| kept.opened.elapsed() >= longest).map(|(_, kept)| kept).collect()
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

    /// Closes files as their time comes, until the mount ends.
    fn sweep(&self, longest: Duration) {
        let mut table = self.table();
        while !table.ended {
            table = if table.files.is_empty() {
                self.changed.wait(table).unwrap_or_else(PoisonError::into_inner)
            } else {
                self.changed.wait_timeout(table, longest).map_or_else(|error| error.into_inner().0, |(table, _)| table)
            };
            let expired = table.expired(longest);
            // Closing takes system calls: not under the lock.
            drop(table);
            drop(expired);
            table = self.table();
        }
    }
}

/// The open files.
pub(crate) struct Held {
    shared: Arc<Shared>,
    longest: Duration,
}

impl Held {
    /// `cache`: how long the kernel may trust attributes.
    pub(crate) fn new(cache: Duration) -> Self {
        Self { shared: Arc::default(), longest: cache.min(LONGEST) }
    }

    /// The open file of a node; `open` opens it where it is not kept.
    pub(crate) fn get(&self, node: u64, open: impl FnOnce() -> Result<Arc<dyn OpenFile>>) -> Result<Arc<dyn OpenFile>> {
        if self.longest.is_zero() {
            return open();
        }
        let forgotten = {
            let mut table = self.shared.table();
            if let Some(file) = table.get(node, self.longest) {
                return Ok(file);
            }
            table.forgotten(node)
        };
        let file = open()?;
        let mut table = self.shared.table();
        let mut gone = None;
        if table.forgotten(node) == forgotten && (table.swept || self.start_sweeping(&mut table)) {
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

    /// Starts the thread that closes files. Where there is none, nothing is kept.
    fn start_sweeping(&self, table: &mut Table) -> bool {
        let (shared, longest) = (Arc::clone(&self.shared), self.longest);
        let started = std::thread::Builder::new().name("held-files".into()).spawn(move || shared.sweep(longest));
        if let Err(error) = &started {
            tracing::debug!(%error, "no thread to close files: they are opened for each READ");
        }
        table.swept = started.is_ok();
        table.swept
    }

    /// What is read of the node from now on comes from a file that is opened after this.
    pub(crate) fn forget(&self, node: u64) {
        let mut table = self.shared.table();
        if let Some(forgotten) = table.forgotten.get_mut(shard_of(node)) {
            *forgotten += 1;
        }
        let gone = table.files.remove(&node);
        drop(table);
        drop(gone);
    }

    /// The same of all nodes.
    pub(crate) fn forget_all(&self) {
        let mut table = self.shared.table();
        table.forgotten.iter_mut().for_each(|forgotten| *forgotten += 1);
        let gone = std::mem::take(&mut table.files);
        drop(table);
        drop(gone);
    }

    /// How many files are kept open.
    pub(crate) fn len(&self) -> usize {
        self.shared.table().files.len()
    }

    /// Closes all of them, and ends the thread.
    pub(crate) fn end(&self) {
        let mut table = self.shared.table();
        table.ended = true;
        let all = std::mem::take(&mut table.files);
        self.shared.changed.notify_one();
        drop(table);
        drop(all);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.end();
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

    /// Gets a node's file, and counts the openings.
    fn get(held: &Held, node: u64, opened: &Cell<u32>) -> Arc<dyn OpenFile> {
        let open = || {
            opened.set(opened.get() + 1);
            Ok(file())
        };
        held.get(node, open).unwrap()
    }

    #[test]
    fn a_file_is_opened_once_and_again_after_it_was_forgotten() {
        let (held, opened) = (Held::new(CACHE), Cell::new(0));
        assert!(Arc::ptr_eq(&get(&held, 7, &opened), &get(&held, 7, &opened)));
        assert_eq!((opened.get(), held.len()), (1, 1));
        held.forget(7);
        assert_eq!(held.len(), 0);
        get(&held, 7, &opened);
        assert_eq!(opened.get(), 2);
        held.end();
        assert_eq!(held.len(), 0);
    }

    #[test]
    fn what_is_forgotten_while_it_is_opened_is_not_kept() {
        let held = Held::new(CACHE);
        let forgetting = |forget: &dyn Fn()| {
            held.get(7, || {
                forget();
                Ok(file())
            })
            .unwrap();
            held.len()
        };
        assert_eq!(forgetting(&|| held.forget(7)), 0);
        assert_eq!(forgetting(&|| held.forget_all()), 0);
        assert_eq!(forgetting(&|| ()), 1);
        held.forget_all();
        assert_eq!(held.len(), 0);
    }

    #[test]
    fn what_can_not_be_opened_is_not_kept() {
        let held = Held::new(CACHE);
        assert_eq!(held.get(7, || Err(Errno::STALE)).err(), Some(Errno::STALE));
        assert_eq!(held.len(), 0);
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let (held, opened) = (Held::new(CACHE), Cell::new(0));
        let most = MOST as u64;
        (0..most).for_each(|node| drop(get(&held, node, &opened)));
        get(&held, 0, &opened);
        get(&held, most, &opened);
        assert_eq!((opened.get() as usize, held.len()), (MOST + 1, MOST));
        get(&held, 0, &opened);
        assert_eq!(opened.get() as usize, MOST + 1);
        get(&held, 1, &opened);
        assert_eq!(opened.get() as usize, MOST + 2);
    }

    #[test]
    fn nothing_is_kept_longer_than_attributes_are() {
        let (held, opened) = (Held::new(Duration::ZERO), Cell::new(0));
        get(&held, 7, &opened);
        get(&held, 7, &opened);
        assert_eq!((opened.get(), held.len()), (2, 0));

        let (held, opened) = (Held::new(Duration::from_millis(20)), Cell::new(0));
        let file = get(&held, 7, &opened);
        // The thread closes it; this is the last one who holds it.
        while Arc::strong_count(&file) > 1 {
            std::thread::yield_now();
        }
        assert_eq!(held.len(), 0);
        get(&held, 7, &opened);
        assert_eq!(opened.get(), 2);
    }

    #[test]
    fn the_end_ends_the_thread() {
        let held = Held::new(CACHE);
        get(&held, 7, &Cell::new(0));
        let shared = Arc::downgrade(&held.shared);
        drop(held);
        while shared.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}
