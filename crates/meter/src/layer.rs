use crate::vnode_impl::MeterVnode;
use crate::{Counts, Operation};
use std::sync::Arc;
use vnode::{Cx, Layer, Result, Vnode};

/// Measures the layer below it.
#[derive(Debug)]
pub struct Meter {
    lower: Arc<dyn Layer>,
    root: Arc<MeterVnode>,
    counts: &'static Counts,
}

impl Meter {
    /// Over `lower`, which the log calls `name`.
    ///
    /// The counters (about 6 KiB) stay for the life of the process, in which a stack is made once: a vnode that counted who uses them would
    /// cost every look-up a write to a cache line that all processors share.
    #[must_use]
    pub fn new(lower: Arc<dyn Layer>, name: &str) -> Arc<Self> {
        let counts: &'static Counts = Box::leak(Box::new(Counts::new(name)));
        let root = Arc::new(MeterVnode::over(lower.root(), counts));
        Arc::new(Self { lower, root, counts })
    }

    /// What it has counted, to be asked at any time.
    #[must_use]
    pub const fn counts(&self) -> &'static Counts {
        self.counts
    }
}

impl Layer for Meter {
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
        self.counts.begin(Operation::Sync).end(self.lower.sync(cx))
    }
}
