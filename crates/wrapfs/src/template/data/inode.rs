use super::super::core::Core;
use super::super::guard::guard;
use super::coding::Coding;
use crate::hooks::Object;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::{Arc, Weak};
use vnode::{Cx, MAY_BLOCK, NumberMap, Result, SHARDS, Vnode, shard_of};

/// What the open files of one inode share.
#[derive(Debug)]
pub(crate) struct Inode {
    id: u64,
    core: Arc<Core>,
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
        if let Some(coding) = &self.core.data {
            coding.table.forget(self.id, self);
        }
    }
}

/// The inodes that are open, or being cut, by number. Holds none alive.
#[derive(Debug)]
pub(crate) struct Table {
    shards: Box<[Mutex<NumberMap<Weak<Inode>>>]>,
}

impl Table {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn get(&self, id: u64) -> Option<Arc<Inode>> {
        self.shards.get(shard_of(id))?.lock().get(&id)?.upgrade()
    }

    /// The live inode of the number, or the new one. No inode is dropped while the shard is locked: its `Drop` comes here.
    fn insert(&self, new: Arc<Inode>) -> Arc<Inode> {
        let Some(shard) = self.shards.get(shard_of(new.id)) else { return new };
        let mut shard = shard.lock();
        if let Some(live) = shard.get(&new.id).and_then(Weak::upgrade) {
            drop(shard);
            return live;
        }
        shard.insert(new.id, Arc::downgrade(&new));
        new
    }

    fn forget(&self, id: u64, gone: *const Inode) {
        let Some(shard) = self.shards.get(shard_of(id)) else { return };
        let mut shard = shard.lock();
        if shard.get(&id).is_some_and(|weak| std::ptr::eq(weak.as_ptr(), gone)) {
            shard.remove(&id);
        }
    }
}

impl Coding {
    /// What the open files of a file below share. Whether the file is encoded at all is asked when nobody has it open.
    pub(crate) fn inode(&self, cx: &Cx<'_>, core: &Arc<Core>, file: &dyn Vnode) -> Result<Arc<Inode>> {
        let id = file.id();
        if let Some(live) = self.table.get(id) {
            return Ok(live);
        }
        let coded = guard("applies", || self.hook.applies(cx, &Object::new(file)))?;
        let new = Inode { id, core: Arc::clone(core), coded, lock: RwLock::new(()) };
        Ok(self.table.insert(Arc::new(new)))
    }
}
