use super::super::guard::guard;
use super::super::table::Table;
use super::coding::Coding;
use crate::hooks::Object;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::Arc;
use vnode::{Cx, MAY_BLOCK, Result};

/// State shared by the open files of one inode.
#[derive(Debug)]
pub(crate) struct Inode {
    id: u64,
    table: Arc<Table<Inode>>,
    /// Whether the data is encoded.
    pub(crate) coded: bool,
    /// Held shared by readers, and exclusively for changes of data or size: reading, changing and
    /// rewriting a block is one step.
    lock: RwLock<()>,
}

impl Inode {
    pub(crate) fn share(&self, cx: &Cx<'_>) -> Result<RwLockReadGuard<'_, ()>> {
        if cx.may_block { Ok(self.lock.read()) } else { self.lock.try_read().ok_or(MAY_BLOCK) }
    }

    pub(crate) fn own(&self, cx: &Cx<'_>) -> Result<RwLockWriteGuard<'_, ()>> {
        if cx.may_block { Ok(self.lock.write()) } else { self.lock.try_write().ok_or(MAY_BLOCK) }
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        self.table.forget(self.id, self);
    }
}

impl Coding {
    /// Returns the state shared by the open files of a file below. The hook is asked whether the
    /// file is encoded only if the file has no open files.
    pub(crate) fn inode(&self, cx: &Cx<'_>, file: &Object<'_>) -> Result<Arc<Inode>> {
        let id = file.id();
        if let Some(live) = self.table.get(id) {
            return Ok(live);
        }
        let coded = guard("applies", || self.hook.applies(cx, file))?;
        let new = Inode { id, table: Arc::clone(&self.table), coded, lock: RwLock::new(()) };
        Ok(self.table.insert(id, Arc::new(new)))
    }
}
