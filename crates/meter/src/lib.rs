//! Between the layers of a stack: counts the operations that pass, and the time that they take below.
//!
//! * A meter lies above a layer and forwards everything. What it measures is the layer below it with all that lies under that one;
//!   a layer's own time is the difference between the meter above it and the one below it.
//! * The time that a listing spends in its receiver, which is code of the layers above, is not counted ([`Meter`] measures it apart).
//! * An operation that is answered [`vnode::MAY_BLOCK`] runs a second time: it is counted once, its time twice.
//! * Counters are kept apart for threads that run side by side, and added up when somebody asks ([`Counts`]).
//! * With the log level at `trace`, each operation is a line of the log, with the layer's name, the outcome, the time and the names that
//!   the layer was called with. Who asked is in the request's line, which follows (`fuse`).
//!
//! Vnodes and open files are wrapped one to one, as those of the null layer are. Data that the kernel reads and writes by passthrough
//! passes no layer, and so no meter.
#![forbid(unsafe_code)]

mod counts;
mod file;
mod layer;
mod vnode_impl;

pub use counts::{Count, Counts};
pub use layer::Meter;
pub use vnode::Operation;

#[cfg(test)]
mod tests;
