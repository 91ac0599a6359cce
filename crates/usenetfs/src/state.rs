//! Cached state of the directories in use, by inode number, and their locks.

use crate::managed::Managed;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::{Arc, Weak};
use vnode::{Cx, NumberMap, Result, Vnode};

/// The set-user-id bit.
pub(crate) const FLAG: u32 = 0o4000;

/// Layout of a directory.
#[derive(Debug)]
pub(crate) enum Layout {
    /// Not loaded.
    Unknown,
    /// Its entries are in the directory itself.
    Flat,
    /// Its entries are in buckets.
    Managed(Box<Managed>),
}

/// A read lock on a directory's layout.
pub(crate) type Guard<'a> = RwLockReadGuard<'a, Layout>;

/// The state of a directory in use.
#[derive(Debug)]
pub(crate) struct DirState {
    id: u64,
    layout: RwLock<Layout>,
    table: Weak<Table>,
}

type Table = Mutex<NumberMap<Weak<DirState>>>;

/// The directories in use: those with a live vnode on which an entry was accessed.
#[derive(Debug, Default)]
pub(crate) struct States(Arc<Table>);

impl States {
    pub(crate) fn get(&self, id: u64) -> Arc<DirState> {
        let mut table = self.0.lock();
        if let Some(state) = table.get(&id).and_then(Weak::upgrade) {
            return state;
        }
        let state = Arc::new(DirState { id, layout: RwLock::new(Layout::Unknown), table: Arc::downgrade(&self.0) });
        table.insert(id, Arc::downgrade(&state));
        state
    }

    /// Removes the state of a removed directory, whose inode number may be reused.
    pub(crate) fn forget(&self, id: u64) {
        let _ = self.0.lock().remove(&id);
    }
}

impl Drop for DirState {
    fn drop(&mut self) {
        let Some(table) = self.table.upgrade() else { return };
        let mut table = table.lock();
        // Keep the entry if another thread has replaced it.
        if table.get(&self.id).is_some_and(|known| known.strong_count() == 0) {
            table.remove(&self.id);
        }
    }
}

impl DirState {
    /// Returns the layout, for reading; loads it if necessary. `cx` is the server's.
    pub(crate) fn read_layout(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Guard<'_>> {
        let guard = self.layout.read();
        if !matches!(*guard, Layout::Unknown) {
            return Ok(guard);
        }
        drop(guard);
        self.write_layout(cx, dir).map(RwLockWriteGuard::downgrade)
    }

    /// Returns the layout, for writing; loads it if necessary.
    pub(crate) fn write_layout(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<RwLockWriteGuard<'_, Layout>> {
        let mut guard = self.layout.write();
        if matches!(*guard, Layout::Unknown) {
            *guard = load(cx, dir)?;
        }
        Ok(guard)
    }
}

fn load(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Layout> {
    if dir.getattr(cx)?.mode & FLAG == 0 {
        return Ok(Layout::Flat);
    }
    Managed::load(cx, dir).map(|managed| Layout::Managed(Box::new(managed)))
}
