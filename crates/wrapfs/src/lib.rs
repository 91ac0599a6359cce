//! The null layer: every operation is forwarded to the layer below, nothing is added. It is the yardstick of what stacking
//! costs, and the shape that a layer of one's own begins with.
//!
//! * Vnodes and open files are wrapped one to one: the wrapper is a pointer to what it wraps. No locks, no tables, no
//!   allocation but the wrapper's.
//! * Numbers are those of the layer below. The same lower vnode looked up twice gives two wrappers of one number: who must
//!   know that they are one object, goes by the number, as the server does.
//! * Open files hand out the host file under them, so that the kernel reads and writes it itself.
//! * What comes in as an argument (the target of a link, the new directory of a rename, the source of a copy) is unwrapped, so
//!   that the layer below sees objects of its own.
#![forbid(unsafe_code)]

mod file;
mod file_impl;
pub mod hooks;
mod layer;
mod template;
mod vnode_impl;

pub use layer::{LAYER, WrapFs};
pub use stack::{Build, LayerType, Needs, OptionSpec, Settings, Traits};
pub use template::{Foreign, Template};
pub use {container, vnode};

#[cfg(test)]
mod tests;
