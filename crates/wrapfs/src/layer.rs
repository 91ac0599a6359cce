use crate::vnode_impl::WrapVnode;
use std::sync::Arc;
use vnode::{Cx, Layer, Result, Vnode, forward};

/// The null layer over another.
#[derive(Debug)]
pub struct WrapFs {
    lower: Arc<dyn Layer>,
    root: Arc<WrapVnode>,
}

impl WrapFs {
    /// Over `lower`.
    #[must_use]
    pub fn new(lower: Arc<dyn Layer>) -> Arc<Self> {
        let root = Arc::new(WrapVnode::over(lower.root()));
        Arc::new(Self { lower, root })
    }
}

impl Layer for WrapFs {
    fn root(&self) -> Arc<dyn Vnode> {
        self.root.clone()
    }

    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        let lower = self.lower.vnode(cx, number)?;
        if Arc::ptr_eq(&lower, &self.lower.root()) {
            return Ok(self.root());
        }
        Ok(Arc::new(WrapVnode::over(lower)))
    }

    forward!(lower: properties, attach, commands, sync);
}
