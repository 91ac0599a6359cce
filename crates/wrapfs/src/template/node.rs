use super::core::Core;
use super::record::Record;
use crate::hooks::{Object, ObjectInfo, State};
use std::sync::Arc;
use vnode::{Errno, Result, Vnode};

/// A vnode of the layer below, with its hooks.
#[derive(Debug)]
pub(crate) struct TemplateVnode {
    pub(crate) core: Arc<Core>,
    pub(crate) lower: Arc<dyn Vnode>,
    pub(crate) record: Option<Arc<Record>>,
}

impl TemplateVnode {
    pub(crate) fn over(core: &Arc<Core>, lower: Arc<dyn Vnode>) -> Self {
        let record = core.records.as_ref().and_then(|records| records.of(&*lower));
        Self { core: Arc::clone(core), lower, record }
    }

    /// Returns the object as hooks see it.
    pub(crate) fn object(&self) -> Object<'_> {
        Object::with(&*self.lower, self)
    }

    /// Downcasts a vnode argument of the interface to this layer.
    pub(crate) fn same_layer<'a>(&self, other: &'a Arc<dyn Vnode>) -> Result<&'a Self> {
        let other = other.as_any().downcast_ref::<Self>().ok_or(Errno::XDEV)?;
        if Arc::ptr_eq(&self.core, &other.core) { Ok(other) } else { Err(Errno::XDEV) }
    }
}

impl ObjectInfo for TemplateVnode {
    fn hold(&self) -> Result<Arc<dyn Vnode>> {
        Ok(Arc::clone(&self.lower))
    }

    fn path(&self) -> Option<Vec<u8>> {
        self.record.as_ref()?.path()
    }

    fn attached(&self) -> Option<State> {
        self.record.as_ref()?.attached()
    }

    fn attach(&self, state: State) -> Option<State> {
        self.record.as_ref()?.attach(state)
    }
}
