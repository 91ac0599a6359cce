use crate::vnode_impl::MeterVnode;
use crate::{Counts, Operation};
use std::sync::Arc;
use vnode::{Cx, Layer, Result, Vnode, forward};

/// Counts and times the operations of the layer below it.
#[derive(Debug)]
pub struct Meter {
    lower: Arc<dyn Layer>,
    root: Arc<MeterVnode>,
    counts: &'static Counts,
}

impl Meter {
    /// Returns a meter over `lower`, which is logged as `name`.
    #[must_use]
    pub fn new(lower: Arc<dyn Layer>, name: &str) -> Arc<Self> {
        Self::counting(lower, Counts::leaked(name))
    }

    /// Returns a meter over `lower` that continues existing counters, for a layer that was
    /// reopened.
    #[must_use]
    pub fn counting(lower: Arc<dyn Layer>, counts: &'static Counts) -> Arc<Self> {
        let root = Arc::new(MeterVnode::over(lower.root(), counts));
        Arc::new(Self { lower, root, counts })
    }

    /// Returns the counters, which can be read at any time.
    #[must_use]
    pub const fn counts(&self) -> &'static Counts {
        self.counts
    }
}

impl Layer for Meter {
    fn root(&self) -> Arc<dyn Vnode> {
        self.root.clone()
    }

    forward!(lower: properties, attach, reports, commands, unmounted);

    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        let lower = self.counts.begin(Operation::Vnode).end(self.lower.vnode(cx, number))?;
        if Arc::ptr_eq(&lower, &self.lower.root()) {
            return Ok(self.root());
        }
        Ok(Arc::new(MeterVnode::over(lower, self.counts)))
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        self.counts.begin(Operation::Sync).end(self.lower.sync(cx))
    }
}
