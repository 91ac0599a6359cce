use super::instance::{Instance, must};
use super::offers::Pointer;
use crate::abi;
use std::sync::Arc;
use wrapfs::hooks::{self, State};

#[derive(Debug)]
pub(super) struct Objects {
    instance: Arc<Instance>,
    freed: abi::Freed,
}

impl Objects {
    pub(super) fn new(instance: &Arc<Instance>, table: abi::Objects) -> Result<Self, String> {
        Ok(Self { instance: instance.clone(), freed: must(table.freed, "freed")? })
    }
}

impl hooks::Objects for Objects {
    fn freed(&self, id: u64, state: State) {
        let Some(pointer) = state.downcast_ref::<Pointer>() else { return };
        // SAFETY: calls the plugin's hook with a pointer that it attached, once for each.
        unsafe { (self.freed)(self.instance.me(), id, pointer.0) };
    }
}
