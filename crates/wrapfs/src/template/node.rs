use super::core::Core;
use crate::hooks::Object;
use std::sync::Arc;
use vnode::{Errno, Result, Vnode};

/// A vnode of the layer below, and the hooks that it goes through.
#[derive(Debug)]
pub(crate) struct TemplateVnode {
    pub(crate) core: Arc<Core>,
    pub(crate) lower: Arc<dyn Vnode>,
}

impl TemplateVnode {
    pub(crate) fn over(core: &Arc<Core>, lower: Arc<dyn Vnode>) -> Self {
        Self { core: Arc::clone(core), lower }
    }

    /// What hooks see of it.
    pub(crate) fn object(&self) -> Object<'_> {
        Object::new(&*self.lower)
    }

    /// The vnode of this layer that an argument of the interface is.
    pub(crate) fn same_layer<'a>(&self, other: &'a Arc<dyn Vnode>) -> Result<&'a Self> {
        let other = other.as_any().downcast_ref::<Self>().ok_or(Errno::XDEV)?;
        if Arc::ptr_eq(&self.core, &other.core) { Ok(other) } else { Err(Errno::XDEV) }
    }
}
