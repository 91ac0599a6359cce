//! The null layer, and the template for layers built from hooks.
//!
//! [`WrapFs`] forwards every operation to the layer below and adds nothing. It measures the cost of
//! stacking and is the starting point for a new layer. [`Template`] builds a layer from the
//! [`hooks`] that an author writes.
//!
//! How the null layer forwards:
//!
//! * Vnodes and open files are wrapped one to one. A wrapper is one pointer to the wrapped object:
//!   no locks, no tables, no allocation except the wrapper itself.
//! * Numbers are those of the layer below. Looking up one lower vnode twice returns two wrappers
//!   with the same number. Compare numbers, as the server does, to identify an object.
//! * Open files return the backing file of the layer below, so that the kernel can do I/O on it
//!   directly.
//! * Arguments (the target of a link, the new directory of a rename, the source of a copy) are
//!   unwrapped, so that the layer below receives its own objects.
#![forbid(unsafe_code)]

mod file;
mod file_impl;
pub mod hooks;
mod layer;
mod template;
mod vnode_impl;

pub use layer::{LAYER, WrapFs};
pub use stack::{Build, LayerType, Needs, OptionSpec, Settings, Traits};
pub use template::{Foreign, KeptJournals, KeptWrite, Template};
pub use {container, vnode};

#[cfg(test)]
mod tests;
