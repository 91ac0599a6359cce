//! What is kept with objects that are in use: the layer's own state, the state of a directory's names, and the place that an object was
//! last seen at.
//!
//! Only for layers that ask for one of them. A record lives as long as a vnode or an open file of its object.

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
    /// Do directories have a state?
    directories: bool,
}

/// Of one object.
#[derive(Debug)]
pub(crate) struct Record {
    id: u64,
    /// Keeps the hook alive that is told of the end.
    records: Arc<Records>,
    state: Mutex<Option<State>>,
    directory: Mutex<Option<Loaded>>,
    /// It was said that the state of the directory is missing or damaged.
    complained: AtomicBool,
}

/// The state of a directory's names, while one thread looks after it.
pub(crate) type Slot<'a> = MutexGuard<'a, Option<Loaded>>;

impl Records {
    /// `None`: the layer asks for nothing that needs them.
    pub(crate) fn new(hook: Option<Box<dyn Objects>>, paths: Option<Paths>, directories: bool) -> Option<Arc<Self>> {
        let is_needed = hook.is_some() || paths.is_some() || directories;
        is_needed.then(|| Arc::new(Self { table: Table::new(), hook, paths, directories }))
    }

    /// The record of an object, made if nobody has it in use; `None`: it needs none.
    pub(crate) fn of(self: &Arc<Self>, lower: &dyn Vnode) -> Option<Arc<Record>> {
        let is_coded = self.directories && lower.kind() == Kind::Directory;
        if !is_coded && self.hook.is_none() && self.paths.is_none() {
            return None;
        }
        let id = lower.id();
        Some(self.table.get(id).unwrap_or_else(|| {
            let (records, state, directory) = (Arc::clone(self), Mutex::default(), Mutex::default());
            let complained = AtomicBool::new(false);
            self.table.insert(id, Arc::new(Record { id, records, state, directory, complained }))
        }))
    }

    /// Takes note of places, where somebody wants to know them.
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

    /// The state of its names, if it is a directory. A thread that must not wait runs again on another.
    pub(crate) fn directory(&self, cx: &Cx<'_>) -> Result<Slot<'_>> {
        if cx.may_block { Ok(self.directory.lock()) } else { self.directory.try_lock().ok_or(MAY_BLOCK) }
    }

    /// Is this the first time that something is said of it?
    pub(crate) fn complains(&self) -> bool {
        !self.complained.swap(true, Ordering::Relaxed)
    }

    /// The object was found or made at that name.
    pub(crate) fn seen_at(&self, dir: u64, name: Name<'_>) {
        if let Some(paths) = &self.records.paths {
            paths.came(self.id, dir, name);
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.records.table.forget(self.id, self)
            && let Some(paths) = &self.records.paths
        {
            paths.forgotten(self.id);
        }
        if let (Some(hook), Some(state)) = (&self.records.hook, self.state.get_mut().take()) {
            // A hook that panics has been told.
            let _ = guard("freed", || {
                hook.freed(self.id, state);
                Ok(())
            });
        }
    }
}
