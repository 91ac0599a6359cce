//! An open block store.

use crate::cache::Cache;
use crate::chunk::BlockSizes;
use crate::gc::Gc;
use crate::load;
use crate::name::BlockName;
use crate::pack::Pack;
use crate::recipe::{Recipe, RecipeId};
use crate::table::Tables;
use crate::writer::Writer;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use vnode::{Cx, Errno, Result, Vnode};

/// A function that reads content: fills the buffer from the offset on and returns the number of
/// bytes, 0 only at the end.
pub type Content<'a> = &'a mut dyn FnMut(&mut [u8], u64) -> Result<usize>;

/// Number of packs whose files are kept open.
const OPEN_MAX: usize = 64;

/// How a store works. The format allows all values, so they can change between two opens.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Zstandard level of new blocks: 1 (fast) to 22 (small).
    pub level: i32,
    /// A block is decoded from at most this many others: 0 to 60. With more, versions take less
    /// space and longer to read.
    pub chain: u8,
    /// Sizes of new blocks.
    pub sizes: BlockSizes,
    /// A pack that has this many bytes is complete: 4096 to 1 GiB.
    pub pack_size: u32,
    /// Number of bytes of decoded blocks that are kept in memory.
    pub cache: usize,
    /// Changes nothing: the server of another mount may append to the store. What it stores later
    /// is not seen.
    pub read_only: bool,
    /// The garbage collector rewrites a pack if this part of it is garbage, in percent.
    pub garbage_percent: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            level: 19,
            chain: 48,
            sizes: BlockSizes { single: 128 << 10, min: 16 << 10, avg: 64 << 10, max: 256 << 10 },
            pack_size: 32 << 20,
            cache: 8 << 20,
            read_only: false,
            garbage_percent: 25,
        }
    }
}

impl Options {
    fn check(&self) -> Result<()> {
        let BlockSizes { single, min, avg, max } = self.sizes;
        let sizes = (64..=avg).contains(&min) && (256..=max).contains(&avg) && single <= 1 << 20 && max <= 1 << 20;
        let packs = (4096..=1 << 30).contains(&self.pack_size);
        let valid = sizes && packs && (1..=22).contains(&self.level) && self.chain <= 60 && self.garbage_percent <= 100;
        if valid { Ok(()) } else { Err(Errno::INVAL) }
    }
}

/// What a store contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of versions.
    pub versions: u64,
    /// Number of blocks, including those that no version uses any more.
    pub blocks: u64,
    /// Number of packs.
    pub packs: u64,
    /// Size of all packs in bytes.
    pub bytes: u64,
}

/// A directory of packs. All methods may be called by several threads; changes wait for each
/// other, reads wait for nothing but the tables.
///
/// Locks are taken in this order: the writer, the tables, the caches.
pub struct BlockStore {
    pub(crate) dir: Arc<dyn Vnode>,
    pub(crate) options: Options,
    pub(crate) writer: Mutex<Writer>,
    pub(crate) tables: RwLock<Tables>,
    pub(crate) blocks: Mutex<Cache<BlockName, Vec<u8>>>,
    pub(crate) recipes: Mutex<Cache<RecipeId, Recipe>>,
    /// Versions that are open, and how often. Their blocks are kept.
    pub(crate) readers: Mutex<HashMap<RecipeId, usize>>,
    opened: AtomicUsize,
}

impl BlockStore {
    /// Opens the store in a directory, which may be empty. No other store may use it.
    ///
    /// # Errors
    /// `EMEDIUMTYPE` if a later version of this software wrote it, `EINVAL` for options out of
    /// range, and errors of the directory.
    pub fn open(cx: &Cx<'_>, dir: Arc<dyn Vnode>, options: Options) -> Result<Arc<Self>> {
        options.check()?;
        let loaded = load::load(cx, &dir, options.read_only)?;
        let writer = Writer::new(loaded.next_id, loaded.last, Gc::default());
        Ok(Arc::new(Self {
            dir,
            options,
            writer: Mutex::new(writer),
            tables: RwLock::new(loaded.tables),
            blocks: Mutex::new(Cache::new(options.cache)),
            recipes: Mutex::new(Cache::new(options.cache)),
            readers: Mutex::default(),
            opened: AtomicUsize::new(0),
        }))
    }

    /// Makes everything durable that was stored before.
    ///
    /// # Errors
    /// As fsync(2).
    pub fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        self.writer.lock().sync(cx, self)
    }

    /// Deletes a version. Its space is freed by [`BlockStore::gc_step`]. A reader that is open
    /// continues to work.
    ///
    /// # Errors
    /// `ENOENT` if there is no such version, `EROFS` if the store was opened for reading, and as
    /// write(2).
    pub fn delete(&self, cx: &Cx<'_>, id: RecipeId) -> Result<()> {
        self.require_writable()?;
        let mut writer = self.writer.lock();
        if !self.has(id) {
            return Err(Errno::NOENT);
        }
        writer.delete(cx, self, id)?;
        self.recipes.lock().remove(&id);
        Ok(())
    }

    /// Fails with `EROFS` if the store was opened for reading.
    pub(crate) fn require_writable(&self) -> Result<()> {
        if self.options.read_only { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// Whether there is a version with this id.
    #[must_use]
    pub fn has(&self, id: RecipeId) -> bool {
        self.tables.read().recipes.get(&id).is_some_and(|slot| !slot.deleted)
    }

    /// Returns the ids of up to `max` versions with larger ids than `after`, in ascending order.
    #[must_use]
    pub fn ids(&self, after: Option<RecipeId>, max: usize) -> Vec<RecipeId> {
        let first = after.map_or(0, |id| id.0.saturating_add(1));
        let tables = self.tables.read();
        let slots = tables.recipes.range(RecipeId(first)..).filter(|(_, slot)| !slot.deleted);
        slots.map(|(id, _)| *id).filter(|&id| Some(id) != after).take(max).collect()
    }

    /// Returns what the store contains.
    ///
    /// # Errors
    /// Errors of the files.
    pub fn usage(&self, cx: &Cx<'_>) -> Result<Usage> {
        let (packs, versions, blocks) = {
            let tables = self.tables.read();
            let versions = tables.recipes.values().filter(|slot| !slot.deleted).count();
            let packs: Vec<Arc<Pack>> = tables.packs.values().cloned().collect();
            (packs, versions as u64, tables.block_count() as u64)
        };
        let mut bytes = 0;
        for pack in &packs {
            bytes += pack.size(cx)?;
        }
        Ok(Usage { versions, blocks, packs: packs.len() as u64, bytes })
    }

    /// Closes the files of packs if too many are open. Called before a pack is read.
    pub(crate) fn limit_open(&self, next: &Pack) {
        if next.is_open() || self.opened.fetch_add(1, Ordering::Relaxed) < OPEN_MAX {
            return;
        }
        self.opened.store(0, Ordering::Relaxed);
        for pack in self.tables.read().packs.values() {
            pack.close();
        }
    }
}

impl fmt::Debug for BlockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockStore").field("dir", &self.dir).field("options", &self.options).finish_non_exhaustive()
    }
}
