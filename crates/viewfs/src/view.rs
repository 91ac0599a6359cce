use core::fmt;
use std::sync::Arc;
use vnode::{Layer, Vnode};

/// A view: its name, and the layer that it shows.
#[derive(Clone)]
pub struct View {
    /// The name.
    pub name: String,
    /// The layer.
    pub layer: Arc<dyn Layer>,
    pub(crate) root: Arc<dyn Vnode>,
}

impl View {
    /// Returns a view of a layer.
    #[must_use]
    pub fn new(name: String, layer: Arc<dyn Layer>) -> Self {
        let root = layer.root();
        Self { name, layer, root }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("name", &self.name).finish_non_exhaustive()
    }
}
