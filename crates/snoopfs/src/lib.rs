//! Warns about attempts to access other users' files (Wrapfs paper, section 4.1): refused accesses
//! and failed guesses of names, by users other than root and the owner. Options protect programs
//! from intruders: the named files can't be overwritten, and no new set-user-id programs can be
//! created.
//!
//! [`layer`] is the layer; it decides which operations cause a warning. [`caller`] identifies the
//! process, with the path from its system call ([`syscall_path`]). [`paths`] maps objects to paths,
//! [`rate_limit`] limits the warnings, and [`rules`] has the protection rules.
#![forbid(unsafe_code)]

mod caller;
mod layer;
mod paths;
mod rate_limit;
mod rules;
mod syscall_path;

pub use layer::LAYER;

#[cfg(test)]
mod tests;
