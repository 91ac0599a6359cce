//! Records of objects in use: the layer's own state, the encoding state of a directory, and the
//! last known path.
//!
//! Only for layers that need one of them. A record lives as long as a vnode or an open file of its
//! object.

use super::directory::Loaded;
use super::guard::guard;
use super::paths::Paths;
use super::table::Table;
use crate::hooks::{Objects, State};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vnode::{Cx, Kind, MAY_BLOCK, Name, Result, Vnode};

/// The records of a layer.
#[derive(Debug)]
pub(crate) struct Records {
    table: Arc<Table<Record>>,
    hook: Option<Box<dyn Objects>>,
    paths: Option<Paths>,
    /// Whether directories have encoding state.
    directories: bool,
}

/// The record of one object.
#[derive(Debug)]
pub(crate) struct Record {
    id: u64,
    /// Keeps the hook alive that is notified when the record is dropped.
    records: Arc<Records>,
    state: Mutex<Option<State>>,
    directory: Mutex<Option<Loaded>>,
    /// Whether missing or damaged directory state has been reported.
    reported: AtomicBool,
}

/// The cached encoding state of a directory, locked.
pub(crate) type Slot<'a> = MutexGuard<'a, Option<Loaded>>;

impl Records {
    /// Returns the records of a layer, or `None` if it does not need any.
    pub(crate) fn new(hook: Option<Box<dyn Objects>>, paths: Option<Paths>, directories: bool) -> Option<Arc<Self>> {
        let is_needed = hook.is_some() || paths.is_some() || directories;
        is_needed.then(|| Arc::new(Self { table: Table::new(), hook, paths, directories }))
    }

    /// Returns the record of an object, creating it if the object was not in use; `None` if it
    /// needs none.
    pub(crate) fn of(self: &Arc<Self>, lower: &dyn Vnode) -> Option<Arc<Record>> {
        let is_coded = self.directories && lower.kind() == Kind::Directory;
        if !is_coded && self.hook.is_none() && self.paths.is_none() {
            return None;
        }
        let id = lower.id();
        Some(self.table.get(id).unwrap_or_else(|| {
            let (records, state, directory) = (Arc::clone(self), Mutex::default(), Mutex::default());
            let reported = AtomicBool::new(false);
            self.table.insert(id, Arc::new(Record { id, records, state, directory, reported }))
        }))
    }

    /// Returns the known paths, if the layer needs them.
    pub(crate) fn paths(&self) -> Option<&Paths> {
        self.paths.as_ref()
    }
}

impl Record {
    pub(crate) fn attached(&self) -> Option<State> {
        self.state.lock().clone()
    }

    pub(crate) fn attach(&self, state: State) -> Option<State> {
        self.records.hook.as_ref()?;
        Some(Arc::clone(self.state.lock().get_or_insert(state)))
    }

    pub(crate) fn path(&self) -> Option<Vec<u8>> {
        self.records.paths.as_ref()?.path(self.id)
    }

    /// Locks the encoding state of a directory. If the thread must not block, the request is
    /// retried on another one.
    pub(crate) fn directory(&self, cx: &Cx<'_>) -> Result<Slot<'_>> {
        if cx.may_block { Ok(self.directory.lock()) } else { self.directory.try_lock().ok_or(MAY_BLOCK) }
    }

    /// Whether this is the first report about the directory.
    pub(crate) fn is_first_report(&self) -> bool {
        !self.reported.swap(true, Ordering::Relaxed)
    }

    /// Records that the object was found or created under this name.
    pub(crate) fn found_at(&self, dir: u64, name: Name<'_>) {
        if let Some(paths) = &self.records.paths {
            paths.added(self.id, dir, name);
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.records.table.forget(self.id, self)
            && let Some(paths) = &self.records.paths
        {
            paths.released(self.id);
        }
        if let (Some(hook), Some(state)) = (&self.records.hook, self.state.get_mut().take()) {
            // A panic of the hook has been logged.
            let _ = guard("freed", || {
                hook.freed(self.id, state);
                Ok(())
            });
        }
    }
}
