//! Layers as plugins: shared objects that the server loads.
//!
//! The interface is a versioned C ABI, defined in `include/strata_layer.h` and, in Rust, in
//! [`mod@abi`]. [`load()`] turns a shared object into a [`wrapfs::LayerType`] whose hooks are those
//! of the template (`host`). [`export!`] turns a layer in Rust into a shared object ([`guest`]), so
//! that it can be mounted without rebuilding the server.
//!
//! Everything that crosses the ABI is checked: versions, sizes, required functions, names, lengths,
//! numbers, errnos. Pointers cannot be checked. A plugin runs with all privileges of the server, so
//! the server only loads plugins that nobody else could have written ([`mod@load`]).

pub mod abi;
mod convert;
mod elf;
pub mod guest;
mod host;
pub mod load;

pub use load::load;

/// Compiles the examples of docs/examples.md.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/examples.md")]
mod examples {}
