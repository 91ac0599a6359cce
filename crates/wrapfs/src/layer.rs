use crate::vnode_impl::WrapVnode;
use stack::{Build, LayerType, Manual, Traits};
use std::sync::Arc;
use vnode::{Cx, Layer, Result, Vnode, forward};

/// The `wrapfs` layer type, for the list of layers.
pub const LAYER: LayerType = LayerType {
    name: "wrapfs",
    about: "adds nothing: the null layer, which every layer begins with",
    options: &[],
    build: Build::Over(&|lower, _settings| Ok(WrapFs::new(lower))),
    traits: Traits { keeps_callers_apart: true, manual: Some(&MANUAL), ..Traits::NONE },
};

const MANUAL: Manual = Manual {
    title: "mount a directory through a null layer",
    argument: Some(("DIRECTORY", "the directory to show")),
    description: &[
        "The null layer shows a directory as it is, through the same machinery that the other file systems of Strata are built \
         on. It changes nothing, and so measures what stacking costs.",
    ],
    examples: &[
        ("mount -t wrapfs /usr /mnt", "Show /usr at /mnt."),
        ("mount -t wrapfs /usr /usr", "Cover /usr by itself: all access goes through the layer."),
    ],
};

/// The null layer on top of another layer.
#[derive(Debug)]
pub struct WrapFs {
    lower: Arc<dyn Layer>,
    root: Arc<WrapVnode>,
}

impl WrapFs {
    /// Creates a null layer over `lower`.
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

    forward!(lower: properties, attach, reports, commands, sync, unmounted);
}
