//! Layers as shared objects.
//!
//! `include/strata_layer.h` is the border: a C ABI of its own version, in [`mod@abi`] the same in Rust. [`load`] makes a [`wrapfs::LayerType`] of an
//! object, whose hooks are those of the template (`host`); [`export!`] makes an object of a layer in Rust ([`guest`]), which is the way to
//! mount a layer of one's own without building the server anew.
//!
//! What comes over the border is checked: versions, sizes, functions that must be there, names, lengths, numbers, errnos. What can't be checked is
//! that pointers are good: an object runs with all that the server may do, which is why only objects are loaded that nobody else could
//! have written ([`mod@load`]).

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
