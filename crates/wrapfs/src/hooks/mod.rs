//! What an author writes: each hook is a trait of its own, and a layer has those that it needs.
//!
//! Hooks are called without any lock of the template's that another operation of another file could wait for; a hook may be called
//! from many threads at once. A hook's error reaches the program as that errno; a hook that panics is an `EIO`, and the panic is logged.

mod attributes;
mod data;
mod ioctls;
mod names;
mod operations;
mod set;

pub use attributes::Attributes;
pub use data::{Block, Data, MAX_BLOCK};
pub use ioctls::Ioctls;
pub use names::{Matching, Names};
pub use operations::{Answer, Instead, Op, OpKind, OpSet, Operations, Reply, Verdict};
pub use set::Hooks;

use vnode::{Attr, Cx, Kind, Result, Vnode};

/// The object that a hook is asked about, as it is in the layer below.
#[derive(Clone, Copy, Debug)]
pub struct Object<'a> {
    lower: &'a dyn Vnode,
}

impl<'a> Object<'a> {
    /// What a hook sees of a vnode of the layer below.
    #[must_use]
    pub const fn new(lower: &'a dyn Vnode) -> Self {
        Self { lower }
    }

    /// Its number: the same for ever.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.lower.id()
    }

    /// What it is: the same for ever.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.lower.kind()
    }

    /// Its attributes, as the layer below has them. Costs an operation of that layer: to be asked for only where they matter.
    ///
    /// # Errors
    /// Those of the layer below.
    pub fn attr(&self, cx: &Cx<'_>) -> Result<Attr> {
        self.lower.getattr(cx)
    }

    /// The vnode of the layer below, for hooks that need more.
    #[must_use]
    pub const fn lower(&self) -> &'a dyn Vnode {
        self.lower
    }
}
