use super::super::guard::guard;
use super::super::table::Table;
use super::coding::Coding;
use crate::hooks::Object;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::Arc;
use vnode::{Cx, MAY_BLOCK, Result};

/// What the open files of one inode share.
#[derive(Debug)]
pub(crate) struct Inode {
    id: u64,
    table: Arc<Table<Inode>>,
    /// Are its data changed?
    pub(crate) coded: bool,
    /// Readers of data hold it shared; who changes data or the size, alone: a block is read, changed and written as one.
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
    /// What the open files of a file below share. Whether the file is encoded at all is asked when nobody has it open.
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
