use crate::vnode_impl::WrapVnode;
use std::sync::Arc;
use vnode::{Cx, Layer, Result, Vnode};

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

    fn read_only(&self) -> bool {
        self.lower.read_only()
    }

    fn may_hang(&self) -> bool {
        self.lower.may_hang()
    }

    fn watches_refusals(&self) -> bool {
        self.lower.watches_refusals()
    }

    fn merges_names(&self) -> bool {
        self.lower.merges_names()
    }

    fn needs_flush(&self) -> bool {
        self.lower.needs_flush()
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        self.lower.sync(cx)
    }
}
