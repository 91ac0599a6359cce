//! Data in blocks of a larger, fixed size, behind a header. docs/wrapfs.md lists the guarantees.
//!
//! `coding` encodes and decodes blocks; `file` reads, and restores blocks after an error; `write`,
//! `resize` and `holes` are the other operations; `protect` records them in the journal. `seal`
//! checks blocks against the seal of a file, and `sealed_write` keeps it.

mod coding;
mod file;
mod holes;
mod protect;
mod resize;
mod seal;
mod sealed_write;
mod write;

pub(crate) use file::FormatFile;

use super::guard::guard;
use super::journal::Journal;
use super::parallel;
use super::table::Table;
use crate::hooks::{FileFormat, Layout, Object, Sealed, State};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use seal::SealInUse;
use std::sync::Arc;
use vnode::{Cx, MAY_BLOCK, OpenFlags, Result};

/// Approximate number of bytes that are encoded and passed to the layer below at a time.
const CHUNK: u64 = 256 << 10;

/// A [`FileFormat`] in use.
#[derive(Debug)]
pub(crate) struct Formatted {
    pub(crate) layout: Layout,
    hook: Box<dyn FileFormat>,
    table: Arc<Table<FormatInode>>,
    /// Protects blocks from being torn, if the layer has a journal.
    pub(crate) journal: Option<Journal>,
}

/// State shared by the open files of one inode.
#[derive(Debug)]
pub(crate) struct FormatInode {
    id: u64,
    table: Arc<Table<FormatInode>>,
    /// Held shared by readers, and exclusively for changes of data or size.
    lock: RwLock<()>,
    /// The header, once it has been read or created. `None` while the file is empty.
    header: Mutex<Option<Arc<[u8]>>>,
    /// The seal in the header, once it is needed, if the format has seals.
    seal: Mutex<Option<SealInUse>>,
    /// Held while a segment is compared with the seal, after `lock` and before `seal`.
    checking: Mutex<()>,
}

impl Formatted {
    pub(crate) fn new(layout: Layout, hook: Box<dyn FileFormat>) -> Self {
        parallel::prepare();
        Self { layout, hook, table: Table::new(), journal: None }
    }

    /// Returns the number of blocks processed at a time.
    pub(crate) fn chunk(&self) -> u64 {
        (CHUNK / self.layout.stored()).max(1)
    }

    fn sealed(&self) -> Option<&dyn Sealed> {
        self.hook.sealed()
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed().is_some()
    }

    /// Returns how many bytes at the start of a file's header identify the file.
    pub(crate) fn fixed(&self) -> usize {
        self.sealed().map_or(usize::MAX, Sealed::fixed)
    }

    /// Returns how many bytes of a record in the journal are a file's header.
    pub(crate) fn head(&self) -> usize {
        self.sealed().map_or(0, |_| self.layout.header() as usize)
    }

    /// Calls the hook for a file that is being opened.
    pub(crate) fn opened(&self, cx: &Cx<'_>, file: &Object<'_>, flags: OpenFlags) -> Result<Option<State>> {
        guard("opened", || self.hook.opened(cx, file, flags))
    }

    /// Calls the hook for an open file whose data will be used.
    pub(crate) fn used(&self, cx: &Cx<'_>, opened: Option<&State>) -> Result<()> {
        guard("used", || self.hook.used(cx, opened))
    }

    pub(crate) fn inode(&self, id: u64) -> Arc<FormatInode> {
        self.table.get(id).unwrap_or_else(|| {
            let (table, lock) = (Arc::clone(&self.table), RwLock::default());
            let (header, seal, checking) = (Mutex::default(), Mutex::default(), Mutex::default());
            self.table.insert(id, Arc::new(FormatInode { id, table, lock, header, seal, checking }))
        })
    }
}

impl FormatInode {
    pub(crate) fn share(&self, cx: &Cx<'_>) -> Result<RwLockReadGuard<'_, ()>> {
        if cx.may_block { Ok(self.lock.read()) } else { self.lock.try_read().ok_or(MAY_BLOCK) }
    }

    pub(crate) fn own(&self, cx: &Cx<'_>) -> Result<RwLockWriteGuard<'_, ()>> {
        if cx.may_block { Ok(self.lock.write()) } else { self.lock.try_write().ok_or(MAY_BLOCK) }
    }

    /// Whether an open file has read or written the file's header.
    pub(crate) fn is_known(&self) -> bool {
        self.header.lock().is_some()
    }

    /// Drops the cached header: the file is empty, or may have been replaced.
    pub(crate) fn forget_header(&self) {
        *self.header.lock() = None;
        *self.seal.lock() = None;
    }
}

impl Drop for FormatInode {
    fn drop(&mut self) {
        self.table.forget(self.id, self);
    }
}
