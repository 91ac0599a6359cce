//! Cached state of the directories in use, by inode number, and their locks.

use crate::managed::Managed;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::{Arc, Weak};
use vnode::{Cx, NumberMap, Result, Vnode};

/// The set-user-id bit.
pub(crate) const FLAG: u32 = 0o4000;

/// Layout of a directory.
#[derive(Debug)]
pub(crate) enum Form {
    /// Not loaded.
    Unknown,
    /// Its entries are in the directory itself.
    Flat,
    /// Its entries are in buckets.
    Managed(Box<Managed>),
}

/// A read lock on a directory's layout.
pub(crate) type Guard<'a> = RwLockReadGuard<'a, Form>;

/// The state of a directory in use.
#[derive(Debug)]
pub(crate) struct DirState {
    id: u64,
    form: RwLock<Form>,
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
        let state = Arc::new(DirState { id, form: RwLock::new(Form::Unknown), table: Arc::downgrade(&self.0) });
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
    pub(crate) fn look(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Guard<'_>> {
        let guard = self.form.read();
        if !matches!(*guard, Form::Unknown) {
            return Ok(guard);
        }
        drop(guard);
        self.change(cx, dir).map(RwLockWriteGuard::downgrade)
    }

    /// Returns the layout, for writing; loads it if necessary.
    pub(crate) fn change(&self, cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<RwLockWriteGuard<'_, Form>> {
        let mut guard = self.form.write();
        if matches!(*guard, Form::Unknown) {
            *guard = load(cx, dir)?;
        }
        Ok(guard)
    }
}

fn load(cx: &Cx<'_>, dir: &Arc<dyn Vnode>) -> Result<Form> {
    if dir.getattr(cx)?.mode & FLAG == 0 {
        return Ok(Form::Flat);
    }
    Managed::load(cx, dir).map(|managed| Form::Managed(Box::new(managed)))
}
