//! The content-addressed versions of a mount: the block store in the root's store.
//!
//! The file of such a version is a symbolic link to its number in the block store, which takes no
//! block of the disk. The block store is opened at the first use.

use crate::set::{find_store, make_dir};
use blockstore::{BlockStore, Options, RecipeId};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use versionset::{Content, Header, STORE};
use vnode::{Cx, Errno, Kind, Layer, Name, OpenFile, Result, Vnode};

/// The directory of the block store, in the root's store.
const DIR: &[u8] = b";blocks";

/// Longest header that a block store accepts, in bytes.
const MAX_HEADER: usize = 64 * 1024;

/// Bytes that one step of the garbage collection reads and writes: changes wait for it.
const GC_STEP: u64 = 1 << 20;

/// Zstandard level of new blocks, and the longest chain of blocks that depend on each other. The
/// conversion takes place in the background, but history is read by people who wait.
const LEVEL: i32 = 19;

/// The content-addressed versions of a mount.
pub(crate) struct VolumeBlocks {
    lower: Arc<dyn Layer>,
    /// Whether another mount may change the store.
    read_only: bool,
    store: Mutex<Option<Arc<BlockStore>>>,
    /// What a version takes on the average, if nothing changed since that was found out.
    share: Mutex<Option<u64>>,
    /// How often version files were moved to another directory.
    moves: AtomicU64,
}

impl fmt::Debug for VolumeBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeBlocks").finish_non_exhaustive()
    }
}

/// A version in the block store.
struct Stored(blockstore::Version);

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stored({:?})", self.0.id())
    }
}

impl Content for Stored {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, cx: &Cx<'_>, out: &mut [u8], offset: u64) -> Result<usize> {
        self.0.read_at(cx, out, offset)
    }

    fn plain(&self) -> Option<&Arc<dyn OpenFile>> {
        None
    }
}

impl VolumeBlocks {
    pub(crate) fn new(lower: Arc<dyn Layer>, read_only: bool) -> Self {
        Self { lower, read_only, store: Mutex::new(None), share: Mutex::new(None), moves: AtomicU64::new(0) }
    }

    /// Returns the block store. `None` if there is none.
    fn existing(&self, cx: &Cx<'_>) -> Result<Option<Arc<BlockStore>>> {
        let mut store = self.store.lock();
        if store.is_none() {
            let Some(dir) = find_store(cx, &self.lower.root())? else { return Ok(None) };
            let found = dir.lookup(cx, Name::new(DIR)?)?;
            let Some(found) = found.filter(|entry| entry.vnode.kind() == Kind::Directory) else { return Ok(None) };
            *store = Some(self.open_dir(cx, found.vnode)?);
        }
        Ok(store.clone())
    }

    fn open_dir(&self, cx: &Cx<'_>, dir: Arc<dyn Vnode>) -> Result<Arc<BlockStore>> {
        BlockStore::open(cx, dir, Options { level: LEVEL, read_only: self.read_only, ..Options::default() })
    }

    /// Returns the block store; creates it if there is none.
    fn any(&self, cx: &Cx<'_>) -> Result<Arc<BlockStore>> {
        if let Some(store) = self.existing(cx)? {
            return Ok(store);
        }
        let dir = make_dir(cx, &make_dir(cx, &self.lower.root(), STORE)?, DIR)?;
        let opened = self.open_dir(cx, dir)?;
        Ok(Arc::clone(self.store.lock().get_or_insert(opened)))
    }

    /// Stores a version durably. `hint` is the number of one that it probably resembles. Returns
    /// its number; `None` if its extended attributes are too large.
    pub(crate) fn put(
        &self,
        cx: &Cx<'_>,
        name: &[u8],
        header: &Header,
        content: &dyn Content,
        hint: Option<u64>,
    ) -> Result<Option<u64>> {
        let Some(header) = header.encode().filter(|header| header.len() <= MAX_HEADER) else { return Ok(None) };
        let store = self.any(cx)?;
        *self.share.lock() = None;
        let mut read = |out: &mut [u8], offset: u64| content.read_at(cx, out, offset);
        let id = store.put_version(cx, name, &header, &mut read, hint.map(RecipeId))?;
        store.sync(cx)?;
        Ok(Some(id.0))
    }

    /// Deletes a version. The garbage collection frees its space.
    pub(crate) fn delete(&self, cx: &Cx<'_>, id: u64) -> Result<()> {
        let Some(store) = self.existing(cx)? else { return Ok(()) };
        *self.share.lock() = None;
        match store.delete(cx, RecipeId(id)) {
            Err(Errno::NOENT) => Ok(()),
            deleted => deleted,
        }
    }

    /// Returns what a version takes on the average, in bytes: blocks are shared.
    pub(crate) fn share(&self, cx: &Cx<'_>) -> Result<u64> {
        if let Some(share) = *self.share.lock() {
            return Ok(share);
        }
        let Some(store) = self.existing(cx)? else { return Ok(0) };
        let usage = store.usage(cx)?;
        let share = usage.bytes / usage.versions.max(1);
        *self.share.lock() = Some(share);
        Ok(share)
    }

    /// Notes that version files come to another directory: a walk may miss them.
    pub(crate) fn moved(&self) {
        self.moves.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns how often version files were moved to another directory.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// Returns the numbers of all versions.
    pub(crate) fn ids(&self, cx: &Cx<'_>) -> Result<BTreeSet<u64>> {
        const AT_ONCE: usize = 4096;
        let Some(store) = self.existing(cx)? else { return Ok(BTreeSet::new()) };
        let (mut all, mut after) = (BTreeSet::new(), None);
        loop {
            let ids = store.ids(after, AT_ONCE);
            let Some(last) = ids.last() else { return Ok(all) };
            after = Some(*last);
            all.extend(ids.iter().map(|id| id.0));
        }
    }

    /// Frees the space of deleted versions.
    pub(crate) fn collect(&self, cx: &Cx<'_>, stops: &dyn Fn() -> bool) -> Result<()> {
        let Some(store) = self.existing(cx)? else { return Ok(()) };
        *self.share.lock() = None;
        while !stops() && !store.gc_step(cx, GC_STEP)?.finished {}
        Ok(())
    }

    fn open_now(&self, cx: &Cx<'_>, id: u64) -> Result<(Header, Arc<dyn Content>)> {
        let store = self.existing(cx)?.ok_or(Errno::IO)?;
        let version = store.version(cx, RecipeId(id)).map_err(|errno| match errno {
            Errno::NOENT => Errno::IO,
            errno => errno,
        })?;
        let header = Header::decode(version.header()).ok_or(Errno::IO)?;
        Ok((header, Arc::new(Stored(version))))
    }
}

impl versionset::Blocks for VolumeBlocks {
    fn open(&self, cx: &Cx<'_>, id: u64) -> Result<(Header, Arc<dyn Content>)> {
        match self.open_now(cx, id) {
            Err(Errno::IO) if self.read_only => {
                // The other mount stored it later, or moved it.
                *self.store.lock() = None;
                self.open_now(cx, id)
            }
            opened => opened,
        }
    }
}
