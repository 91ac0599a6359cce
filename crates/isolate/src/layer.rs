use crate::guard::{Guard, Health, OnLoss};
use crate::vnode_impl::IsolateVnode;
use std::sync::Arc;
use vnode::{Cx, Layer, Properties, Reports, Result, Vnode, forward};

/// The layer: see the crate's documentation.
#[derive(Debug)]
pub struct Isolate {
    lower: Arc<dyn Layer>,
    root: Arc<IsolateVnode>,
    guard: Arc<Guard>,
}

impl Isolate {
    /// Returns the layer over `lower`, which messages call `name`. With `hangs`, operations that
    /// read run on threads that can be abandoned.
    #[must_use]
    pub fn new(lower: Arc<dyn Layer>, name: &str, hangs: bool, on_loss: OnLoss) -> Arc<Self> {
        let guard = Guard::new(name, lower.root(), hangs, on_loss);
        let root = Arc::new(IsolateVnode::over(lower.root(), &guard));
        // The attributes that a lost file system continues to show.
        let _ = root.getattr(&Cx::internal(0, 0).without_waiting());
        Arc::new(Self { lower, root, guard })
    }

    /// Sets how the file system appears if it is lost.
    pub fn set_on_loss(&self, on_loss: OnLoss) {
        self.guard.set_on_loss(on_loss);
    }

    /// Returns the state of the file system.
    #[must_use]
    pub fn health(&self) -> Health {
        self.guard.health()
    }
}

impl Layer for Isolate {
    fn root(&self) -> Arc<dyn Vnode> {
        self.root.clone()
    }

    forward!(lower: attach, commands, sync, unmounted);

    fn properties(&self) -> Properties {
        let lower = self.lower.properties();
        Properties { may_hang: lower.may_hang || self.guard.calls.is_some(), ..lower }
    }

    fn fingerprint(&self) -> Option<u64> {
        self.lower.fingerprint()
    }

    fn reports(&self) -> Option<Arc<dyn Reports>> {
        // Its directories also change when it is lost or back.
        None
    }

    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        let lower = Arc::clone(&self.lower);
        let found = self.guard.call(cx, move |cx| lower.vnode(cx, number))?;
        if found.id() == self.root.id() {
            return Ok(self.root());
        }
        Ok(Arc::new(IsolateVnode::over(found, &self.guard)))
    }
}
