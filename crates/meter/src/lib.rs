//! A transparent layer that counts and times the operations of the layer below.
//!
//! * A meter forwards every operation. Its time includes the layer below it and all layers under
//!   that one. The exclusive time of a layer is the difference between the meter above it and the
//!   meter below it.
//! * The callback of a directory listing is code of the layers above. Its time is subtracted.
//! * An operation that returns [`vnode::MAY_BLOCK`] runs a second time. It is counted once; the
//!   time of both runs is added.
//! * Each thread updates one of several sets of counters, so that threads rarely share cache lines.
//!   [`Counts`] adds them up on request.
//! * At log level `trace`, each operation is logged with the layer's name, the result, the time and
//!   the names that it was called with. The caller is part of the request's log line, which follows
//!   (crate `fuse`).
//!
//! Vnodes and open files are wrapped one to one, as in the null layer. Passthrough I/O bypasses all
//! layers, including meters.
#![forbid(unsafe_code)]

mod counts;
mod file;
mod layer;
mod vnode_impl;

pub use counts::{Count, Counts, hide_names_in_trace};
pub use layer::Meter;
pub use vnode::Operation;

#[cfg(test)]
mod tests;
