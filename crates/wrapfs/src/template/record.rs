//! What is kept with objects that are in use: the layer's own state and the place that an object was last seen at.
//!
//! Only for layers that ask for one of them. A record lives as long as a vnode or an open file of its object.

use super::guard::guard;
use super::paths::Paths;
use super::table::Table;
use crate::hooks::{Objects, State};
use parking_lot::Mutex;
use std::sync::Arc;
use vnode::Name;

/// The records of a layer.
#[derive(Debug)]
pub(crate) struct Records {
    table: Arc<Table<Record>>,
    hook: Option<Box<dyn Objects>>,
    paths: Option<Paths>,
}

/// Of one object.
#[derive(Debug)]
pub(crate) struct Record {
    id: u64,
    /// Keeps the hook alive that is told of the end.
    records: Arc<Records>,
    state: Mutex<Option<State>>,
}

impl Records {
    /// `None`: the layer asks for nothing that needs them.
    pub(crate) fn new(hook: Option<Box<dyn Objects>>, paths: bool, root: u64) -> Option<Arc<Self>> {
        let paths = paths.then(|| Paths::new(root));
        (hook.is_some() || paths.is_some()).then(|| Arc::new(Self { table: Table::new(), hook, paths }))
    }

    /// The record of an object, made if nobody has it in use.
    pub(crate) fn of(self: &Arc<Self>, id: u64) -> Arc<Record> {
        self.table.get(id).unwrap_or_else(|| {
            let (records, state) = (Arc::clone(self), Mutex::new(None));
            self.table.insert(id, Arc::new(Record { id, records, state }))
        })
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
